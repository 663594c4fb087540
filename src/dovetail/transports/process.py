"""Process of a server: event loop, signals, log on stderr, an exit that nothing stuck delays."""

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
from typing import TYPE_CHECKING, Any, ParamSpec, TextIO, TypeVar

from dovetail import engine as lazy_engine
from dovetail.engine.redaction import RedactingFilter, Redactor
from dovetail.engine.threads import ThreadPool
from dovetail.errors import SetupError
from dovetail.transports import programs_being_imported
from dovetail.transports.pipes import STDERR, write_all

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

WINDOWS_BREAK = getattr(signal, "SIGBREAK", None)  # Ctrl-Break, and what service managers send there
SIGNALS = (signal.SIGINT, signal.SIGTERM, *([WINDOWS_BREAK] if WINDOWS_BREAK is not None else []))
CANCEL_TIMEOUT = 0.5  # seconds for cancelled tasks to end
FLUSH_TIMEOUT = 0.5  # seconds for the log to be written
EXECUTOR_THREADS = 64
LEVEL_VARIABLE = "DOVETAIL_LOG_LEVEL"
FORMAT_VARIABLE = "DOVETAIL_LOG_FORMAT"
MAX_LINES = 500  # pending lines of the log
MAX_LINE_BYTES = 64 * 1024
P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("dovetail")


def run_process(
    main: Callable[[], Coroutine[Any, Any, None]],
    threads: ThreadPool,
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    exit_timeout: float = 2.0,
) -> None:
    """Run `main` in an event loop of its own, like `asyncio.run`, but don't wait for stuck tasks and threads.

    If threads of the pool are stuck at the end, the exit of the process takes no longer than `exit_timeout` seconds.
    """
    loop = new_loop()
    executor = DaemonExecutor(loop)
    loop.set_exception_handler(_log_loop_error)
    loop.set_default_executor(executor)
    asyncio.set_event_loop(loop)
    try:
        try:
            loop.run_until_complete(main())
        finally:
            loop.run_until_complete(_cancel_tasks(loop))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        if threads.stuck or executor.threads.stuck:
            _limit_exit(lambda: threads.stuck + executor.threads.stuck > 0, exit_timeout)


def _limit_exit(is_stuck: Callable[[], bool], exit_timeout: float) -> None:
    """Kill the process if its exit takes too long. Code of the program after `run()` is not limited.

    The exit of the interpreter may wait for a lock of a stuck thread, such as one that blocks in `print` because the
    host does not read stderr.
    """
    exit_started = threading.Event()

    def watch() -> None:
        seconds = 0.0
        while is_stuck():
            time.sleep(0.1)
            is_interactive = sys.flags.interactive or hasattr(sys, "ps1")  # a prompt is no Python code
            # A main thread that has no Python code left flushes stdout, before `atexit`.
            has_ended = not is_interactive and threading.main_thread().ident not in sys._current_frames()
            seconds = seconds + 0.1 if exit_started.is_set() or has_ended else 0.0
            if seconds >= exit_timeout:
                os._exit(0)

    def begin_exit() -> None:
        exit_started.set()
        sys.stdout, sys.stderr = MainThreadStream(sys.stdout), MainThreadStream(sys.stderr)

    threading.Thread(target=watch, name="dovetail-exit", daemon=True).start()  # at the exit none can be started
    atexit.register(begin_exit)


