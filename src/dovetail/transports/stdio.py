"""Server on stdin and stdout for one client, until the input ends or a signal arrives.

While it serves, all other code (`print`, `input`, C libraries, child processes) has the null device as stdin, and
stderr as stdout.
"""

import asyncio
import contextlib
import logging
import os
import stat
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from dovetail import auth as lazy_auth
from dovetail import state as lazy_state
from dovetail.engine.connection import Connection
from dovetail.engine.engine import Engine
from dovetail.errors import INVALID_REQUEST, ProtocolError, SetupError
from dovetail.transports.pipes import STDERR, STDIN, STDOUT, Line, LineSplitter, Reader, open_reader, open_writer
from dovetail.transports.process import StopSignal, check_start, end_lifespan, log_to_stderr, run_process

if TYPE_CHECKING:
    from dovetail.auth.principal import Principal
    from dovetail.auth.settings import Auth
    from dovetail.state.base import StateBackend

TOKEN_VARIABLE = "DOVETAIL_TOKEN"
STATE_VARIABLE = "DOVETAIL_STATE"
LINES_PER_TURN = 64  # that are handled before the event loop turns
EXPIRY_CHECK_INTERVAL = 10.0  # seconds; short, because the clock of the loop stops while a machine sleeps

log = logging.getLogger("dovetail")


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """How long the end of a server may take, in seconds. `…_grace` is what running calls get to finish."""

    input_ended_grace: float = 1.5  # hosts that close our stdin wait about 2 s before they send a signal
    signal_grace: float = 0.5
    file_ended_grace: float = 300.0  # the end of a file as stdin is no disconnect: all responses are wanted
    flush_timeout: float = 1.0  # for a client that reads nothing of the last responses
    lifespan_timeout: float = 5.0  # for the author's own cleanup


DEFAULT_TIMINGS = Timings()


