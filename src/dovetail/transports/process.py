"""The process around a server: its event loop, signals and log on stderr. Nothing that is stuck delays its end."""

import asyncio
import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from dovetail.engine.redaction import RedactingFilter, Redactor
from dovetail.engine.threads import ThreadPool
from dovetail.errors import SetupError
from dovetail.transports import refuse_while_importing
from dovetail.transports.pipes import STDERR, write_all

WINDOWS_BREAK = getattr(signal, "SIGBREAK", None)  # Ctrl-Break, and what service managers send there
SIGNALS = (signal.SIGINT, signal.SIGTERM, *([WINDOWS_BREAK] if WINDOWS_BREAK is not None else []))
SETTLE_SECONDS = 0.5  # for tasks that were cancelled
EXECUTOR_THREADS = 64
LEVEL_VARIABLE = "DOVETAIL_LOG_LEVEL"
MAX_LINES = 500  # of the log that wait to be written
MAX_LINE_BYTES = 16 * 1024

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("dovetail")


def run_process(
    main: Callable[[], Coroutine[Any, Any, None]],
    threads: ThreadPool,
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    exit_seconds: float = 2.0,
) -> None:
    """Run `main` in an event loop of its own. `threads` are those that it may leave stuck.

    The regular exit of a process with such threads then takes no longer than `exit_seconds`.

    `asyncio.run` would wait without end for tasks that ignore their cancellation, and for threads.
    """
    loop = new_loop()
    executor = DaemonExecutor(loop)
    loop.set_exception_handler(_report)
    loop.set_default_executor(executor)
    asyncio.set_event_loop(loop)
    try:
        try:
            loop.run_until_complete(main())
        finally:
            loop.run_until_complete(_clear(loop))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        if threads.stuck or executor.threads.stuck:
            _insist_on_the_end(lambda: threads.stuck + executor.threads.stuck > 0, exit_seconds)


def _insist_on_the_end(is_stuck: Callable[[], bool], exit_seconds: float) -> None:
    """Bound the time of the interpreter's exit, once it begins: a stuck thread may hold a lock that it waits for.

    One that is blocked in `print`, because nobody reads stderr, holds such a lock. What the program does after the
    server has ended takes as long as it likes.
    """
    exit_begun = threading.Event()

    def end() -> None:
        seconds = 0.0
        while is_stuck():
            time.sleep(0.1)
            seconds = seconds + 0.1 if exit_begun.is_set() or _program_is_over() else 0.0
            if seconds >= exit_seconds:
                os._exit(0)

    threading.Thread(target=end, name="dovetail-end", daemon=True).start()  # at the exit it would be too late to start
    atexit.register(exit_begun.set)


def _program_is_over() -> bool:
    """Whether the main thread has no Python code left to run. It then flushes stdout, before anything at exit."""
    is_interactive = sys.flags.interactive or hasattr(sys, "ps1")  # a prompt is no Python code either
    return not is_interactive and threading.main_thread().ident not in sys._current_frames()


def refuse_nested_run() -> None:
    """Say so in plain words, before anything else is changed."""
    refuse_while_importing()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SetupError("server.run() starts an event loop of its own: call it outside of async functions")


