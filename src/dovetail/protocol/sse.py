"""Framing of server-sent events: the encoder, the decoder, and our event ids.

Both follow the WHATWG description of `text/event-stream`. Data stays bytes: it is JSON, whose decoder checks UTF-8.
"""

import re
from typing import NamedTuple

from dovetail.errors import INVALID_REQUEST, ProtocolError

_LINE_END = re.compile(rb"\r\n|\r|\n")
_EVENT_ID = re.compile(r"([a-z0-9]{1,32})\.([0-9]{1,15})(?:-([0-9]{1,15}))?(?:\.[a-z0-9]{1,32})?", re.ASCII)
_UNSAFE = re.compile(r"[\r\n\0]")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAX_RETRY_DIGITS = 10  # of a reconnection time in milliseconds: more than a month


def encode_event(data: bytes, *, id: str | None = None, event: str | None = None, retry: int | None = None) -> bytes:
    """One event; line ends in the data become lines of the event, which clients read as `\\n`."""
    frame = b"" if id is None else _field("id", id)
    if event is not None:
        frame += _field("event", event)
    if retry is not None:
        if not 0 <= retry < 10**_MAX_RETRY_DIGITS:
            raise ValueError("retry is a number of milliseconds, zero or more")
        frame += _field("retry", str(retry))
    if data.find(b"\n") >= 0 or data.find(b"\r") >= 0:  # twice as fast as `in`
        data = b"\ndata: ".join(_LINE_END.split(data))
    return b"%bdata: %b\n\n" % (frame, data)


def priming_event(id: str, *, retry: int | None = None) -> bytes:
    """The event that opens a stream: no data, but an id to resume from."""
    return encode_event(b"", id=id, retry=retry)


def comment(text: str) -> bytes:
    """A line that clients skip; it keeps an idle connection open."""
    return _field("", text) + b"\n"


def _field(name: str, text: str) -> bytes:
    if _UNSAFE.search(text):
        raise ValueError(f"the {name or 'comment'} of an event may not contain line ends or NUL")
    return f"{name}: {text}\n".encode()


KEEP_ALIVE = comment("keep-alive")


class EventId(NamedTuple):
    """The id of an event: stream and number, and in the GET stream of a session a second number."""

    stream: str
    number: int
    message: int = 0  # position in the log of messages to the session alone

    @property
    def worker(self) -> str:
        """The worker of the stream's call: the first 12 letters."""
        return self.stream[:12]

    @classmethod
    def parse(cls, id: str) -> "EventId":
        """Parse an event id. Raises ProtocolError if it can't be one of ours."""
        found = _EVENT_ID.fullmatch(id)
        if found is None:
            raise unknown_event()
        return cls(found[1], int(found[2]), int(found[3] or 0))

    def __str__(self) -> str:
        return f"{self.stream}.{self.number}-{self.message}" if self.message else f"{self.stream}.{self.number}"


def unknown_event() -> ProtocolError:
    text = "Last-Event-ID names no event that is stored for this session"
    return ProtocolError(text, code=INVALID_REQUEST, http_status=400)


class Event(NamedTuple):
    data: bytes
    event: str = "message"
    id: str | None = None  # that this event itself carries


class SseDecoder:
    """Decodes a stream from chunks cut anywhere; an unfinished event may take `max_bytes`.

    `last_event_id` and `retry` are what a client needs to reconnect.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self.last_event_id = ""
        self.retry: int | None = None
        self._max_bytes = max_bytes
        self._line = bytearray()  # the incomplete line
        self._at_start = True
        self._after_return = False  # the last chunk ended in \r, so a following \n belongs to it
        self._data = bytearray()  # the data lines so far, each with a \n
        self._event = ""
        self._id: str | None = None

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that this chunk completes. Raises ProtocolError if one is too large."""
        if not chunk:
            return []
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_return = chunk.endswith(b"\r")
        self._line += chunk
        events: list[Event] = []
        if b"\n" in chunk or b"\r" in chunk:
            *lines, rest = _LINE_END.split(bytes(self._line))
            self._line.clear()
            events = [event for line in lines if (event := self._read_line(line)) is not None]
            self._line += rest
        self._check_size()
        return events

    def _check_size(self) -> None:
        if len(self._line) + len(self._data) > self._max_bytes:
            raise ProtocolError(f"A server-sent event is longer than {self._max_bytes} bytes")

    def _read_line(self, line: bytes) -> Event | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            return self._finish_event()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data += value + b"\n"
            self._check_size()
        elif field == b"event":
            self._event = value.decode(errors="replace")
        elif field == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        elif field == b"retry" and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
            self.retry = int(value)
        return None

    def _finish_event(self) -> Event | None:
        if self._id is not None:
            self.last_event_id = self._id  # only now: an event that was cut off must be sent again
        found = Event(bytes(self._data[:-1]), self._event or "message", self._id) if self._data else None
        self._data.clear()
        self._event, self._id = "", None
        return found
