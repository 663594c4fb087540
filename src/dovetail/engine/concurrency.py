"""Concurrency limits with queues, for one worker or a fleet, and timeouts of calls."""

import asyncio
import logging
import os
import types
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet

import msgspec
from msgspec import UNSET

from dovetail import engine as lazy
from dovetail import state as lazy_state
from dovetail.errors import BUSY_RETRY_AFTER, Busy, ServerBusy, ToolBusy

if TYPE_CHECKING:
    from dovetail.engine.options import Options
    from dovetail.engine.rate_limits import RateLimiter
    from dovetail.engine.workers import LeaseTimings
    from dovetail.registry.catalog import Catalog
    from dovetail.registry.registration import Rate
    from dovetail.registry.tools import Tool
    from dovetail.state.base import Listener, StateBackend

T = TypeVar("T")
Slot = tuple[str, bytes]  # a key in the store, and the value by which this worker knows its claim
log = logging.getLogger("dovetail")


class _Done:
    def __await__(self) -> Iterator[Any]:
        return iter(())


DONE: Awaitable[None] = _Done()  # type: ignore[assignment]  # any iterator will do


class Limit:
    """`async with limit:` holds one of `slots`; when they are taken, up to `queue` calls wait; the next is `busy`."""

    __slots__ = ("_busy", "_free", "_max_queue", "_queue", "_subject", "slots")

    def __init__(self, slots: int, queue: int, *, subject: str, busy: Callable[[str], Busy] = ServerBusy) -> None:
        self.slots = slots
        self._max_queue = queue
        self._subject = subject
        self._busy = busy
        self._free = slots  # more than 0 only while the queue is empty; less than 0 while slots are overdrawn
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def running(self) -> int:
        return self.slots - self._free

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def take(self) -> bool:
        """Take a slot at once; False if none is free."""
        if self._free > 0:
            self._free -= 1
            return True
        return False

    async def acquire(self) -> None:
        """Take a slot: without a turn of the loop if one is free, else in order of arrival."""
        if Limit.take(self):  # not self.take: a FleetLimit has none to take at once
            return
        if len(self._queue) >= self._max_queue:
            raise self._refusal(f"{self.running} calls running and {self.waiting} waiting")
        await self._wait_in_queue()

    def _refusal(self, why: str) -> Busy:
        return self._busy(f"{self._subject} is busy: {why}; try again in {BUSY_RETRY_AFTER} s.")

    async def reclaim(self) -> None:
        """Take back a released slot, even if the queue is full. A call that is cancelled meanwhile gets it too."""
        if Limit.take(self):
            return
        try:
            await self._wait_in_queue()
        except asyncio.CancelledError:
            self.overdraw()
            raise

    def overdraw(self) -> None:
        """Take a slot at once, even if there is none: then no call gets one until as many are released."""
        self._free -= 1

    async def _wait_in_queue(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                Limit.release(self)  # the call had its slot already
            elif turn in self._queue:
                self._queue.remove(turn)
            raise

    def release(self) -> None:
        """Give the slot to the call that waits longest, if any does."""
        while self._queue and self._free >= 0:
            turn = self._queue.popleft()
            if not turn.done():  # else it was cancelled, and its task has not run since
                turn.set_result(None)
                return
        self._free += 1

    __aenter__ = acquire

    async def __aexit__(self, *_: object) -> None:
        self.release()


class FleetLimit(Limit):
    """The `Limit` of one worker, whose calls also need a slot in the store: a key that is leased while they run."""

    def __init__(
        self, state: "StateBackend", tool: str, slots: int, queue: int, timeout: float | None, timings: "LeaseTimings"
    ) -> None:
        super().__init__(slots, queue, subject=f"The tool {tool}", busy=ToolBusy)
        self._state = state
        self._topic = f"slot/{tool}"
        self._timeout = timeout  # seconds that a call may wait
        self._timings = timings
        self._held: deque[Slot] = deque()  # any call may release any of them
        self._calls_without_slot = 0  # they go on after theirs expired, or could not be claimed again
        self._claiming = asyncio.Lock()  # held by the call that waits longest
        self._next = int.from_bytes(os.urandom(4)) % slots  # the slot to try first
        self._renewing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self) -> bool:
        return False  # the store has to be asked

    async def acquire(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await super().acquire()
                try:
                    await self._claim_slot(may_wait=self._max_queue > 0)
                except BaseException:
                    super().release()
                    raise
        except TimeoutError:
            raise self._refusal(f"no slot became free within {self._timeout:g} s") from None

    __aenter__ = acquire

    async def reclaim(self) -> None:
        await super().reclaim()
        try:
            await self._claim_slot(may_wait=True)
        except BaseException as failure:
            self._calls_without_slot += 1
            if not isinstance(failure, Busy):  # else the store is unavailable, but this call is half done
                raise

    def overdraw(self) -> None:
        super().overdraw()
        self._calls_without_slot += 1

    def release(self) -> None:
        if self._calls_without_slot:
            self._calls_without_slot -= 1
            super().release()
            return
        with suppress(RuntimeError):  # a loop that died in mid-call is torn down from elsewhere
            self._start(self._give_up, self._held.popleft()).add_done_callback(lambda _: Limit.release(self))

    async def _claim_slot(self, *, may_wait: bool) -> None:
        """Claim a slot. Raises Busy if none is free and the call may not wait, or if the store is unavailable."""
        listener: Listener | None = None
        try:
            async with self._claiming:
                while not await self._claim_any():
                    if not may_wait:
                        raise self._refusal(f"all {self.slots} slots that the workers share are taken")
                    if listener is None:  # then try once more: a slot may have become free before
                        listener = self._state.listen([self._topic])
                        continue
                    with suppress(TimeoutError):  # a slot that expires wakes no listener
                        async with asyncio.timeout(self._timings.renew_every):
                            if not await listener.wait():
                                raise lazy_state.base.StoreUnavailable  # it was closed
        except lazy_state.base.StoreUnavailable as failure:
            text = f"{self._subject} can't be called now: its limit is in the state store, which is unavailable"
            log.warning("%s: %s", text, failure)
            raise Busy(f"{text}; try again later", http_status=503) from None
        finally:
            if listener is not None:
                listener.close()

    async def _claim_any(self) -> bool:
        for _ in range(self.slots):
            self._next = (self._next + 1) % self.slots
            slot = (f"{self._topic}/{self._next}", os.urandom(8))
            try:
                is_ours = await self._state.claim(*slot, self._timings.lease)
            except asyncio.CancelledError:
                self._start(self._give_up, slot)  # the claim may have succeeded
                raise
            if is_ours:
                self._held.append(slot)
                if self._renewing is None or self._renewing.done():
                    self._renewing = self._start(self._renew)
                return True
        return False

    async def _is_ours(self, slot: Slot) -> bool:
        entry = await self._state.get(slot[0])
        return entry is not None and entry.value == slot[1]

    async def _give_up(self, slot: Slot) -> None:
        with suppress(Exception):  # then it stays taken until it expires
            if await self._is_ours(slot):
                await self._state.delete(slot[0])
                await self._state.publish(self._topic)

    async def _renew(self) -> None:
        while self._held:
            await asyncio.sleep(self._timings.renew_every)
            for slot in tuple(self._held):
                with suppress(lazy_state.base.StoreUnavailable):
                    is_renewed = await self._is_ours(slot) and await self._state.touch(slot[0], self._timings.lease)
                    if not is_renewed and slot in self._held:
                        self._held.remove(slot)
                        self._calls_without_slot += 1
                        log.warning("%s: a call still runs although its slot has expired", self._topic)

    def _start(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work(*arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Release all slots in the store, which takes no longer than the store takes to answer."""
        if self._renewing is not None:
            self._renewing.cancel()
        while self._held:
            self._start(self._give_up, self._held.popleft())
        if self._tasks:
            await asyncio.wait(self._tasks)


class HeldSlots(msgspec.Struct):
    """The slots that one run of a function holds; it releases them while its client is asked."""

    held: tuple[Limit, ...] = ()  # in the order in which they were taken
    closed: bool = False
    taken: bool = False  # all of them and a thread, at some time: the function has begun; known of tools with limits
    _released: tuple[Limit, ...] = ()
    _requests: int = 0  # server requests that are pending
    _reclaiming: asyncio.Lock | None = None  # from the first server request on

    @asynccontextmanager
    async def released(self) -> AsyncIterator[None]:
        """Release the slots around server requests: the first one releases them, the last reclaims them."""
        self._reclaiming = reclaiming = self._reclaiming or asyncio.Lock()
        self._requests += 1
        if not reclaiming.locked():  # else the request that reclaims them releases them
            self._release()
        can_wait = True
        try:
            yield
        except BaseException as failure:
            can_wait = isinstance(failure, Exception)
            raise
        finally:
            self._requests -= 1
            if not self._requests and can_wait:
                async with reclaiming:
                    await self._reclaim()
            elif not self._requests:
                self._overdraw()

    def _release(self) -> None:
        held, self.held = self.held, ()
        self._released = held + self._released
        for limit in held:
            limit.release()

    async def _reclaim(self) -> None:
        try:
            while self._released and not self._requests and not self.closed:
                limit, self._released = self._released[0], self._released[1:]
                try:
                    await limit.reclaim()
                finally:  # a call that was cancelled meanwhile has the slot too
                    self.held += (limit,)
        except asyncio.CancelledError:
            self._overdraw()
            raise
        finally:
            if self.closed:  # the function has ended without waiting for this
                self.close()
        if self._requests:  # another task of the function has asked meanwhile
            self._release()

    def _overdraw(self) -> None:
        while self._released and not self.closed:
            limit, self._released = self._released[0], self._released[1:]
            limit.overdraw()
            self.held += (limit,)

    def close(self) -> None:
        """Release the slots of a function that has ended."""
        held, self.held, self.closed = self.held, (), True
        for limit in held:
            limit.release()


class ToolLimits(msgspec.Struct, frozen=True):
    """The limits of one tool, besides those of every call."""

    slots: Limit | None
    rates: "RateLimiter | None"


class CallLimits:
    """The rate limit of a server and the limits of its tools, for all workers that share `state`; for the loop only."""

    def __init__(
        self, tools: "Catalog[Tool]", options: "Options", state: "StateBackend | None", timings: "LeaseTimings",
        path: str = "",
    ) -> None:  # fmt: skip
        """`path` is that of a mounted server, in keys of the store."""
        self._tools = tools
        self._options = options
        self._state = state
        self._timings = timings
        self._path = path
        self._by_tool: dict[str, tuple[Tool, ToolLimits]] = {}
        self._fleet_limits: WeakSet[FleetLimit] = WeakSet()
        self.server_rates = self._limiter("server", options.rate_limit)

    def for_tool(self, tool: "Tool") -> ToolLimits:
        known = self._by_tool.get(tool.name)
        if known is None or known[0] is not tool:  # another tool had the name before
            self._by_tool = {name: pair for name, pair in self._by_tool.items() if self._tools.find(name) is pair[0]}
            rates = self._limiter(f"tool/{tool.name}", tool.rates)
            known = self._by_tool[tool.name] = (tool, ToolLimits(self._slots(tool), rates))
        return known[1]

    def _limiter(self, subject: str, rates: "tuple[Rate, ...]") -> "RateLimiter | None":
        return lazy.rate_limits.RateLimiter(self._path + subject, rates, self._state) if rates else None

    def _slots(self, tool: "Tool") -> Limit | None:
        slots, queue = tool.max_concurrency, self._options.max_queue
        if slots is None:
            return None
        if self._state is None:
            return Limit(slots, queue, subject=f"The tool {tool.name}", busy=ToolBusy)
        timeout = self._options.timeout if tool.invocation.timeout is UNSET else tool.invocation.timeout
        limit = FleetLimit(self._state, self._path + tool.name, slots, queue, timeout, self._timings)
        self._fleet_limits.add(limit)
        return limit

    async def close(self) -> None:
        """Release the slots that other workers may wait for."""
        for limit in tuple(self._fleet_limits):
            await limit.close()


class CallTimeout(TimeoutError):
    """The time of `with_timeout` is over. A `TimeoutError` of the awaited code is never turned into this."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Timed out after {seconds:g} s")
        self.seconds = seconds


class Timer(Protocol):
    """Runs beside a coroutine, from its first wait until it is done, and may cancel it."""

    def begin(self) -> None: ...

    def translate_cancellation(self, cancelled: asyncio.CancelledError) -> BaseException:
        """The exception to raise after a cancellation: the CancelledError itself, or one of the timer's."""

    def end(self) -> None: ...


@types.coroutine
def run_with_timer(work: Coroutine[Any, Any, T], timer: Callable[[], Timer]) -> Generator[Any, Any, T]:
    """Await `work` in this task. Most work never waits: we step through it ourselves, and make a timer once it does."""
    try:
        waited_for = work.send(None)
    except StopIteration as end:
        at_once: T = end.value
        return at_once
    return (yield from resume_with_timer(work, waited_for, timer()))


@types.coroutine
def resume_with_timer(work: Coroutine[Any, Any, T], waited_for: Any, timer: Timer) -> Generator[Any, Any, T]:
    """`run_with_timer` after the first step of `work`, which has yielded `waited_for`."""
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
        translated = timer.translate_cancellation(cancelled)
        if translated is cancelled:
            raise
        raise translated from cancelled
    finally:
        value = None  # it may be an exception whose traceback holds this frame
        timer.end()


def with_timeout(work: Coroutine[Any, Any, T], seconds: float) -> Awaitable[T]:
    """Await `work` in this task; cancel it after `seconds` and raise `CallTimeout`. As strict as `asyncio.timeout`."""
    return run_with_timer(work, lambda: PausableTimeout(seconds))


class PausableTimeout:
    """Timer that cancels the current task when its time is up."""

    __slots__ = ("_earlier", "_fired", "_pauses", "_remaining", "_task", "_timer", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = self._remaining = seconds
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
            self._timer = asyncio.get_running_loop().call_later(self._remaining, self.expire)

    def pause(self) -> None:
        """Stop the clock until `resume`; on the loop only."""
        self._pauses += 1
        timer, self._timer = self._timer, None
        if timer is not None:
            self._remaining = max(0.0, timer.when() - asyncio.get_running_loop().time())
            timer.cancel()
            if not self._remaining:  # it is due, and the loop has only had no turn to say so
                self.expire()

    def resume(self) -> None:
        self._pauses -= 1
        self._run()

    def expire(self) -> None:
        """Let the timeout expire now."""
        if self._task is not None and not self._fired:
            self._fired = True
            self._task.cancel()

    def translate_cancellation(self, cancelled: asyncio.CancelledError) -> BaseException:
        alone = self._task is not None and self._fired and self._task.cancelling() <= self._earlier + 1
        return CallTimeout(self.seconds) if alone else cancelled

    def end(self) -> None:
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        if task is not None and self._fired:
            task.uncancel()


# The timeouts of the function that runs, and of the functions that called it.
_timeouts: ContextVar[tuple[PausableTimeout, ...]] = ContextVar("timeouts", default=())


async def with_function_timeout(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """`with_timeout` that `paused_timeouts` can pause, also from tasks and threads that the function starts."""
    timeout = PausableTimeout(seconds)
    token = _timeouts.set((*_timeouts.get(), timeout))
    try:
        return await run_with_timer(work, lambda: timeout)
    finally:
        with suppress(ValueError):  # a loop that died in mid-call is torn down from elsewhere
            _timeouts.reset(token)


@contextmanager
def paused_timeouts() -> Iterator[None]:
    """Pause the timeouts of the waiting functions while a client or its user is asked."""
    timeouts = _timeouts.get()
    for timeout in timeouts:
        timeout.pause()
    try:
        yield
    finally:
        for timeout in timeouts:
            timeout.resume()
