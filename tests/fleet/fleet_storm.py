"""A storm over a fleet: many clients call, ask, listen and resume, while workers die or the store has outages."""

import asyncio
import collections
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from fleet_client import HANDSHAKE, TIME_LIMIT, Loud, Notes, RawSession, SessionLost, connections, modern, running
from fleet_processes import Fleet

from dovetail import Client, ConnectionLost, ElicitRequest, ServerError, ToolError

Weather = Callable[["Storm"], Coroutine[Any, Any, None]]

BOARDS = 5
OLDER = ("2025-11-25", "2025-06-18")  # what our own client speaks in the handshake era
LAST_TRIES = 100
NOTIFIED_SECONDS = 25.0  # for a change to reach a client whose stream has just been broken


class Call(NamedTuple):
    """One call to make, and what is right."""

    tool: str
    arguments: dict[str, Any]
    answer: Any
    steps: int = 0  # of progress

    def __str__(self) -> str:
        return f"{self.tool}({self.arguments['nonce']})"


class Ledger(Notes):
    """Counts calls. An answer is right or wrong; a failure is loud or wrong; there is nothing else."""

    def __init__(self) -> None:
        self.made = 0
        self.answered = 0
        self.notified = 0  # changes that reached every watcher
        self.loud: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []

    def answer(self, call: Call, found: Any, received: list[float]) -> None:
        self.made += 1
        self.answered += 1
        if found != call.answer:
            self.wrong.append(f"{call}: answered {found!r}, not {call.answer!r}")
        if received != list(range(1, call.steps + 1)):
            self.wrong.append(f"{call}: of {call.steps} events came {received}")

    def fail(self, call: Call, why: str, received: list[float]) -> None:
        """An error says that it failed; even then no event is missing before the end, and none came twice."""
        self.made += 1
        self.loud[why[:100]] += 1
        if received != list(range(1, len(received) + 1)):
            self.wrong.append(f"{call}: failed ({why}), and before that came {received}")

    def accuse(self, what: str) -> None:
        self.wrong.append(what)

    def __str__(self) -> str:
        reasons = "".join(f"\n  {times:>5}  {why}" for why, times in self.loud.most_common(12))
        return (
            f"{self.made} calls, {self.answered} answered, {self.loud.total()} failed loudly, "
            f"{self.resumed} streams resumed, {self.notified} changes notified to all, {len(self.wrong)} wrong{reasons}"
        )

    def assert_right(self, calls: int) -> None:
        assert not self.wrong, "\n".join([str(self), *self.wrong[:20]])
        assert self.made == calls, self
        assert self.answered > calls / 2, self  # or the storm has proved nothing


class Watcher:
    """A client that subscribes to a board: which number was there when it was last notified."""

    def __init__(self, name: str, board: str, folder: Path) -> None:
        self.name = name
        self.uri = f"board://{board}"
        self.seen = 0
        self.news = asyncio.Event()
        self._file = folder / f"board-{board}"

    def notify(self, uri: str) -> None:
        if uri == self.uri and self._file.exists():
            self.seen = int(self._file.read_text())
            self.news.set()

    async def sees(self, version: int) -> None:
        while self.seen < version:
            self.news.clear()
            await self.news.wait()


# Gives the answer to a call as text. Raises Loud or SessionLost; the list gets the progress.
Visitor = Callable[[str, dict[str, Any], list[float]], Awaitable[Any]]


@asynccontextmanager
async def own_visitor(url: str, revision: str, watcher: Watcher) -> AsyncIterator[Visitor]:
    handshakes: list[bytes] = []

    def note(direction: str, message: bytes) -> None:
        if direction == "sent" and b'"initialize"' in message:
            handshakes.append(message)

    def repeat(question: ElicitRequest) -> str:
        return question.message

    client = Client(url, protocol_version=revision, timeout=TIME_LIMIT, transcript=note, elicitation_handler=repeat)

    async def call(tool: str, arguments: dict[str, Any], received: list[float]) -> Any:
        try:
            result = await client.call_tool(
                tool, arguments, progress_handler=lambda progress, *_: received.append(progress)
            )
        except (ConnectionLost, ServerError, ToolError) as failure:
            raise Loud(str(failure).replace(arguments["nonce"], "…")) from None
        finally:
            if len(handshakes) > 1:
                raise SessionLost("it had to shake hands again")
        return result.text

    async def listen() -> None:
        async for change in changes:
            watcher.notify(change.uri or "")

    async with client, client.listen(uris=[watcher.uri]) as changes, running(listen()):
        yield call


