from dovetail import Server

server = Server("shop", version="1.0.0", telemetry=True)


@server.tool
async def order(article: str, pieces: int = 1) -> str:
    """Order an article."""
    return f"{pieces} {article} ordered."


if __name__ == "__main__":
    server.run(transport="http", metrics=True, access_log=True)
