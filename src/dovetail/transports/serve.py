"""HTTP service of `run("http")`: sockets, one process or several workers, drain after a signal.

The drain: `/ready` fails, while requests are still served (`drain_delay`); then no connection is accepted, streams are
ended and calls may finish (`drain_timeout`); then the remaining connections are cut.
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
from dovetail.transports.process import StopSignal, check_start, end_lifespan, log_to_stderr, print_line, run_process
from dovetail.transports.supervisor import RestartPolicy, Supervisor, watch_parent

OTHER_DESCRIPTORS = 500  # open files of a process besides its connections
ANY_IPV4 = "0.0.0.0"
ANY_IPV6 = "::"  # accepts IPv4, too, where the system can do that

log = logging.getLogger("dovetail")


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """How long the end of a service may take, in seconds, besides the options for its drain."""

    flush_timeout: float = 0.5  # for clients to read the last bytes
    lifespan_timeout: float = 5.0  # for the author's own cleanup, after the calls
    kill_delay: float = 5.0  # after all of these, before a worker that has not ended is killed
    restarts: RestartPolicy = RestartPolicy()


DEFAULT_TIMINGS = Timings()


def serve_http(
    engine: Engine,
    options: HttpOptions,
    *,
    owner: Any = None,
    sockets: list[Socket] | None = None,
    started: Callable[[], None] | None = None,
    timings: Timings = DEFAULT_TIMINGS,
) -> None:
    """Serve until a signal arrives; the lifespan is called with `owner`.

    `sockets`: of a parent process, instead of those that the options name. `started`: called instead of printing the
    URL.
    """
    check_start()
    is_single = options.workers == 1
    if is_single:  # workers do this after the fork, for it starts a thread
        log_to_stderr(engine)
    sockets = sockets or bind(options.host, options.port)
    with contextlib.ExitStack() as stack:
        for each in sockets:
            stack.callback(each.close)
        if not is_single and options.state is None:  # a file that only these workers share
            folder = tempfile.TemporaryDirectory(prefix="dovetail-", ignore_cleanup_errors=True)
            path = Path(stack.enter_context(folder)).as_posix().lstrip("/")
            options = msgspec.structs.replace(options, state=f"sqlite:///{path}/state.db?prefix=workers")
        app = HttpApp(engine, options, owner=owner, bound_to=options.host)
        announce = started or partial(_announce, engine.info.name, options, sockets)
        run_worker = partial(_run_worker, engine, lambda: HttpService(app, options, sockets, timings))
        _raise_descriptor_limit(options.max_connections + OTHER_DESCRIPTORS)
        if is_single:
            run_worker(announce, None)
        else:
            drain_timeout = options.drain_delay + options.drain_timeout
            end_timeout = drain_timeout + timings.lifespan_timeout + timings.kill_delay
            Supervisor(
                options.workers, run_worker, announce, sockets, end_timeout=end_timeout, restarts=timings.restarts,
                metrics=engine.metrics,
            ).run()  # fmt: skip


def _run_worker(
    engine: Engine, make_service: "Callable[[], HttpService]", started: Callable[[], None], parent: int | None
) -> None:
    """Run one process: the only one, or a worker of `parent`."""
    log_to_stderr(engine)

    async def run() -> None:
        await _serve(make_service(), started, parent)

    run_process(run, engine.threads, _new_loop)


async def serve_http_async(engine: Engine, options: HttpOptions, *, owner: Any = None) -> None:
    """Serve on the running event loop, in this process, until a signal arrives or the task is cancelled."""
    check_start(on_running_loop=True)
    if options.workers != 1:
        fix = "leave it out (and unset DOVETAIL_WORKERS), or use server.run"
        raise SetupError(f"Server.run_async: workers={options.workers} would need processes of its own; {fix}")
    log_to_stderr(engine)
    sockets = bind(options.host, options.port)
    with contextlib.ExitStack() as stack:
        for each in sockets:
            stack.callback(each.close)
        app = HttpApp(engine, options, owner=owner, bound_to=options.host)
        _raise_descriptor_limit(options.max_connections + OTHER_DESCRIPTORS)
        await _serve(HttpService(app, options, sockets), partial(_announce, engine.info.name, options, sockets))


async def _serve(service: "HttpService", started: Callable[[], None], parent: int | None = None) -> None:
    """Serve until a signal arrives, `parent` has gone, or the task is cancelled."""
    with StopSignal() as signal:
        if parent is not None:
            watch_parent(parent, signal.set)
        if await signal.interrupts(service.prepare()):
            return
        await service.listen()
        started()
        try:
            await signal.wait()
        finally:
            await service.stop()


def _announce(name: str, options: HttpOptions, sockets: list[Socket]) -> None:
    # The addresses, not the host: 0.0.0.0 can be written in several ways.
    at_all = any(each.getsockname()[0] in (ANY_IPV4, ANY_IPV6) for each in sockets)
    base = url_of("localhost" if at_all else options.host, port_of(sockets))
    where = f" listens at all addresses ({options.host}) and" if at_all else ""
    more = f" (HTTP+SSE at {base}{STREAM_ROUTE})" if options.sse else ""
    print_line(f"{name}{where} serves MCP at {base}{options.path or '/'}{more}")
    for path, app in options.routes.items():
        if isinstance(app, AnnouncedApp):
            print_line(f"{name} has its {app.name} at {base}{path.removesuffix(MOUNT)}/")


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # on Windows
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _raise_descriptor_limit(wanted: int) -> None:
    """Raise the soft limit of open files as far as wanted and allowed; often it is only 1024."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class HttpService:
    """An app on the running loop: `prepare`, then `listen` at bound sockets, then `stop`."""

    def __init__(
        self, app: HttpApp, options: HttpOptions, sockets: list[Socket], timings: Timings = DEFAULT_TIMINGS
    ) -> None:
        self._app = app
        self._options = options
        self._sockets = sockets
        self._timings = timings
        self._state = ServerState(app, options)
        self._servers: list[asyncio.Server] = []

    async def prepare(self) -> None:
        """Start the lifespan, before any connection is accepted."""
        try:
            await self._app.start()
        except asyncio.CancelledError:
            await self._app.drain(0)  # the start has a task of its own
            raise
        except Exception as failure:
            failure.add_note("The server's lifespan failed at its start: nothing is served")
            raise

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            for each in self._sockets:
                backlog = max(1, self._options.backlog)
                self._servers.append(await loop.create_server(self._state.new_protocol, sock=each, backlog=backlog))
        except OSError as failure:  # another program bound the same port, too, and listens already
            await self._app.drain(0)
            raise _bind_error(failure, self._options.host, self._options.port) from None

    async def stop(self) -> None:
        self._app.begin_drain()
        await asyncio.sleep(self._options.drain_delay)
        for server in self._servers:
            server.close()
        await asyncio.sleep(0)  # the loop releases the sockets
        for each in self._sockets:
            each.close()
        self._state.shut_down()
        await asyncio.sleep(0)  # the loop closes idle connections
        drain_timeout, timings = self._options.drain_timeout, self._timings
        deadline = asyncio.get_running_loop().time() + drain_timeout
        await end_lifespan(self._app.drain(), timings.lifespan_timeout, drain_timeout=drain_timeout)
        await self._state.respond_to_all(deadline)
        await self._state.close(timings.flush_timeout)


