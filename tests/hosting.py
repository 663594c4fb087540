"""Any ASGI app on a real loopback socket, by plain uvicorn on this event loop."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
import uvicorn.server

PROMPTLY = 10.0
LOOK_SECONDS = 0.005


class _Hasty:
    """asyncio as uvicorn's server sees it, which looks every 100 ms whether it is to end, and then waits as long."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, LOOK_SECONDS))


uvicorn.server.asyncio = _Hasty()  # type: ignore[assignment]


class UvicornHost(uvicorn.Server):
    @contextlib.contextmanager
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


@contextlib.asynccontextmanager
async def hosted(app: Any, **options: Any) -> AsyncIterator[str]:
    """Gives the URL of its root; `options` are uvicorn's."""
    listening = listening_at()
    server = UvicornHost(uvicorn.Config(app, log_config=None, **{"timeout_graceful_shutdown": 1, **options}))
    serving = asyncio.create_task(server.serve([listening]))
    try:
        async with asyncio.timeout(PROMPTLY):
            while not server.started:
                assert not serving.done(), "the host could not start"
                await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, PROMPTLY)
        listening.close()
