from dovetail import Context, Server

server = Server("weather", version="1.0.0")


@server.tool
async def forecast(city: str, ctx: Context) -> str:
    """Tell tomorrow's weather."""
    await ctx.report_progress(1, total=2, message="asking the stations")
    return f"Sun in {city}."


if __name__ == "__main__":
    server.run(transport="http")
