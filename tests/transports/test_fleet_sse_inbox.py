"""What HTTP+SSE clients post to a fleet: what is accepted reaches the stream once and in order, the rest is refused."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import Busy
from dovetail.state.base import StoreTrouble
from dovetail.transports import sse_inbox
from dovetail.transports.sse_inbox import FULL_BYTES, SseInboxes
from http_serving import Clock, PausingState, settle, until
from http_stage import Stage
from http_wire import Exchange, HttpWire

HELLO = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
LARGE = 200_000  # bytes: a few such answers, and a client that does not read keeps its calls waiting
MEGABYTES = 4_000_000
BEAT = 15.0


class FarState(PausingState):
    """`fate` may say that a call fails, before it has happened or after."""

    shared = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fate: Callable[[str], str | None] = lambda name: None

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("get", "put", "touch", "publish"):
            return found

        async def asked(*arguments: Any, **options: Any) -> Any:
            fate = self.fate(name)
            if fate == "never asked":
                raise StoreTrouble
            answer = await found(*arguments, **options)
            if fate == "never answered":
                raise StoreTrouble
            return answer

        return asked

    @property
    def bytes(self) -> int:
        return self._entries.size + self._logs.size


# ── whole workers ──


class SseFleet:
    """Three workers, and a client whose stream the first one holds."""

    def __init__(self) -> None:
        self.state = FarState()
        self.apps = []
        for _ in range(3):
            server = Stage().server
            server.add_tool(self.large)
            self.apps.append(server.asgi(state=self.state))
        self.stream: Exchange
        self._address = ("", "")

    async def large(self) -> str:
        return "x" * LARGE

    async def open(self) -> None:
        for app in self.apps:
            await app.start()
        self.stream = HttpWire(self.apps[0], "2024-11-05").raw("GET", path="/sse")
        path, _, query = (await self.stream.event()).data.decode().partition("?")
        self._address = path, query
        assert await self.post({"id": 0, "method": "initialize", "params": HELLO}, 1) == 202
        await self.stream.message()
        assert await self.post({"method": "notifications/initialized"}, 2) == 202

    async def post(self, message: dict[str, Any], at: int) -> int:
        return (await self.posted(message, at)).status

    async def posted(self, message: dict[str, Any], at: int) -> Exchange:
        path, query = self._address
        headers: dict[str, str | None] = {"content-type": "application/json"}
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        return await HttpWire(self.apps[at]).raw("POST", body, headers, path=path, query=query).done()

    async def stop_reading(self) -> None:
        """Until the calls wait for the client to read."""
        self.stream.stall()
        for number in range(10):
            call = {"id": f"large {number}", "method": "tools/call", "params": {"name": "large", "arguments": {}}}
            assert await self.post(call, 1) == 202
            await settle(50)

    @property
    def answered(self) -> list[Any]:
        """The ids of what was answered since the handshake, in order."""
        heard = [json.loads(event.data) for event in self.stream.events if event.event == "message"]
        return [message["id"] for message in heard[1:] if isinstance(message["id"], int)]

    async def close(self) -> None:
        self.stream.leave()
        await self.stream.done()
        for app in self.apps:
            await asyncio.wait_for(app.drain(0.2), 10)
        assert not self.state._topics.names


def heavy(id: int, size: int) -> dict[str, Any]:
    return {"id": id, "method": "ping", "params": {"_meta": {"x": "y" * size}}}


@pytest.fixture
async def fleet() -> AsyncIterator[SseFleet]:
    fleet = SseFleet()
    await fleet.open()
    yield fleet
    await fleet.close()


@pytest.mark.parametrize("workers", [[1], [1, 2], [0, 1, 2]], ids=["one", "two", "all"])
async def test_a_burst_is_answered_completely(fleet: SseFleet, workers: list[int]) -> None:
    pings = ({"id": number, "method": "ping"} for number in range(1, 301))
    posts = (fleet.post(ping, workers[ping["id"] % len(workers)]) for ping in pings)
    assert set(await asyncio.gather(*posts)) == {202}
    await fleet.stream.until(lambda: len(fleet.answered) >= 300)
    await settle()
    assert sorted(fleet.answered) == list(range(1, 301))


async def test_what_was_accepted_while_the_client_did_not_read_is_answered(fleet: SseFleet) -> None:
    await fleet.stop_reading()
    taken = [n for n in range(100, 250) if await fleet.post({"id": n, "method": "ping"}, 1 + n % 2) == 202]
    assert len(taken) == 150
    fleet.stream.read_on()
    await fleet.stream.until(lambda: len(fleet.answered) >= 150)
    await settle()
    assert fleet.answered == taken


@pytest.mark.parametrize(("size", "count"), [(MEGABYTES, 4), (LARGE, 6), (20_000, 24)])
async def test_a_client_that_does_not_read_fills_no_store(
    fleet: SseFleet, size: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse_inbox, "ROOM_SECONDS", 0.05)
    await fleet.stop_reading()
    before = fleet.state.bytes
    posted = [await fleet.posted(heavy(n, size), 1 + n % 2) for n in range(1, count + 1)]
    assert fleet.state.bytes - before < max(FULL_BYTES, size) + 1000
    statuses = [each.status for each in posted]
    refused = posted[statuses.index(503)]
    assert refused.headers["retry-after"] == "1"
    assert "must read" in refused.json["error"]["message"]
    fleet.stream.read_on()
    taken = [n for n, status in enumerate(statuses, 1) if status == 202]
    await fleet.stream.until(lambda: len(fleet.answered) == len(taken))
    assert await fleet.post(heavy(99, size), 1) == 202
    await fleet.stream.until(lambda: 99 in fleet.answered)
    assert fleet.answered == [*taken, 99]


async def test_a_message_waits_for_room(fleet: SseFleet) -> None:
    await fleet.stop_reading()
    posts = [asyncio.create_task(fleet.post(heavy(n, MEGABYTES), 1)) for n in range(1, 5)]
    await asyncio.sleep(0.2)
    assert not all(post.done() for post in posts)
    fleet.stream.read_on()
    assert await asyncio.gather(*posts) == [202] * 4
    await fleet.stream.until(lambda: len(fleet.answered) == 4)


async def test_a_worker_posts_to_its_own_stream_without_writing_to_the_store(fleet: SseFleet) -> None:
    asked: list[str] = []
    fleet.state.fate = asked.append  # type: ignore[assignment]
    assert await fleet.post({"id": 1, "method": "ping"}, 0) == 202
    fleet.state.fate = lambda name: None
    assert "put" not in asked
    assert "publish" not in asked


# ── inboxes ──


class Inboxes:
    """Of three workers; the first one has a stream, which keeps what it is fed while `reads` is set."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.state = FarState(clock=self.clock)
        self.at = [SseInboxes(self.state, beat=BEAT) for _ in range(3)]
        self.fed: list[bytes] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def feed(self, body: bytes) -> bool:
        await self.reads.wait()
        self.fed.append(body)
        return True

    async def arrived(self, count: int) -> list[bytes]:
        await until(lambda: len(self.fed) >= count)
        await settle(50)
        return self.fed


