"""HTTP apps for tests: a server whose tools stop where a test wants to look, and the proof that nothing is left."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import uvicorn
import uvicorn.server

from dovetail import Context, Server
from dovetail.engine.subscriptions import Change
from dovetail.state.memory import MemoryState
from dovetail.transports.http.app import HttpApp
from dovetail.transports.http.endpoint import Endpoint
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.serve import HttpService, bind, port_of, url_of

Serve = Callable[..., Awaitable[Any]]  # of a server, or of the stage of the test: its app, as `serving` gives it


class Stage:
    """A server whose tool waits until the test says go."""

    def __init__(self, **options: Any) -> None:
        self.server = Server("stage", version="1.0.0", **options)
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.ran: list[str] = []
        for tool in (self.work, self.warn, self.add):
            self.server.add_tool(tool)
        for name in ("one", "two"):
            self.server.add_resource(f"test://{name}", lambda: "1", name=name)

    def change_tools(self) -> None:
        self.server.engine.publish(Change("tools"))

    async def work(self) -> str:
        """Says that it has begun, and waits."""
        self.ran.append("work")
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "done"

    async def warn(self, ctx: Context, times: int = 1) -> str:
        """Notifies, waits, and notifies again."""
        for _ in range(times):
            await ctx.warning("first")
        self.entered.set()
        await self.go.wait()
        await ctx.warning("second")
        return "warned"

    async def add(self, a: int, b: int) -> int:
        return a + b


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class PausingState(MemoryState):
    """A backend that is far away: the loop turns before and after every call."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("get", "put", "touch", "remaining", "delete", "append", "read", "drop", "publish"):
            return found

        async def paused(*arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(0)
            try:
                return await found(*arguments, **options)
            finally:
                await asyncio.sleep(0)

        return paused


@asynccontextmanager
async def listening(app: HttpApp, options: HttpOptions) -> AsyncIterator[str]:
    """On sockets, as `run("http")` serves it but without signals; gives the URL of its root."""
    sockets = bind(options.host, options.port)
    service = HttpService(app, options, sockets)
    try:
        await service.prepare()
        await service.listen()
        yield url_of(options.host, port_of(sockets))
    finally:
        await service.stop()


@asynccontextmanager
async def serving(
    server: Any, *, clock: Clock | None = None, state: MemoryState | None = None, **options: Any
) -> AsyncIterator[Any]:
    """`server.asgi(...)`; at the end it is drained, and no task, listener, call or stream is left of it."""
    others = asyncio.all_tasks()
    app = server.asgi(**options)
    if state is not None or clock is not None:
        app._state = state or MemoryState(clock=clock or Clock())
    await app.start()
    if clock is not None:
        endpoint_of(app).sessions._clock = clock
    endpoint, in_flight = endpoint_of(app), app._running.in_flight
    yield app
    await asyncio.wait_for(app.drain(1), 10)
    await nothing_left(others, endpoint, app._state)
    assert not in_flight.calls
    assert not in_flight.streams


async def nothing_left(others: set[Any], endpoint: Endpoint, state: Any) -> None:
    """Of an app that was drained: no task but those that were there before, no call, stream or listener."""
    await settle()
    here = {asyncio.current_task()}
    with suppress(TimeoutError):  # the thread of a call may take its time
        await until(lambda: asyncio.all_tasks() - here <= others)
    assert asyncio.all_tasks() - here <= others, f"left behind: {asyncio.all_tasks() - others}"
    assert not endpoint.calls.by_id
    assert not endpoint.calls._announced
    assert not endpoint.store.running
    assert not endpoint.streams.current
    assert not state._topics.names
    assert not state._topics.listeners


def endpoint_of(app: Any) -> Endpoint:
    return app._running._endpoint


async def settle(turns: int = 20) -> None:
    """Let everything run that can run at once."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


# ── any ASGI app on a loopback socket, by plain uvicorn on this event loop ──

EXIT_POLL = 0.005  # seconds
HOST_TIMEOUT = 10.0  # seconds to start, and to end


class _Hasty:
    """asyncio as uvicorn's server sees it, which looks every 100 ms whether it is to end, and then waits as long."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, EXIT_POLL))


uvicorn.server.asyncio = _Hasty()  # type: ignore[assignment]


class UvicornHost(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """They belong to the process that runs the tests."""
        yield


def listening_at(port: int = 0) -> socket.socket:
    """Bound to loopback, and named TCP: only then does asyncio send small pieces at once, without 40 ms between."""
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", port))
    one.listen()
    return one


@asynccontextmanager
async def hosted(app: Any, port: int = 0, *, is_killed: bool = False, **options: Any) -> AsyncIterator[str]:
    """Gives the URL of its root; `options` are uvicorn's. `is_killed`: in the end it breaks off, as if it had died."""
    listening = listening_at(port)
    server = UvicornHost(uvicorn.Config(app, log_config=None, **{"timeout_graceful_shutdown": 1, **options}))
    serving = asyncio.create_task(server.serve([listening]))
    try:
        async with asyncio.timeout(HOST_TIMEOUT):
            while not server.started:
                assert not serving.done(), "the host could not start"
                await asyncio.sleep(0.001)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        if is_killed:
            for each in server.servers:
                each.close()
            for connection in tuple(server.server_state.connections):
                connection.transport.abort()
        server.should_exit = True
        await asyncio.wait_for(serving, HOST_TIMEOUT)
        listening.close()
