"""Any ASGI app on a real loopback socket, by plain uvicorn on this event loop."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn

PROMPTLY = 10.0


class _Host(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """They belong to whoever runs the tests."""
        yield


@contextlib.asynccontextmanager
async def hosted(app: Any, **options: Any) -> AsyncIterator[str]:
    """Gives the URL of its root; `options` are uvicorn's."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = _Host(uvicorn.Config(app, log_config=None, **{"timeout_graceful_shutdown": 1, **options}))
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
