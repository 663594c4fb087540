from dataclasses import dataclass, field

from dovetail import Context, Handle, Server

server = Server("shop", version="1.0.0")


@dataclass
class Basket:
    items: list[str] = field(default_factory=list)


@server.tool
async def new_basket(ctx: Context) -> Handle[Basket]:
    """Make an empty basket, and give out its id."""
    return await ctx.new_handle(Basket())


@server.tool
async def put(basket: Handle[Basket], item: str) -> list[str]:
    """Put an item into a basket."""
    filled = await basket.update(lambda held: Basket([*held.items, item]))
    return filled.items


@server.tool
async def buy(basket: Handle[Basket]) -> str:
    """Buy what is in a basket; then the basket is gone."""
    items = (await basket.load()).items
    await basket.delete()
    return f"You bought {', '.join(items) or 'nothing'}."


if __name__ == "__main__":
    server.run(transport="http")
