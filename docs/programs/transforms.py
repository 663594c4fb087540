from dovetail import ArgTransform, Server, ToolTransform

server = Server("library", version="1.0.0")
BOOKS = {"Dune": 1965, "Emma": 1815, "Ulysses": 1922}


def search(q: str, index: str, limit: int = 100) -> list[str]:
    """Query an index."""
    return [f"{title} ({index})" for title in BOOKS if q.lower() in title.lower()][:limit]


server.add_tool(
    search,
    transform=ToolTransform(
        name="find_books",
        description="Find books by their titles.",
        arguments={
            "q": ArgTransform(name="title", description="A part of the title"),
            "index": ArgTransform(hide=True, default="books-2026"),
            "limit": ArgTransform(default=2),
        },
    ),
)

if __name__ == "__main__":
    server.run()