@asynccontextmanager
async def inboxes(owner: str | None = None) -> AsyncIterator[Inboxes]:
    each = Inboxes()
    async with each.at[0].open("x", owner, each.feed):
        yield each
    assert each.state.held == 0


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(0, 30))
async def test_who_waits_for_its_answer_keeps_its_order(workers: list[int], stalled: int) -> None:
    async with inboxes() as each:
        for number, worker in enumerate(workers):
            if number == stalled:
                each.reads.clear()
            if worker == 0:
                each.reads.set()  # it waits for the stream itself
            assert await each.at[worker].post("x", b"%d" % number)
        each.reads.set()
        assert await each.arrived(len(workers)) == [b"%d" % number for number in range(len(workers))]


@pytest.mark.parametrize("fate", ["never asked", "never answered"])
@pytest.mark.parametrize("call", ["get", "put"])
async def test_nothing_is_lost_or_fed_twice_if_taking_fails(
    fate: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.state.base.AGAIN_SECONDS", 0.01)
    async with inboxes() as each:
        each.reads.clear()
        await each.at[1].post("x", b"0")
        await settle(50)  # the stream waits with it
        await each.at[1].post("x", b"1")
        await each.at[2].post("x", b"2")
        fates = iter([fate, fate])
        each.state.fate = lambda name: next(fates, None) if name == call else None
        each.reads.set()
        await each.arrived(1)
        await asyncio.sleep(0.05)
        each.state.fate = lambda name: None
        await each.at[1].post("x", b"3")
        assert await each.arrived(4) == [b"0", b"1", b"2", b"3"]


async def test_what_nobody_could_tell_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.BEAT", 0.05)
    async with inboxes() as each:
        each.state.fate = lambda name: "never asked" if name == "publish" else None
        assert await each.at[1].post("x", b"1")
        assert await each.arrived(1) == [b"1"]


async def test_a_post_whose_answer_was_lost_is_not_said_to_be_taken() -> None:
    async with inboxes() as each:
        each.state.fate = lambda name: "never answered" if name == "put" else None
        with pytest.raises(StoreTrouble):
            await each.at[1].post("x", b"1")
        each.state.fate = lambda name: None
        assert await each.at[1].post("x", b"2")
        assert await each.arrived(2) == [b"1", b"2"]  # it was there, once


async def test_one_that_leaves_while_it_waits_takes_nothing_with_it() -> None:
    """A post at the worker of the stream takes what was posted elsewhere; another goes on with that."""
    async with inboxes() as each:
        each.reads.clear()
        for number in range(3):
            await each.at[1].post("x", b"%d" % number)
        await settle(50)
        own = asyncio.create_task(each.at[0].post("x", b"own"))
        await each.at[2].post("x", b"3")
        await settle(50)
        own.cancel()
        each.reads.set()
        assert await each.arrived(4) == [b"0", b"1", b"2", b"3"]


async def test_an_inbox_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_inbox, "ROOM_SECONDS", 0.05)
    async with inboxes() as each:
        each.reads.clear()
        taken = 0
        with suppress(Busy):
            while taken < FULL_BYTES and await each.at[1 + taken % 2].post("x", b"p"):
                taken += 1
        assert 500 < taken < 5000
        assert each.state.bytes < 2 * FULL_BYTES
        each.reads.set()
        await each.arrived(taken)
        assert len(each.fed) == taken


