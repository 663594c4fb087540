from dovetail import Context, Server

server = Server("counter", version="1.0.0")
counter = {"value": 0}


@server.resource("counter://value")
def value() -> int:
    """How far it has counted."""
    return counter["value"]


@server.tool
async def count(ctx: Context) -> int:
    """Count one further."""
    counter["value"] += 1
    await ctx.notify_resource_updated("counter://value")
    return counter["value"]


if __name__ == "__main__":
    server.run()
