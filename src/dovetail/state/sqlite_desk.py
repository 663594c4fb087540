"""The one thread of a process that uses the SQLite file: calls go in, reports of answers and wake-ups come out.

Calls that have queued up are served together: writes in one transaction. If that fails before its commit, nothing has
happened, and each is tried alone, so that one call does not spoil the others. While somebody listens, the thread also
looks every `POLL` seconds whether other processes have written, and reads what they published.

No connection is carried over a fork, for SQLite's locks do not survive it: the thread lets go of the file before, and
parent and child open it again when they need it.
"""

import logging
import os
import sqlite3
import threading
import time
import weakref
from asyncio import Future
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from dovetail.errors import SetupError
from dovetail.state.base import Conflict, NoRoom, StoreTrouble
from dovetail.state.sqlite_file import FIXES, PATIENCE, code_of
from dovetail.state.sqlite_tables import Tables

POLL = 0.02  # seconds
LOOK_AT_FILE = 1.0  # seconds, after which we look whether it is still the same
BATCH = 64  # calls
PAUSES = (0.0002, 0.005)  # seconds between two attempts at a file that another process writes to: at first, at most

TROUBLE = (sqlite3.Error, OSError, SetupError)
REFUSALS = (Conflict, NoRoom, ValueError)
PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}  # certainly not done; trying again may help
DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}  # though other parts of the file may still be usable
STILL_OPEN = PASSING | {sqlite3.SQLITE_FULL}  # certainly not done, and the connection is still good

log = logging.getLogger("dovetail.state")


class Errand:
    """What is asked for, and later its answer or error. Without `work` it asks the thread to end."""

    __slots__ = ("answer", "error", "future", "since", "work", "writes")

    def __init__(self, work: Callable[[Tables], object] | None, writes: bool, future: "Future[Any]") -> None:
        self.work = work
        self.writes = writes
        self.future = future
        self.since = time.monotonic()
        self.answer: object = None
        self.error: Exception | None = None

    def run(self, tables: Tables) -> None:
        assert self.work is not None
        self.error = None
        try:
            self.answer = self.work(tables)
        except REFUSALS as refusal:
            self.error = refusal


Told = set[bytes | None]  # topics; None means that some may have been missed
Report = Callable[[list[Errand], Told], None]


