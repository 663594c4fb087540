"""The connections to a Redis store of one process on one event loop: commands go out, answers and wake-ups come in.

One line waits for messages, all the time. It also tells whether the store is there: it is asked for a sign of life
again and again, and while it is lost and comes back (with growing pauses) every command fails at once. Two pipelines
carry the commands, so that what is short does not stand behind what is long. The task of the waiting line owns all
connections and closes them when it ends: `asyncio.run` cancels what is left, so nothing stays open after a loop.

A command has `DEADLINE` seconds for everything. It is asked again only if it was never sent, or if whoever asks has
said how.
"""

import asyncio
import logging
import os
import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dovetail.errors import ProtocolError
from dovetail.state.base import NoRoom, StoreTrouble
from dovetail.state.redis_address import Line, RedisAddress, RedisPort
from dovetail.state.redis_hearing import Hearing
from dovetail.state.redis_pipeline import DEADLINE, LARGE_BYTES, Answer, Lost, Unsent, Way
from dovetail.state.redis_resp import Refused, Reply, packed
from dovetail.state.redis_scripts import TRACE_SECONDS, TRACES, Command

TRIES = 4  # of a command: with the text of a script, and on other connections
MAX_WAITING = 1000  # commands at a time
PING_SECONDS = 0.5
SILENCE_SECONDS = 1.5  # less than DEADLINE: when commands time out everywhere, every worker notices the outage
PAUSES = (0.05, 2.0)  # seconds between tries to connect: the first, and the longest
BATCH = 500  # topics in one command
QUIET_SECONDS = 10.0  # after a complaint in the log
OLDEST = 7  # of Redis; any Valkey will do

UNFIT = "The server's state store can't be used"
UNSENT = Unsent("it was not asked yet")

log = logging.getLogger("dovetail.state")


class UnfitStore(Exception):
    """The store is there, and can't be used."""


class ForeignRecord(StoreTrouble):
    """Something stands under a name that is not ours."""


class _Ping(NamedTuple):
    """When its answer comes, these topics are subscribed."""

    sent: float
    topics: list[str]
    since: float


