from dovetail import Server

server = Server("adder", version="1.0.0", profile="reference")


@server.tool
def add(a: float, b: float) -> dict[str, float]:
    """Add two numbers."""
    return {"result": a + b}


if __name__ == "__main__":
    server.run()
