"""Host and Origin checks, and CORS: requests of foreign web pages are refused.

A web page can reach a server on its user's machine by letting its own name point there (DNS rebinding), but it can't
forge two headers: `Host` is then the page's name, `Origin` the page's address. So both are checked:

- `Host` must be a loopback name or in `allowed_hosts`. A server that is bound to another address and has no
  `allowed_hosts` does not know its own names: there `Host` is not checked, and a warning says so once.
- `Origin`, if there is one, must be a loopback address, in `allowed_origins`, or the same as a `Host` in
  `allowed_hosts`; a `Host` that was not checked proves nothing.
"""

import ipaddress
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import NamedTuple

import msgspec

from dovetail.errors import INVALID_REQUEST, ProtocolError, SetupError
from dovetail.protocol.headers import Headers
from dovetail.transports.http.asgi import RawHeaders

DEFAULT_PORTS = {"http": 80, "https": 443}
ADD_HOST = "add it to allowed_hosts (DOVETAIL_ALLOWED_HOSTS)"
ADD_ORIGIN = "add it to allowed_origins (DOVETAIL_ALLOWED_ORIGINS)"
NOT_CHECKED = (
    "The Host header is not checked, because this server listens on %s and does not know its own names: list them in "
    "allowed_hosts (DOVETAIL_ALLOWED_HOSTS). Origin is checked."
)
MAX_LENGTH = 500  # characters of a host or an origin; a name has 253 at most
MAX_LOGGED = 100  # different refusals of each header in a minute

_LABELS = r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*"
_AUTHORITY = re.compile(rf"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>{_LABELS})\.?)(?::(?P<port>[0-9]{{0,5}}))?")
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<rest>[!-.0->A-~]*)")  # visible characters but / and ?

log = logging.getLogger("dovetail.http")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Origin(NamedTuple):
    scheme: str  # empty for "null", which is the name then
    name: str  # all after "://" if the scheme is neither http nor https
    port: int | None


class Authority(NamedTuple):
    name: str  # of the host, in lower case; IPv6 in its short form and without brackets
    port: int | None

    def origin(self, scheme: str) -> Origin:
        return Origin(scheme, self.name, DEFAULT_PORTS[scheme] if self.port is None else self.port)


class AddressPattern(NamedTuple):
    scheme: str | None  # None: http and https
    name: str  # "example.com", "*.example.com" for its subdomains, or "*"
    port: int | None  # None: any

    def matches(self, name: str, port: int | None) -> bool:
        """Whether name and port match; a header without a port (None) means that of http or https."""
        if self.port is not None and port != self.port and (port is not None or self.port not in (80, 443)):
            return False
        return name.endswith(self.name[1:]) if self.name.startswith("*") else name == self.name

    def matches_origin(self, origin: Origin) -> bool:
        scheme_matches = origin.scheme in DEFAULT_PORTS if self.scheme is None else origin.scheme == self.scheme
        return scheme_matches and self.matches(origin.name, origin.port)


ANY = AddressPattern("*", "*", None)

_Refusal = tuple[int, str, str]  # the status, the header, and the rest of the message
_Key = tuple[bytes | None, bytes | None, str | None]  # Host, Origin, and the local address where that counts


