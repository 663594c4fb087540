from dovetail import Server, ToolAnnotations

server = Server("shelf", version="1.0.0")
books = {"dune": "sand", "emma": "tea"}
HERE = {"openWorldHint": False}  # nothing but this shelf


@server.tool(annotations={**HERE, "readOnlyHint": True})
def find(text: str) -> list[str]:
    """Find books by what they are about."""
    return [name for name, about in books.items() if text in about]


@server.tool(annotations={**HERE, "destructiveHint": False, "idempotentHint": False})
def note(name: str, text: str) -> str:
    """Add a note to a book."""
    books[name] = f"{books.get(name, '')} {text}".strip()
    return books[name]


@server.tool(annotations=ToolAnnotations(destructive_hint=True, idempotent_hint=True, open_world_hint=False))
def discard(name: str) -> str:
    """Throw a book away."""
    return "Gone." if books.pop(name, None) else "It was not there."


@server.tool
def order(name: str) -> str:
    """Order a book from a shop. Nothing is said of it, so that clients assume the worst."""
    return f"{name} is on its way."


if __name__ == "__main__":
    server.run()