class Desk:
    """Serves calls. `report` is called by its thread; `open_tables` may raise SetupError."""

    def __init__(self, path: str, open_tables: Callable[[], Tables], report: Report, seen: int) -> None:
        self._listening = False  # set by the event loop, before a listener begins to hear
        self._path = path
        self._open_tables = open_tables
        self._report = report
        self._seen = seen  # the newest wake that we know of
        self.start_afresh()
        _desks.add(self)

    def start_afresh(self) -> None:
        """At the beginning, and in a child process."""
        self.using = threading.Lock()  # held while the file is used
        self._calls: SimpleQueue[Errand | None] = SimpleQueue()
        self._nudged = False  # None stands in the queue
        self._thread: threading.Thread | None = None
        self._tables: Tables | None = None
        self._identity: tuple[int, int] | None = None  # of the file that is open
        self._is_damaged = False  # that file, of which nothing is believed any more
        self._look_at = 0.0
        self._poll_at = 0.0
        self._version = -1  # of the data, when they were last looked at
        self._failed: set[bool] = set()  # whether reads (False) or writes (True) fail now
        self._told: Told = set()

    # ── on the event loop ──

    @property
    def started(self) -> bool:
        return self._thread is not None

    def listen(self, listening: bool) -> None:
        """Whether somebody listens: from the very moment of this call nothing is missed."""
        begins = listening and not self._listening
        self._listening = listening
        if begins and not self._nudged:
            self._nudged = True
            self.submit(None)

    def submit(self, call: Errand | None) -> None:
        """None just lets the thread look up."""
        self._calls.put(call)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dovetail-state", daemon=True)
            self._thread.start()

    def join(self) -> None:
        """After its last report the thread ends in no time; one that is stuck is left to the end of the process."""
        if self._thread is not None:
            self._thread.join(0.1)

    # ── in the thread ──

    def _run(self) -> None:
        while True:
            calls, ends = self._take()
            for writes in (False, True):
                if chosen := [call for call in calls if call.writes is writes]:
                    with self.using:
                        self._serve(chosen, writes)
                    self._tell(chosen)
            if self._listening and time.monotonic() >= self._poll_at:
                with self.using:
                    self._poll()
                self._tell([])
            if ends is not None:
                with self.using:
                    self.let_go()
                return self._tell([ends])

    def _take(self) -> tuple[list[Errand], Errand | None]:
        """Wait for calls, or for the time to poll. The second is the call that ends the thread."""
        calls: list[Errand] = []
        timeout = max(self._poll_at - time.monotonic(), 0) if self._listening else None
        try:
            call = self._calls.get(timeout=timeout)
        except Empty:
            return calls, None
        while True:
            if call is None:
                self._nudged = False
            elif call.work is None:
                return calls, call
            else:
                calls.append(call)
            if len(calls) >= BATCH or self._calls.empty():
                return calls, None
            call = self._calls.get()

    def _tell(self, calls: list[Errand]) -> None:
        told, self._told = self._told, set()
        if calls or told:
            self._report(calls, told)

    def _serve(self, calls: list[Errand], writes: bool) -> None:
        """Answer all of them, or give them an error, within the time that the first has left."""
        try:
            self._persist(calls, writes)
        except Exception as failure:
            certain = self._clean_up(failure)
            if not certain or len(calls) == 1 or time.monotonic() > calls[0].since + PATIENCE:
                self._give_up(calls, writes, failure)
            else:
                for call in calls:
                    self._serve([call], writes)

    def _persist(self, calls: list[Errand], writes: bool) -> None:
        """Try again while another process writes."""
        deadline = calls[0].since + PATIENCE
        pause, longest = PAUSES
        while True:
            try:
                self._transact(calls, writes)
                return self._succeeded(writes)
            except sqlite3.Error as failure:
                if code_of(failure) not in PASSING or time.monotonic() > deadline:
                    raise
                self._clean_up(failure)
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _transact(self, calls: list[Errand], writes: bool) -> None:
        tables = self._current_tables()
        if not writes:
            tables.look()
            for call in calls:
                call.run(tables)
            return
        newest = tables.begin()
        if newest != self._seen and self._listening:  # whoever listens later does not need what is there by now
            self._see(tables)
        for call in calls:
            call.run(tables)
        if True in self._failed:  # some wake-ups were not published
            tables.wake_all()
        self._seen = tables.commit(len(calls))
        self._told.update(tables.woken)

    def _see(self, tables: Tables) -> None:
        """Read what others have published."""
        self._seen, told = tables.wakes_since(self._seen)
        self._told |= told

    def _current_tables(self) -> Tables:
        now = time.monotonic()
        if (self._tables is not None or self._is_damaged) and now >= self._look_at:
            self._look_at = now + LOOK_AT_FILE
            if (found := _identify(self._path)) != self._identity:
                log.warning("The state file %s was removed or replaced; it is opened anew", self._path)
                self.let_go()
                self._identity, self._is_damaged = found, False
                self._failed.add(False)
        if self._is_damaged:
            raise SetupError(FIXES[sqlite3.SQLITE_CORRUPT])
        if self._tables is None:
            self._tables = self._open_tables()
            self._identity = _identify(self._path)
            self._look_at = now + LOOK_AT_FILE
            self._version = -1
        return self._tables

    def _clean_up(self, failure: Exception) -> bool:
        """After a failure. True if it is certain that nothing has happened."""
        if not self._is_damaged and DAMAGE & {code_of(failure), code_of(failure.__cause__)}:
            self._is_damaged = True
            log.warning("The state file %s %s", self._path, FIXES[sqlite3.SQLITE_CORRUPT])
        if self._tables is None:
            return True
        committing = self._tables.committing
        try:
            self._tables.roll_back()
        except sqlite3.Error:
            self.let_go()
            return not committing
        if isinstance(failure, TROUBLE) and code_of(failure) not in STILL_OPEN:
            self.let_go()
        return not committing or code_of(failure) in STILL_OPEN

    def _give_up(self, calls: list[Errand], writes: bool, failure: Exception) -> None:
        if isinstance(failure, TROUBLE):
            self._note_trouble(writes, failure)
        for call in calls:
            call.error = StoreTrouble() if isinstance(failure, TROUBLE) else failure

    def _note_trouble(self, writes: bool, failure: Exception) -> None:
        if not self._failed and not self._is_damaged:
            log.warning("The state file %s can't be used now: %s", self._path, failure)
        self._failed.add(writes)

    def _succeeded(self, writes: bool) -> None:
        if writes in self._failed:
            self._failed.discard(writes)
            self._told.add(None)
            if not self._failed:  # for reading and writing
                log.info("The state file %s can be used again", self._path)

    def _poll(self) -> None:
        """Have others published something?"""
        self._poll_at = time.monotonic() + POLL
        try:
            tables = self._current_tables()
            version = tables.version()
            if version != self._version:
                self._see(tables)
                self._version = version
        except TROUBLE as failure:
            self._clean_up(failure)
            if code_of(failure) not in PASSING:
                self._note_trouble(False, failure)
        else:
            self._succeeded(False)

    def let_go(self) -> None:
        """Close the file. Called with `using` held."""
        tables, self._tables = self._tables, None
        if tables is not None:
            try:
                tables.connection.close()
            except sqlite3.Error as failure:
                log.warning("The state file %s was not closed: %s", self._path, failure)


def _identify(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# ── forks ──

_desks: "weakref.WeakSet[Desk]" = weakref.WeakSet()
_parked: list[Desk] = []  # while a fork is under way


def _before_fork() -> None:
    for desk in tuple(_desks):
        desk.using.acquire()
        desk.let_go()
        _parked.append(desk)


def _after_fork_in_parent() -> None:
    while _parked:
        _parked.pop().using.release()


def _after_fork_in_child() -> None:
    while _parked:
        _parked.pop().start_afresh()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
