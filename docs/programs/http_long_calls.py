import asyncio

from dovetail import Context, Server

server = Server("studio", version="1.0.0")


@server.tool
async def render(frames: int, ctx: Context) -> str:
    """Take a while, without holding a connection for it."""
    await ctx.close_stream(retry=0.2)
    for frame in range(frames):
        await asyncio.sleep(0.1)
        await ctx.report_progress(frame + 1, total=frames)
    return f"{frames} frames"


if __name__ == "__main__":
    server.run(transport="http")
