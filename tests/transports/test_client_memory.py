"""What a client says of itself is kept as the bytes that came: sessions and streams cost what the docs promise."""

import gc
import json
import tracemalloc

import pytest
from client_words import CAPABILITIES, hello, worst
from session_opening import records

from dovetail import Server
from dovetail.protocol.session import MAX_CLIENT, MAX_SUBSCRIPTIONS
from http_serving import serving
from http_wire import CLIENT, META, MODERN, Exchange, HttpWire
from wire import Wire

NUMBER = 20  # of sessions or streams that are measured


@pytest.fixture(autouse=True)
def _judge_emitted_messages() -> None:
    """Not here: the judge of all other tests keeps what it has seen."""


class Kept:
    """How many bytes are held that were not held before, for each of NUMBER."""

    def __enter__(self) -> "Kept":
        gc.collect()
        tracemalloc.start()
        self._before = tracemalloc.get_traced_memory()[0]
        return self

    def measure(self) -> float:
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - self._before) / NUMBER

    def __exit__(self, *_: object) -> None:
        tracemalloc.stop()


async def test_a_session_on_a_pipe_keeps_bytes() -> None:
    server = Server("x", version="1.0.0")
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello(worst(), CLIENT)}).encode()
    async with Wire(server, "2025-06-18"):  # now all is loaded
        with Kept() as kept:
            wires = [Wire(server) for _ in range(NUMBER)]
            for wire in wires:
                await wire.__aenter__()
                wire.send(message)
                await wire.lines.get()
            assert kept.measure() < MAX_CLIENT + 10_000
        for wire in wires:
            await wire.__aexit__()


async def test_a_session_over_http_keeps_bytes() -> None:
    async with serving(Server("x", version="1.0.0")) as app:
        wires = [await HttpWire.session(app)]
        await wires[0].post("ping")  # now all is loaded
        with Kept() as kept:
            for _ in range(NUMBER):
                wires.append(await HttpWire.session(app, capabilities=worst()))
                assert (await wires[-1].post("ping")).status == 200  # which reads the record
            assert kept.measure() < 40_000  # in the state, and for those used last also decoded
        assert all(len(record["capabilities"]) < MAX_CLIENT for record in await records(app))


async def test_a_session_with_all_its_subscriptions_keeps_what_the_docs_say() -> None:
    server = Server("x", version="1.0.0")
    server.add_resource("test://{name}", lambda name: name, name="any")
    async with serving(server) as app:
        first = await HttpWire.session(app)
        await first.ask("resources/subscribe", {"uri": "test://first"})  # now all is loaded
        with Kept() as kept:
            wire = await HttpWire.session(app)
            for number in range(MAX_SUBSCRIPTIONS):
                await wire.ask("resources/subscribe", {"uri": f"test://{number}-".ljust(60, "x")})
            await wire.post("ping")  # which reads the record
            held = kept.measure() * NUMBER  # there is but one
    assert 400_000 < held < 550_000


async def test_a_listen_keeps_only_what_it_hears_of() -> None:
    """Neither its body, nor what it says of itself, nor the URIs beyond those that are honoured."""
    server = Server("x", version="1.0.0")
    server.add_resource("test://one", lambda: "1", name="one")
    asked = ["test://one", *(f"a:{number}" for number in range(20_000))]
    params = {"notifications": {"resourceSubscriptions": asked}, "_meta": {**META, CAPABILITIES: worst()}}
    async with serving(server) as app:
        wire = HttpWire(app)
        message = {**wire.message("subscriptions/listen", params), "junk": "x" * 1_000_000}
        body = json.dumps(message).encode()
        headers = {"mcp-protocol-version": MODERN, "mcp-method": "subscriptions/listen"}
        streams: list[Exchange] = []
        with Kept() as kept:
            for _ in range(NUMBER):
                stream = wire.raw("POST", [bytes(bytearray(body))], headers)
                await stream.message()
                streams.append(stream)
            held = kept.measure()
        for stream in streams:
            stream.leave()
            await stream.done()
    assert held < 60_000
