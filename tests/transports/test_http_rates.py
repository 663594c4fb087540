"""A limited call over HTTP: 429 and when to try again where nothing was started, and words where a model reads them."""

import asyncio
from typing import Any

import pytest
from old_client import connected

from dovetail import Server
from http_serving import serving, until
from http_stage import REVISIONS, open_wire, text_of
from http_wire import HttpWire


def limited(**options: Any) -> Server:
    server = Server("limited", version="1.0.0", **options)

    @server.tool
    async def free() -> str:
        return "done"

    @server.tool(rate_limit="1/hour")
    async def dear() -> str:
        return "done"

    return server


@pytest.mark.parametrize("version", REVISIONS)
async def test_the_servers_own_limit_is_a_429(version: str) -> None:
    async with serving(limited(rate_limit="2/hour")) as app:
        wire = await open_wire(app, version)
        for _ in range(2):
            assert text_of((await wire.call("free")).answer) == "done"
        refused = await wire.call("free")
        assert refused.status == 429
        seconds = int(refused.headers["retry-after"])
        assert 0 < seconds <= 3600
        assert refused.json["error"]["data"] == {"retryAfter": seconds}
        assert (await wire.post("tools/list")).status == 200  # which does not count


@pytest.mark.parametrize("version", REVISIONS)
async def test_a_tools_limit_is_told_to_the_model(version: str) -> None:
    async with serving(limited()) as app:
        wire = await open_wire(app, version)
        assert text_of((await wire.call("dear")).answer) == "done"
        told = await wire.call("dear")
        assert (told.status, told.answer["result"]["isError"]) == (200, True)
        assert "dear" in text_of(told.answer)
        assert text_of((await wire.call("free")).answer) == "done"


def crowded(**options: Any) -> tuple[Server, asyncio.Event]:
    """A server with a tool that has one slot, and with `options` for all calls together."""
    server, go = Server("crowded", version="1.0.0", max_queue=0, **options), asyncio.Event()

    @server.tool(max_concurrency=1)
    async def narrow() -> str:
        await go.wait()
        return "done"

    @server.tool
    async def wide() -> str:
        return "done"

    @server.prompt
    async def ask() -> str:
        return "What?"

    return server, go


@pytest.mark.parametrize("version", REVISIONS)
async def test_a_server_without_a_free_slot_is_a_429(version: str) -> None:
    server, go = crowded(max_concurrency=1)
    async with serving(server) as app:
        wire = await open_wire(app, version)
        running = wire.start_call("narrow")
        await until(lambda: server.engine.limit.running == 1)
        for refused in (await wire.call("wide"), await wire.post("prompts/get", {"name": "ask"})):
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert refused.json["error"] == {
                "code": -32603,
                "message": "The server is busy: 1 calls running and 0 waiting; try again in 1 s.",
                "data": {"retryAfter": 1},
            }
        go.set()
        await running.done()
        assert text_of((await wire.call("wide")).answer) == "done"


@pytest.mark.parametrize("version", REVISIONS)
async def test_a_tool_without_a_free_slot_is_told_to_the_model(version: str) -> None:
    server, go = crowded()
    async with serving(server) as app:
        wire = await open_wire(app, version)
        running = wire.start_call("narrow")
        await until(lambda: server.engine.limit.running == 1)
        told = await wire.call("narrow")
        assert (told.status, told.answer["result"]["isError"]) == (200, True)
        assert text_of(told.answer) == "The tool narrow is busy: 1 calls running and 0 waiting; try again in 1 s."
        assert text_of((await wire.call("wide")).answer) == "done"
        go.set()
        await running.done()


@pytest.mark.parametrize(("per", "statuses"), [("principal", [200, 429, 200, 429]), ("address", [200, 429, 429, 429])])
async def test_who_is_counted(per: str, statuses: list[int]) -> None:
    callers = iter(["one", "one", "other", "other"])  # all of them at one address
    server = limited(rate_limit=f"1/hour per {per}")
    async with serving(server, identify=lambda _: next(callers)) as app:
        assert [(await HttpWire(app).call("free")).status for _ in range(4)] == statuses


@pytest.mark.parametrize(("per", "statuses"), [("principal", [200, 429, 429]), ("address", [200, 200, 429])])
async def test_one_caller_at_two_addresses(per: str, statuses: list[int]) -> None:
    server = limited(rate_limit=f"1/day per {per}")
    async with serving(server, identify=lambda _: "ada", trusted_proxies=["127.0.0.1"]) as app:
        addresses = ("192.0.2.1", "192.0.2.2", "192.0.2.1")
        wires = [HttpWire(app, headers={"x-forwarded-for": address}) for address in addresses]
        assert [(await wire.call("free")).status for wire in wires] == statuses


async def test_clients_of_the_older_transport_are_counted_by_address() -> None:
    async with serving(limited(rate_limit="1/hour per address"), trusted_proxies=["127.0.0.1"]) as app:
        refused = []
        for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
            async with connected(app, **{"x-forwarded-for": address}) as client:
                refused.append("error" in await client.ask("tools/call", {"name": "free"}))
        assert refused == [False, True, False]