@asynccontextmanager
async def raw_visitor(
    url: str, http: aiohttp.ClientSession, ledger: Ledger, watcher: Watcher, chance: random.Random
) -> AsyncIterator[Visitor]:
    session = await RawSession(http, url, ledger).open(elicitation={})
    session.on_update = watcher.notify
    async with running(session.listen()):
        await asyncio.wait_for(session.is_listening.wait(), TIME_LIMIT)
        await session.ask("resources/subscribe", uri=watcher.uri)
        yield lambda tool, arguments, received: session.call(tool, arguments, received, leave_after=chance.randrange(5))
    await session.delete()


async def calm(_storm: "Storm") -> None:
    """Nothing happens, so nothing may fail."""


async def deaths(storm: "Storm") -> None:
    """Workers are killed at random, one after the other, and started again."""
    while not storm.calm.is_set():
        await asyncio.sleep(storm.chance.uniform(0.8, 1.6))
        victim = storm.chance.choice(storm.fleet.workers)
        victim.kill()
        storm.incidents.append("a worker was killed")
        await asyncio.sleep(storm.chance.uniform(0.0, 0.5))
        await asyncio.to_thread(victim.start)


async def store_outages(storm: "Storm") -> None:
    """Once the store is killed and started again, once it stands still, in any order.

    It has written down all that it has confirmed, so that a `kill -9` makes it forget nothing.
    """
    outages, store = ["restarted", "stood still"], storm.fleet.store
    assert store is not None
    storm.chance.shuffle(outages)
    for outage, share in zip(outages, (0.2, 0.5), strict=True):  # of all calls are done
        while storm.share_made < share:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if outage == "restarted":
            await asyncio.to_thread(store.kill)
            await asyncio.sleep(storm.chance.uniform(0.3, 1.5))
            await asyncio.to_thread(store.start)
        else:
            store.pause()
            await asyncio.sleep(4.0)  # longer than its clients wait
            store.go_on()
        storm.incidents.append(outage)


