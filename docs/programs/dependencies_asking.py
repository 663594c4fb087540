from typing import Annotated

from dovetail import Context, Depends, Server, ToolError, get_context

server = Server("shop", version="1.0.0")


async def confirm(ctx: Context) -> None:
    answer = await ctx.elicit("Really?", bool)
    if not answer.data:
        raise ToolError("The user does not want that.")


def signed(text: str) -> str:
    """Code below a tool that takes no context."""
    return f"{text} for {get_context().client.name}."


@server.tool
async def pay(amount: int, confirmed: Annotated[None, Depends(confirm)]) -> str:
    """Pay, if the user agrees."""
    return signed(f"{amount} paid")


if __name__ == "__main__":
    server.run()
