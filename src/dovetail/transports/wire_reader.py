"""Reads the requests of one connection: bytes come in, each request goes out as soon as its headers are here.

The parser is llhttp, as it is: no leniency of it is switched on. What is bounded here: the bytes and the number of
headers, what a chunked body holds besides its content, what is held of a body, and what is thrown away.
"""

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from dovetail.transports.asgi import WHOLE, RawHeaders, Scope
from dovetail.transports.wire_cycle import Cycle
from dovetail.transports.wire_head import items
from dovetail.transports.wire_limits import HELD_BODY, MAX_THROWN_AWAY
from dovetail.transports.wire_refusals import (
    BAD_CODING,
    BAD_REQUEST,
    BAD_VERSION,
    FAILED,
    NO_TUNNEL,
    OLD_CODING,
    Unfit,
    too_large,
    too_many,
    too_much_framing,
)

if TYPE_CHECKING:
    from dovetail.transports.wire_connection import HttpConnection

HANDSHAKES = {b"upgrade", b"http2-settings"}  # offers of another protocol that we leave unanswered, as HTTP allows
TRAILERS: deque[tuple[bytes, bytes]] = deque(maxlen=0)  # headers after a body are nobody's, and are not kept
WATCHED = {b"expect", b"transfer-encoding"}  # headers that mean something to this module

log = logging.getLogger("dovetail")


class _HeardAll(Exception):
    """Raised in a callback, which stops the parser, after the last request: what follows it is nobody's."""


class _Aim(NamedTuple):
    """What a request is for, and what a scope says of that. Those of one connection are nearly all alike."""

    method: bytes
    url: bytes
    version: str
    scope: dict[str, Any]