class RedisLink:
    """Made on a running event loop. `on_return` is called when contact was lost and everything is subscribed again.

    With `returning` that holds for the first contact too: another link was here before.
    """

    def __init__(
        self, address: RedisAddress, prefix: bytes, hearing: Hearing, on_return: Callable[[], None], *, returning: bool
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.pid = os.getpid()
        self._address = address
        self._port = RedisPort(address)
        self._counter = prefix + b"n"
        self._channel = prefix + b"t/"
        self._hearing = hearing
        self._on_return = on_return
        self._returning = returning
        self._away: StoreTrouble | None = None  # why every command fails at once
        self._away_since = 0.0
        self._decided = asyncio.Event()  # it is known whether the store is there
        self._changed = asyncio.Event()
        self._pings: deque[_Ping] = deque()
        self._heard = 0.0  # when something came on the waiting line
        self._ways = (Way(self._port.connect), Way(self._port.connect))  # for what is short, and for what is long
        self._waiting = 0
        self._demoted = False
        self._quiet_until = 0.0
        self._ended = False
        self._task = self.loop.create_task(self._run(), name="dovetail state link")

    def interest_changed(self) -> None:
        self._changed.set()

    # ── commands ──

    async def ask(self, command: Command, *, again: Command | None = None) -> Reply:
        """The answer to a command. `again` is what to ask if its answer was lost on the way; else it is asked once."""
        if self._waiting >= MAX_WAITING:
            raise StoreTrouble("The server's state store has too much to do now; try again later")
        self._waiting += 1
        began = self.loop.time()
        answer: Answer = UNSENT
        try:
            message = packed(command.words)
            pipeline = self._ways[command.is_long or len(message) > LARGE_BYTES].ready()
            if pipeline is not None and self._stands:  # nearly always
                answer = await pipeline.ask(message)
            if isinstance(answer, Exception):
                async with asyncio.timeout_at(began + DEADLINE):
                    answer = await self._persist(answer, command, again)
            return answer
        except (TimeoutError, Lost):
            raise StoreTrouble from None
        except Refused as refusal:
            raise self._translated(refusal) from None
        finally:
            self._waiting -= 1

    async def _persist(self, answer: Answer, command: Command, again: Command | None) -> Reply:
        """What else can be done about a command that has no reply yet."""
        for _ in range(TRIES):
            match answer:
                case Unsent():
                    pass
                case Lost() if again is not None:
                    command = again
                case Refused(code="NOSCRIPT") if command.text:
                    command = command.with_text
                case _:
                    break
            await self._standing()
            message = packed(command.words)
            try:
                pipeline = await self._ways[command.is_long or len(message) > LARGE_BYTES].open()
            except Unsent as failure:
                answer = failure
                await asyncio.sleep(PAUSES[0])  # the waiting line will know soon what is the matter
            else:
                answer = await pipeline.ask(message)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _translated(self, refusal: Refused) -> ProtocolError:
        """What a refusal means to who has asked."""
        if refusal.code == "OOM":
            return NoRoom("The server's state store is full; try again later")
        if refusal.code == "WRONGTYPE":
            return ForeignRecord()
        if refusal.code == "READONLY":  # there may be another master by now
            self._demoted = True
            self._changed.set()
        self.complain("it refused a command (%s)", self._said(refusal))
        return StoreTrouble()

    def _said(self, failure: Exception) -> str:
        """For the log: without the arguments of a command, which a store may repeat."""
        return self._address.scrubbed(failure).partition(", with args")[0]

    def complain(self, what: str, *details: object) -> None:
        """Log, but not again and again."""
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET_SECONDS
            log.warning(f"The state store {self._address.shown}: {what}", *details)

    @property
    def _stands(self) -> bool:
        return self._away is None and self._decided.is_set()

    async def _standing(self) -> None:
        if not self._decided.is_set():
            await self._decided.wait()
        if self._away is not None:
            raise StoreTrouble(self._away.message)

    # ── the waiting line ──

    async def _run(self) -> None:
        shortest, longest = PAUSES
        pause = shortest
        try:
            while not _is_cancelled():
                began = time.monotonic()
                try:
                    await self._attend()
                except* Exception as failures:
                    self._lose(_first(failures))
                if self._away is None and time.monotonic() - began > longest:
                    pause = shortest
                    continue  # it was there for a while, and may be back at once
                await asyncio.sleep(pause * random.uniform(0.5, 1))
                pause = min(2 * pause, longest)
        finally:
            await self._end()

    async def _attend(self) -> None:
        """Connect and hear, until the line is lost."""
        line = self._port.line()
        try:
            async with asyncio.timeout(DEADLINE):
                await line.connect()
                await _check_fitness(line)
                await self._check_policy(line)
            self._hearing.begin()
            self._pings.clear()
            self._demoted = False
            async with asyncio.TaskGroup() as group:
                group.create_task(self._speak(line))
                await self._hear(line, group)
        finally:
            self._hearing.end()
            await line.drop()

    async def _check_policy(self, line: Line) -> None:
        """Raises UnfitStore for a store that drops what it has promised to keep."""
        try:
            await line.send("INFO", "memory")
            told = await line.receive()
        except Refused:
            told = b""
        if (policy := re.search(rb"maxmemory_policy:([\w-]+)", told)) is None:
            self.complain("it does not tell its settings; see that its maxmemory-policy is noeviction")
        elif policy[1] != b"noeviction":
            wrong = f"it drops records when it is full (maxmemory-policy {policy[1].decode()})"
            raise UnfitStore(f"{UNFIT}: {wrong}; set maxmemory-policy to noeviction")

    async def _speak(self, line: Line) -> None:
        """Subscribe what is wanted, end what is not, and ask for a sign of life."""
        looked = time.monotonic()
        while True:
            self._changed.clear()
            come, gone, since = self._hearing.take_changes()
            async with asyncio.timeout(SILENCE_SECONDS):
                for verb, names in (("SUBSCRIBE", come), ("UNSUBSCRIBE", gone)):
                    for some in _batches(names):
                        await line.send(verb, *(self._channel + name.encode() for name in some))
                self._pings.append(_Ping(time.monotonic(), come, since))
                await line.send("PING")
            await self._pause(PING_SECONDS)
            now, before = time.monotonic(), looked
            looked = now
            held_up = now - before > 2 * PING_SECONDS  # by this process itself: the answer may lie there unread
            if self._pings and not held_up and now - max(self._pings[0].sent, self._heard) > SILENCE_SECONDS:
                raise Lost("it gives no sign of life")
            if self._demoted:
                raise Lost("it can't be written to any more")

    async def _pause(self, seconds: float) -> None:
        """Until interest has changed, or for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _hear(self, line: Line, group: asyncio.TaskGroup) -> None:
        skip = len(self._channel)
        while True:
            reply = await line.receive()
            self._heard = time.monotonic()
            match reply:
                case [b"message", bytes(channel), bytes(number)]:
                    self._hearing.news(channel[skip:].decode(errors="replace"), _number(number))
                case [b"pong", _] | b"PONG":
                    ping = self._pings.popleft()
                    told = self._stand()
                    if ping.topics and not told:
                        group.create_task(self._settle(ping))

    async def _settle(self, ping: _Ping) -> None:
        """Ask for what was published before a subscription stood."""
        for names in _batches(ping.topics):
            traces = [self._channel + name.encode() for name in names]
            try:
                newest, numbers = await self.ask(TRACES.on(self._counter, *traces))
            except ProtocolError:
                newest, numbers = b"0", [None] * len(names)
                ping = ping._replace(since=0.0)
            forgotten = time.monotonic() - ping.since > TRACE_SECONDS / 2
            self._hearing.reached(_number(newest))
            for name, number in zip(names, numbers, strict=True):
                if number is not None or forgotten:
                    self._hearing.news(name, 0 if forgotten else _number(number))

    def _stand(self) -> bool:
        """The store is there, and everything is subscribed. True if every listener was told so."""
        if self._away is not None:
            seconds = time.monotonic() - self._away_since
            log.warning("The state store %s is back after %.1f s", self._address.shown, seconds)
        elif self._decided.is_set():
            return False
        told, self._returning = self._returning, True
        self._away = None
        self._decided.set()
        if told:
            self._on_return()
        return told

    def _lose(self, failure: Exception) -> None:
        """A line was lost (then the store may be back at once), or could not be had."""
        for way in self._ways:
            way.leave()
        reason = "it does not answer" if isinstance(failure, TimeoutError) else self._said(failure)
        if self._away is None and self._decided.is_set():
            self._decided.clear()
            if isinstance(failure, Refused):  # which will not get better by itself
                self.complain("it refused to subscribe (%s)", reason)
            return
        if self._away is None:
            self._away_since = time.monotonic()
            log.warning("The state store %s is out of reach: %s", self._address.shown, reason)
        self._away = StoreTrouble(str(failure)) if isinstance(failure, UnfitStore) else StoreTrouble()
        self._returning = True
        self._decided.set()

    # ── the end ──

    async def close(self) -> None:
        if self._ended or self.loop is not asyncio.get_running_loop() or self.pid != os.getpid():
            return  # its loop is over, or it is another process's
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._end()  # a task that was cancelled before it began has not

    async def _end(self) -> None:
        self._ended = True
        self._away = StoreTrouble("The server's state store was closed")
        self._decided.set()
        for way in self._ways:
            await way.close()
        await self._port.close()


async def _check_fitness(line: Line) -> None:
    """Raises UnfitStore for a store that lacks what we need, and Lost for one that may get it."""
    try:
        await line.send("HELLO")
        flat = await line.receive()
    except Refused as refusal:
        if refusal.code == "NOPERM":  # we are not to know
            return
        if "unknown command" in str(refusal):
            raise UnfitStore(_unfit("it is older than Redis 6")) from None
        raise
    told = {key: value for key, value in zip(flat[::2], flat[1::2], strict=False) if isinstance(value, bytes)}
    version = told.get(b"version", b"").decode(errors="replace")
    if (found := re.match(r"\d+", version)) and int(found[0]) < OLDEST:
        raise UnfitStore(_unfit(f"it is Redis {version}"))
    if told.get(b"mode") == b"cluster":
        raise UnfitStore(_unfit("it is a Redis Cluster"))
    if told.get(b"role") in (b"slave", b"replica"):
        raise Lost("it is a replica, which can't be written to")


def _unfit(reason: str) -> str:
    return f"{UNFIT}: {reason}; a single Redis {OLDEST} or newer, or Valkey, is needed"


def _is_cancelled() -> bool:
    """A TaskGroup in which something fails at the same moment can keep a cancellation to itself (before 3.13)."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), BATCH):
        yield names[start : start + BATCH]


def _number(text: bytes) -> int:
    """A number from the store; 0 if it is none."""
    return int(text) if text.isdigit() and len(text) < 20 else 0


def _first(failures: BaseExceptionGroup[Exception]) -> Exception:
    """One of them: they come from the same line."""
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
