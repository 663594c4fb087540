from dataclasses import dataclass, field

from dovetail import Context, Server

server = Server("reader", version="1.0.0")


@dataclass
class Bookmark:
    book: str
    page: int
    notes: list[str] = field(default_factory=list)


@server.tool
async def turn_to(book: str, page: int, ctx: Context) -> None:
    """Remember where the reader is."""
    await ctx.state.set("bookmark", Bookmark(book, page))


@server.tool
async def where(ctx: Context) -> str:
    """Tell where the reader is."""
    bookmark = await ctx.state.get("bookmark", Bookmark)
    return "Nowhere." if bookmark is None else f"{bookmark.book}, page {bookmark.page}"


@server.tool
def read_on(ctx: Context, pages: int = 1) -> int:
    """Turn some pages, and count those of all books."""
    return ctx.wait(ctx.state.update("pages", lambda read: read + pages, int, default=0))


if __name__ == "__main__":
    server.run(state="sqlite:reader.db")
