"""The link to a URL of which nothing is known: Streamable HTTP, or HTTP+SSE if the server turns out to be that old."""

from dovetail.client.http import HttpLink
from dovetail.client.links import Link, Receiver
from dovetail.client.requests import HttpRequests
from dovetail.client.sse import SseLink
from dovetail.errors import DovetailError
from dovetail.protocol.methods import RequestId
from dovetail.protocol.revisions import Revision


class WebLink(Link):
    """Hands everything on to the one of the two that fits."""

    reconnects = True

    def __init__(self, requests: HttpRequests) -> None:
        self._requests = requests
        self._newer = HttpLink(requests, self._fall_back)
        self._older: SseLink | None = None
        self._link: Link = self._newer
        self.mirrored = self._newer.mirrored

    async def open(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._link = self._newer
        await self._link.open(receiver)

    def _fall_back(self, handshake: bytes, failure: DovetailError) -> None:
        self._link = self._older = SseLink(self._requests, instead_of=failure)
        self._older.attach(self._receiver)
        self._older.write(handshake)

    def write(self, message: bytes) -> None:
        self._link.write(message)

    async def drain(self) -> None:
        await self._link.drain()

    async def close(self) -> None:
        try:
            if self._older is not None:
                await self._older.close()
        finally:
            self._older = None
            await self._newer.close()

    def agreed(self, revision: Revision) -> None:
        if not revision.handshake:
            self._link = self._newer  # whose answer has come after all
        self._link.agreed(revision)

    def abandon(self, id: RequestId) -> bool:
        if self._link is not self._newer:
            self._newer.abandon(id)  # it may have been asked there, before this one was tried
        return self._link.abandon(id)

    @property
    def identity(self) -> str | None:
        return self._requests.identity

    @property
    def hears(self) -> bool:
        return self._link.hears

    async def attend(self) -> None:
        await self._link.attend()
