"""OAuth errors, JSON responses, form fields, and the rules for redirect URIs."""

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from dovetail.engine.rate_limits import network_of
from dovetail.errors import ProtocolError
from dovetail.transports.http.routes import RouteRequest, RouteResponse

FORM = "application/x-www-form-urlencoded"
MAX_BYTES = 32 * 1024  # of a form or a query
MAX_URL = 2000  # characters
NO_STORE = {"cache-control": "no-store", "pragma": "no-cache"}
# Clients in a browser may be on any origin. These endpoints use no cookies, so any page may read the responses.
ANY_ORIGIN = {"access-control-allow-origin": "*"}
PUBLIC_HEADERS = {"cache-control": "public, max-age=300", **ANY_ORIGIN}  # the metadata and the keys
PREFLIGHT = {
    **ANY_ORIGIN,
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "authorization, content-type, mcp-protocol-version",
    "access-control-max-age": "600",
}

_ALLOWED = re.compile(r"[!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]+")  # no spaces, quotes, backslashes, angle brackets
_LOOPBACK_URI = re.compile(r"(http://(?:127\.0\.0\.1|localhost|\[::1\]))(?::[0-9]{1,5})?((?:[/?].*)?)")

RouteHandler = Callable[[RouteRequest], Awaitable[RouteResponse]]


class OAuthError(Exception):
    """An error response. `error` is a code of RFC 6749 or RFC 7591; the description is for people."""

    def __init__(
        self, error: str, description: str, *, status: int = 400, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(description)
        self.error = error
        self.description = description
        self.status = status
        self.headers = dict(headers or {})

    @classmethod
    def too_many(cls, what: str, seconds: float) -> "OAuthError":
        wait = max(1, round(seconds))
        text = f"Too many {what}; try again in {f'{wait} s' if wait < 120 else f'{round(wait / 60)} minutes'}"
        return cls("temporarily_unavailable", text, status=429, headers={"retry-after": str(wait)})

    @classmethod
    def from_failure(cls, failure: "OAuthError | ProtocolError") -> "OAuthError":
        """The OAuthError for a body that is too long, or a store that is unavailable; an OAuthError stays as it is."""
        if isinstance(failure, OAuthError):
            return failure
        error = "temporarily_unavailable" if failure.http_status >= 500 else "invalid_request"
        return cls(error, failure.message, status=max(failure.http_status, 400))


def json_endpoint(handler: RouteHandler) -> RouteHandler:
    """An endpoint that clients call: errors are JSON, too."""

    async def route(request: RouteRequest) -> RouteResponse:
        if request.method == "OPTIONS":
            return RouteResponse(b"", 204, PREFLIGHT)
        try:
            return await handler(request)
        except (OAuthError, ProtocolError) as failure:
            refusal = OAuthError.from_failure(failure)
        body: dict[str, object] = {"error": refusal.error, "error_description": refusal.description}
        return json_response(body, refusal.status, refusal.headers)

    route.__name__, route.__qualname__ = handler.__name__, handler.__qualname__  # for the log
    return route


def json_response(
    body: dict[str, object], status: int = 200, headers: Mapping[str, str] | None = None
) -> RouteResponse:
    return RouteResponse(body, status, {**NO_STORE, **ANY_ORIGIN, **(headers or {})})


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def address_of(request: RouteRequest) -> str:
    """The network that limits count: an IPv4 address, or the /64 of an IPv6 address."""
    return network_of(request.client or "") or "unknown"


async def form_fields(request: RouteRequest) -> dict[str, str]:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != FORM:
        raise OAuthError("invalid_request", f"The body must be {FORM}", status=415)
    return parse_fields(await request.body())


def parse_fields(raw: bytes) -> dict[str, str]:
    """The fields of a form, each once; an empty one counts as not given (RFC 6749, 3.1)."""
    if len(raw) > MAX_BYTES:
        raise OAuthError("invalid_request", f"More than {MAX_BYTES} bytes", status=413)
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=50)
    except ValueError:
        raise OAuthError("invalid_request", "The fields can't be read") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise OAuthError("invalid_request", "A field came more than once")
    return {name: value for name, value in fields.items() if value}


# ── redirect URIs ──


def url_problem(uri: object, noun: str) -> str | None:
    """The problem of a URL, in words. It must be https, or http to this machine, and unambiguous for all parsers."""
    if not isinstance(uri, str) or not 0 < len(uri) <= MAX_URL:
        return f"{noun} is a text of at most {MAX_URL} characters"
    if not _ALLOWED.fullmatch(uri) or "#" in uri:
        return f"{noun} has no fragment, blanks or other odd characters"
    try:
        parts = urlsplit(uri)
        name, _ = parts.hostname, parts.port
    except ValueError:
        return f"{noun} must be a whole URL"
    if not name:
        return f"{noun} must be a whole URL, https://… or, on the user's own machine, http://127.0.0.1/…"
    if "@" in parts.netloc or "*" in parts.netloc:
        return f"{noun} names a host, without a user or wildcards"
    if parts.scheme != "https" and not _LOOPBACK_URI.fullmatch(uri):
        return f"{noun} must be https, or http to 127.0.0.1, localhost or [::1]"
    if {".", ".."} & set(unquote(parts.path).replace("\\", "/").split("/")):
        return f"{noun} has no . or .. in its path"
    return None


def is_registered(uri: str, registered: Iterable[str]) -> bool:
    """Whether a URI is registered, byte by byte; clients on the user's machine may use any port (RFC 8252, 7.3)."""
    loopback = _without_port(uri)
    return any(uri == each or (loopback is not None and loopback == _without_port(each)) for each in registered)


def _without_port(uri: str) -> tuple[str, str] | None:
    """The parts before and after the port of a loopback URI."""
    found = _LOOPBACK_URI.fullmatch(uri)
    return None if found is None else (found[1], found[2])