def bind(host: str, port: int, tries: int = 5) -> list[Socket]:
    """One socket for each address of the host, all with the same port; none of them listens yet.

    With port 0, several ports are tried to find one that is free at all of the addresses.
    """
    try:
        return _bind_all(_addresses(host, port), port)
    except OSError as failure:
        if port == 0 and failure.errno == errno.EADDRINUSE and tries > 1:
            return bind(host, port, tries - 1)
        raise _bind_error(failure, host, port) from None


def port_of(sockets: list[Socket]) -> int:
    return int(sockets[0].getsockname()[1])


def url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        advice = '"127.0.0.1" serves this machine only, "0.0.0.0" every network that it is in'
        raise SetupError(f"host={host!r} is not known; {advice}") from None
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _bind_all(addresses: list[tuple[socket.AddressFamily, str]], port: int) -> list[Socket]:
    bound: list[Socket] = []
    missing: OSError | None = None
    with contextlib.ExitStack() as stack:
        for family, host in addresses:
            try:
                one = _bind_one(family, host, port or (port_of(bound) if bound else 0))
            except OSError as failure:
                if failure.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = failure  # "localhost" often names an IPv6 address that the machine does not have
            else:
                bound.append(stack.enter_context(one))
        stack.pop_all()
    if not bound and missing is not None:
        raise missing
    return bound


def _bind_one(family: socket.AddressFamily, host: str, port: int) -> Socket:
    # The protocol is named because asyncio sets TCP_NODELAY only on sockets that name it.
    one = Socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform == "win32":
            one.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:  # or a server could not restart for a minute
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != ANY_IPV6))
        one.bind((host, port))
    except BaseException:
        one.close()
        raise
    return one


BIND_ERRORS = {
    errno.EADDRINUSE: "another program listens there; end it, or choose another port (0 for any that is free)",
    errno.EACCES: "the system does not allow that; ports from 1024 on need no special rights",
    errno.EPERM: "the system does not allow that; ports from 1024 on need no special rights",
    errno.EADDRNOTAVAIL: 'this machine has no such address; "0.0.0.0" stands for all that it has',
    errno.EAFNOSUPPORT: 'this machine has no such address; "0.0.0.0" stands for all that it has',
}


def _bind_error(failure: OSError, host: str, port: int) -> SetupError:
    number = failure.errno or 0
    return SetupError(f"host={host!r}, port={port}: {BIND_ERRORS.get(number) or os.strerror(number)}")
