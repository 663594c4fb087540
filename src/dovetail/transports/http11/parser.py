"""Parser of the requests of one connection (llhttp, by httptools), and refusals of invalid ones.

Limited here: the bytes and the number of headers, the framing of a chunked body, and input after the last request.
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

MAX_BUFFERED_BODY = 64 * 1024  # bytes of a body that the app has not read; then reading is paused
MAX_IGNORED_BYTES = 1024 * 1024  # of input after the last request
UPGRADES = {b"upgrade", b"http2-settings"}  # headers that offer another protocol, which a server may ignore
TRAILERS: deque[tuple[bytes, bytes]] = deque(maxlen=0)  # headers after a body are dropped
PARSED_HEADERS = {b"expect", b"transfer-encoding"}

log = logging.getLogger("dovetail")


class Refusal(NamedTuple):
    """An error response that does not come from the app; it ends the connection."""

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
INCOMPLETE = Refusal(HTTPStatus.BAD_REQUEST, "The request ends before it is complete")
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
    """The refusal of a request that is over a limit; it names the option for that limit."""
    status, message = LIMITS[name]
    option = "max_header_bytes" if name == "framing" else name
    text = f"{message.format(limit)}; {option} (DOVETAIL_{option.upper()}) sets the limit"
    return Refusal(HTTPStatus(status), text, INTERNAL_ERROR if status == 503 else INVALID_REQUEST)


class StopParsing(Exception):
    """Raised in a callback to stop the parser. Without a refusal: input after the last request is ignored."""

    def __init__(self, refusal: Refusal | None = None) -> None:
        self.refusal = refusal


class RequestParser:
    """Feeds bytes to llhttp; its methods `on_…` are llhttp's callbacks."""

    def __init__(self, protocol: "HttpProtocol", max_header_bytes: int, max_headers: int) -> None:
        self._protocol = protocol
        self._max_header_bytes = max_header_bytes
        self._max_headers = max_headers
        self._parser = httptools.HttpRequestParser(self)
        self._unparsed = 0  # bytes that llhttp got since the last callback for complete headers, body or message
        self._shares_chunk = False  # the head began in the same chunk as a request before it
        self.ignores_input = False
        self.in_head = True  # not all headers of the current request have arrived
        self._url = b""
        self._headers: RawHeaders | deque[tuple[bytes, bytes]] = []
        self._expects_continue = False
        self._upgrade_offered = False
        self._request_line: tuple[bytes, bytes, str] = (b"", b"", "")  # of the request before, and its part of the
        self._scope: dict[str, Any] = {}  # scope: nearly all requests of a connection have the same
        self.cycle: RequestResponseCycle | None = None  # of the last request whose headers have arrived

    @property
    def in_body(self) -> bool:
        """Whether a request that has no response yet is still missing a part of its body."""
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def feed(self, data: bytes) -> None:
        self._unparsed += len(data)
        if self.ignores_input:
            if self._unparsed > self._max_header_bytes + MAX_IGNORED_BYTES:
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
            if self._unparsed or self.in_head:
                self._check_incomplete()
            return
        self._decline_upgrade(rest)

    def _stopped(self, raised: BaseException | None) -> None:
        """Handle a parser that has stopped; `raised` by a callback, or None if llhttp itself stopped."""
        if raised is None:
            self._protocol.refuse(BAD_REQUEST)
        elif not isinstance(raised, StopParsing):
            log.error("a request could not be read", exc_info=raised)
            self._protocol.refuse(FAILED)
        elif raised.refusal is not None:
            self._protocol.refuse(raised.refusal)
        else:
            self.ignores_input = True
            self._unparsed = 0

    def _check_incomplete(self) -> None:
        if not self._unparsed:
            self._shares_chunk = True
        if self._unparsed > self._max_header_bytes:
            limit = "max_header_bytes" if self.in_head else "framing"
            self._protocol.refuse(over_limit(limit, self._max_header_bytes))
        elif self.in_head:
            if len(self._headers) > self._max_headers:
                self._protocol.refuse(over_limit("max_headers", self._max_headers))
            else:
                self._protocol.head_began()

    def on_message_begin(self) -> None:
        self.in_head = True
        self._url = b""
        self._headers = []
        self._expects_continue = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in PARSED_HEADERS:
            if name == b"expect":
                self._expects_continue = value.lower() == b"100-continue"
            elif value.strip().lower() != b"chunked":
                raise StopParsing(BAD_CODING)
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser, protocol = self._parser, self._protocol
        version = parser.get_http_version()
        protocol.in_unfinished_head = False
        size, self._unparsed = self._unparsed, 0
        is_inexact = size > self._max_header_bytes or self._shares_chunk
        if is_inexact or len(self._headers) > self._max_headers or version != "1.1":
            self._check_head(is_inexact, version)
        if parser.should_upgrade():
            self._upgrade_offered = True  # see _decline_upgrade
            return
        request_line = (parser.get_method(), self._url, version)
        if request_line != self._request_line:
            self._scope = self._build_scope(*request_line)
            self._request_line = request_line
        is_1_1 = version == "1.1"
        self.cycle = protocol.serve(
            {**self._scope, "headers": self._headers, "state": {}},
            keep_alive=is_1_1 and parser.should_keep_alive(),
            expects_continue=is_1_1 and self._expects_continue,
            is_head=request_line[0] == b"HEAD",
            is_1_1=is_1_1,
        )
        self.in_head = False
        self._headers = TRAILERS

    def _check_head(self, is_inexact: bool, version: str) -> None:
        """Check the size of the head; `is_inexact`: body bytes were counted too, or a part of the head was not."""
        headers = self._headers
        if len(headers) > self._max_headers:
            raise StopParsing(over_limit("max_headers", self._max_headers))
        if is_inexact:
            self._shares_chunk = False
            size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in headers)
            if size > self._max_header_bytes:
                raise StopParsing(over_limit("max_header_bytes", self._max_header_bytes))
        if version not in ("1.0", "1.1"):
            raise StopParsing(BAD_VERSION)
        if version == "1.0" and any(name == b"transfer-encoding" for name, _ in headers):
            raise StopParsing(OLD_CODING)

    def _build_scope(self, method: bytes, url: bytes, version: str) -> dict[str, Any]:
        """The part of a scope that depends on the connection and the request line; raises StopParsing."""
        path, query = url, b""
        try:
            if path[:1] != b"/" or b"?" in path or b"#" in path:
                parts = httptools.parse_url(path)
                path, query = parts.path or b"", parts.query or b""
            decoded = path.decode("ascii")
        except (httptools.HttpParserError, UnicodeDecodeError):
            decoded = ""
        if not decoded:
            raise StopParsing(BAD_REQUEST)
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
        self._unparsed = 0
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and cycle.add_body(body) > MAX_BUFFERED_BODY:
            self._protocol.pause_reading()

    def on_message_complete(self) -> None:
        self._unparsed = 0
        cycle = self.cycle
        if self._upgrade_offered or cycle is None:
            return
        cycle.end_body()
        if not cycle.keep_alive:
            raise StopParsing

    def _decline_upgrade(self, rest: bytes) -> None:
        """Parse the request again without its offer of another protocol; some clients always offer HTTP/2.

        llhttp assumes that an offer is accepted, and does not parse the body.
        """
        self._upgrade_offered = False
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._protocol.refuse(NO_TUNNEL)
            return
        lines = [b"%b %b HTTP/%b" % (method, self._url, self._parser.get_http_version().encode())]
        for name, value in self._headers:
            if name == b"connection":
                value = b", ".join(each for each in list_items(value) if each.lower() not in UPGRADES)
            if name not in UPGRADES:
                lines.append(b"%b: %b" % (name, value))
        self._parser = httptools.HttpRequestParser(self)
        self.feed(b"\r\n".join([*lines, b"", rest]))

    def close(self) -> None:
        """Break reference cycles."""
        self.cycle = self._parser = self._protocol = None  # type: ignore[assignment]


def list_items(value: bytes) -> list[bytes]:
    """The items of a header whose value is a list."""
    return [each.strip() for each in value.split(b",")]