class PrivateStreams:
    """Copies of the real stdin and stdout, which no child process inherits."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self._open = True
        if sys.platform != "win32":
            os.register_at_fork(after_in_child=self.close)  # a child that was forked but runs no other program

    def close(self) -> None:
        """Close both, so that the client sees the end of the output."""
        if self._open:
            self._open = False
            os.close(self.stdin)
            os.close(self.stdout)


def take_standard_streams() -> PrivateStreams:
    """Copy stdin and stdout, and replace them for all other code."""
    for number in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:  # closed by the parent: the next file to be opened would become a standard stream
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number: this one
    streams = PrivateStreams(os.dup(STDIN), os.dup(STDOUT))
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(streams.stdin, os.O_BINARY)
        msvcrt.setmode(streams.stdout, os.O_BINARY)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, STDIN)
    os.close(null)
    os.dup2(STDERR, STDOUT)
    with contextlib.suppress(Exception):  # sys.stdout may be None, closed, or an object of the author's
        sys.stdout.flush()  # text that was printed before goes to stderr, too, and further text line by line
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return streams


def serve_stdio(engine: Engine, *, owner: Any = None, state: Any = None, timings: Timings = DEFAULT_TIMINGS) -> None:
    """Serve until the client disconnects or a signal arrives; the lifespan is called with `owner`.

    `state` is the URL of a store, else the environment may name one, else it is memory.
    """
    check_start()
    with _ready(engine, owner, state, timings) as main:
        run_process(main, engine.threads)


async def serve_stdio_async(engine: Engine, *, owner: Any = None, state: Any = None) -> None:
    """Serve on the running event loop, until the client disconnects, a signal arrives or the task is cancelled."""
    check_start(on_running_loop=True)
    with _ready(engine, owner, state, DEFAULT_TIMINGS) as main:
        await main()


@contextlib.contextmanager
def _ready(
    engine: Engine, owner: Any, state: Any, timings: Timings
) -> Iterator[Callable[[], Coroutine[Any, Any, None]]]:
    """Take the standard streams for the server, which the result serves.

    Stdin and stdout are not restored. Text that a stuck thread, or code after `run()`, prints later must not reach the
    client either; and the client sees at once that the server has ended.
    """
    url = state or os.environ.get(STATE_VARIABLE)
    if url and not isinstance(url, str):
        raise SetupError(f'Server.run: state={url!r} is not possible; it must be a URL, such as "sqlite:state.db"')
    store = lazy_state.base.open_state(url, engine.info.name) if url else None
    log_to_stderr(engine)
    streams = take_standard_streams()
    try:
        main = partial(_run, engine, owner, streams, timings)
        yield main if store is None else partial(_run_with_state, engine, store, main)
    finally:
        streams.close()


async def _run_with_state(engine: Engine, state: "StateBackend", main: Callable[[], Awaitable[None]]) -> None:
    engine.state = state
    try:
        await main()
    except lazy_state.base.StoreUnavailable as failure:  # when the server starts; later, calls fail
        raise SetupError(f"state ({STATE_VARIABLE}): {failure.message}") from None
    finally:
        engine.release_state(state)
        await state.close()


async def _run(engine: Engine, owner: Any, streams: PrivateStreams, timings: Timings) -> None:
    with StopSignal() as signal:
        if await signal.interrupts(engine.start(owner)):
            return
        try:
            service = _Service(engine, streams, await _principal(engine.options.auth), timings)
            is_over = False
            try:
                is_over = not await signal.interrupts(service.serve())
            finally:  # also where the task is cancelled
                if not is_over:
                    await service.end(timings.signal_grace)
                await service.close()
        finally:
            await end_lifespan(engine.stop(), timings.lifespan_timeout)


async def _principal(auth: "Auth | None") -> "Principal | None":
    """The principal of the token in the environment; None without a token. Raises SetupError if it is not valid."""
    token = os.environ.pop(TOKEN_VARIABLE, None)  # child processes don't need it
    if auth is None or not token:
        return None
    where = f"The token in {TOKEN_VARIABLE}"
    try:
        principal = await auth.verify(token)
    except lazy_auth.VerifierUnavailable:
        raise SetupError(f"{where} can't be verified at the moment; try again") from None
    except Exception as failure:  # its message may hold the token
        raise SetupError(f"{where} can't be verified: {type(failure).__name__}") from None
    if principal is None or (principal.expires_at is not None and principal.expires_at <= time.time()):
        raise SetupError(f"{where} is not good, or not any more; get another, or unset the variable")
    if not principal.scopes >= auth.scopes:
        words = " ".join(sorted(auth.scopes))
        raise SetupError(f"{where} lacks some of the scopes: {words}; get one that has all of them")
    return principal


class _Service:
    """Connects the streams with a `Connection`. It reads no faster than the client reads the responses."""

    def __init__(
        self, engine: Engine, streams: PrivateStreams, principal: "Principal | None", timings: Timings
    ) -> None:
        self._engine = engine
        self._timings = timings
        self._stdin = streams.stdin
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()  # the input has ended, the client has disconnected, or it never made a request
        self._splitter = LineSplitter(engine.options.max_message_bytes)
        self._lines: deque[Line] = deque()  # read, but not yet handled
        self._feed_scheduled = False
        self._writer = open_writer(streams.stdout, self._output_changed)
        self._connection = Connection(engine, self._writer, principal=principal)
        if principal is not None and principal.expires_at is not None:
            self._check_expiry(principal.expires_at)
        self._reader: Reader = open_reader(streams.stdin, self._received)

    async def serve(self) -> None:
        """Serve until the input has ended and its calls had their time to finish."""
        timings = self._timings
        self._limit_initialization()
        await self._ended.wait()
        while self._lines and await self._writer.wait_for_room(timings.flush_timeout):
            self._feed()
            await asyncio.sleep(0)
        is_file = stat.S_ISREG(os.fstat(self._stdin).st_mode)
        is_connected_file = is_file and not self._writer.broken
        await self.end(timings.file_ended_grace if is_connected_file else timings.input_ended_grace)

    async def end(self, grace: float) -> None:
        """Stop reading, end subscriptions with their result, and give running calls `grace` seconds."""
        self._reader.close()
        self._lines.clear()
        await asyncio.sleep(0)  # subscriptions that were just requested begin before all are ended
        self._engine.hub.end_all()
        await self._connection.close(grace)

    async def close(self) -> None:
        await self._writer.flush(self._timings.flush_timeout)
        self._writer.close()

    def _received(self, chunk: bytes) -> None:
        self._lines.extend(self._splitter.feed(chunk) if chunk else self._splitter.end())
        if not chunk:
            self._ended.set()
        self._feed()

    def _output_changed(self) -> None:
        if self._writer.broken:
            self._ended.set()
        else:
            self._feed()

    def _feed(self) -> None:
        """Handle some lines; the others when the loop has turned and responses are written, or the client has read."""
        lines = self._lines
        are_several = len(lines) > 1
        if are_several:
            self._writer.cork()
        for _ in range(min(len(lines), LINES_PER_TURN)):
            if self._writer.full:
                break
            line = lines.popleft()
            if line is None:
                text = f"message larger than {self._engine.options.max_message_bytes} bytes"
                self._connection.reject(ProtocolError(text, code=INVALID_REQUEST))
            else:
                self._connection.receive(line)
        self._connection.start_calls()
        if are_several:
            self._loop.call_soon(self._writer.uncork)  # after calls that begin only when the loop turns
        if not self._lines:
            self._reader.resume()
            return
        self._reader.pause()
        if not self._writer.full and not self._feed_scheduled:
            self._feed_scheduled = True
            self._loop.call_soon(self._feed_more)

    def _feed_more(self) -> None:
        self._feed_scheduled = False
        self._feed()

    def _check_expiry(self, expires_at: float) -> None:
        seconds = expires_at - time.time()
        if seconds <= 0:
            log.warning("the token in %s has expired: from now on the client has no scopes", TOKEN_VARIABLE)
            self._connection.forget_principal()
        else:
            self._loop.call_later(min(seconds, EXPIRY_CHECK_INTERVAL), self._check_expiry, expires_at)

    def _limit_initialization(self) -> None:
        timeout = self._engine.options.initialize_timeout
        if os.isatty(self._stdin):
            log.info("%s speaks MCP on stdin and stdout; Ctrl-C ends it", self._engine.info.name)
        elif timeout is not None:
            self._loop.call_later(timeout, self._check_initialized, timeout)

    def _check_initialized(self, timeout: float) -> None:
        if not self._connection.first_request.is_set():
            log.warning("no client has made a request within %g s: the server ends", timeout)
            self._ended.set()
