"""A server whose tools use all that a function may use besides its arguments; as a program it serves stdio."""

import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from dovetail import Context, Depends, Handle, Server, get_context

SURE = "Sure?"


@dataclass
class Basket:
    items: list[str] = field(default_factory=list)

    def put(self, item: str) -> "Basket":
        return Basket([*self.items, item])


async def note(key: str, value: str, ctx: Context) -> None:
    await ctx.state.set(key, value)


async def read(key: str, ctx: Context) -> str:
    return await ctx.state.get(key, str, default="-")


async def read_count(key: str, ctx: Context) -> int:
    return await ctx.state.get(key, int, default=0)


async def append(key: str, value: str, ctx: Context) -> str:
    return await ctx.state.update(key, lambda text: text + value, str, default="")


async def forget(key: str, ctx: Context) -> bool:
    return await ctx.state.delete(key)


async def keys(ctx: Context) -> str:
    return " ".join(sorted(await ctx.state.keys()))


def count(ctx: Context) -> int:
    return ctx.wait(ctx.state.update("count", lambda n: n + 1, int, default=0))


async def order(ctx: Context) -> str:
    """Writes before and after a question, in each way."""
    before = await ctx.state.update("orders", lambda n: n + 1, int, default=0)
    basket = await ctx.new_handle(Basket(["first"]))
    await ctx.elicit(SURE, bool)
    after = await ctx.state.update("orders", lambda n: n + 1, int, default=0)
    last = await basket.update(lambda held: held.put("second"))
    return f"{before} {after} {last.items} {basket}"


async def fill(ctx: Context, item: str = "first") -> Handle[Basket]:
    return await ctx.new_handle(Basket([item]))


async def put(basket: Handle[Basket], item: str) -> str:
    return " ".join((await basket.update(lambda held: held.put(item))).items)


def look(basket: Handle[Basket], ctx: Context) -> str:
    return " ".join(ctx.wait(basket.load()).items)


async def empty(basket: Handle[Basket]) -> None:
    await basket.delete()


def revision() -> str:
    """Code below a tool that is not given the context."""
    return get_context().protocol_version


async def confirmed(ctx: Context) -> AsyncIterator[bool]:
    """A dependency that asks, and counts how often it was left."""
    answer = await ctx.elicit(SURE, bool)
    yield answer.data is True
    await ctx.state.update("left", lambda n: n + 1, int, default=0)


async def depend(sure: Annotated[bool, Depends(confirmed)], served: Annotated[str, Depends(revision)]) -> str:
    return f"{sure} {served} {revision()}"


async def charge(amount: int, ctx: Context) -> str:
    """What may be repeated: each run counts."""
    return f"{amount} {await ctx.state.update('charges', lambda n: n + 1, int, default=0)}"


_prices = itertools.count(1)


def price(article: str) -> str:
    return f"{article} {next(_prices)}"


TOOLS: tuple[Callable[..., Any], ...] = (
    note, read, read_count, append, forget, keys, count, order, fill, put, look, empty, depend,
)  # fmt: skip


def create_server(**options: Any) -> Server:
    server = Server("stateful", version="1.0.0", **options)
    for tool in TOOLS:
        server.add_tool(tool)
    server.add_tool(charge, idempotency=True)
    server.add_tool(price, cache=60, max_result_bytes=200)
    return server


if __name__ == "__main__":
    create_server().run()