async def test_those_who_wait_for_their_turn_are_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_inbox, "ROOM_SECONDS", 0.1)
    async with inboxes() as each:
        each.reads.clear()
        for _ in range(2):  # one waits with the stream, one in the inbox
            await each.at[1].post("x", b"x" * FULL_BYTES)
            await settle(50)
        posts = [each.at[1].post("x", b"late") for _ in range(20)]
        async with asyncio.timeout(1):
            refused = await asyncio.gather(*posts, return_exceptions=True)
        assert {type(each) for each in refused} == {Busy}
        del refused, posts
        each.reads.set()
        await each.arrived(2)
        assert await each.at[1].post("x", b"now")
        assert (await each.arrived(3))[2] == b"now"
    gc.collect()
    assert not each.at[1]._turns


async def test_the_inbox_of_a_lost_worker_expires_soon() -> None:
    async with inboxes() as each:
        each.reads.clear()
        for _ in range(2):
            await each.at[1].post("x", b"x" * FULL_BYTES)
            await settle(50)
        assert each.state.bytes > FULL_BYTES
        each.clock.sleep(BEAT * sse_inbox.MISSED_BEATS + 1)  # nobody says that it stays
        assert not await each.at[1].is_elsewhere("x", None)
        assert not await each.at[1].post("x", b"late")
        assert each.state.bytes == 0
        each.reads.set()


async def test_a_stream_that_could_not_show_itself_is_found_again() -> None:
    async with inboxes() as each:
        await each.at[1].post("x", b"1")
        await each.arrived(1)
        for number in (b"2", b"3"):
            each.clock.sleep(3600)
            assert not await each.at[1].is_elsewhere("x", None)
            await each.at[0].stay("x", None)
            assert await each.at[1].post("x", number)
            await settle(50)
        assert await each.arrived(3) == [b"1", b"2", b"3"]


async def test_a_stream_belongs_to_its_owner() -> None:
    async with inboxes("ann") as each:
        for worker in each.at:
            assert await worker.post("x", b"hers", "ann")
            for other in ("bob", None, "", "=ann"):
                assert not await worker.is_elsewhere("x", other)
                assert not await worker.post("x", b"not hers", other)
        assert await each.arrived(3) == [b"hers"] * 3