class OriginPolicy:
    """Decides on each pair of Host and Origin, and caches the decision."""

    def __init__(
        self, allowed_hosts: Sequence[str] | None, allowed_origins: Sequence[str], *, bound_to: str | None
    ) -> None:
        self._hosts = _patterns("allowed_hosts", allowed_hosts or (), partial(_web_pattern, None, fix=_HOSTS))
        self._origins = _patterns("allowed_origins", allowed_origins, _origin_pattern)
        self._checks_host: bool | None = None  # None: the local address of each request decides
        self._decisions: dict[_Key, _Refusal | None] = {}
        self._logged: dict[str, set[str]] = {}  # refusals by header, of this minute
        self._minute_ends = 0.0  # by the monotonic clock
        self._has_warned = False
        if allowed_hosts is not None:
            self._checks_host = ANY not in self._hosts
        elif bound_to is not None:
            self._checks_host = is_loopback(bound_to)
            if not self._checks_host:
                self._warn_of_unchecked_host(bound_to)

    def allow(self, origin: str) -> None:
        """Allow the origin of a public URL, and its host on any port. That does not say that there are no others."""
        own = _patterns("public_url", [origin], _origin_pattern)
        self._origins += own
        self._hosts += [each._replace(scheme=None, port=None) for each in own]

    def check(self, headers: Headers, server: tuple[str, int | None] | None) -> None:
        """Check both headers; log a refusal and raise ProtocolError. `server`: the local socket of the ASGI scope."""
        raw = headers.raw
        key = (raw.get(b"host"), raw.get(b"origin"), server[0] if server and self._checks_host is None else None)
        refusal = self._decisions[key] if key in self._decisions else self._decide(headers, key)
        if refusal is not None:
            status, header, words = refusal
            message = f"The {header} header {words}"
            self._log(header, message)
            raise ProtocolError(message, code=INVALID_REQUEST, http_status=status)

    def _decide(self, headers: Headers, key: _Key) -> _Refusal | None:
        host, origin = headers.get("host"), headers.get("origin")
        refusal = self._check_host(host, origin, key[2])
        if len(host or "") + len(origin or "") <= MAX_LENGTH:  # longer ones are not cached
            if len(self._decisions) >= 1_000:
                self._decisions.clear()
            self._decisions[key] = refusal
        return refusal

    def _check_host(self, host: str | None, origin: str | None, local: str | None) -> _Refusal | None:
        allowed_host: Authority | None = None
        address = parse_address(local) if local is not None else None  # None also for a Unix socket
        is_public = address is not None and not address.is_loopback
        checks_host = not is_public if self._checks_host is None else self._checks_host
        if checks_host:
            authority = parse_authority(host) if host is not None else None
            if authority is None:
                return (400, "Host", f"{quoted(host)} is missing, or no host name")
            if any(pattern.matches(*authority) for pattern in self._hosts):
                allowed_host = authority
            elif not is_loopback(authority.name):
                return (403, "Host", f"{quoted(host)} is not allowed here: {ADD_HOST}")
        elif self._checks_host is None:
            self._warn_of_unchecked_host(str(local))
        return self._check_origin(origin, allowed_host)

    def _check_origin(self, given: str | None, allowed_host: Authority | None) -> _Refusal | None:
        if given is None or ANY in self._origins:
            return None
        origin = parse_origin(given)
        if origin is None:
            return (403, "Origin", f"{quoted(given)} is not an origin, such as https://example.com")
        if origin.scheme in DEFAULT_PORTS:
            is_own = allowed_host is not None and origin == allowed_host.origin(origin.scheme)
            if is_own or is_loopback(origin.name):
                return None
        if any(pattern.matches_origin(origin) for pattern in self._origins):
            return None
        return (403, "Origin", f"{quoted(given)} is not allowed here: {ADD_ORIGIN}")

    def _log(self, header: str, line: str) -> None:
        """Log each line once a minute, and not too many lines: any client can cause them."""
        now = monotonic()
        if now >= self._minute_ends:
            self._logged, self._minute_ends = {}, now + 60.0
        logged = self._logged.setdefault(header, set())
        if line not in logged and len(logged) < MAX_LOGGED:
            logged.add(line)
            log.warning("%s", line)

    def _warn_of_unchecked_host(self, address: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(NOT_CHECKED, quoted(address))


def parse_authority(text: str) -> Authority | None:
    """The value of a `Host` header; None if it is not one."""
    found = _AUTHORITY.fullmatch(text.lower()) if text.isascii() and len(text) <= MAX_LENGTH else None
    if found is None:
        return None
    port = int(found["port"]) if found["port"] else None
    name, ipv6 = found["name"], found["ipv6"]
    if ipv6 is not None:
        address = parse_address(ipv6) if ":" in ipv6 else None
        name = None if address is None else str(address)
    if name is None or len(name) > 253 or (port is not None and port > 65535):
        return None
    return Authority(name, port)


def parse_origin(text: str) -> Origin | None:
    """The value of an `Origin` header, with the default port of its scheme; None if it is not one."""
    if text == "null":
        return Origin("", text, None)
    found = _ORIGIN.fullmatch(text.lower()) if text.isascii() and len(text) <= MAX_LENGTH else None
    if found is None:
        return None
    scheme, rest = found["scheme"], found["rest"]
    if scheme not in DEFAULT_PORTS:
        return Origin(scheme, rest, None)
    authority = parse_authority(rest)
    return None if authority is None else authority.origin(scheme)


def is_loopback(name: str) -> bool:
    """Whether a name or an address always means the machine itself."""
    name = name.lower()
    if (address := parse_address(name)) is not None:
        return address.is_loopback
    return name == "localhost" or name.endswith(".localhost")


def has_local_host(headers: Headers) -> bool:
    """Whether the Host of a request means the machine itself: no page of another site has such a name."""
    authority = parse_authority(headers.get("host", ""))
    return authority is not None and is_loopback(authority.name)


def parse_address(text: str) -> Address | None:
    """Parse an IP address; an IPv6 address that stands for an IPv4 address becomes that one."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


_PATTERN = re.compile(rf"(?i)(?P<name>\*|\[[0-9a-f:.]+\]|(?:\*\.)?{_LABELS}\.?)(?::(?P<port>\*|[0-9]{{1,5}}))?")
_HOSTS = 'no host; write it like "example.com", "example.com:8443", "*.example.com", "[::1]:8000", "xn--…" or "*"'
_ORIGINS = 'no origin; write it like "https://app.example.com", "https://*.example.com", "myapp://*", "null" or "*"'


def _origin_pattern(text: str) -> AddressPattern:
    if text == "null":
        return AddressPattern("", text, None)
    if "://" not in text:
        return _web_pattern(None, text, _ORIGINS)
    scheme, _, rest = text.lower().partition("://")
    if scheme in DEFAULT_PORTS:
        pattern = _web_pattern(scheme, rest, _ORIGINS)
        any_port = pattern.name == "*" or rest.endswith(":*")
        return pattern if any_port or pattern.port is not None else pattern._replace(port=DEFAULT_PORTS[scheme])
    if parse_origin(text) is None or "*" in rest.removeprefix("*"):
        raise ValueError(f"it is {_ORIGINS}")
    return AddressPattern(scheme, rest, None)


def _web_pattern(scheme: str | None, text: str, fix: str) -> AddressPattern:
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise ValueError(f"it is {fix}")
    port = None if found["port"] in (None, "*") else int(found["port"])
    name: str = found["name"].lower()
    if not name.startswith("*"):
        authority = parse_authority(name)
        name = "" if authority is None else authority.name
    if not name or (port or 0) > 65535:
        raise ValueError(f"it is {fix}")
    return AddressPattern(scheme, name.removesuffix("."), port)


def _patterns(option: str, entries: Iterable[str], read: Callable[[str], AddressPattern]) -> list[AddressPattern]:
    patterns = []
    for entry in entries:
        try:
            patterns.append(ANY if entry == "*" else read(entry))
        except ValueError as failure:
            raise SetupError(f"{option} holds {entry!r}: {failure}") from None
    return patterns


def quoted(value: str | None) -> str:
    """A value from a client, safe for the log: in quotes, escaped, and not too long."""
    text = value or ""
    return ascii(text if len(text) <= 200 else f"{text[:200]}...")


# ── CORS ──

METHODS = b"GET, POST, DELETE, OPTIONS"
REQUEST_HEADERS = frozenset({
    "accept", "cache-control", "content-type", "authorization", "dpop", "x-requested-with", "mcp-session-id",
    "mcp-protocol-version", "mcp-method", "mcp-name", "last-event-id", "idempotency-key", "traceparent", "tracestate",
    "baggage",
})  # fmt: skip
MAX_AGE = b"600"  # seconds for which a browser may cache a preflight
MAX_REQUESTED_HEADERS = 100  # names in one preflight
EXPOSED = b"Mcp-Session-Id, MCP-Protocol-Version, WWW-Authenticate, DPoP-Nonce, Retry-After"

_PARAMETER = re.compile(r"mcp-param-[!#$%&'*+\-.^_`|~0-9a-z]{1,200}", re.IGNORECASE | re.ASCII)
_ECHOABLE = re.compile(r"[!-~]{1,500}")  # visible ASCII; any other origin gets no permission


class Cors(msgspec.Struct, frozen=True):
    """CORS headers for pages of other origins.

    The `Origin` was checked before, so it is echoed: never `*`, and never with credentials, for the server uses no
    cookies. Private network access is allowed too: `allowed_origins` should have it, loopback pages have it.
    """

    _enabled: bool

    def preflight(self, headers: Headers) -> RawHeaders | None:
        """The headers for an OPTIONS request; None if it is no preflight, or CORS is switched off."""
        origin = headers.get("origin", "")
        if not self.response_headers(origin) or "access-control-request-method" not in headers:
            return None
        response = [
            (b"access-control-allow-origin", origin.encode("ascii")),
            (b"access-control-allow-methods", METHODS),
            (b"access-control-max-age", MAX_AGE),
            (b"vary", b"Origin, Access-Control-Request-Headers"),
        ]
        if allowed := ", ".join(_allowed(headers.get("access-control-request-headers", ""))):
            response.append((b"access-control-allow-headers", allowed.encode("ascii")))
        if headers.get("access-control-request-private-network") == "true":
            response.append((b"access-control-allow-private-network", b"true"))
        return response

    def response_headers(self, origin: str | None) -> RawHeaders:
        """The headers of all other responses, so that the page may read them; none if CORS is switched off."""
        if origin is None or not self._enabled or not _ECHOABLE.fullmatch(origin):
            return []
        return [
            (b"access-control-allow-origin", origin.encode("ascii")),
            (b"access-control-expose-headers", EXPOSED),
            (b"vary", b"Origin"),
        ]


def _allowed(requested: str) -> Iterator[str]:
    """The known ones among the requested header names, once each and in the page's spelling."""
    seen: set[str] = set()
    for name in (each.strip(" \t") for each in requested.split(",", MAX_REQUESTED_HEADERS)[:MAX_REQUESTED_HEADERS]):
        key = name.lower()
        if key not in seen and (key in REQUEST_HEADERS or _PARAMETER.fullmatch(name)):
            seen.add(key)
            yield name
