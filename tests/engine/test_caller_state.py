"""`ctx.state`: values of a caller that outlive its calls, the same on every revision, transport and store."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from dovetail import Client, Completion, Context, Server, SetupError, StateError, StoreFull, ToolError
from dovetail.auth import Principal
from dovetail.state.memory import MEBIBYTE
from http_serving import Clock, serving
from http_wire import HttpWire, text_of
from remote_state import RemoteState
from sdk import HANDSHAKE
from server_requests import MODERN, asking_client, is_input_required, play, retry
from state_program import SURE, create_server
from state_stage import KINDS, Stores, WatchedState, identify, known, open_stores, said

WAYS = [("in process", "memory"), ("http", "memory"), *((way, kind) for way in ("stdio", "http") for kind in KINDS[1:])]
DAY = 86_400.0


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    yield from open_stores(tmp_path_factory.mktemp("stores"))


def serving_tool(function: Any, **options: Any) -> Server:
    server = Server("state", **options)
    server.add_tool(function, name="tool")
    return server


async def test_a_request_that_is_repeated_writes_once() -> None:
    async with asking_client(create_server()) as client:
        played = await play(client, "order", {SURE: True})
        assert played.text.startswith("1 2 ")
        first = await client.request("tools/call", {"name": "order"})
        assert is_input_required(first)
        again = {"name": "order", **retry(first, {SURE: True})}
        texts = {str((await client.request("tools/call", again))["content"]) for _ in range(3)}
        assert len(texts) == 1
        assert "3 4 " in texts.pop()
        assert (await client.call_tool("append", {"key": "other", "value": "x"})).text == "x"


# ── whose state ──


CALLERS = {
    "ada of a": Principal(subject="ada", issuer="https://a"),
    "ada of b": Principal(subject="ada", issuer="https://b"),
    "a program": Principal(client="ada", issuer="https://a"),
    "another": Principal(client="bob", issuer="https://a"),
    "neither": Principal(key="k"),
}


async def test_a_principal_has_its_state_in_every_program_and_revision() -> None:
    server = create_server()
    for name, principal in CALLERS.items():
        async with Client(server, principal=principal, protocol_version=HANDSHAKE) as client:
            assert (await client.call_tool("append", {"key": "who", "value": name})).text == name
    same = {**CALLERS, "ada of a": Principal(subject="ada", issuer="https://a", client="other", claims={"x": 1})}
    for name, principal in same.items():
        async with Client(server, principal=principal, protocol_version=MODERN) as client:
            assert (await client.call_tool("read", {"key": "who"})).text == name
    async with Client(server) as client:
        assert (await client.call_tool("keys")).text == ""


async def test_a_session_has_its_state_and_a_caller_that_is_not_known_is_told_the_ways_out() -> None:
    async with serving(create_server(), identify=identify) as app:
        one, two = [await HttpWire.session(app) for _ in range(2)]
        await said(one, "note", key="name", value="Ada")
        assert [await said(wire, "read", key="name") for wire in (one, two, known(app, "ada"))] == ["Ada", "-", "-"]
        for name, arguments in {"read": {"key": "a"}, "note": {"key": "a", "value": "b"}, "keys": {}}.items():
            text = await said(HttpWire(app), name, **arguments)
            assert "auth=" in text
            assert "Handle" in text


async def test_a_resource_that_reads_state_is_not_for_other_callers() -> None:
    server = create_server(ttl_ms=60_000)

    @server.resource("me://name")
    async def name(ctx: Context) -> str:
        return await ctx.state.get("name", str, default="-")

    async with serving(server, identify=identify) as app:
        await said(known(app, "ada"), "note", key="name", value="Ada")
        read = [await known(app, user).ask("resources/read", {"uri": "me://name"}) for user in ("ada", "bob")]
        assert [result["contents"][0]["text"] for result in read] == ["Ada", "-"]
        assert {result["ttlMs"] for result in read} == {0}


# ── values ──


@dataclass
class Trip:
    city: str
    at: datetime
    tags: frozenset[str] = frozenset()


class Note(msgspec.Struct):
    text: str
    trips: list[Trip] = []


TRIP = Trip("Rome", datetime(2026, 7, 28, tzinfo=UTC), frozenset({"a", "b"}))
VALUES: list[tuple[Any, Any]] = [
    (None, None), (5, int), ("é\n\0", str), (b"\xff", bytes), ([1, "a"], list[int | str]),
    ({"a": [1]}, dict[str, list[int]]), (TRIP, Trip),
    (Note("n", [TRIP]), Note), (timedelta(days=1), timedelta), ((1, "a"), tuple[int, str]),
    (7, Annotated[int, msgspec.Meta(ge=5, extra={"unhashable": []})]), (2**80, int), ([1, {"a": None}], Any),
]  # fmt: skip


@pytest.mark.parametrize(("value", "type_"), VALUES, ids=lambda each: str(each)[:30])
async def test_values_come_back_as_their_types(value: Any, type_: Any) -> None:
    async def tool(ctx: Context) -> bool:
        await ctx.state.set("value", value)
        found = await ctx.state.get("value", type_)
        updated = await ctx.state.update("value", lambda held: held, type_)
        return bool(found == updated == value and type(found) is type(updated) is type(value))

    async with Client(serving_tool(tool)) as client:
        assert (await client.call_tool("tool")).text == "true"


BAD_USES = {
    "a key is a text of 1 to 128 characters": [
        lambda ctx: ctx.state.get(""), lambda ctx: ctx.state.set("x" * 129, 1), lambda ctx: ctx.state.delete("\ud800"),
        lambda ctx: ctx.state.update(5, str),
    ],
    r"ctx\.state\['word'\] can't be read as int: value: expected an integer": [
        lambda ctx: ctx.state.get("word", int), lambda ctx: ctx.state.update("word", lambda n: n, int, default=0),
    ],
    r"ctx\.state\['word'\] can't be read as Trip": [lambda ctx: ctx.state.get("word", Trip)],
    r"ctx\.state\['x'\] can't be stored: .*type object": [
        lambda ctx: ctx.state.set("x", object()), lambda ctx: ctx.state.update("x", lambda _: object()),
    ],
    r"ctx\.state\['x'\] can't be stored: .*nan": [lambda ctx: ctx.state.set("x", float("nan"))],
    r"What the function returns for ctx\.state\['x'\] can't be read as list": [
        lambda ctx: ctx.state.update("x", lambda held: held.append(1), list[int], default=[]),
    ],
}  # fmt: skip
BAD_TYPES = {
    "stored type Lock, parameter value: Lock has no JSON form": lambda ctx: ctx.state.get("word", asyncio.Lock),
    "Trip can't be resolved": lambda ctx: ctx.state.get("word", "Trip"),
    "the function of an update is plain": lambda ctx: ctx.state.update("x", asyncio.sleep, default=0),
}  # fmt: skip


async def test_wrong_uses_are_clear_errors_that_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def tool(ctx: Context) -> list[str]:
        await ctx.state.set("word", "text")
        for text, uses in BAD_USES.items():
            for use in uses:
                with pytest.raises(StateError, match=text):
                    await use(ctx)
        for text, use in BAD_TYPES.items():
            with pytest.raises(SetupError, match=text):
                await use(ctx)
        return await ctx.state.keys()

    server = serving_tool(tool, mask_error_details=True)

    @server.tool
    async def unread(ctx: Context) -> Any:
        return await ctx.state.get("word", int)

    @server.tool(thread=False)
    def hurried(ctx: Context) -> str:
        with pytest.raises(RuntimeError, match=r"ctx\.state: a def function with thread=False can't wait"):
            ctx.state.get("word")
        return "refused"

    async with Client(server) as client:
        assert (await client.call_tool("tool")).data == ["word"]
        assert (await client.call_tool("hurried")).text == "refused"
        with pytest.raises(ToolError) as caught:
            await client.call_tool("unread")
    assert str(caught.value) == "The tool unread failed. The details are in the server's log."
    assert "ctx.state['word'] can't be read as int" in caplog.text


async def test_state_of_another_version_is_an_error_and_stays() -> None:
    state = WatchedState()
    async with serving(create_server(), identify=identify, state=state) as app:
        wire = known(app, "ada")
        await said(wire, "note", key="name", value="Ada")
        (key,) = [name for name in state.ttls if name.startswith("caller-state/")]
        await state.put(key, b"\xffnew", ttl=60)
        for name, arguments in {"read": {"key": "name"}, "note": {"key": "name", "value": "Eve"}}.items():
            assert "failed" in await said(wire, name, **arguments)
        assert (await state.get(key)).value == b"\xffnew"


TYPED = """
from typing import Annotated, Literal, assert_type
from dovetail import Context

