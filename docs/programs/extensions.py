from dovetail import Context, Extension, Server

server = Server("library", version="1.0.0")
BOOKS = {"978-0141439518": "Pride and Prejudice", "978-0140449136": "Crime and Punishment"}
ID = "com.example/books"


def find(words: str, limit: int = 10) -> dict[str, list[str]]:
    """Find books by words of their titles."""
    wanted = words.casefold().split()
    found = [isbn for isbn, title in BOOKS.items() if all(word in title.casefold() for word in wanted)]
    return {"isbns": found[:limit]}


async def opened(isbn: str, ctx: Context) -> None:
    """The user has opened a book in the client."""
    print(f"{ctx.client.name} shows {BOOKS.get(isbn, 'an unknown book')}")


server.add_extension(
    Extension(
        ID,
        {"covers": ["small", "large"]},
        methods={"com.example/books/find": find},
        notifications={"notifications/com.example/books/opened": opened},
    )
)


@server.tool(requires=[ID])
def show(isbn: str, ctx: Context) -> str:
    """Show a book in the client's reader."""
    size = ctx.client.extensions[ID].get("cover", "small")
    return f"reader://{isbn}?cover={size}"


if __name__ == "__main__":
    server.run("http")
