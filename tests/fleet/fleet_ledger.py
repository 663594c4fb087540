"""The books of a storm: what was called, what came back, what was heard. Whatever is not right ends up in `wrong`."""

import asyncio
import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Loud(Exception):
    """A call failed, and its caller was told so: by an error or a status, not by silence."""


class SessionLost(Exception):
    """A server has forgotten a session that nobody ended."""


class Call(NamedTuple):
    """One call to make, and what is right."""

    tool: str
    arguments: dict[str, Any]
    answer: Any
    steps: int = 0  # of progress

    def __str__(self) -> str:
        return f"{self.tool}({self.arguments['nonce']})"


class Ledger:
    """Counts calls. An answer is right or wrong; a failure is loud or wrong; there is nothing else."""

    def __init__(self) -> None:
        self.made = 0
        self.answered = 0
        self.resumed = 0
        self.forgiven = 0  # calls in which the official client had events repeated to it (fleet_visitors.Traffic)
        self.told = 0  # changes that everyone who should has heard of
        self.loud: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []

    def answer(self, call: Call, found: Any, heard: list[float]) -> None:
        self.made += 1
        self.answered += 1
        if found != call.answer:
            self.wrong.append(f"{call}: answered {found!r}, not {call.answer!r}")
        if heard != list(range(1, call.steps + 1)):
            self.wrong.append(f"{call}: of {call.steps} events came {heard}")

    def fail(self, call: Call, why: str, heard: list[float]) -> None:
        """Told that it failed; even then no event is missing before the end, and none came twice."""
        self.made += 1
        self.loud[why[:100]] += 1
        if heard != list(range(1, len(heard) + 1)):
            self.wrong.append(f"{call}: failed ({why}), and before that came {heard}")

    def accuse(self, what: str) -> None:
        self.wrong.append(what)

    def __str__(self) -> str:
        reasons = "".join(f"\n  {times:>5}  {why}" for why, times in self.loud.most_common(12))
        return (
            f"{self.made} calls, {self.answered} answered, {self.loud.total()} failed loudly, "
            f"{self.resumed} streams resumed, {self.told} changes heard by all, {len(self.wrong)} wrong, "
            f"{self.forgiven} repeats forgiven to the official client{reasons}"
        )

    def assert_right(self, calls: int) -> None:
        assert not self.wrong, "\n".join([str(self), *self.wrong[:20]])
        assert self.made == calls, self
        assert self.answered > calls / 2, self  # or the storm has proved nothing

    def assert_no_worker_was_lost(self) -> None:
        """No worker died, so nobody may be told that one did."""
        assert not [why for why in self.loud if "worker" in why and "lost" in why], self


class Watcher:
    """Somebody who wants to hear of a board: which number stood there when they last heard of it."""

    def __init__(self, name: str, board: str, folder: Path) -> None:
        self.name = name
        self.uri = f"board://{board}"
        self.seen = 0
        self.news = asyncio.Event()
        self._file = folder / f"board-{board}"

    def hear(self, uri: str) -> None:
        if uri == self.uri and self._file.exists():
            self.seen = int(self._file.read_text())
            self.news.set()

    async def sees(self, version: int) -> None:
        while self.seen < version:
            self.news.clear()
            await self.news.wait()


class Herald:
    """Writes on one board, again and again, and sees to it that each number is heard of before the next is written.

    Changes may come together in one notification; so that a lost one shows, there is never more than one on its way.
    """

    def __init__(self, board: str, touch: Callable[[str, int], Any], watchers: list[Watcher], ledger: Ledger) -> None:
        self._board = board
        self._touch = touch
        self._watchers = watchers
        self._ledger = ledger
        self._version = 0

    async def once(self, patience: float) -> bool:
        """Whether there was something to hear: a change whose writer was told of a failure may not have been told."""
        self._version += 1
        try:
            await self._touch(self._board, self._version)
        except Loud:
            return False
        for watcher in self._watchers:
            try:
                await asyncio.wait_for(watcher.sees(self._version), patience)
            except TimeoutError:
                self._ledger.accuse(
                    f"{watcher.name} did not hear of {self._version} on {watcher.uri}; it knows {watcher.seen}"
                )
        self._ledger.told += 1
        return True
