"""What the tests of the transports share: apps in this process and programs beside it, a fleet, and time that obeys."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from http_clients import Fleet, FleetOf

from http_serving import Clock, Serve, Stage, serving
from http_wire import HttpWire
from processes import Start, programs


@pytest.fixture
def start() -> Iterator[Start]:
    with programs() as start:
        yield start


@pytest.fixture
async def stage() -> Stage:
    """The server of the test; a file may have one of its own."""
    return Stage()


@pytest.fixture
async def serve(stage: Stage) -> AsyncIterator[Serve]:
    """Apps of the stage, or of a server that is given; in the end they are drained, and nothing is left of them."""
    async with AsyncExitStack() as apps:

        async def serve(server: Any = None, **options: Any) -> Any:
            return await apps.enter_async_context(serving(server or stage.server, **options))

        yield serve


@pytest.fixture
async def app(serve: Serve) -> Any:
    return await serve()


@pytest.fixture
async def wire(app: Any) -> HttpWire:
    """A session of 2025-11-25."""
    return await HttpWire.session(app)


@pytest.fixture
async def fleet_of() -> AsyncIterator[FleetOf]:
    """Fleets of a kind of stage: `await fleet_of(AskingStage, keep_alive=0.1)`."""
    async with AsyncExitStack() as fleets:

        async def fleet_of(kind: Any, **options: Any) -> Fleet:
            fleet = Fleet(kind, **options)
            fleets.push_async_callback(fleet.stop)
            await fleet.start()
            return fleet

        yield fleet_of


@pytest.fixture
async def fleet(fleet_of: FleetOf) -> Fleet:
    return await fleet_of(Stage)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def pass_time() -> Callable[[float], None]:
    """Seconds that pass at once for all that this event loop waits for."""
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, 0.0

    def pass_time(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    loop.time = lambda: real() + ahead  # type: ignore[method-assign]
    return pass_time
