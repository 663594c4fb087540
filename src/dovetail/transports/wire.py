"""All the connections of an HTTP service: an ASGI app and options come in, a protocol for each new connection goes out.

The one module that loads uvicorn and its parser, and it does so late.
"""

import asyncio
from functools import cache

from dovetail.transports.asgi import App
from dovetail.transports.options import HttpOptions
from dovetail.transports.wire_limits import LimitedProtocol


class Wire:
    """All connections of one service. `connection` makes the protocol of a new one."""

    def __init__(self, app: App, options: HttpOptions) -> None:
        from uvicorn.config import Config
        from uvicorn.server import ServerState

        self.options = options
        self.loop = asyncio.get_running_loop()
        self._kind = _protocol_kind()
        self.config = Config(
            app, http=self._kind, ws="none", lifespan="off", loop="none", interface="asgi3", workers=1,
            log_config=None, proxy_headers=False, server_header=False,
        )  # fmt: skip
        self.config.load()
        self.state = ServerState()
        self._all_closed: asyncio.Future[None] | None = None
        self._tell_date()

    def connection(self) -> asyncio.Protocol:
        return self._kind(self)

    def _tell_date(self) -> None:
        from email.utils import formatdate  # uvicorn has loaded it

        self.state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._clock = self.loop.call_later(1.0, self._tell_date)

    def finish(self) -> None:
        """Close what is idle now, and the rest after the answers that are under way."""
        for connection in self._connections():
            connection.shutdown()

    async def answer_all(self, deadline: float) -> None:
        """Wait for answers that have not begun: those of the host's own pages, of which the app keeps no record."""
        while any(connection.is_unanswered for connection in self._connections()):
            left = deadline - self.loop.time()
            if left <= 0 or not self.state.tasks:
                return
            await asyncio.wait(self.state.tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    def _connections(self) -> list[LimitedProtocol]:
        return [each for each in self.state.connections if isinstance(each, LimitedProtocol)]

    async def close(self, seconds: float) -> None:
        """Wait until all are closed, but no longer than that; then cut them."""
        self._clock.cancel()
        if self.state.connections:
            self._all_closed = self.loop.create_future()
            await asyncio.wait({self._all_closed}, timeout=seconds)
        for connection in self._connections():
            connection.transport.abort()

    def one_less(self) -> None:
        if self._all_closed is not None and not self.state.connections and not self._all_closed.done():
            self._all_closed.set_result(None)


@cache
def _protocol_kind() -> type[LimitedProtocol]:
    import httptools
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    members = {
        "ParserError": httptools.HttpParserError,
        "ParserUpgrade": httptools.HttpParserUpgrade,
        "new_parser": httptools.HttpRequestParser,
    }
    return type("HttpConnection", (LimitedProtocol, HttpToolsProtocol), members)