class Storm:
    """Of all `calls` each visitor makes the next one when it has time."""

    def __init__(
        self, fleet: Fleet, folder: Path, revision: str, calls: int, *, seed: int, weather: Weather, is_short: bool
    ) -> None:
        self.ledger = Ledger()
        self.fleet = fleet
        self.chance = random.Random(seed)
        self.incidents: list[str] = []
        self.calm = asyncio.Event()  # all calls are made
        self._folder = folder
        self._revision = revision
        self._calls = calls
        self._visitors = visitors = 16 if is_short else 50
        # seconds of a client between two calls, at most, and after one that has failed with "try again later"
        self._pause, self._refused_pause = (0.1, 1.0) if is_short else (0.4, 2.0)
        self._places = iter(range(calls))
        self._weather = weather
        self._watchers: dict[str, list[Watcher]] = {str(board): [] for board in range(BOARDS)}
        self._inside = asyncio.Barrier(visitors + 1)
        self._done = asyncio.Barrier(visitors + 1)
        self._over = asyncio.Event()  # all workers live, and every change has been notified

    @property
    def share_made(self) -> float:
        return self.ledger.made / self._calls

    async def run(self) -> Ledger:
        began = time.monotonic()
        async with connections() as self._http, asyncio.TaskGroup() as tasks:
            for number in range(self._visitors):
                tasks.create_task(self._visit(number))
            await self._inside.wait()
            heralds = [tasks.create_task(self._tell(board)) for board in self._watchers]
            weather = tasks.create_task(self._weather(self))
            await self._done.wait()
            self.calm.set()
            await asyncio.gather(weather, *heralds)
            self._over.set()
            await self._done.wait()
        print(f"\n{self.incidents}, {time.monotonic() - began:.0f} s: {self.ledger}")  # noqa: T201
        return self.ledger

    # ── clients ──

    async def _visit(self, number: int) -> None:
        """All of one client, in one task."""
        chance = random.Random(self.chance.random())
        async with self._visitor(number, chance) as visitor:
            await self._inside.wait()
            for place in self._places:  # all visitors share it
                is_answered = await self._make(visitor, self._any_call(f"{number}-{place}", chance))
                await asyncio.sleep(chance.uniform(0, self._pause) if is_answered else self._refused_pause)
            await self._done.wait()
            await self._over.wait()
            await self._is_still_there(visitor, number)
            await self._done.wait()

    def _visitor(self, number: int, chance: random.Random) -> AbstractAsyncContextManager[Visitor]:
        watcher = Watcher(f"client {number}", str(number % BOARDS), self._folder)
        self._watchers[watcher.uri.removeprefix("board://")].append(watcher)
        if self._revision != HANDSHAKE:
            return own_visitor(self.fleet.url, self._revision, watcher)
        if number % 2:
            return own_visitor(self.fleet.url, OLDER[number // 2 % len(OLDER)], watcher)
        return raw_visitor(self.fleet.url, self._http, self.ledger, watcher, chance)

    def _any_call(self, nonce: str, chance: random.Random) -> Call:
        kind = chance.choice(["echo", "count", "count", "ask"])
        if kind == "echo":
            return Call("echo", {"nonce": nonce}, nonce)
        if kind == "ask":
            return Call("ask", {"nonce": nonce}, f"{nonce} {nonce}")
        steps = chance.randint(2, 8)
        arguments = {"nonce": nonce, "steps": steps, "pause": chance.uniform(0, 0.15)}
        return Call("count", arguments | {"let_go_at": chance.randrange(steps)}, f"{nonce} {steps}", steps)

    async def _make(self, visitor: Visitor, call: Call) -> bool:
        """Whether there was an answer."""
        received: list[float] = []
        try:
            self.ledger.answer(call, await visitor(call.tool, call.arguments, received), received)
            return True
        except Loud as loud:
            self.ledger.fail(call, str(loud), received)
        except (SessionLost, TimeoutError, AssertionError) as wrong:
            self.ledger.made += 1
            self.ledger.accuse(f"{call}: {type(wrong).__name__} {wrong}")
        return False

    async def _is_still_there(self, visitor: Visitor, number: int) -> None:
        """The weather is good again, so this one must succeed, and in the same session."""
        try:
            answer = await visitor("echo", {"nonce": "last"}, [])
            assert answer == "last", answer
        except Exception as wrong:
            self.ledger.accuse(f"client {number} is out: {type(wrong).__name__} {wrong}")

    # ── changes ──

    async def _tell(self, board: str) -> None:
        """Write on one board, again and again. Each number reaches its watchers before the next is written: changes may
        come together in one notification, and a lost one shows only if there is never more than one on its way.
        """
        version, last_tries = 0, LAST_TRIES
        while last_tries:
            last_tries -= self.calm.is_set()
            version += 1
            try:
                await modern(self._http, self.fleet.url, "touch_resource", name=board, version=version)
            except Loud:  # it may not have been published
                await asyncio.sleep(0.1)
                continue
            for watcher in self._watchers[board]:
                try:
                    await asyncio.wait_for(watcher.sees(version), NOTIFIED_SECONDS)
                except TimeoutError:
                    received = f"it knows {watcher.seen}"
                    self.ledger.accuse(f"{watcher.name} was not notified of {version} on {watcher.uri}; {received}")
            self.ledger.notified += 1
            if last_tries < LAST_TRIES:
                return
            await asyncio.sleep(0.3)
        self.ledger.accuse(f"board {board} could not be written on, though the weather is good again")