async def tool(ctx: Context) -> None:
    words = await ctx.state.get("words", list[str], default=[])
    assert_type(words, list[str])
    assert_type(await ctx.state.get("pages", int), int | None)
    assert_type(await ctx.state.get("pages", int, default=0), int)
    assert_type(await ctx.state.get("pages", int, default="none"), int | str)
    assert_type(await ctx.state.update("words", lambda held: [*held, "x"], list[str], default=[]), list[str])
    await ctx.state.update("mood", lambda mood: "good", Literal["good", "bad"], default="bad")
    await ctx.state.update("pages", lambda read: read + 1, Annotated[int, "above 0"], default=0)
    await ctx.state.update("pages", lambda read: read, int | None)
    await ctx.state.update("pages", lambda read: "none", int, default=0)  # type: ignore[arg-type,return-value]
"""


@pytest.mark.slow
def test_the_types_of_values_are_known_to_mypy(tmp_path: Path) -> None:
    cache = Path(__file__).parents[2] / ".mypy_cache" / "of-new-projects"  # so that Dovetail is read once
    words = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), "-c", TYPED]
    checked = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


# ── steps, and where there are none ──


async def test_inside_of_a_step_and_in_a_completion_a_write_happens_at_once() -> None:
    server = create_server()

    @server.tool
    async def stepped(ctx: Context) -> int:
        await ctx.elicit(SURE, bool)
        return await ctx.step("count", lambda: ctx.state.update("count", lambda n: n + 1, int, default=0))

    @server.prompt
    async def greet(name: str, ctx: Context) -> str:
        return f"Hello {name} {await ctx.state.update('count', lambda n: n + 1, int, default=0)}"

    @server.completion(prompt="greet", argument="name")
    async def names(value: str, ctx: Context) -> Completion | list[str]:
        return [str(await ctx.state.update("count", lambda n: n + 1, int, default=0))]

    async with Client(server, elicitation_handler=lambda _: True) as client:
        assert (await client.call_tool("stepped")).text == "1"
        completed = await client.request(
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": ""}},
        )
        assert completed["completion"]["values"] == ["2"]
        assert "Hello Ada 3" in str((await client.get_prompt("greet", {"name": "Ada"})).messages)


# ── bounds ──


async def test_beyond_its_quota_a_caller_gets_store_full_and_can_still_delete() -> None:
    async def tool(ctx: Context, size: int) -> str:
        try:
            await ctx.state.set("large", "x" * size)
        except StoreFull:
            return "caught"
        return "stored"

    state = RemoteState()
    for quota, sizes in ((5_000, {4_900: "stored", 5_000: "caught"}), (1_000, {4_900: "stored", 4_901: "caught"})):
        server = create_server(state_quota=quota)
        server.add_tool(tool)
        async with serving(server, identify=identify, state=state) as app:
            ada, bob = known(app, "ada"), known(app, "bob")
            assert {size: await said(ada, "tool", size=size) for size in sizes} == sizes
            answer = await ada.call("note", {"key": "more", "value": "x" * 5_000})
            assert answer.status == 200
            assert answer.answer["result"]["isError"]
            assert f"the quota is {quota}" in text_of(answer.answer)
            assert await said(bob, "append", key="a", value="b") in ("b", "bb")
            if quota == 1_000:
                assert await said(ada, "forget", key="large") == "true"
                assert await said(ada, "append", key="a", value="b") == "b"


async def test_callers_leave_the_last_quarter_of_the_store_to_others() -> None:
    state = RemoteState(max_entry_bytes=MEBIBYTE)
    async with serving(create_server(), identify=identify, state=state) as app:
        others = known(app, "bob")
        await said(others, "note", key="name", value="Bob")
        answers = [await said(known(app, f"user-{n}"), "note", key="a", value="x" * 60_000) for n in range(20)]
        assert "The server has no room for more state of its callers now" in answers[-1]
        assert await said(others, "read", key="name") == "Bob"
        grown = await said(others, "note", key="name", value="x" * 60_000)  # nor by growing
        assert "no room" in grown
        assert "no room" in await said(others, "fill", item="x" * 60_000)
        await HttpWire.session(app)
        assert await said(others, "forget", key="name") == "true"


async def test_state_expires_after_the_last_write_and_that_of_a_session_after_a_day() -> None:
    clock = Clock()
    state = WatchedState(clock=clock)
    async with serving(create_server(state_ttl=10 * DAY), identify=identify, state=state) as app:
        ada, session = known(app, "ada"), await HttpWire.session(app)
        for wire in (ada, session):
            await said(wire, "note", key="a", value="b")
        assert sorted(ttl for name, ttl in state.ttls.items() if name.startswith("caller-state/")) == [DAY, 10 * DAY]
        for _ in range(2):
            clock.sleep(6 * DAY)
            assert await said(ada, "read", key="a") == "b"
            await said(ada, "note", key="c", value="d")
        clock.sleep(10 * DAY)
        assert await said(ada, "keys") == ""


@pytest.mark.parametrize("kind", KINDS)
async def test_no_update_is_lost(kind: str, stores: Stores) -> None:
    """32 in flight in one process, and in two that share a store."""
    url = stores.url(kind)
    servers = [create_server() for _ in range(1 if kind == "memory" else 2)]
    apps = [server.asgi(state=url, identify=identify) for server in servers]
    try:
        wires = [known(app, "ada") for app in apps]
        basket = await said(wires[0], "fill", item="0")
        work = [(wires[n % len(wires)], n) for n in range(32 * len(wires))]
        counts = await asyncio.gather(*(said(wire, "append", key="text", value="x") for wire, _ in work))
        assert sorted(map(len, counts)) == list(range(1, len(work) + 1))
        await asyncio.gather(*(said(wire, "put", basket=basket, item=f"{n}") for wire, n in work[1:]))
        found = (await said(wires[0], "look", basket=basket)).split()
        assert sorted(map(int, found)) == list(range(len(work)))
    finally:
        for app in apps:
            await app.drain(1)


async def test_an_update_that_others_overtake_all_the_time_gives_up() -> None:
    class Contended(RemoteState):
        async def put(self, key: str, value: bytes, *, ttl: float, if_version: int | None = None) -> int:
            if key.startswith("caller-state/"):
                await super().put(key, value, ttl=ttl)
            return await super().put(key, value, ttl=ttl, if_version=if_version)

    async with serving(create_server(), identify=identify, state=Contended()) as app:
        assert "try again later" in await said(known(app, "ada"), "note", key="a", value="b")


class GatedState(RemoteState):
    """Writes of callers' state wait at a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived, self.gate = asyncio.Event(), asyncio.Event()

    async def put(self, key: str, value: bytes, *, ttl: float, if_version: int | None = None) -> int:
        if key.startswith("caller-state/"):
            self.arrived.set()
            await self.gate.wait()
            await self.travel("put")
        return await super().put(key, value, ttl=ttl, if_version=if_version)


async def test_an_update_ends_when_its_call_is_cancelled_and_the_next_one_sees_it() -> None:
    state = GatedState()
    server = create_server()
    server.engine.state = state
    async with Client(server) as client:
        call = asyncio.create_task(client.call_tool("append", {"key": "text", "value": "a"}))
        await state.arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        later = asyncio.create_task(client.call_tool("append", {"key": "text", "value": "b"}))
        state.gate.set()
        assert (await later).text == "ab"


async def test_a_store_that_fails_in_the_middle_of_an_update_fails_that_call_alone() -> None:
    state = GatedState()
    async with serving(create_server(), identify=identify, state=state) as app:
        call = asyncio.create_task(known(app, "ada").call("append", {"key": "text", "value": "a"}))
        await state.arrived.wait()
        state.break_down()
        state.gate.set()
        answer = await call
        assert answer.status == 503
        assert "does not answer" in answer.answer["error"]["message"]
        state.error = None
        assert await said(known(app, "ada"), "append", key="text", value="b") == "b"
