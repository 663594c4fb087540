from dovetail import Icon, Server

server = Server(
    "library",
    version="2.1.0",
    title="City library",
    description="Books of the city library, and who has them.",
    website_url="https://library.example.com",
    icons=[Icon("https://library.example.com/icon.png", mime_type="image/png", sizes=["48x48"])],
    instructions="Search for a book before you lend it. Ask the user before you lend more than three.",
    timeout=20,
)


@server.tool
def search(title: str) -> list[str]:
    """Books whose title has these words."""
    return [book for book in ("The Tempest", "Twelfth Night") if title.lower() in book.lower()]


if __name__ == "__main__":
    server.run()
