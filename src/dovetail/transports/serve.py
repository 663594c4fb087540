"""Serves HTTP from a process of its own: an engine and options come in; it returns when a signal has ended it.

The stages of the end: `/ready` says no, and all is served as before (`drain_delay`); nothing new is accepted; streams
are ended, calls get their time (`drain_timeout`); what then is left is cut.
"""

import asyncio
import contextlib
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from socket import socket as Socket
from typing import Any

import msgspec

from dovetail.engine.core import Engine
from dovetail.transports.http import HttpApp
from dovetail.transports.http11.protocol import ServerState
from dovetail.transports.options import HttpOptions
from dovetail.transports.process import StopSignal, leave_lifespan, log_to_stderr, refuse_nested_run, run_process
from dovetail.transports.routes import MOUNT, AnnouncedApp
from dovetail.transports.sockets import are_everywhere, bind, explained, port_of, url_of
from dovetail.transports.sse import STREAM_ROUTE
from dovetail.transports.supervisor import Supervisor, watch_parent

PATIENCE = 0.5  # seconds for clients to take the last bytes
LIFESPAN_SECONDS = 5.0  # for the user's own cleaning up, after the calls had their time
OTHER_DESCRIPTORS = 500  # what a process needs besides its connections

log = logging.getLogger("dovetail")


def serve_http(
    engine: Engine,
    options: HttpOptions,
    *,
    owner: Any = None,
    sockets: list[Socket] | None = None,
    started: Callable[[], None] | None = None,
) -> None:
    """Serve until a signal comes; `owner` is what the lifespan is called with.

    At `sockets` of a parent that holds them, or else at those that the options name. `started` is called instead of
    the line that says where it listens.
    """
    refuse_nested_run()
    alone = options.workers == 1
    if alone:  # several set up their logs for themselves, for that takes a thread
        log_to_stderr(engine.redactor)
    sockets = sockets or bind(options.host, options.port)
    with contextlib.ExitStack() as stack:
        for each in sockets:
            stack.callback(each.close)
        if not alone and options.state is None:
            options = msgspec.structs.replace(options, state=stack.enter_context(_private_state()))
        app = HttpApp(engine, options, owner=owner, bound_to=options.host)
        announce = started or partial(_announce, engine.info.name, options, sockets)
        work = partial(_work, engine, app, options, sockets)
        _allow_descriptors(options.max_connections)
        if alone:
            work(announce, None)
        else:
            Supervisor(options.workers, work, announce, sockets, end_seconds=_longest_end(options)).run()


@contextlib.contextmanager
def _private_state() -> Iterator[str]:
    """A file that the workers of this host share, and nobody else; it ends with them."""
    with tempfile.TemporaryDirectory(prefix="dovetail-", ignore_cleanup_errors=True) as folder:
        yield f"sqlite:///{Path(folder).as_posix().lstrip('/')}/state.db"


def _work(
    engine: Engine,
    app: HttpApp,
    options: HttpOptions,
    sockets: list[Socket],
    started: Callable[[], None],
    parent: int | None,
) -> None:
    """What one process does, be it alone or a worker."""
    log_to_stderr(engine.redactor)

    async def live() -> None:
        service = HttpService(app, options, sockets)
        with StopSignal() as signal:
            if parent is not None:
                watch_parent(parent, signal.give)
            if await signal.interrupts(service.prepare()):
                return
            await service.listen()
            started()
            await signal.wait()
            await service.stop()

    run_process(live, engine.threads, _new_loop)


def _announce(name: str, options: HttpOptions, sockets: list[Socket]) -> None:
    everywhere = are_everywhere(sockets)
    base = url_of("localhost" if everywhere else options.host, port_of(sockets))
    where = f" listens at all addresses ({options.host}) and" if everywhere else ""
    more = f" (HTTP+SSE at {base}{STREAM_ROUTE})" if options.sse else ""
    pages = "".join(
        f"{name} has its {app.name} at {base}{path.removesuffix(MOUNT)}/\n"
        for path, app in options.routes.items()
        if isinstance(app, AnnouncedApp)
    )
    with contextlib.suppress(OSError, ValueError, AttributeError):  # a stderr that is closed, or that is not there
        sys.stderr.write(f"{name}{where} serves MCP at {base}{options.path}{more}\n{pages}")
        sys.stderr.flush()


def _longest_end(options: HttpOptions) -> float:
    return options.drain_delay + options.drain_timeout + LIFESPAN_SECONDS + 5.0


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _allow_descriptors(connections: int) -> None:
    """Raise the soft limit of open files as far as needed and allowed; often it is 1024, for old programs' sake."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class HttpService:
    """An app on the running loop, from `prepare` to `stop`; reachable at bound sockets from `listen` on."""

    def __init__(self, app: HttpApp, options: HttpOptions, sockets: list[Socket]) -> None:
        self._app = app
        self._options = options
        self._sockets = sockets
        self._state = ServerState(app, options)
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Nothing is accepted before the server's lifespan has begun."""
        await self.prepare()
        await self.listen()

    async def prepare(self) -> None:
        try:
            await self._app.start()
        except Exception as failure:
            failure.add_note("The server's lifespan failed at its start: nothing is served")
            raise

    async def listen(self) -> None:
        try:
            await self._open_servers()
        except OSError as failure:  # another program that had bound the same port was quicker
            await self._app.drain(0)
            raise explained(failure, self._options.host, self._options.port) from None

    async def _open_servers(self) -> None:
        loop = asyncio.get_running_loop()
        backlog = max(1, self._options.backlog)
        for each in self._sockets:
            self._servers.append(await loop.create_server(self._state.new_protocol, sock=each, backlog=backlog))

    async def stop(self) -> None:
        self._app.begin_drain()
        await asyncio.sleep(self._options.drain_delay)
        for server in self._servers:
            server.close()
        await asyncio.sleep(0)  # where the loop lets go of the sockets
        for each in self._sockets:
            each.close()
        self._state.shut_down()
        await asyncio.sleep(0)  # where it closes those that are idle
        deadline = asyncio.get_running_loop().time() + self._options.drain_timeout
        await leave_lifespan(self._app.drain(), LIFESPAN_SECONDS, after=self._options.drain_timeout)
        await self._state.respond_to_all(deadline)
        await self._state.close(PATIENCE)


@contextlib.asynccontextmanager
async def serving(app: HttpApp, options: HttpOptions) -> AsyncIterator[str]:
    """The real thing on the running loop, without signals; gives the URL of its root."""
    sockets = bind(options.host, options.port)
    service = HttpService(app, options, sockets)
    try:
        await service.start()
        yield url_of(options.host, port_of(sockets))
    finally:
        await service.stop()
