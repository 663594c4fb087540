"""Server on stdin and stdout for one client, until the input ends or a signal comes.

While it serves, what everyone else finds, be it `print`, `input`, a C library or a child process, is the null device as
stdin and stderr as stdout.
"""

import asyncio
import contextlib
import logging
import os
import stat
import sys
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from dovetail import auth as lazy_auth
from dovetail.engine.connection import Connection
from dovetail.engine.engine import Engine
from dovetail.errors import INVALID_REQUEST, ProtocolError, SetupError
from dovetail.transports.pipes import STDERR, STDIN, STDOUT, Line, LineSplitter, Reader, open_reader, open_writer
from dovetail.transports.process import StopSignal, leave_lifespan, log_to_stderr, refuse_nested_run, run_process

if TYPE_CHECKING:
    from dovetail.auth.principal import Principal
    from dovetail.auth.settings import Auth

TOKEN = "DOVETAIL_TOKEN"  # the variable that holds it

# Seconds that calls get to finish. Hosts that close our stdin wait about 2 s before they send a signal.
INPUT_ENDED_GRACE = 1.5
SIGNAL_GRACE = 0.5
FILE_ENDED_GRACE = 300.0  # a file has an end from the start: nobody has left, all answers are wanted

PATIENCE = 1.0  # a client that reads nothing for so long when all is over has given up its last answers
LIFESPAN_SECONDS = 5.0  # for the user's own cleaning up

log = logging.getLogger("dovetail")


# ── the standard streams ──


