"""What a handshake over Streamable HTTP began: perhaps a session with an id, and a stream of its own.

Streams that break are taken up again where they broke, as often as it takes.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable

from dovetail.client.events import EventReader
from dovetail.client.refusals import PASSING
from dovetail.client.requests import EVENTS, HttpReply, HttpRequests
from dovetail.errors import BadAnswer, ConnectionLost, DovetailError, NotSignedIn, ServerError
from dovetail.protocol.revisions import Revision

NO_STREAM = frozenset({404, 405})  # the second is right, but servers without a page for GET say the first
_SESSION_ID = re.compile(r"[\x21-\x7e]+")

log = logging.getLogger("dovetail.client")


class RemoteSession:
    """`on_message` hears what the server says unasked, `on_missed` that it may have said more than was heard, and
    `on_gone` that it does not know the session any more.
    """

    def __init__(
        self,
        requests: HttpRequests,
        reply: HttpReply,
        *,
        on_message: Callable[[bytes], None],
        on_missed: Callable[[], None],
        on_gone: Callable[["RemoteSession"], None],
    ) -> None:
        self.id = reply.header("Mcp-Session-Id")
        if self.id is not None and not _SESSION_ID.fullmatch(self.id):
            raise BadAnswer("the server's session id holds characters that are not allowed in it")
        self.revision: Revision | None = None
        self.over = False
        self.hears = False  # its own stream is open
        self.attentive = asyncio.Event()  # it is open, or there is none, or it will take its time
        self._requests = requests
        self._on_message = on_message
        self._on_missed = on_missed
        self._on_gone = on_gone

    @property
    def headers(self) -> dict[str, str]:
        headers = {}
        if self.revision is not None:
            headers["MCP-Protocol-Version"] = self.revision.name
        if self.id is not None:
            headers["Mcp-Session-Id"] = self.id
        return headers

    def check(self, reply: HttpReply) -> bool:
        """Whether the server still knows the session, as far as a reply tells."""
        if reply.status == 404 and self.id is not None:
            self._on_gone(self)
            return False
        return True

    async def resume(self, reader: EventReader, enough: Callable[[], bool]) -> None:
        """Take a broken stream up again, until it was enough."""
        while not enough():
            if not reader.last_id:
                raise ConnectionLost(f"{reader.broken} before the answer came")
            await asyncio.sleep(reader.backoff.seconds())
            try:
                await self._connect(reader, enough)
            except ServerError as refused:
                raise ConnectionLost(
                    f"{reader.broken} before the answer came, and can't be taken up again: {refused.message}"
                ) from None

    async def hear(self, begun: "asyncio.Task[None]") -> None:
        """Read the session's own stream, for ever; `begun` is done when the server knows that the session may begin."""
        reader = EventReader(self._on_message)
        try:
            await asyncio.wait([begun])
            while not self.over:
                try:
                    await self._connect(reader, lambda: self.over, self._listens)
                except (BadAnswer, NotSignedIn, ServerError) as bad:
                    if not reader.connections:
                        return self._is_deaf(bad)
                    log.warning("the session's own stream broke: %s", bad)
                    reader.last_id = ""  # perhaps it asked for too much
                self.hears = False
                self.attentive.set()
                await asyncio.sleep(reader.backoff.seconds())
        finally:
            self.hears = False
            self.attentive.set()

    async def _connect(
        self, reader: EventReader, enough: Callable[[], bool], on_open: Callable[[], None] = lambda: None
    ) -> None:
        """Read one connection. What may pass by itself is silently left for the next one."""
        headers = {**self.headers, "Accept": EVENTS}
        if reader.last_id:
            headers["Last-Event-ID"] = reader.last_id
        with contextlib.suppress(ConnectionLost):
            async with self._requests.send("GET", headers, attended=False) as reply:
                if reply.ok and reply.kind == EVENTS:
                    if reader.connections and not reader.last_id:
                        self._on_missed()  # nothing is replayed
                    on_open()
                    await reader.read(reply, enough)
                elif reader.connections and not self.check(reply):
                    return
                elif reply.status not in PASSING and reply.status < 500:
                    raise ServerError(reply.status, f"the server answered {reply.words} with {reply.kind}")

    def _is_deaf(self, why: DovetailError) -> None:
        if not isinstance(why, ServerError) or why.code not in NO_STREAM:
            log.warning("nothing is heard of what the server says unasked: %s", why)

    def _listens(self) -> None:
        self.hears = True
        self.attentive.set()

    async def end(self) -> None:
        """Tell the server; whether it likes that or not."""
        if self.id is not None and not self.over:
            with contextlib.suppress(DovetailError):
                async with self._requests.send("DELETE", self.headers, attended=False):
                    pass
