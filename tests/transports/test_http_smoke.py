"""The shortest way through every part of the HTTP app."""

import asyncio

from dovetail import Context, Server
from http_wire import HttpWire


def make() -> Server:
    server = Server("smoke", version="1.0.0")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def slow(seconds: float, ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        await asyncio.sleep(seconds)
        return "done"

    return server


async def test_both_eras_on_one_path() -> None:
    app = make().asgi()
    modern, old = HttpWire(app), await HttpWire.session(app, "2025-06-18")
    for wire in (modern, old):
        assert (await wire.call("add", {"a": 1, "b": 2})).answer["result"]["content"][0]["text"] == "3"
    await app.drain()


async def test_a_lost_connection_is_resumed() -> None:
    app = make().asgi()
    wire = await HttpWire.session(app, "2025-11-25")
    call = wire.start_call("slow", {"seconds": 0.1})
    primed = await call.event()
    call.leave()
    await asyncio.sleep(0.2)
    rest = await wire.get(primed.id).done()
    assert rest.answer["result"]["content"][0]["text"] == "done"
    await app.drain()