class RequestReader:
    """Its methods `on_…` are what the parser calls."""

    __slots__ = (
        "_aim", "_began_behind", "_connection", "_expects_continue", "_headers", "_max_header_bytes", "_max_headers",
        "_offered_upgrade", "_parser", "_unread", "_url", "_wire", "cycle", "heard_all", "in_head",
    )  # fmt: skip

    def __init__(self, connection: "HttpConnection") -> None:
        self._connection = connection
        self._wire = wire = connection.wire
        self._max_header_bytes = wire.options.max_header_bytes
        self._max_headers = wire.options.max_headers
        self._parser = wire.new_parser(self)
        self._unread = 0  # bytes that the parser took since it last gave us something whole
        self._began_behind = False  # the head began in the same piece as a request before it
        self.heard_all = False  # what still comes is thrown away
        # the request that is being read
        self.in_head = True  # not all of its headers are here
        self._url = b""
        self._aim = _Aim(b"", b"", "", {})  # of the request before
        self._headers: RawHeaders | deque[tuple[bytes, bytes]] = []
        self._expects_continue = False
        self._offered_upgrade = False
        self.cycle: Cycle | None = None  # the last request whose headers are here

    @property
    def in_body(self) -> bool:
        """Whether the rest of a request is missing that the app is still at, or not yet."""
        return self.cycle is not None and self.cycle.more_body and not self.cycle.complete

    def feed(self, data: bytes) -> None:
        self._unread += len(data)
        if self.heard_all:
            self._throw_away()
            return
        try:
            self._parser.feed_data(data)
        except self._wire.ParserUpgrade as position:
            rest = data[position.args[0] :]
        except self._wire.ParserError as failure:
            self._parser_stopped(failure.__context__)
            return
        else:
            if self._unread or self.in_head:
                self._check_unfinished()
            return
        self._decline_upgrade(rest)

    def _parser_stopped(self, reason: BaseException | None) -> None:
        """`reason`: what one of its callbacks has raised."""
        if reason is None:
            self._connection.refuse(BAD_REQUEST)
        elif isinstance(reason, Unfit):
            self._connection.refuse(reason.refusal)
        elif isinstance(reason, _HeardAll):
            self.heard_all = True
            self._unread = 0
        else:
            log.error("a request could not be read", exc_info=reason)
            self._connection.refuse(FAILED)

    def _throw_away(self) -> None:
        if self._unread > self._max_header_bytes + MAX_THROWN_AWAY:
            self._connection.transport.abort()

    def _check_unfinished(self) -> None:
        if not self._unread:
            self._began_behind = True
        if self._unread > self._max_header_bytes:
            self._connection.refuse((too_large if self.in_head else too_much_framing)(self._max_header_bytes))
        elif self.in_head:
            if len(self._headers) > self._max_headers:
                self._connection.refuse(too_many(self._max_headers))
            else:
                self._connection.time_limits.begin_head()

    # ── the parser's callbacks ──

    def on_message_begin(self) -> None:
        self.in_head = True
        self._url = b""
        self._headers = []
        self._expects_continue = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in WATCHED:
            if name == b"expect":
                self._expects_continue = value.lower() == b"100-continue"
            elif value.strip().lower() != b"chunked":
                raise Unfit(BAD_CODING)
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser, connection = self._parser, self._connection
        version = parser.get_http_version()
        connection.time_limits.head_since = None
        taken, self._unread = self._unread, 0
        is_unclear = taken > self._max_header_bytes or self._began_behind  # how long the head is
        if is_unclear or len(self._headers) > self._max_headers or version != "1.1":
            self._check_head(is_unclear, version)
        if parser.should_upgrade():
            self._offered_upgrade = True  # see _decline_upgrade
            return
        method = parser.get_method()
        if (method, self._url, version) != self._aim[:3]:
            self._aim = _Aim(method, self._url, version, self._begin_scope(method, version))
        scope: Scope = {**self._aim.scope, "headers": self._headers, "state": {}}
        current = version == "1.1"
        keep_alive = current and parser.should_keep_alive()
        self.cycle = cycle = Cycle(
            connection, scope, keep_alive, current and self._expects_continue, method == b"HEAD", current
        )
        scope["extensions"] = {WHOLE: cycle}
        self.in_head = False
        self._headers = TRAILERS
        connection.serve(cycle)

    def _check_head(self, is_unclear: bool, version: str) -> None:
        """`is_unclear`: the bytes were counted with those of a body, or not all of them were. Raises Unfit."""
        headers = self._headers
        if len(headers) > self._max_headers:
            raise Unfit(too_many(self._max_headers))
        if is_unclear:
            self._began_behind = False
            size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in headers)
            if size > self._max_header_bytes:
                raise Unfit(too_large(self._max_header_bytes))
        if version != "1.1":
            if version != "1.0":
                raise Unfit(BAD_VERSION)
            if any(name == b"transfer-encoding" for name, _ in headers):
                raise Unfit(OLD_CODING)

    def _begin_scope(self, method: bytes, version: str) -> dict[str, Any]:
        path, raw_path, query = self._read_target()
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "server": self._connection.server,
            "client": self._connection.client,
            "scheme": self._connection.scheme,
            "method": method.decode("ascii"),
            "root_path": "",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
        }

    def _read_target(self) -> tuple[str, bytes, bytes]:
        """The path, the same before it was decoded, and the query; raises Unfit."""
        raw_path, query = self._url, b""
        try:
            if raw_path[:1] != b"/" or b"?" in raw_path or b"#" in raw_path:
                parts = self._wire.parse_url(raw_path)
                raw_path, query = parts.path or b"", parts.query or b""
            path = raw_path.decode("ascii")
        except (self._wire.ParserError, UnicodeDecodeError):
            path = ""
        if not path:
            raise Unfit(BAD_REQUEST)
        return unquote(path) if "%" in path else path, raw_path, query

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        cycle = self.cycle
        if cycle is not None and not cycle.complete and cycle.take(body) > HELD_BODY:
            self._connection.pause_reading()

    def on_message_complete(self) -> None:
        self._unread = 0
        cycle = self.cycle
        if self._offered_upgrade or cycle is None:
            return
        cycle.end_body()
        if not cycle.keep_alive:
            raise _HeardAll

    def _decline_upgrade(self, rest: bytes) -> None:
        """Read the same request as if it had not offered another protocol; some clients always offer HTTP/2.

        The parser takes it for granted that an offer is accepted, and does not read the body.
        """
        self._offered_upgrade = False
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._connection.refuse(NO_TUNNEL)
            return
        lines = [b"%b %b HTTP/%b" % (method, self._url, self._parser.get_http_version().encode())]
        for name, value in self._headers:
            if name == b"connection":
                value = b", ".join(each for each in items(value) if each.lower() not in HANDSHAKES)
            if name not in HANDSHAKES:
                lines.append(b"%b: %b" % (name, value))
        self._parser = self._wire.new_parser(self)
        self.feed(b"\r\n".join([*lines, b"", rest]))

    def end(self) -> None:
        self.cycle = self._parser = self._connection = None  # type: ignore[assignment]  # each keeps the other
