"""Cached results: by arguments and caller, one flight for equal calls, and nothing that was for one call alone."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail import Client, Context, Request, Server, SetupError, ToolError, ToolResult
from dovetail.auth import Auth, Principal
from dovetail.engine.result_cache import ResultCache
from dovetail.protocol import revisions
from http_serving import serving, settle, until
from http_wire import HttpWire, open_wire, text_of
from server_requests import MODERN
from wire import Wire

EVERY = list(revisions.BY_NAME)


class Lookups:
    """A tool that counts its runs, and waits if the test wants it."""

    def __init__(self, server: Server | None = None, **options: Any) -> None:
        self.server = server or Server("lookups", version="1.0.0")
        self.runs: list[int] = []
        self.go = asyncio.Event()
        self.go.set()
        self.server.add_tool(self.look, **{"cache": 60, **options})

    async def look(self, x: int = 0, fails: bool = False) -> ToolResult:
        self.runs.append(x)
        run = len(self.runs)
        await self.go.wait()
        if fails:
            raise ToolError(f"failed {run}")
        return ToolResult(content="found", structured={"x": x, "run": run}, meta={"seen": []})


@pytest.mark.parametrize("revision", EVERY)
async def test_equal_calls_run_once_and_at_once_they_are_one_flight(revision: str) -> None:
    lookups = Lookups()
    lookups.go.clear()
    async with Client(lookups.server, protocol_version=revision) as client:
        flight = [asyncio.create_task(client.call_tool("look", {"x": 1, "fails": False})) for _ in range(5)]
        await until(lambda: bool(lookups.runs))
        await settle()
        lookups.go.set()
        results = [(await task) for task in flight]
        results.append(await client.call_tool("look", {"fails": False, "x": 1}))  # in another order
        assert lookups.runs == [1]
        assert len({str(result.structured) for result in results}) == 1
        await client.call_tool("look", {"x": 2})
        await client.call_tool("look", {"x": 1})  # other arguments, although they mean the same
        assert lookups.runs == [1, 2, 1]


async def test_results_expire() -> None:
    lookups = Lookups(cache=0.000_001)
    async with Client(lookups.server) as client:
        await client.call_tool("look")
        await client.call_tool("look")
    assert len(lookups.runs) == 2


@pytest.mark.parametrize("bounds", [{"max_entries": 2}, {"max_bytes": 200}], ids=str)
async def test_the_least_used_result_gives_way(bounds: dict[str, int]) -> None:
    lookups = Lookups()
    async with Client(lookups.server) as client:
        lookups.server.engine.result_cache = ResultCache(lookups.server.engine, **bounds)
        for x in (1, 2, 1, 3, 1, 2):
            await client.call_tool("look", {"x": x})
        assert lookups.runs == [1, 2, 3, 2]


async def test_a_failure_is_for_those_in_flight_and_a_cancelled_call_for_none() -> None:
    lookups = Lookups()
    lookups.go.clear()
    async with Wire(lookups.server, MODERN) as wire:

        def start(id: str, **arguments: Any) -> None:
            wire.send(wire.request("tools/call", {"name": "look", "arguments": arguments}, id=id))

        for id in "abc":
            start(id, fails=True)
        await until(lambda: bool(lookups.runs))
        await settle()
        wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "a"}})
        await until(lambda: len(lookups.runs) == 2)  # one of the others runs, and the last waits for it
        await settle()
        lookups.go.set()
        texts = {
            answer["id"]: answer["result"]["content"][0]["text"] for answer in [await wire.receive() for _ in "bc"]
        }
        assert texts == {"b": "failed 2", "c": "failed 2"}
        start("d", fails=True)
        assert (await wire.receive())["result"]["content"][0]["text"] == "failed 3"


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_a_call_that_asks_or_takes_steps_is_for_itself_alone(revision: str) -> None:
    server, runs = Server("asking"), list[str]()

    @server.tool(cache=60)
    async def ask(ctx: Context) -> str:
        runs.append("ask")
        return str((await ctx.elicit("Who?", str)).data)

    @server.tool(cache=60)
    async def step(ctx: Context) -> int:
        runs.append("step")
        return await ctx.step("once", lambda: 1)

    names = iter("abcdef")
    handler = {"elicitation_handler": lambda _: {"value": next(names)}}
    async with Client(server, protocol_version=revision, **handler) as client:
        both = await asyncio.gather(*(client.call_tool("ask") for _ in range(2)))
        assert {result.text for result in [*both, await client.call_tool("ask")]} == {"a", "b", "c"}
        await client.call_tool("step")
        await client.call_tool("step")
    assert runs.count("step") == 2


async def test_refusals_are_not_shared() -> None:
    """A rate limit for each caller refuses one, and not those that wait for the same result."""
    people = {name: Principal(subject=name) for name in ("ann", "bob")}
    server = Server("lookups", auth=Auth(lambda token: people.get(token)))
    lookups = Lookups(server, cache_shared=True, rate_limit="1/day per principal")
    async with serving(lookups.server) as app:
        ann, bob = (HttpWire(app, headers={"authorization": f"Bearer {name}"}) for name in people)
        await ann.call("look", {"x": 1})
        refused, found = await asyncio.gather(ann.call("look", {"x": 2}), bob.call("look", {"x": 2}))
        assert refused.answer["result"]["isError"]
        assert found.answer["result"]["structuredContent"]["x"] == 2
        assert not (await ann.call("look", {"x": 2})).answer["result"]["isError"]  # from the cache: nothing runs


async def test_another_tool_of_the_same_name_begins_anew_and_middleware_changes_no_cached_result() -> None:
    lookups = Lookups()

    @lookups.server.middleware
    async def mark(request: Request, call_next: Any) -> Any:
        result = await call_next(request)
        if request.method == "tools/call":
            result.meta["seen"].append(1)
            result.structured["x"] = "changed"
        return result

    async with Client(lookups.server) as client:
        for _ in range(3):
            result = await client.call_tool("look", {"x": 7})
            assert (result.meta["seen"], result.structured) == ([1], {"x": "changed", "run": 1})
        lookups.server.remove_tool("look")
        lookups.server.add_tool(lookups.look, cache=60)
        assert (await client.call_tool("look", {"x": 7})).structured == {"x": "changed", "run": 2}


SHARED = """
import asyncio
from dovetail import Client, Server, get_context
from dovetail.auth import Principal

