"""HTTP service of a process of its own: its sockets, its workers and its end by a signal.

The stages of the end: `/ready` says no, and all is served as before (`drain_delay`); nothing new is accepted; streams
are ended, calls get their time (`drain_timeout`); what then is left is cut.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from socket import socket as Socket
from typing import Any

import msgspec

from dovetail.engine.engine import Engine
from dovetail.errors import SetupError
from dovetail.transports.http.app import HttpApp
from dovetail.transports.http.legacy_sse import STREAM_ROUTE
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http.routes import MOUNT, AnnouncedApp
from dovetail.transports.http11.protocol import ServerState
from dovetail.transports.process import StopSignal, leave_lifespan, log_to_stderr, refuse_nested_run, run_process
from dovetail.transports.supervisor import Supervisor, watch_parent

PATIENCE = 0.5  # seconds for clients to take the last bytes
LIFESPAN_SECONDS = 5.0  # for the user's own cleaning up, after the calls had their time
ANY_IPV4 = "0.0.0.0"
ANY_IPV6 = "::"  # also takes in IPv4, where the system can do that

Address = tuple[socket.AddressFamily, tuple[str, int]]

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
        if not alone and options.state is None:  # a file that the workers share, and nobody else; it ends with them
            folder = tempfile.TemporaryDirectory(prefix="dovetail-", ignore_cleanup_errors=True)
            path = Path(stack.enter_context(folder)).as_posix().lstrip("/")
            options = msgspec.structs.replace(options, state=f"sqlite:///{path}/state.db")
        app = HttpApp(engine, options, owner=owner, bound_to=options.host)
        announce = started or partial(_announce, engine.info.name, options, sockets)
        work = partial(_work, engine, app, options, sockets)
        _allow_descriptors(options.max_connections)
        if alone:
            work(announce, None)
        else:
            longest_end = options.drain_delay + options.drain_timeout + LIFESPAN_SECONDS + 5.0
            Supervisor(options.workers, work, announce, sockets, end_seconds=longest_end).run()


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


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _allow_descriptors(connections: int, others: int = 500) -> None:
    """Raise the soft limit of open files as far as needed and allowed; often it is 1024, for old programs' sake."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + others
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

    async def prepare(self) -> None:
        """Begin the server's lifespan; nothing is accepted before."""
        try:
            await self._app.start()
        except Exception as failure:
            failure.add_note("The server's lifespan failed at its start: nothing is served")
            raise

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            for each in self._sockets:
                backlog = max(1, self._options.backlog)
                self._servers.append(await loop.create_server(self._state.new_protocol, sock=each, backlog=backlog))
        except OSError as failure:  # another program that had bound the same port was quicker
            await self._app.drain(0)
            raise explained(failure, self._options.host, self._options.port) from None

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


# ── addresses ──


def bind(host: str, port: int, tries: int = 5) -> list[Socket]:
    """One socket for each address of the host, all with the same port; none of them listens yet.

    With port 0 there are several tries to find one that is free at all of the addresses.
    """
    try:
        return _bind_all(_addresses(host, port), port)
    except OSError as failure:
        if port == 0 and failure.errno == errno.EADDRINUSE and tries > 1:
            return bind(host, port, tries - 1)
        raise explained(failure, host, port) from None


def port_of(sockets: list[Socket]) -> int:
    return int(sockets[0].getsockname()[1])


def are_everywhere(sockets: list[Socket]) -> bool:
    """Whether they are bound to no address in particular, in whatever way that was written."""
    return any(each.getsockname()[0] in (ANY_IPV4, ANY_IPV6) for each in sockets)


def url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _addresses(host: str, port: int) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        advice = '"127.0.0.1" serves this machine only, "0.0.0.0" every network that it is in'
        raise SetupError(f"host={host!r} is not known; {advice}") from None
    unique = {(family, address[:2]): None for family, _, _, _, address in found}
    return [(family, (str(address[0]), port)) for family, address in unique]


def _bind_all(addresses: list[Address], port: int) -> list[Socket]:
    bound: list[Socket] = []
    missing: OSError | None = None
    with contextlib.ExitStack() as stack:
        for family, (host, _) in addresses:
            try:
                one = stack.enter_context(_bind_one(family, host, port or (port_of(bound) if bound else 0)))
            except OSError as failure:
                if failure.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = failure  # "localhost" often names an IPv6 address that the machine does not have
            else:
                bound.append(one)
        stack.pop_all()
    if not bound and missing is not None:
        raise missing
    return bound


def _bind_one(family: socket.AddressFamily, host: str, port: int) -> Socket:
    # Named, because asyncio sends small pieces at once only on sockets that say which protocol they speak.
    one = Socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform == "win32":
            one.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:  # or else a server could not come back for a minute after its end
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != ANY_IPV6))
        one.bind((host, port))
    except BaseException:
        one.close()
        raise
    return one


EXPLAINED = {
    errno.EADDRINUSE: "another program listens there; end it, or choose another port (0 for any that is free)",
    errno.EACCES: "the system does not allow that; ports from 1024 on need no special rights",
    errno.EPERM: "the system does not allow that; ports from 1024 on need no special rights",
    errno.EADDRNOTAVAIL: 'this machine has no such address; "0.0.0.0" stands for all that it has',
    errno.EAFNOSUPPORT: 'this machine has no such address; "0.0.0.0" stands for all that it has',
}


def explained(failure: OSError, host: str, port: int) -> SetupError:
    number = failure.errno or 0
    return SetupError(f"host={host!r}, port={port}: {EXPLAINED.get(number) or os.strerror(number)}")
