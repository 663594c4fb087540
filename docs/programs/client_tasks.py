import asyncio

from dovetail import Client, Context, Server

server = Server("films", version="1.0.0")


@server.tool(task=True)
async def render(scene: str, ctx: Context) -> str:
    """Draw a film."""
    size = await ctx.elicit("Which size?", ["small", "large"])
    for frame in range(3):
        await ctx.report_progress(frame + 1, 3, "Drawing")
        await asyncio.sleep(0.01)
    return f"A {size.data} film of a {scene}."


async def main() -> None:
    async with Client(server, tasks=True, elicitation_handler=lambda question: "small") as client:
        task = await client.start_tool("render", {"scene": "beach"})
        async for update in task:
            print(update.status, update.message)
        print((await task.wait()).text)


if __name__ == "__main__":
    asyncio.run(main())
