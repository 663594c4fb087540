"""A server that is too much for a small page: hundreds of tools, calls that never stop talking, long addresses, and
everything that opens a dialog or a list of suggestions.

`python console_crowd.py` serves it with its console, at STAGE_PORT or any port that is free.
"""

import asyncio
import os
from typing import Any, Literal

from dovetail import Console, Context, Server, ToolError

TOOLS = 300
ADDRESS = f"https://sign-in.example/begin?state={'0123456789abcdef' * 16}&end=here"

server = Server("console-crowd", version="1.0.0", page_size=1000)


def number_of(text: str = "") -> str:
    """One of many."""
    return text


for number in range(TOOLS):
    server.add_tool(number_of, name=f"tool_number_{number}")


@server.tool
async def chatty(ctx: Context, messages: int = 2000) -> str:
    """Logs and progress as quick as they can be sent, then it waits to be cancelled."""
    for at in range(messages):
        await ctx.info(f"line {at} of {messages}", logger="chatty")
        await ctx.report_progress(at, messages, f"step {at} of {messages}")
    await asyncio.sleep(600)
    return "nobody cancelled it"


@server.tool
async def flood(ctx: Context) -> str:
    """Logs without a pause until it is cancelled."""
    at = 0
    while True:
        await ctx.info(f"line {at}")
        await asyncio.sleep(0)  # so that the server hears of the end
        at += 1


@server.tool
async def visit(ctx: Context) -> str:
    """Asks the user to open an address that is longer than any line."""
    answer = await ctx.elicit_url("Please sign in before this goes on.", ADDRESS)
    return answer.action


@server.tool
async def choose(ctx: Context) -> str:
    """Asks with a form."""
    answer = await ctx.elicit("Which one?", Literal["tea", "coffee"])
    return answer.action


@server.tool
async def ponder(ctx: Context) -> str:
    """Asks for a model's words."""
    answer = await ctx.sample("What is the answer?", system_prompt="Be short.", max_tokens=50)
    return str(answer)


@server.tool
def people() -> list[dict[str, Any]]:
    """Rows of many columns, and words that have to stay whole."""
    return [
        {"name": name, "is_member": True, "since": "2024-05-17", "email": f"{name.lower()}@mail.example", "visits": at,
         "note": "always comes by train and leaves before the last one", "wants_letters": False}
        for at, name in enumerate(("Ada", "Grace", "Katherine"))
    ]  # fmt: skip


@server.tool
def fail() -> str:
    """Fails on purpose."""
    raise ToolError("It failed, for no reason.")


@server.prompt
def greeting(language: str) -> str:
    """Asks for a greeting."""
    return f"Greet in {language}."


@server.completion(prompt="greeting", argument="language")
def languages(value: str) -> list[str]:
    return [language for language in ("estonian", "finnish", "french") if language.startswith(value)]


if __name__ == "__main__":
    server.run("http", port=int(os.environ.get("STAGE_PORT", "0")), routes=Console(server).routes())
