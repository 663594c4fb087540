from dovetail import NotFound, Server

server = Server("library", version="1.0.0")
BOOKS = {"dune": "A desert planet.", "emma": "A matchmaker."}


@server.resource("books://all")
def all_books() -> list[str]:
    """The ids of all books."""
    return sorted(BOOKS)


@server.resource("books://cover.png", mime_type="image/png", annotations={"audience": ["user"], "priority": 0.2})
def cover() -> bytes:
    """The library's logo."""
    return b"\x89PNG\r\n\x1a\n"


@server.resource("books://{book}/summary{?language}", mime_type="text/plain", cache=60)
async def summary(book: str, language: str = "en") -> str:
    """What a book is about."""
    if book not in BOOKS:
        raise NotFound(f"There is no book {book}")
    return f"[{language}] {BOOKS[book]}"


if __name__ == "__main__":
    server.run()
