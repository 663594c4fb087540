"""Parser of the requests of one connection (httptools callbacks), and the refusals that it can end in.

The parser is llhttp, strict as it comes. Bounded here: the bytes and the number of headers, what a chunked body holds
besides its content, and what is thrown away after the last request.
"""

import logging
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import httptools

from dovetail.errors import INTERNAL_ERROR, INVALID_REQUEST, ProtocolError
from dovetail.protocol import jsonrpc
from dovetail.transports.http.asgi import RawHeaders

if TYPE_CHECKING:
    from dovetail.transports.http11.cycle import RequestResponseCycle
    from dovetail.transports.http11.protocol import HttpProtocol

MAX_BODY_HELD = 64 * 1024  # bytes of a body that wait for the app; then no more is read
MAX_THROWN_AWAY = 1024 * 1024  # bytes that a client may still send when nothing more is expected of it
UPGRADES = {b"upgrade", b"http2-settings"}  # offers of another protocol, which HTTP allows to ignore
TRAILERS: deque[tuple[bytes, bytes]] = deque(maxlen=0)  # headers after a body are dropped
WATCHED = {b"expect", b"transfer-encoding"}  # headers that mean something to the parser

log = logging.getLogger("dovetail")


class Refusal(NamedTuple):
    """A response that the server gives in place of the app; it ends the connection."""

    status: HTTPStatus
    message: str
    code: int = INVALID_REQUEST

    @property
    def body(self) -> bytes:
        return jsonrpc.error(None, ProtocolError(self.message, code=self.code))

    def response(self, date_line: bytes) -> bytes:
        body = self.body
        retry = b"retry-after: 1\r\n" if self.status is HTTPStatus.SERVICE_UNAVAILABLE else b""
        start = f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\ncontent-type: application/json\r\n".encode()
        return b"%b%bcontent-length: %d\r\nconnection: close\r\n%b\r\n%b" % (start, date_line, len(body), retry, body)


BAD_REQUEST = Refusal(HTTPStatus.BAD_REQUEST, "This is not a valid HTTP/1.1 request")
CUT_SHORT = Refusal(HTTPStatus.BAD_REQUEST, "The request ends before it is complete")
OLD_CODING = Refusal(HTTPStatus.BAD_REQUEST, "Transfer-Encoding is not possible in HTTP/1.0")
NO_TUNNEL = Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "This server is no proxy")
FAILED = Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "The server failed on this request", INTERNAL_ERROR)
BAD_CODING = Refusal(HTTPStatus.NOT_IMPLEMENTED, "The only transfer coding that this server knows is chunked")
BAD_VERSION = Refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "This server speaks HTTP/1.1")

LIMITS = {
    "max_header_bytes": (431, "The request line and the headers are larger than {} bytes"),
    "max_headers": (431, "The request has more than {} headers"),
    "framing": (400, "The chunked body holds more than {} bytes besides its content"),
    "header_timeout": (408, "The headers did not come within {:g} s"),
    "max_connections": (503, "The server has more than {} connections, try again"),
}


def over_limit(name: str, limit: float) -> Refusal:
    """The refusal of what is over a limit; names the option that sets it."""
    status, message = LIMITS[name]
    option = "max_header_bytes" if name == "framing" else name
    text = f"{message.format(limit)}; {option} (DOVETAIL_{option.upper()}) sets the limit"
    return Refusal(HTTPStatus(status), text, INTERNAL_ERROR if status == 503 else INVALID_REQUEST)


class Stop(Exception):
    """Raised in a callback, which stops the parser. Without a refusal: what follows the last request is ignored."""

    def __init__(self, refusal: Refusal | None = None) -> None:
        self.refusal = refusal


