"""One stream of a server's messages, over as many connections as it takes."""

import asyncio
import re
from collections.abc import Callable

from dovetail.client import requests
from dovetail.client.backoff import Backoff
from dovetail.client.requests import HttpReply
from dovetail.errors import BadAnswer, ConnectionLost, ProtocolError
from dovetail.protocol.sse import Event, SseDecoder

MAX_IDS = 10_000  # that are remembered, to know a replayed event by
_USABLE_ID = re.compile(r"[^\x00-\x1f\x7f]{0,1000}")  # what a header can carry


class EventReader:
    """Passes every message on once, and remembers where the stream was broken off."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._ids: dict[str, None] = {}
        self.last_id = ""
        self.broken = "the server ended the stream"  # how the latest connection ended
        self.connections = 0
        self.backoff = Backoff()

    async def read(self, reply: HttpReply, enough: Callable[[], bool]) -> None:
        """Read one connection, until it ends, however it does, or until it was enough."""
        self.connections += 1
        begun = asyncio.get_running_loop().time()
        earlier = frozenset(self._ids)  # on one connection nothing is a replay, even if a server repeats its ids
        decoder = SseDecoder(max_bytes=requests.MAX_MESSAGE_BYTES)
        decoder.last_event_id = self.last_id  # it holds until there is another one
        try:
            while not enough() and (piece := await reply.next()):
                for event in decoder.feed(piece):
                    self._take_event(event, earlier)
                self._reached(decoder.last_event_id)
                if decoder.retry is not None:
                    self.backoff.retry = decoder.retry / 1000
        except ConnectionLost as lost:
            self.broken = str(lost)
        except ProtocolError as too_long:
            self.last_id = ""  # or it would come again
            raise BadAnswer(too_long.message) from None
        finally:
            self.backoff.lasted(asyncio.get_running_loop().time() - begun)

    def _reached(self, id: str) -> None:
        """Remember how far the stream has come; an event of nothing but an id counts, too."""
        usable = id if _USABLE_ID.fullmatch(id) else ""
        if usable != self.last_id:
            self.last_id = usable
            self.backoff.succeeded()

    def _take_event(self, event: Event, earlier: frozenset[str]) -> None:
        self.backoff.succeeded()
        if event.id and _USABLE_ID.fullmatch(event.id):
            if event.id in earlier:
                return
            self._ids[event.id] = None
            if len(self._ids) > MAX_IDS:
                del self._ids[next(iter(self._ids))]
        if event.data and event.event == "message":
            self._take(event.data)
