from dovetail import Server, ToolRegistry

server = Server("desk", version="1.0.0")
search = Server("search", version="1.0.0")
sums = ToolRegistry()


@search.tool(tags=["public"])
def search_books(text: str) -> str:
    """Search for books."""
    return f"No book about {text}."


@search.tool
def rebuild_index() -> str:
    """Rebuild the index; not for clients of the desk."""
    return "Done."


@server.tool
def learn_to_double() -> str:
    """Learn a new tool while clients are connected."""
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    sums.register_tool("double", "Double a number", schema, lambda number: str(2 * number))
    return "There is a new tool."


@server.tool
def close_the_library() -> bool:
    """Take away what the search offers."""
    return server.unmount(search)


server.mount(search, only=["search*"], tags=["public"])
server.mount(sums, namespace="sums")

if __name__ == "__main__":
    server.run()