class RequestParser:
    """Feeds bytes to llhttp; its methods `on_…` are llhttp's callbacks."""

    def __init__(self, protocol: "HttpProtocol", max_header_bytes: int, max_headers: int) -> None:
        self._protocol = protocol
        self._max_header_bytes = max_header_bytes
        self._max_headers = max_headers
        self._parser = httptools.HttpRequestParser(self)
        self._unread = 0  # bytes that llhttp took since its last callback that gave something whole
        self._began_behind = False  # the head began in the same piece as a request before it
        self.ignores_input = False
        self.in_head = True  # not all headers of the current request are here
        self._url = b""
        self._headers: RawHeaders | deque[tuple[bytes, bytes]] = []
        self._expects_continue = False
        self._upgrade_offered = False
        self._target: tuple[bytes, bytes, str] = (b"", b"", "")  # method, URL and version of the request before,
        self._scope: dict[str, Any] = {}  # and their part of the scope: nearly all requests of a connection are alike
        self.cycle: RequestResponseCycle | None = None  # of the last request whose headers are here

    @property
    def in_body(self) -> bool:
        """Whether the rest of a request is missing that is not answered yet."""
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def feed(self, data: bytes) -> None:
        self._unread += len(data)
        if self.ignores_input:
            if self._unread > self._max_header_bytes + MAX_THROWN_AWAY:
                self._protocol.transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as position:
            rest = data[position.args[0] :]
        except httptools.HttpParserError as failure:
            self._stopped(failure.__context__)
            return
        else:
            if self._unread or self.in_head:
                self._check_unfinished()
            return
        self._decline_upgrade(rest)

    def _stopped(self, reason: BaseException | None) -> None:
        """`reason`: what a callback has raised; None if llhttp itself stopped."""
        if reason is None:
            self._protocol.refuse(BAD_REQUEST)
        elif isinstance(reason, Stop) and reason.refusal is not None:
            self._protocol.refuse(reason.refusal)
        elif isinstance(reason, Stop):
            self.ignores_input = True
            self._unread = 0
        else:
            log.error("a request could not be read", exc_info=reason)
            self._protocol.refuse(FAILED)

    def _check_unfinished(self) -> None:
        if not self._unread:
            self._began_behind = True
        if self._unread > self._max_header_bytes:
            limit = "max_header_bytes" if self.in_head else "framing"
            self._protocol.refuse(over_limit(limit, self._max_header_bytes))
        elif self.in_head:
            if len(self._headers) > self._max_headers:
                self._protocol.refuse(over_limit("max_headers", self._max_headers))
            else:
                self._protocol.head_began()

    # ── llhttp's callbacks ──

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
                raise Stop(BAD_CODING)
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser, protocol = self._parser, self._protocol
        version = parser.get_http_version()
        protocol.in_unfinished_head = False
        taken, self._unread = self._unread, 0
        is_unclear = taken > self._max_header_bytes or self._began_behind  # how long the head is
        if is_unclear or len(self._headers) > self._max_headers or version != "1.1":
            self._check_head(is_unclear, version)
        if parser.should_upgrade():
            self._upgrade_offered = True  # see _decline_upgrade
            return
        target = (parser.get_method(), self._url, version)
        if target != self._target:
            self._scope = self._scope_of(*target)
            self._target = target
        is_1_1 = version == "1.1"
        self.cycle = protocol.serve(
            {**self._scope, "headers": self._headers, "state": {}},
            keep_alive=is_1_1 and parser.should_keep_alive(),
            expects_continue=is_1_1 and self._expects_continue,
            is_head=target[0] == b"HEAD",
            is_1_1=is_1_1,
        )
        self.in_head = False
        self._headers = TRAILERS

    def _check_head(self, is_unclear: bool, version: str) -> None:
        """`is_unclear`: the bytes were counted with those of a body, or not all of them were. Raises Stop."""
        headers = self._headers
        if len(headers) > self._max_headers:
            raise Stop(over_limit("max_headers", self._max_headers))
        if is_unclear:
            self._began_behind = False
            size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in headers)
            if size > self._max_header_bytes:
                raise Stop(over_limit("max_header_bytes", self._max_header_bytes))
        if version not in ("1.0", "1.1"):
            raise Stop(BAD_VERSION)
        if version == "1.0" and any(name == b"transfer-encoding" for name, _ in headers):
            raise Stop(OLD_CODING)

    def _scope_of(self, method: bytes, url: bytes, version: str) -> dict[str, Any]:
        """What a scope says of the connection and of the request line; raises Stop."""
        path, query = url, b""
        try:
            if path[:1] != b"/" or b"?" in path or b"#" in path:
                parts = httptools.parse_url(path)
                path, query = parts.path or b"", parts.query or b""
            decoded = path.decode("ascii")
        except (httptools.HttpParserError, UnicodeDecodeError):
            decoded = ""
        if not decoded:
            raise Stop(BAD_REQUEST)
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "server": self._protocol.server,
            "client": self._protocol.client,
            "scheme": self._protocol.scheme,
            "method": method.decode("ascii"),
            "root_path": "",
            "path": unquote(decoded) if "%" in decoded else decoded,
            "raw_path": path,
            "query_string": query,
        }

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and cycle.add_body(body) > MAX_BODY_HELD:
            self._protocol.pause_reading()

    def on_message_complete(self) -> None:
        self._unread = 0
        cycle = self.cycle
        if self._upgrade_offered or cycle is None:
            return
        cycle.end_body()
        if not cycle.keep_alive:
            raise Stop

    def _decline_upgrade(self, rest: bytes) -> None:
        """Read the same request as if it had not offered another protocol; some clients always offer HTTP/2.

        llhttp takes it for granted that an offer is accepted, and does not read the body.
        """
        self._upgrade_offered = False
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._protocol.refuse(NO_TUNNEL)
            return
        lines = [b"%b %b HTTP/%b" % (method, self._url, self._parser.get_http_version().encode())]
        for name, value in self._headers:
            if name == b"connection":
                value = b", ".join(each for each in items(value) if each.lower() not in UPGRADES)
            if name not in UPGRADES:
                lines.append(b"%b: %b" % (name, value))
        self._parser = httptools.HttpRequestParser(self)
        self.feed(b"\r\n".join([*lines, b"", rest]))

    def close(self) -> None:
        """Leave no reference cycle to the garbage collector."""
        self.cycle = self._parser = self._protocol = None  # type: ignore[assignment]


def items(value: bytes) -> list[bytes]:
    """The items of a header that is a list."""
    return [each.strip() for each in value.split(b",")]
