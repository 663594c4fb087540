"""Dovetail on stdin and stdout, as its users run it."""

from dovetail import Server

server = Server("bench", version="1.0.0")


@server.tool
async def add(a: int, b: int) -> int:
    return a + b


if __name__ == "__main__":
    server.run()
