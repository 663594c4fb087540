"""The answers that the HTTP server of `run()` gives before a request reaches the app: a table in, bytes out."""

from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from dovetail.errors import INTERNAL_ERROR, INVALID_REQUEST, ProtocolError
from dovetail.protocol import jsonrpc
from dovetail.transports.asgi import RawHeaders


class Refusal(NamedTuple):
    status: HTTPStatus
    message: str
    code: int = INVALID_REQUEST

    @property
    def body(self) -> bytes:
        return jsonrpc.error(None, ProtocolError(self.message, code=self.code))

    def response(self, more_headers: RawHeaders) -> bytes:
        body = self.body
        headers = [
            *more_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *([(b"retry-after", b"1")] if self.status is HTTPStatus.SERVICE_UNAVAILABLE else []),
        ]
        lines = [b"HTTP/1.1 %d %b" % (self.status, self.status.phrase.encode()), *(b"%b: %b" % one for one in headers)]
        return b"\r\n".join([*lines, b"", body])


class Unfit(Exception):
    """Raised where a request is read, which stops the reading."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


BAD_REQUEST = Refusal(HTTPStatus.BAD_REQUEST, "This is not a valid HTTP/1.1 request")
CUT_SHORT = Refusal(HTTPStatus.BAD_REQUEST, "The request ends before it is complete")
OLD_CODING = Refusal(HTTPStatus.BAD_REQUEST, "Transfer-Encoding is not possible in HTTP/1.0")
NO_TUNNEL = Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "This server is no proxy")
FAILED = Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "The server failed on this request", INTERNAL_ERROR)
BAD_CODING = Refusal(HTTPStatus.NOT_IMPLEMENTED, "The only transfer coding that this server knows is chunked")
BAD_VERSION = Refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "This server speaks HTTP/1.1")


def _beyond(option: str, status: HTTPStatus, message: str, limit: float, code: int = INVALID_REQUEST) -> Refusal:
    return Refusal(status, f"{message.format(limit)}; {option} (DOVETAIL_{option.upper()}) sets the limit", code)


_TOO_LARGE, _CROWDED = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The server has more than {} connections, try again"
_FRAMING = "The chunked body holds more than {} bytes besides its content"

too_large = partial(
    _beyond, "max_header_bytes", _TOO_LARGE, "The request line and the headers are larger than {} bytes"
)
too_many = partial(_beyond, "max_headers", _TOO_LARGE, "The request has more than {} headers")
too_much_framing = partial(_beyond, "max_header_bytes", HTTPStatus.BAD_REQUEST, _FRAMING)
too_slow = partial(_beyond, "header_timeout", HTTPStatus.REQUEST_TIMEOUT, "The headers did not come within {:g} s")
crowded = partial(_beyond, "max_connections", HTTPStatus.SERVICE_UNAVAILABLE, _CROWDED, code=INTERNAL_ERROR)