server = Server("shared")

@server.tool(cache=60, cache_shared=True)
async def who() -> str:
    return get_context().principal.name

@server.tool
async def caller() -> str:
    return get_context().principal.name

async def main():
    async with Client(server, principal=Principal(subject="ann")) as client:
        for tool in ("caller", "who"):
            print((await client.call_tool(tool, raise_on_error=False)).text)

asyncio.run(main())
"""


def test_a_shared_result_knows_no_caller() -> None:
    """In a process of its own: once `get_context` was imported, every call takes the way past it."""
    done = subprocess.run([sys.executable, "-c", SHARED], capture_output=True, text=True, check=True, timeout=60)
    caller, who = done.stdout.splitlines()
    assert caller == "ann"
    assert "LookupError" in who
    assert "cache_shared=True" in who


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cache": 0}, "cache=0 is not possible; it must be a number of seconds above 0"),
        ({"cache": True}, "cache=True"),
        ({"cache_shared": True}, "add cache="),
        ({"cache": 60, "cache_shared": "yes"}, "cache_shared='yes'"),
        ({"cache": 60, "annotations": {"destructiveHint": True}}, "leave out cache= or destructiveHint"),
        ({"cache": 60, "idempotency": True}, "leave out cache= or idempotency="),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options: Any, words: str) -> None:
    with pytest.raises(SetupError) as refused:
        Server("x").add_tool(lambda: 1, name="look", **options)
    assert words in str(refused.value)
    assert "tool look" in str(refused.value)


def test_a_shared_result_may_not_depend_on_a_context() -> None:
    def look(ctx: Context) -> str:
        return str(ctx.principal)

    with pytest.raises(SetupError, match=r"tool look .*cache_shared=True is for results that depend on no caller"):
        Server("x").add_tool(look, cache=60, cache_shared=True)


# ── isolation ──

CALLERS = ("ann", "bob", "session 1", "session 2", "anonymous 1", "anonymous 2")
MOVES = st.lists(
    st.tuples(
        st.sampled_from(CALLERS),
        st.sampled_from(["cached", "keyed"]),
        st.integers(0, 1),  # the argument
        st.sampled_from(["k" * 40, "l" * 40, None]),
    ),
    max_size=30,
)


@settings(max_examples=25)
@given(moves=MOVES)
async def test_no_caller_gets_the_result_of_another(moves: list[Any]) -> None:
    """Whatever they call, in whatever order: a result comes from a run of the same caller, tool, argument and key."""
    people = {name: Principal(subject=name) for name in ("ann", "bob")}
    runs: list[tuple[Any, ...]] = []

    def serve(**options: Any) -> Server:
        server = Server("isolated", **options)

        def run(tool: str, x: int, ctx: Context) -> str:
            runs.append((ctx.headers["x-caller"], tool, x, ctx.meta.get("dovetail/idempotencyKey")))  # type: ignore[index]
            return str(len(runs) - 1)

        @server.tool(cache=60)
        def cached(x: int, ctx: Context) -> str:
            return run("cached", x, ctx)

        @server.tool(idempotency=True)
        def keyed(x: int, ctx: Context) -> str:
            return run("keyed", x, ctx)

        return server

    async with (
        serving(serve()) as open_app,
        serving(serve(auth=Auth(lambda token: people.get(token)))) as closed_app,
    ):
        wires: dict[str, HttpWire] = {}
        for caller in CALLERS:
            headers: dict[str, str | None] = {"x-caller": caller}
            if caller in people:
                headers["authorization"] = f"Bearer {caller}"
            revision = "2025-11-25" if caller.startswith("session") else MODERN
            wires[caller] = await open_wire(closed_app if caller in people else open_app, revision, headers=headers)
        for caller, tool, x, key in moves:
            if key is not None and caller.startswith("anonymous"):
                key = caller + key  # which is secret: no two of them have the same
            meta = {} if key is None else {"dovetail/idempotencyKey": key}
            before = len(runs)
            answer = (await wires[caller].start_call(tool, {"x": x}, meta=meta).done()).answer
            if "error" in answer:
                assert any(run[0] == caller and run[1:3] == (tool, 1 - x) and run[3] == key for run in runs)
                continue
            run = runs[int(text_of(answer))]
            assert run[:3] == (caller, tool, x)
            if tool == "keyed":
                assert run[3] == key
                assert key is not None or len(runs) == before + 1  # without a key it runs
            elif caller.startswith("anonymous"):
                assert len(runs) == before + 1  # nothing is cached for callers whom the server can't tell apart
