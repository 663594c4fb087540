from typing import Annotated, Literal, TypedDict

from dovetail import Field, Server

server = Server("shop", version="1.0.0")


class Order(TypedDict):
    article: str
    size: str
    total: float


@server.tool(title="Place an order", annotations={"destructiveHint": False, "idempotentHint": False})
async def place_order(
    article: str,
    pieces: Annotated[int, Field(ge=1, le=100)] = 1,
    size: Literal["S", "M", "L"] = "M",
) -> Order:
    """Order something from the shop.

    Args:
        article: What to order.
        pieces: How many of them.
    """
    return {"article": article, "size": size, "total": 9.5 * pieces}


if __name__ == "__main__":
    server.run()
