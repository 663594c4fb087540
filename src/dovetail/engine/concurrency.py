"""Bounds on calls: how many at once, how many may wait, how long each may take.

`Limit` lets a number of calls in and keeps a bounded line for the others, first come, first served; `FleetLimit` does
so for all workers together. `ToolLimits` has the limits of tools. `with_timeout` bounds the time of what is awaited.
"""

import asyncio
import logging
import os
import types
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet

import msgspec
from msgspec import UNSET

from dovetail import engine as lazy
from dovetail import state as lazy_state
from dovetail.engine import workers
from dovetail.errors import BUSY_RETRY_AFTER, Busy, ServerBusy, ToolBusy

if TYPE_CHECKING:
    from dovetail.engine.options import Options
    from dovetail.engine.rate_limits import RateLimiter
    from dovetail.registry.catalog import Catalog
    from dovetail.registry.registration import Rate
    from dovetail.registry.tools import Tool
    from dovetail.state.base import Listener, StateBackend

T = TypeVar("T")
Slot = tuple[str, bytes]  # a key that this worker has claimed, and the value that tells

log = logging.getLogger("dovetail")


class _Done:
    """Awaitable, and over."""

    def __await__(self) -> Iterator[Any]:
        return iter(())


DONE: Awaitable[None] = _Done()  # type: ignore[assignment]  # any iterator will do


