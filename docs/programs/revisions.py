from dovetail import Context, ResourceLink, Server

server = Server("stars", version="1.0.0", title="A catalog of stars")


@server.tool(title="Nearest stars")
def nearest(count: int = 2) -> list[str]:
    """The nearest stars, the nearest first."""
    return ["Sun", "Proxima Centauri", "Barnard's Star"][:count]


@server.tool
async def chart(ctx: Context) -> ResourceLink:
    """Where to find a chart."""
    await ctx.report_progress(1, total=1, message=f"answering in {ctx.protocol_version}")
    return ResourceLink(uri="stars://chart", name="chart", title="A chart of the sky")


if __name__ == "__main__":
    server.run()
