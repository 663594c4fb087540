import asyncio

from dovetail import Context, Server

server = Server("kitchen", version="1.0.0")


@server.tool
async def bake(minutes: int, ctx: Context) -> str:
    """Bake a cake and tell how it goes."""
    for minute in range(minutes):
        await ctx.report_progress(minute, total=minutes, message="baking")
        await asyncio.sleep(0)
    await ctx.report_progress(minutes, total=minutes, message="done")
    return "A cake."


@server.tool
async def who(ctx: Context) -> dict[str, str | None]:
    """Tell what the server knows about its client."""
    return {"client": ctx.client.name, "revision": ctx.protocol_version}


if __name__ == "__main__":
    server.run()
