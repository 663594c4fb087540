import asyncio
import random

from dovetail import Context, Server

server = Server("shop", version="1.0.0")
orders: list[str] = []


@server.tool
async def order(ctx: Context) -> str:
    """Take an order."""
    number = await ctx.step("number", lambda: random.randint(1000, 9999))  # chance: fixed by a step
    size, colour = await asyncio.gather(  # asked together: one round
        ctx.elicit(f"Order {number}: which size?", ["S", "M", "L"]),
        ctx.elicit(f"Order {number}: which colour?", ["red", "blue"]),
    )
    sure = await ctx.elicit(f"{size.data}, {colour.data}: is that right?", bool)  # depends on answers: fine
    if not (sure.accepted and sure.data):
        return "Nothing ordered."
    await ctx.step("order", lambda: orders.append(f"{number}: {size.data} {colour.data}"))  # an effect: once
    return f"Ordered {number}."


if __name__ == "__main__":
    server.run()
