"""A server that asks whatever a server can ask, and tells what it heard. `python console_questions.py` serves it."""

import asyncio
import os

from dovetail import Console, Context, ElicitUrl, Server, UrlElicitationRequired

server = Server("console-questions", version="1.0.0")
PAGE = "https://pay.example/invoice/7"


@server.tool
async def ask_model(ctx: Context) -> str:
    """Asks the model of the client."""
    said = await ctx.sample("Name a fruit.", system_prompt="Be brief.\nBe kind.", max_tokens=50)
    return f"the model said {said.text}"


@server.tool
async def visit(ctx: Context) -> str:
    """Asks to visit a page."""
    answer = await ctx.elicit_url("Please pay.", PAGE)
    return f"the visit: {answer.action}"


paid = False


@server.tool
def need_visit() -> str:
    """Works only after a page was visited."""
    global paid
    if not paid:
        paid = True  # by the visit
        raise UrlElicitationRequired(ElicitUrl("Pay first.", PAGE))
    paid = False
    return "it was paid"


@server.tool
async def folders(ctx: Context) -> str:
    """Asks for the roots."""
    return "told of " + (", ".join(root.uri for root in await ctx.list_roots()) or "nothing")


@server.tool
async def slow(ctx: Context, steps: int, says: bool = False) -> str:
    """Takes a while, and may say how far it is."""
    for step in range(steps):
        if says:
            await ctx.report_progress(step, steps)
        await asyncio.sleep(0.3)
    return "finished"


@server.tool
def tenant(ctx: Context) -> str:
    """Says whose call it is."""
    return f"for {(ctx.headers or {}).get('x-tenant', 'nobody')}"


if __name__ == "__main__":
    server.run("http", port=int(os.environ.get("STAGE_PORT", "0")), routes=Console(server).routes())
