import asyncio
import time

from dovetail import Context, Server, TaskConfig

server = Server("films", version="1.0.0")


@server.tool(task=True)
async def render(scene: str, ctx: Context, frames: int = 3) -> str:
    """Render a scene, frame by frame."""
    for frame in range(frames):
        await asyncio.sleep(0.1)
        await ctx.report_progress(frame + 1, frames, "Drawing")
    look = await ctx.elicit(f"Keep {scene}?", bool)
    return f"{scene}: {'kept' if look.data else 'thrown away'}"


@server.tool(task=TaskConfig(after=2, timeout=600))
def search(title: str) -> list[str]:
    """Search the archive; a task if it takes longer than two seconds."""
    time.sleep(0.1)
    return [f"{title}, part {number}" for number in (1, 2)]


@server.tool(task=TaskConfig(after=None))
async def delete_all(ctx: Context) -> str:
    """Delete all films."""
    sure = await ctx.elicit("Delete everything?", bool)
    if not sure.data:
        return "Kept."
    await ctx.detach("Deleting")
    await asyncio.sleep(0.1)
    return "Deleted."


if __name__ == "__main__":
    server.run("http")
