"""All the connections of an HTTP service: an ASGI app and options come in, a protocol for each new connection goes out.

The one module that loads the parser (httptools, which is llhttp), and it does so late.
"""

import asyncio
import time

from dovetail.transports.asgi import App
from dovetail.transports.forwarded import TrustedProxies
from dovetail.transports.options import HttpOptions
from dovetail.transports.wire_connection import HttpConnection
from dovetail.transports.wire_cycle import Cycle

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Wire:
    """All connections of one service. `connection` makes the protocol of a new one."""

    def __init__(self, app: App, options: HttpOptions) -> None:
        import httptools

        self.app = app
        self.options = options
        self.proxies = TrustedProxies(options.trusted_proxies)
        self.loop = asyncio.get_running_loop()
        self.new_parser = httptools.HttpRequestParser
        self.parse_url = httptools.parse_url
        self.ParserError: type[Exception] = httptools.HttpParserError
        self.ParserUpgrade: type[Exception] = httptools.HttpParserUpgrade
        self.connections: set[HttpConnection] = set()
        self.serving: dict[Cycle, asyncio.Task[None]] = {}  # the loop itself would let a task be collected
        self._all_closed: asyncio.Future[None] | None = None
        self._tell_date()

    def connection(self) -> HttpConnection:
        return HttpConnection(self)

    def _tell_date(self) -> None:
        self.date = http_date(time.gmtime())
        self.date_line = b"date: %b\r\n" % self.date
        self._clock = self.loop.call_later(1.0, self._tell_date)

    def finish(self) -> None:
        """Close what is idle now, and the rest after the answers that are under way."""
        for connection in tuple(self.connections):
            connection.finish()

    async def answer_all(self, deadline: float) -> None:
        """Wait for answers that have not begun: those of the host's own pages, of which the app keeps no record."""
        while any(connection.is_unanswered for connection in self.connections):
            left = deadline - self.loop.time()
            if left <= 0 or not self.serving:
                return
            await asyncio.wait(self.serving.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)

    async def close(self, seconds: float) -> None:
        """Wait until all are closed, but no longer than that; then cut them."""
        self._clock.cancel()
        if self.connections:
            self._all_closed = self.loop.create_future()
            await asyncio.wait({self._all_closed}, timeout=seconds)
        for connection in tuple(self.connections):
            connection.transport.abort()

    def forget(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)
        if self._all_closed is not None and not self.connections and not self._all_closed.done():
            self._all_closed.set_result(None)


def http_date(at: time.struct_time) -> bytes:
    """In English, whatever the locale; and the library's own function for it would load all of `email`."""
    day, month = DAYS[at.tm_wday], MONTHS[at.tm_mon - 1]
    return f"{day}, {at.tm_mday:02} {month} {at.tm_year} {at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT".encode()