async def _clear(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel every task that is left, and close what generators are open, without insisting."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    tasks.add(loop.create_task(loop.shutdown_asyncgens()))
    _, stubborn = await asyncio.wait(tasks, timeout=SETTLE_SECONDS)
    for task in stubborn:
        with contextlib.suppress(BaseException):  # what it says to that would else be printed when it is collected
            coroutine = task.get_coro()
            if isinstance(coroutine, Coroutine):
                coroutine.close()


async def leave_lifespan(work: Coroutine[Any, Any, None], seconds: float, *, after: float = 0.0) -> None:
    """Await `work`, which ends the lifespan, but not for longer than that, `after` what else it may take."""
    leaving = asyncio.ensure_future(work)
    await asyncio.wait({leaving}, timeout=after + seconds)
    if not leaving.done():
        log.warning("the lifespan did not end within %g s and was left", seconds)
    elif (failure := leaving.exception()) is not None:
        log.error("the lifespan failed at its end", exc_info=failure)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not loop.is_closed():  # later there is nothing to say but that some task was left behind
        log.error("%s", context["message"], exc_info=context.get("exception"))


class DaemonExecutor(ThreadPoolExecutor):
    """Where `asyncio.to_thread` works. The threads of a standard executor would hold up the end of the process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()  # never starts a thread of its own
        self._loop = loop
        self.threads = ThreadPool(EXECUTOR_THREADS, 2 * EXECUTOR_THREADS, "dovetail-executor", EXECUTOR_THREADS // 2)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        inner: Any = fn
        while isinstance(inner, partial):  # as `asyncio.to_thread` wraps it
            inner = next(filter(callable, inner.args), inner.func)
        label = f"function {getattr(inner, '__qualname__', type(inner).__name__)} given to asyncio.to_thread"
        work = self.threads.run(partial(fn, *args, **kwargs), label=label)
        return asyncio.run_coroutine_threadsafe(work, self._loop)


class StopSignal:
    """SIGINT and SIGTERM, while entered: the first one interrupts, the second one ends the process at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._came: asyncio.Future[None] = self._loop.create_future()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignal":
        # The loop's own signal handlers would not do: they are not called while a function blocks the loop.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle) or signal.SIG_DFL
        return self

    def __exit__(self, *details: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        for number in self._before:
            signal.signal(number, signal.SIG_DFL)  # the system ends the process, whatever Python is doing
        self._before.clear()  # and so it stays to the end
        self._loop.call_soon_threadsafe(self.give)

    def give(self) -> None:
        """As if a signal had come; on the loop."""
        if not self._came.done():
            self._came.set_result(None)

    async def wait(self) -> None:
        await asyncio.wait({self._came})

    async def interrupts(self, work: Coroutine[Any, Any, None]) -> bool:
        """Await `work`, or cancel it when a signal comes; tells whether one came."""
        task = self._loop.create_task(work)
        await asyncio.wait({task, self._came}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
            return False
        task.cancel()
        await asyncio.wait({task}, timeout=SETTLE_SECONDS)
        return True


@contextlib.contextmanager
def beside_signals(act: Callable[[], object]) -> Iterator[None]:
    """In somebody else's process: call `act` on the loop when a signal comes, and let them do what they do then."""
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(act)
        before[signal.Signals(number)](number, frame)

    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if callable(theirs := signal.getsignal(number)):
                before[number] = theirs
                signal.signal(number, handle)
    try:
        yield
    finally:
        for number, theirs in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, theirs)


# ── the log on stderr ──


def log_to_stderr(redactor: Redactor) -> None:
    """Let the logger `dovetail` write to stderr, unless its records go somewhere already."""
    if log.hasHandlers():
        return
    handler = StderrHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(RedactingFilter(redactor))
    log.addHandler(handler)
    if log.level == logging.NOTSET:
        name, levels = os.environ.get(LEVEL_VARIABLE) or "INFO", logging.getLevelNamesMapping()
        log.setLevel(levels.get(name.upper(), logging.INFO))
        if name.upper() not in levels:
            log.warning("%s=%s is unknown, INFO is used; known are %s", LEVEL_VARIABLE, name, ", ".join(levels))


class StderrHandler(logging.Handler):
    """A daemon thread writes the lines; what is too much for a host that does not read them is dropped and counted.

    It writes to the descriptor itself: a thread that is stuck in `sys.stderr` would hold a lock that the exit needs.
    """

    def __init__(self, descriptor: int = STDERR) -> None:
        super().__init__()
        self.dropped = 0
        self._descriptor = descriptor
        self._waiting: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._waiting.qsize() >= MAX_LINES:
            self.dropped += 1
            return
        try:
            text = self.format(record)
        except Exception:
            text = f"{record.levelname} {record.name}: [this record can't be shown]"
        self._waiting.put(_as_bytes(text))
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="dovetail-stderr", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """Wait a moment until everything is written."""
        if self._thread is not None:
            written = threading.Event()
            self._waiting.put(written)
            written.wait(0.5)

    def _write(self) -> None:
        told = 0
        while True:
            item = self._waiting.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            dropped = self.dropped
            if dropped > told:
                item += b"... and %d more lines that nobody read in time were dropped\n" % (dropped - told)
                told = dropped
            with contextlib.suppress(OSError):  # nobody will ever read it
                write_all(self._descriptor, item)


def _as_bytes(text: str) -> bytes:
    data = text.encode("utf-8", "backslashreplace")
    return (data if len(data) <= MAX_LINE_BYTES else data[:MAX_LINE_BYTES] + b" [cut]") + b"\n"
