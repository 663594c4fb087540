"""A storm over a fleet: many clients call, ask, listen and resume, in any weather."""

import asyncio
import random
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from fleet_ledger import Call, Herald, Ledger, Loud, SessionLost, Watcher
from fleet_processes import Fleet
from fleet_raw import HANDSHAKE, connections, modern
from fleet_visitors import Visitor, official_visitor, own_visitor, raw_visitor
from fleet_weather import Weather

BOARDS = 5
OLDER = ("2025-11-25", "2025-06-18")  # what our own client speaks in the handshake era
LONGEST_PAUSE = 0.4  # seconds of a client between two calls
REFUSED_PAUSE = 2.0  # seconds of a client whose call has failed: "try again later", it is told
LAST_TRIES = 100
HEARD_SECONDS = 25.0  # for a change to be heard of by a client whose stream has just been broken


class Storm:
    """Of all `calls` each visitor makes the next one when it has time."""

    def __init__(
        self, fleet: Fleet, folder: Path, revision: str, calls: int, *, visitors: int, seed: int, weather: Weather
    ) -> None:
        self.ledger = Ledger()
        self.fleet = fleet
        self.chance = random.Random(seed)
        self.troubles: list[str] = []  # that the store had
        self.calm = asyncio.Event()  # all calls are made
        self._folder = folder
        self._revision = revision
        self._calls = calls
        self._visitors = visitors
        self._places = iter(range(calls))
        self._weather = weather
        self._watchers: dict[str, list[Watcher]] = {str(board): [] for board in range(BOARDS)}
        self._inside = asyncio.Barrier(visitors + 1)
        self._done = asyncio.Barrier(visitors + 1)
        self._over = asyncio.Event()  # all workers live, and everything has been told

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
        befell = ", ".join([f"{self.fleet.kills} kills", *self.troubles])
        print(f"\n{befell}, {time.monotonic() - began:.0f} s: {self.ledger}")  # noqa: T201
        return self.ledger

    # ── clients ──

    async def _visit(self, number: int) -> None:
        """All of one client, in one task."""
        chance = random.Random(self.chance.random())
        async with self._visitor(number, chance) as visitor:
            await self._inside.wait()
            for place in self._places:  # all visitors share it
                is_answered = await self._make(visitor, self._any_call(f"{number}-{place}", chance))
                await asyncio.sleep(chance.uniform(0, LONGEST_PAUSE) if is_answered else REFUSED_PAUSE)
            await self._done.wait()
            await self._over.wait()
            await self._is_still_there(visitor, number)
            await self._done.wait()

    def _visitor(self, number: int, chance: random.Random) -> AbstractAsyncContextManager[Visitor]:
        if number % 2:
            return official_visitor(self.fleet.url, self._revision, self.ledger)
        watcher = Watcher(f"client {number}", str(number // 2 % BOARDS), self._folder)
        self._watchers[watcher.uri.removeprefix("board://")].append(watcher)
        if self._revision != HANDSHAKE:
            return own_visitor(self.fleet.url, self._revision, watcher)
        if number % 4:
            return own_visitor(self.fleet.url, OLDER[number // 4 % len(OLDER)], watcher)
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
        heard: list[float] = []
        try:
            self.ledger.answer(call, await visitor.call(call.tool, call.arguments, heard), heard)
            return True
        except Loud as loud:
            self.ledger.fail(call, str(loud), heard)
        except (SessionLost, TimeoutError, AssertionError) as wrong:
            self.ledger.made += 1
            self.ledger.accuse(f"{call}: {type(wrong).__name__} {wrong}")
        return False

    async def _is_still_there(self, visitor: Visitor, number: int) -> None:
        """The weather is good again, so this one must succeed, and in the same session."""
        try:
            answer = await visitor.call("echo", {"nonce": "last"}, [])
            assert answer == "last", answer
        except Exception as wrong:
            self.ledger.accuse(f"client {number} is out: {type(wrong).__name__} {wrong}")

    # ── changes ──

    async def _tell(self, board: str) -> None:
        herald = Herald(board, self._touch, self._watchers[board], self.ledger)
        while not self.calm.is_set():
            await herald.once(HEARD_SECONDS)
            await asyncio.sleep(0.3)
        for _ in range(LAST_TRIES):  # the last one
            if await herald.once(HEARD_SECONDS):
                return
            await asyncio.sleep(0.1)
        self.ledger.accuse(f"board {board} could not be written on, though the weather is good again")

    async def _touch(self, board: str, version: int) -> None:
        await modern(self._http, self.fleet.url, "touch_resource", name=board, version=version)
