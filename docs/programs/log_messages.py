from dovetail import Context, Server

server = Server("database", version="1.0.0", log_level="warning", redact=["pin"])


@server.tool
async def connect(host: str, ctx: Context) -> str:
    """Connect to the database."""
    await ctx.info(f"connecting to {host}")
    await ctx.warning({"host": host, "password": "hunter2", "pin": 1234}, logger="database")
    return "connected"


@server.tool
def migrate(ctx: Context) -> str:
    """The same in a worker thread: nothing to await."""
    ctx.error("2 rows could not be moved")
    return "done"


if __name__ == "__main__":
    server.run()
