from dovetail import Context, MissingCapability, Server

server = Server("reader", version="1.0.0")


@server.tool
async def summarise(text: str, ctx: Context) -> str:
    """Sum up a text, with the client's own model if it lends it."""
    try:
        answer = await ctx.sample(f"Sum up in one sentence:\n{text}", max_tokens=200)
    except MissingCapability:
        return text[:100]
    return answer.text


@server.tool(requires=["roots"])
async def folders(ctx: Context) -> list[str]:
    """The folders that the client works in."""
    return [root.uri for root in await ctx.list_roots()]


@server.tool
def rename(old: str, ctx: Context) -> str:
    """A def function waits for the answer in its thread."""
    answer = ctx.wait(ctx.elicit(f"A new name for {old}?", str))
    return f"{old} is now {answer.data}" if answer.accepted else f"{old} it stays"


if __name__ == "__main__":
    server.run()
