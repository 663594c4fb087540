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
        self._link: Link = self._newer
        self.mirrored = self._newer.mirrored

    async def open(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._link = self._newer
        await self._link.open(receiver)

    def _fall_back(self, handshake: bytes, failure: DovetailError) -> None:
        self._link = older = SseLink(self._requests, instead_of=failure)
        older.attach(self._receiver)
        older.write(handshake)

    def write(self, message: bytes) -> None:
        self._link.write(message)

    async def drain(self) -> None:
        await self._link.drain()

    async def close(self) -> None:
        try:
            if self._link is not self._newer:
                await self._link.close()
        finally:
            await self._newer.close()

    def agreed(self, revision: Revision) -> None:
        self._link.agreed(revision)

    def abandon(self, id: RequestId) -> bool:
        return self._link.abandon(id)

    @property
    def identity(self) -> str | None:
        return self._requests.identity

    @property
    def hears(self) -> bool:
        return self._link.hears

    async def attend(self) -> None:
        await self._link.attend()