class PrivateStreams:
    """The real stdin and stdout, which no child process inherits."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self._open = True
        if sys.platform != "win32":
            os.register_at_fork(after_in_child=self.close)  # a child that was forked but runs no other program

    def close(self) -> None:
        """Let go of both: whoever is at the other end sees that nothing more comes."""
        if self._open:
            self._open = False
            os.close(self.stdin)
            os.close(self.stdout)


def take_standard_streams() -> PrivateStreams:
    """Take stdin and stdout away from everyone else."""
    _fill_gaps()
    streams = PrivateStreams(os.dup(STDIN), os.dup(STDOUT))
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(streams.stdin, os.O_BINARY)
        msvcrt.setmode(streams.stdout, os.O_BINARY)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, STDIN)
    os.close(null)
    os.dup2(STDERR, STDOUT)
    with contextlib.suppress(Exception):  # sys.stdout may be None, closed, or anything that the user has put there
        sys.stdout.flush()  # what was printed before goes to stderr, too, and what follows line by line
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return streams


def _fill_gaps() -> None:
    """Put the null device where the parent left a standard descriptor closed.

    Otherwise the next file to be opened would get its number, and with it what is meant for stderr or stdout.
    """
    for number in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one


# ── the server ──


def serve_stdio(engine: Engine, *, owner: Any = None) -> None:
    """Serve until the client leaves or a signal comes; `owner` is what the lifespan is called with.

    Stdin and stdout are not given back. What is printed later, by a thread that is stuck or by code after `run()`,
    must not reach the client either; and the client sees at once that the server has ended.
    """
    refuse_nested_run()
    log_to_stderr(engine.redactor)
    streams = take_standard_streams()
    try:
        run_process(partial(_live, engine, owner, streams), engine.threads)
    finally:
        streams.close()


async def _live(engine: Engine, owner: Any, streams: PrivateStreams) -> None:
    """The life of the server: the lifespan around it, the signals around that."""
    with StopSignal() as signal:
        if await signal.interrupts(engine.start(owner)):
            return
        try:
            service = _Service(engine, streams, await _principal(engine.options.auth))
            if await signal.interrupts(service.serve()):
                await service.end(SIGNAL_GRACE)
            await service.close()
        finally:
            await leave_lifespan(engine.stop(), LIFESPAN_SECONDS)


async def _principal(auth: "Auth | None") -> "Principal | None":
    """Whoever the environment has a token for; nobody if there is none. Raises SetupError if it is not good."""
    token = os.environ.pop(TOKEN, None)  # what this process starts has no use for it
    if auth is None or not token:
        return None
    try:
        principal = await auth.verify(token)
    except lazy_auth.VerifierUnavailable:
        raise SetupError(f"Nobody can tell at the moment whether the token in {TOKEN} is good; try again") from None
    except Exception as failure:  # whose words may hold the token
        raise SetupError(f"The token in {TOKEN} can't be verified: {type(failure).__name__}") from None
    if principal is None or _is_over(principal):
        raise SetupError(f"The token in {TOKEN} is not good, or not any more; get another, or unset the variable")
    if not principal.scopes >= auth.scopes:
        words = " ".join(sorted(auth.scopes))
        raise SetupError(f"The token in {TOKEN} lacks some of the scopes: {words}; get one that has all of them")
    return principal


def _is_over(principal: "Principal") -> bool:
    return principal.expires_at is not None and principal.expires_at <= time.time()


class _Service:
    """One client's stay: feeds the connection what comes in, no faster than the client reads what goes out."""

    def __init__(self, engine: Engine, streams: PrivateStreams, principal: "Principal | None") -> None:
        self._engine = engine
        self._stdin = streams.stdin
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()  # nothing more will come that is worth waiting for
        self._splitter = LineSplitter(engine.options.max_message_bytes)
        self._lines: deque[Line] = deque()  # read, but not yet fed
        self._feeding_soon = False
        self._writer = open_writer(streams.stdout, self._output_changed)
        self._connection = Connection(engine, self._writer, principal=principal)
        if principal is not None and principal.expires_at is not None:
            self._forget_in_time(principal.expires_at)
        self._reader: Reader = open_reader(streams.stdin, self._received)

    async def serve(self) -> None:
        """Until the input is over and its calls had their time to finish."""
        self._expect_greeting()
        await self._over.wait()
        while self._lines and await self._writer.has_room(PATIENCE):
            self._feed()
            await asyncio.sleep(0)
        is_file = stat.S_ISREG(os.fstat(self._stdin).st_mode)
        await self.end(FILE_ENDED_GRACE if is_file and not self._writer.broken else INPUT_ENDED_GRACE)

    async def end(self, grace: float) -> None:
        """Read no more, and give the calls in flight `grace` seconds. Those that only listen get their result now."""
        self._reader.close()
        self._lines.clear()
        await asyncio.sleep(0)  # requests that have just come in begin to listen before all listening is ended
        self._engine.hub.end_all()
        await self._connection.close(grace)

    async def close(self) -> None:
        """Send what is left to a client that still reads."""
        await self._writer.flush(PATIENCE)
        self._writer.close()

    # ── lines in ──

    def _received(self, chunk: bytes) -> None:
        if chunk:
            self._lines.extend(self._splitter.feed(chunk))
        else:
            self._lines.extend(self._splitter.end())
            self._over.set()
        self._feed()

    def _output_changed(self) -> None:
        if self._writer.broken:
            self._over.set()
        else:
            self._feed()

    def _feed(self, at_once: int = 64) -> None:
        """Feed some lines; the rest when the loop has turned and answers are written, or when the client has read."""
        lines = self._lines
        are_several = len(lines) > 1
        if are_several:
            self._writer.gather()
        for _ in range(min(len(lines), at_once)):
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
            self._loop.call_soon(self._writer.send_gathered)  # after those that begin only when the loop turns
        if not self._lines:
            self._reader.resume()
            return
        self._reader.pause()
        if not self._writer.full and not self._feeding_soon:
            self._feeding_soon = True
            self._loop.call_soon(self._feed_more)

    def _feed_more(self) -> None:
        self._feeding_soon = False
        self._feed()

    # ── time ──

    def _forget_in_time(self, expires_at: float, look_seconds: float = 10.0) -> None:
        """Looks often: while a machine sleeps, the clock of the loop does not go on."""
        seconds = expires_at - time.time()
        if seconds <= 0:
            log.warning("the token in %s has expired: from now on the client has no scopes", TOKEN)
            self._connection.forget_principal()
        else:
            self._loop.call_later(min(seconds, look_seconds), self._forget_in_time, expires_at)

    def _expect_greeting(self) -> None:
        timeout = self._engine.options.initialize_timeout
        if os.isatty(self._stdin):
            log.info("%s speaks MCP on stdin and stdout; Ctrl-C ends it", self._engine.info.name)
        elif timeout is not None:
            self._loop.call_later(timeout, self._check_greeting, timeout)

    def _check_greeting(self, timeout: float) -> None:
        if not self._connection.first_request.is_set():
            log.warning("no client has made a request within %g s: the server ends", timeout)
            self._over.set()
