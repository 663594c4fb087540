"""The answers that the HTTP server of `run()` gives before a request reaches the app: a table in, bytes out."""

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


def too_large(limit: int) -> Refusal:
    message = f"The request line and the headers are larger than {limit} bytes; {_set_by('max_header_bytes')}"
    return Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)


def too_many(limit: int) -> Refusal:
    message = f"The request has more than {limit} headers; {_set_by('max_headers')}"
    return Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)


def too_much_framing(limit: int) -> Refusal:
    message = f"The chunked body holds more than {limit} bytes besides its content; {_set_by('max_header_bytes')}"
    return Refusal(HTTPStatus.BAD_REQUEST, message)


def too_slow(seconds: float) -> Refusal:
    message = f"The headers of the request did not arrive within {seconds:g} s; {_set_by('header_timeout')}"
    return Refusal(HTTPStatus.REQUEST_TIMEOUT, message)


def crowded(limit: int) -> Refusal:
    message = f"The server has more than {limit} connections, try again; {_set_by('max_connections')}"
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, message, INTERNAL_ERROR)


def _set_by(option: str) -> str:
    return f"{option} (DOVETAIL_{option.upper()}) sets the limit"
