"""What browsers ask before they let a page talk to us: request headers go in, the headers of the answer come out.

The guard has accepted the `Origin` before anything here is asked, so it is echoed: never `*`, and never with
credentials, for no cookie means anything here. A preflight that asks for a private network is allowed too: whoever
stands in `allowed_origins` was let in on purpose, and a loopback page is on that network already.
"""

import re
from collections.abc import Iterator

from dovetail.protocol.headers import Headers
from dovetail.transports.asgi import RawHeaders

METHODS = b"GET, POST, DELETE, OPTIONS"
REQUEST_HEADERS = frozenset(
    {
        *("accept", "cache-control", "content-type", "authorization", "dpop", "x-requested-with"),
        *("mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name", "last-event-id"),
        *("traceparent", "tracestate", "baggage"),
    }
)
MAX_AGE = b"600"  # seconds that a browser may remember the answer
MAX_HEADERS = 100  # names in one preflight
MAX_HEADERS_LENGTH = 8_192
EXPOSED = b"Mcp-Session-Id, MCP-Protocol-Version, WWW-Authenticate, DPoP-Nonce, Retry-After"

_PARAMETER = re.compile(r"mcp-param-[!#$%&'*+\-.^_`|~0-9a-z]{1,200}", re.IGNORECASE | re.ASCII)
_ECHOABLE = re.compile(r"[!-~]{1,500}")  # visible ASCII; whatever else calls itself an origin gets no permission


class Cors:
    """Permissions for pages of other origins; none at all where it is switched off."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled

    def preflight(self, headers: Headers) -> RawHeaders | None:
        """The answer to an OPTIONS request; None if it is no preflight, or nothing is to be permitted."""
        origin = headers.get("origin")
        if not self._enabled or origin is None or "access-control-request-method" not in headers:
            return None
        if not _ECHOABLE.fullmatch(origin):
            return None
        answer = [
            (b"access-control-allow-origin", origin.encode("ascii")),
            (b"access-control-allow-methods", METHODS),
            (b"access-control-max-age", MAX_AGE),
            (b"vary", b"Origin, Access-Control-Request-Headers"),
        ]
        if allowed := ", ".join(_allowed(headers.get("access-control-request-headers", ""))):
            answer.append((b"access-control-allow-headers", allowed.encode("ascii")))
        if headers.get("access-control-request-private-network") == "true":
            answer.append((b"access-control-allow-private-network", b"true"))
        return answer

    def response_headers(self, origin: str | None) -> RawHeaders:
        """What every other answer to that page carries, errors included, so that it may read them."""
        if origin is None or not self._enabled or not _ECHOABLE.fullmatch(origin):
            return []
        return [
            (b"access-control-allow-origin", origin.encode("ascii")),
            (b"access-control-expose-headers", EXPOSED),
            (b"vary", b"Origin"),
        ]


def _allowed(requested: str) -> Iterator[str]:
    """Of the header names that are asked for, those that we know, once each and spelt as they came."""
    names = requested[:MAX_HEADERS_LENGTH].split(",", MAX_HEADERS)
    if len(requested) > MAX_HEADERS_LENGTH:
        names.pop()  # it may be half a name
    seen: set[str] = set()
    for name in (each.strip(" \t") for each in names[:MAX_HEADERS]):
        key = name.lower()
        if key not in seen and (key in REQUEST_HEADERS or _PARAMETER.fullmatch(name)):
            seen.add(key)
            yield name
