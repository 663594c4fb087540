from dovetail import Server

server = Server("greeter", version="1.0.0", profile="pocket", argument_errors="result")


@server.tool
def greet(name: str) -> str:
    """Greet someone."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    server.run()
