from dovetail import Server

server = Server("workshop", version="1.0.0")


def polish(thing: str) -> str:
    """Make something shine."""
    return f"The {thing} shines."


@server.tool
def unpack() -> str:
    """Bring out a tool that was not there before."""
    server.add_tool(polish)
    return "There is a new tool."


@server.tool
def tidy_up() -> str:
    """Put it away again."""
    return "It is gone." if server.remove_tool("polish") else "It was not there."


if __name__ == "__main__":
    server.run()