class MainThreadStream:
    """stdout or stderr at the exit of a process: what stuck threads print is dropped.

    The interpreter aborts if a thread that it ends holds the lock of one of them.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        is_main = threading.current_thread() is threading.main_thread()
        return getattr(self._stream, name) if is_main else lambda *_: None


def check_start(*, on_running_loop: bool = False) -> None:
    """Raises SetupError where `run()` can't work: in an event loop, or while the `dovetail` command imports it.

    So it does for a format of the log that is not known, before there are workers. `on_running_loop`: `run_async()`.
    """
    log_is_json()
    if programs_being_imported:
        raise SetupError(
            f"{programs_being_imported[-1]} calls run() while it is imported, but the dovetail command serves it: "
            'put that call under `if __name__ == "__main__":`'
        )
    if not on_running_loop and asyncio._get_running_loop() is not None:
        fix = "call it outside of async functions, or await server.run_async()"
        raise SetupError(f"server.run() starts an event loop of its own: {fix}")


async def _cancel_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all other tasks and close async generators, but wait only for a moment."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    tasks.add(loop.create_task(loop.shutdown_asyncgens()))
    _, running = await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT)
    for task in running:
        with contextlib.suppress(BaseException):  # else its failure would be printed when it is collected
            coroutine = task.get_coro()
            if isinstance(coroutine, Coroutine):
                coroutine.close()


async def end_lifespan(work: Coroutine[Any, Any, None], timeout: float, *, drain_timeout: float = 0.0) -> None:
    """Await `work`, which drains and then ends the lifespan, for at most `drain_timeout` plus `timeout` seconds."""
    ending = asyncio.ensure_future(work)
    await asyncio.wait({ending}, timeout=drain_timeout + timeout)
    if not ending.done():
        log.warning("the lifespan did not end within %g s and was abandoned", timeout)
    elif (failure := ending.exception()) is not None:
        log.error("the lifespan failed at its end", exc_info=failure)


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not loop.is_closed():  # after that, asyncio only complains of tasks that were still running
        log.error("%s", context["message"], exc_info=context.get("exception"))


class DaemonExecutor(ThreadPoolExecutor):
    """Executor of `asyncio.to_thread` with daemon threads: those of a standard executor would delay the exit."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()  # never starts a thread of its own
        self._loop = loop
        self.threads = ThreadPool(EXECUTOR_THREADS, 2 * EXECUTOR_THREADS, "dovetail-executor", EXECUTOR_THREADS // 2)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        inner: Any = fn
        while isinstance(inner, partial):  # `asyncio.to_thread` wraps the function
            inner = next(filter(callable, inner.args), inner.func)
        label = f"function {getattr(inner, '__qualname__', type(inner).__name__)} given to asyncio.to_thread"
        work = self.threads.run(partial(fn, *args, **kwargs), label=label)
        return asyncio.run_coroutine_threadsafe(work, self._loop)


class StopSignal:
    """SIGINT and SIGTERM, while entered: the first one interrupts, the second one ends the process at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._received: asyncio.Future[None] = self._loop.create_future()
        self._previous_handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignal":
        # The loop's own signal handlers would not do: they are not called while a function blocks the loop.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous_handlers[number] = signal.signal(number, self._handle) or signal.SIG_DFL
        return self

    def __exit__(self, *details: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous_handlers.get(signal.Signals(number))
        for each in self._previous_handlers:
            signal.signal(each, signal.SIG_DFL)  # the system ends the process, even if Python code blocks
        self._previous_handlers.clear()  # they are not restored
        self._loop.call_soon_threadsafe(self.set)
        if callable(previous) and isinstance(getattr(previous, "__self__", None), StopSignal):  # of another server
            previous(number, frame)

    def set(self) -> None:
        """Act as if a signal had arrived; on the loop."""
        if not self._received.done():
            self._received.set_result(None)

    async def wait(self) -> None:
        await asyncio.wait({self._received})

    async def interrupts(self, work: Coroutine[Any, Any, None]) -> bool:
        """Await `work`, or cancel it when a signal arrives; returns whether one arrived."""
        task = self._loop.create_task(work)
        try:
            await asyncio.wait({task, self._received}, return_when=asyncio.FIRST_COMPLETED)
        finally:  # also where the server itself is cancelled
            if is_running := not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_TIMEOUT)
        if not is_running:
            await task
        return is_running


@contextlib.contextmanager
def observed_signals(callback: Callable[[], object]) -> Iterator[None]:
    """Call `callback` on the loop at a signal, then the handler of the ASGI server that owns this process."""
    loop = asyncio.get_running_loop()
    handlers: dict[signal.Signals, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(callback)
        handlers[signal.Signals(number)](number, frame)

    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if callable(handler := signal.getsignal(number)):
                handlers[number] = handler
                signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)


def log_to_stderr(engine: "Engine") -> None:
    """Let the logger `dovetail` write to stderr, unless it has a handler already."""
    is_json = log_is_json()
    if is_json:
        engine.observe("log", lazy_engine.request_log.logged)
    if log.hasHandlers():
        return
    handler = StderrHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_json_formatter(engine.redactor) if is_json else plain)
    handler.addFilter(RedactingFilter(engine.redactor))
    log.addHandler(handler)
    if log.level == logging.NOTSET:
        name, levels = os.environ.get(LEVEL_VARIABLE) or "INFO", logging.getLevelNamesMapping()
        log.setLevel(levels.get(name.upper(), logging.INFO))
        if name.upper() not in levels:
            log.warning("%s=%s is unknown, INFO is used; known are %s", LEVEL_VARIABLE, name, ", ".join(levels))


def log_is_json() -> bool:
    name = os.environ.get(FORMAT_VARIABLE) or "text"
    if name not in ("text", "json"):
        raise SetupError(f"{FORMAT_VARIABLE}={name!r} is not possible; it must be text or json")
    return name == "json"


def _json_formatter(redactor: Redactor) -> logging.Formatter:
    return lazy_engine.request_log.JsonFormatter(redactor, MAX_LINE_BYTES)


def print_line(line: str, level: int = logging.INFO) -> None:
    """Write a line to stderr at once, in the format of the log. The parent of workers must not start a log's thread."""
    with contextlib.suppress(Exception):  # stderr may be closed or None
        if log_is_json():
            line = _json_formatter(Redactor()).format(_record(level, line.removeprefix("dovetail: ")))
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _record(level: int, message: str) -> logging.LogRecord:
    return logging.LogRecord("dovetail", level, "", 0, message, None, None)


class StderrHandler(logging.Handler):
    """Lets a daemon thread write the lines. If the host does not read them, further lines are dropped and counted.

    It writes to the descriptor itself: a thread that is stuck in `sys.stderr` would hold a lock that the exit needs.
    """

    def __init__(self, descriptor: int = STDERR) -> None:
        super().__init__()
        self.dropped = 0
        self._descriptor = descriptor
        self._queue: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._queue.qsize() >= MAX_LINES:
            self.dropped += 1
            return
        try:
            text = self.format(record)
        except Exception:
            text = f"{record.levelname} {record.name}: [this record can't be shown]"
        line = text.encode("utf-8", "backslashreplace")
        self._queue.put((line if len(line) <= MAX_LINE_BYTES else line[:MAX_LINE_BYTES] + b" [cut]") + b"\n")
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="dovetail-stderr", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        if self._thread is not None:
            written = threading.Event()
            self._queue.put(written)
            written.wait(FLUSH_TIMEOUT)

    def _write(self) -> None:
        reported = 0
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            dropped = self.dropped
            if dropped > reported:
                text = f"... and {dropped - reported} more lines that were not read in time were dropped"
                item += self.format(_record(logging.WARNING, text)).encode() + b"\n"
                reported = dropped
            with contextlib.suppress(OSError):  # stderr is closed
                write_all(self._descriptor, item)