class Limit:
    """`async with limit:` holds one of `slots`; when they are taken, up to `queue` wait; the next is `busy`."""

    __slots__ = ("_busy", "_free", "_line", "_queue", "_slots", "_subject")

    def __init__(self, slots: int, queue: int, *, subject: str, busy: Callable[[str], Busy] = ServerBusy) -> None:
        self._slots = slots
        self._queue = queue
        self._subject = subject
        self._busy = busy
        self._free = slots  # more than 0 only while nobody waits; less than 0 while it is overdrawn
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def running(self) -> int:
        return self._slots - self._free

    @property
    def waiting(self) -> int:
        return len(self._line)

    def take(self) -> bool:
        """Take a slot at once; False if none is free."""
        if self._free > 0:
            self._free -= 1
            return True
        return False

    async def acquire(self) -> None:
        """Take a slot: without a turn of the loop if one is free, else in order of arrival."""
        if self._free > 0:
            self._free -= 1
            return
        if len(self._line) >= self._queue:
            raise self._refusal(f"{self.running} calls running and {self.waiting} waiting")
        await self._until(self._stand_in_line())

    def _refusal(self, why: str) -> Busy:
        return self._busy(f"{self._subject} is busy: {why}; try again in {BUSY_RETRY_AFTER} s.")

    async def reclaim(self) -> None:
        """Take a slot again that was given back for a while: in line like everybody, but however long the line is.

        Who is cancelled meanwhile has it nevertheless.
        """
        if self._free > 0:
            self._free -= 1
            return
        try:
            await self._until(self._stand_in_line())
        except asyncio.CancelledError:
            self.overdraw()
            raise

    def overdraw(self) -> None:
        """Take a slot at once, even if there is none: then nobody gets one until as many are given back."""
        self._free -= 1

    def _stand_in_line(self) -> "asyncio.Future[None]":
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        return turn

    async def _until(self, turn: "asyncio.Future[None]") -> None:
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                if turn in self._line:
                    self._line.remove(turn)
            elif turn.exception() is None:
                Limit.release(self)  # the slot was ours already
            raise

    def release(self) -> None:
        """Give the slot to the one who waits longest, else put it back."""
        while self._line and self._free >= 0:
            turn = self._line.popleft()
            if not turn.done():  # cancelled, but its task has not run since
                turn.set_result(None)
                return
        self._free += 1

    __aenter__ = acquire

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class FleetLimit(Limit):
    """The `Limit` of one worker, whose calls need a slot in the store besides: a key that is claimed for one lease.

    It is renewed while the call runs. Slots of a worker that died are free when their leases have expired.
    """

    def __init__(
        self, state: "StateBackend", tool: str, slots: int, queue: int, patience: float | None,
        *, lease: float | None = None, beat: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(slots, queue, subject=f"The tool {tool}", busy=ToolBusy)
        self._state = state
        self._topic = f"slot/{tool}"
        self._patience = patience  # seconds that a call may wait
        self._lease = workers.LEASE_SECONDS if lease is None else lease
        # seconds between two renewals, and between two looks for slots that have expired
        self._beat = workers.BEAT_SECONDS if beat is None else beat
        self._held: deque[Slot] = deque()  # any call may give back any of them
        self._without = 0  # calls that go on without one
        self._looking = asyncio.Lock()  # the call that waits longest has it
        self._next = int.from_bytes(os.urandom(4)) % slots  # where to look
        self._renewing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self) -> bool:
        return False  # that takes a trip to the store

    async def acquire(self) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await super().acquire()
                try:
                    await self._find_slot(may_wait=self._queue > 0)
                except BaseException:
                    super().release()
                    raise
        except TimeoutError:
            raise self._refusal(f"no slot became free within {self._patience:g} s") from None

    __aenter__ = acquire

    async def reclaim(self) -> None:
        await super().reclaim()
        try:
            await self._find_slot(may_wait=True)
        except BaseException as failure:
            self._without += 1
            if not isinstance(failure, Busy):  # else the store is in trouble, but this call is half done
                raise

    def overdraw(self) -> None:
        super().overdraw()
        self._without += 1

    def release(self) -> None:
        if self._without:
            self._without -= 1
            super().release()
            return
        with suppress(RuntimeError):  # a loop that died in mid-call is torn down from elsewhere
            self._begin(self._give_back, self._held.popleft()).add_done_callback(lambda _: Limit.release(self))

    async def _find_slot(self, *, may_wait: bool) -> None:
        """Raises Busy if none is free and the call may not wait, or if the store is in trouble."""
        listener: Listener | None = None
        try:
            async with self._looking:
                while not await self._claim():
                    if not may_wait:
                        raise self._refusal(f"all {self._slots} slots that the workers share are taken")
                    if listener is None:  # then once more: what became free before was not heard
                        listener = self._state.listen([self._topic])
                        continue
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._beat):
                            if not await listener.wait():
                                raise lazy_state.base.StoreUnavailable  # it was closed
        except lazy_state.base.StoreUnavailable as trouble:
            text = f"{self._subject} can't be called now: its limit is kept in a store that is in trouble"
            log.warning("%s: %s", text, trouble)
            raise Busy(f"{text}; try again later", http_status=503) from None
        finally:
            if listener is not None:
                listener.close()

    async def _claim(self) -> bool:
        for _ in range(self._slots):
            self._next = (self._next + 1) % self._slots
            slot = (f"{self._topic}/{self._next}", os.urandom(8))
            try:
                is_ours = await self._state.claim(*slot, self._lease)
            except asyncio.CancelledError:
                self._begin(self._give_back, slot)  # it may be ours
                raise
            if is_ours:
                self._held.append(slot)
                if self._renewing is None or self._renewing.done():
                    self._renewing = self._begin(self._renew)
                return True
        return False

    async def _is_ours(self, slot: Slot) -> bool:
        entry = await self._state.get(slot[0])
        return entry is not None and entry.value == slot[1]

    async def _give_back(self, slot: Slot) -> None:
        with suppress(Exception):  # then it stays taken until it expires
            if await self._is_ours(slot):
                await self._state.delete(slot[0])
                await self._state.publish(self._topic)

    async def _renew(self) -> None:
        while self._held:
            await asyncio.sleep(self._beat)
            for slot in tuple(self._held):
                with suppress(lazy_state.base.StoreUnavailable):
                    is_kept = await self._is_ours(slot) and await self._state.touch(slot[0], self._lease)
                    if not is_kept and slot in self._held:
                        self._held.remove(slot)
                        self._without += 1
                        log.warning("%s: a call runs on although its slot has expired", self._topic)

    def _begin(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work(*arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """What is given back reaches the store, which takes no longer than the store takes to answer."""
        if self._renewing is not None:
            self._renewing.cancel()
        while self._held:
            self._begin(self._give_back, self._held.popleft())
        if self._tasks:
            await asyncio.wait(self._tasks)


class HeldSlots(msgspec.Struct):
    """The slots that one run of a function has just now; while a client is asked, others have them."""

    held: tuple[Limit, ...] = ()  # in the order in which they were taken
    is_over: bool = False
    _lent: tuple[Limit, ...] = ()
    _questions: int = 0  # for which they are lent
    _taking: asyncio.Lock | None = None  # from the first question on

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """The first of several questions gives them back, the last takes them again before the function goes on."""
        self._taking = taking = self._taking or asyncio.Lock()
        self._questions += 1
        if not taking.locked():  # else the question that takes them gives them back
            self._lend()
        can_wait = False
        try:
            yield
            can_wait = True
        except Exception:
            can_wait = True
            raise
        finally:
            self._questions -= 1
            if not self._questions and can_wait:
                async with taking:
                    await self._take()
            elif not self._questions:
                self._take_at_once()

    def _lend(self) -> None:
        held, self.held = self.held, ()
        self._lent = held + self._lent
        for limit in held:
            limit.release()

    async def _take(self) -> None:
        try:
            while self._lent and not self._questions and not self.is_over:
                limit, self._lent = self._lent[0], self._lent[1:]
                try:
                    await limit.reclaim()
                finally:  # it has it also if it was cancelled meanwhile
                    self.held += (limit,)
        except asyncio.CancelledError:
            self._take_at_once()
            raise
        finally:
            if self.is_over:  # the function has ended without waiting for this
                self.leave()
        if self._questions:  # another part of the function has asked meanwhile
            self._lend()

    def _take_at_once(self) -> None:
        while self._lent and not self.is_over:
            limit, self._lent = self._lent[0], self._lent[1:]
            limit.overdraw()
            self.held += (limit,)

    def leave(self) -> None:
        """The function is over: what it still has is others' now."""
        held, self.held, self.is_over = self.held, (), True
        for limit in held:
            limit.release()


class OwnLimits(msgspec.Struct, frozen=True):
    """What a tool has besides the limits of every call."""

    slots: Limit | None
    rates: "RateLimiter | None"


class ToolLimits:
    """The rate of a server and the limits of its tools, each made when it is first needed. Only on the loop.

    `state` is what other workers share with this one, if any do: then those limits hold for all of them together.
    """

    def __init__(self, tools: "Catalog[Tool]", options: "Options", state: "StateBackend | None") -> None:
        self._tools = tools
        self._options = options
        self._state = state
        self._own: dict[str, tuple[Tool, OwnLimits]] = {}
        self._fleet_limits: WeakSet[FleetLimit] = WeakSet()
        self.rates = self._limiter("server", options.rate_limit)

    def of(self, tool: "Tool") -> OwnLimits:
        known = self._own.get(tool.name)
        if known is None or known[0] is not tool:  # another one had the name before
            self._own = {name: pair for name, pair in self._own.items() if self._tools.get(name) is pair[0]}
            rates = self._limiter(f"tool/{tool.name}", tool.rates)
            known = self._own[tool.name] = (tool, OwnLimits(self._slots(tool), rates))
        return known[1]

    def _limiter(self, subject: str, rates: "tuple[Rate, ...]") -> "RateLimiter | None":
        return lazy.rate_limits.RateLimiter(subject, rates, self._state) if rates else None

    def _slots(self, tool: "Tool") -> Limit | None:
        slots, queue = tool.max_concurrency, self._options.max_queue
        if slots is None:
            return None
        if self._state is None:
            return Limit(slots, queue, subject=f"The tool {tool.name}", busy=ToolBusy)
        timeout = tool.invocation.timeout
        patience = self._options.timeout if timeout is UNSET else timeout
        limit = FleetLimit(self._state, tool.name, slots, queue, patience)
        self._fleet_limits.add(limit)
        return limit

    async def close(self) -> None:
        """Give back what other workers wait for."""
        for limit in tuple(self._fleet_limits):
            await limit.close()


class CallTimeout(TimeoutError):
    """The time given to `with_timeout` ran out; a `TimeoutError` of the awaited code itself is never this."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Timed out after {seconds:g} s")
        self.seconds = seconds


class Timer(Protocol):
    """Something that runs beside a piece of work."""

    def begin(self) -> None:
        """The work waits for the first time."""

    def meant(self, cancelled: asyncio.CancelledError) -> BaseException:
        """What the cancellation that has ended the work is to be raised as: itself, or something of the timer's."""

    def end(self) -> None:
        """The work is done."""


@types.coroutine
def beside(work: Coroutine[Any, Any, T], timer: Callable[[], Timer]) -> Generator[Any, Any, T]:
    """Await `work` in this task, with a timer beside it from the moment it waits for something.

    Stepping through `work` ourselves shows whether it ever waits: for what does not, which is most, no timer is made.
    """
    try:
        waited_for = work.send(None)
    except StopIteration as end:
        at_once: T = end.value
        return at_once
    return (yield from go_on_beside(work, waited_for, timer()))


@types.coroutine
def go_on_beside(work: Coroutine[Any, Any, T], waited_for: Any, timer: Timer) -> Generator[Any, Any, T]:
    """The rest of it, after its first step."""
    timer.begin()
    step: Callable[[Any], Any]
    value: Any = None
    try:
        while True:
            try:
                value = yield waited_for
                step = work.send
            except BaseException as error:
                value = error
                step = work.throw
            waited_for = step(value)
    except StopIteration as end:
        result: T = end.value
        return result
    except asyncio.CancelledError as cancelled:
        meant = timer.meant(cancelled)
        if meant is cancelled:
            raise
        raise meant from cancelled
    finally:
        value = None  # it may be an exception whose traceback holds this frame
        timer.end()


def with_timeout(work: Coroutine[Any, Any, T], seconds: float) -> Awaitable[T]:
    """Await `work` in this task; cancel it after `seconds` and raise `CallTimeout`.

    A cancellation from outside passes through as itself, also when it meets the expiry: the rules of
    `asyncio.timeout`.
    """
    return beside(work, lambda: Expiry(seconds))


class Expiry:
    """Cancels the current task when the time is up, unless it ends before. Its time may stand still meanwhile."""

    __slots__ = ("_earlier", "_fired", "_left", "_pauses", "_task", "_timer", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = self._left = seconds
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pauses = 0
        self._fired = False

    def begin(self) -> None:
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError("with_timeout works only in a task")
        self._earlier = self._task.cancelling()
        self._run()

    def _run(self) -> None:
        if self._task is not None and not self._pauses and not self._fired:
            self._timer = asyncio.get_running_loop().call_later(self._left, self.expire)

    def pause(self) -> None:
        """Let the time stand still until `resume`; on the loop only."""
        self._pauses += 1
        timer, self._timer = self._timer, None
        if timer is not None:
            self._left = max(0.0, timer.when() - asyncio.get_running_loop().time())
            timer.cancel()

    def resume(self) -> None:
        self._pauses -= 1
        self._run()

    def expire(self) -> None:
        """The time is up; whoever knows that before the clock does may say so."""
        if self._task is not None and not self._fired:
            self._fired = True
            self._task.cancel()

    def meant(self, cancelled: asyncio.CancelledError) -> BaseException:
        alone = self._task is not None and self._fired and self._task.cancelling() <= self._earlier + 1
        return CallTimeout(self.seconds) if alone else cancelled

    def end(self) -> None:
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        if task is not None and self._fired:
            task.uncancel()


# The times that are running for the function at hand: its own, and that of the function which calls it.
_running: ContextVar[tuple[Expiry, ...]] = ContextVar("running", default=())


async def with_function_timeout(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """`with_timeout`, whose time stands still while somebody outside is waited for.

    It is known to whatever runs for the function, in tasks and threads of its own too.
    """
    expiry = Expiry(seconds)
    token = _running.set((*_running.get(), expiry))
    try:
        return await beside(work, lambda: expiry)
    finally:
        with suppress(ValueError):  # a loop that died in mid-call is torn down from elsewhere
            _running.reset(token)


@contextmanager
def standing_still() -> Iterator[None]:
    """While somebody outside is waited for, the time of the functions that wait does not pass."""
    expiries = _running.get()
    for expiry in expiries:
        expiry.pause()
    try:
        yield
    finally:
        for expiry in expiries:
            expiry.resume()
