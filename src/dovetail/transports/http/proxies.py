"""Trusted proxies: the address and the scheme of a caller behind them.

Any client can send `X-Forwarded-For`, so only entries count that a trusted proxy has added. They are read from the
right, as long as the address before is trusted; the first one that is not trusted is the caller. If an entry can't be
read, the caller is the proxy that has added it, and all clients behind that proxy count as one.
"""

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from dovetail.engine.rate_limits import IPV6_SITE_BITS, caller_of
from dovetail.errors import SetupError
from dovetail.protocol.headers import Headers
from dovetail.transports.http.asgi import RawHeaders, Scope
from dovetail.transports.http.origin import Address, is_loopback, parse_address
from dovetail.transports.http.request import HttpRequest

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

OPTION = "trusted_proxies"
UNIX = "unix"  # the entry for clients of a Unix socket, which has no address
HEADER = b"x-forwarded-for"
SCHEME_HEADER = b"x-forwarded-proto"
MAX_HOPS = 20  # entries that are read, from the right
MAX_ENTRY = 80  # bytes: an address with brackets, zone and port is shorter
EXAMPLES = 'write an address or a network, like "127.0.0.1", "10.0.0.0/8" or "fd00::/8", or "unix" for Unix sockets'

FORWARDED_PREFIX = b"x-forwarded"
FORWARDED = frozenset(  # headers that proxies, tunnels and port forwarding add to a request
    {b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"x-original-forwarded-for",
     b"x-envoy-external-address", b"cf-connecting-ip", b"true-client-ip", b"fly-client-ip", b"cdn-loop"}
)  # fmt: skip

_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")  # IPv4 addresses, as an IPv6 socket sees them
_ENTRY = re.compile(
    r"""(?: (?P<ipv4>[0-9.]+) (?::[0-9]{1,5})?
          | \[ (?P<bracketed>[0-9a-f:.]+) (?:%[^\]]*)? \] (?::[0-9]{1,5})?
          | (?P<ipv6>[0-9a-f:.]+) (?:%.*)? )""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)


class Hop(NamedTuple):
    address: str  # normalized
    trusted: bool


class TrustedProxies:
    """Addresses and networks whose `X-Forwarded-For` is believed. Raises SetupError, with the entry and the fix."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        given = list(entries)
        self.is_enabled = bool(given)
        self._networks = [_network(entry) for entry in given if entry != UNIX]
        self._trusts_unix = UNIX in given
        self._cached_hop = lru_cache(maxsize=10_000)(self._parse_hop)

    def address_of(self, scope: Scope) -> str | None:
        """The address of the caller; None if it is not known."""
        client = scope.get("client")
        peer: str | None = client[0] if client else None
        return self._forwarded_for(peer, scope["headers"]) if self.is_enabled and self.trusts(peer) else peer

    def trusts(self, peer: str | None) -> bool:
        if peer is None:
            return self._trusts_unix
        hop = self._hop(peer.encode("utf-8", "replace"))
        return hop is not None and hop.trusted

    def is_local(self, scope: Scope, headers: Headers) -> bool:
        """Whether a program on this machine sent the request, as far as the connection and its headers show."""
        client = scope.get("client")
        if client is None or not is_loopback(client[0]):
            return False
        if not any(name in FORWARDED or name.startswith(FORWARDED_PREFIX) for name in headers.raw):
            return True
        hops = ",".join(headers.all(HEADER.decode())).split(",")
        return self.is_enabled and self.trusts(client[0]) and all(is_loopback(hop.strip()) for hop in hops)

    def scheme(self, scope: Scope) -> str:
        """The scheme that the client of a trusted proxy has used, or else that of the connection."""
        own: str = scope.get("scheme", "http")
        client = scope.get("client")
        if not self.is_enabled or not self.trusts(client[0] if client else None):
            return own
        protocols = [value for name, value in scope["headers"] if name == SCHEME_HEADER]
        last = b",".join(protocols).rpartition(b",")[2].strip(b" \t").decode("latin-1").lower()
        return last if last in ("https", "http") else own

    def _forwarded_for(self, proxy: str | None, headers: RawHeaders) -> str | None:
        caller = proxy
        lines = [value for name, value in headers if name == HEADER]
        for entry in reversed(b",".join(lines).rsplit(b",", MAX_HOPS)[-MAX_HOPS:]):
            hop = self._hop(entry)
            caller = caller if hop is None else hop.address
            if hop is None or not hop.trusted:
                break
        return caller

    def _hop(self, entry: bytes) -> Hop | None:
        text = entry.strip(b" \t")
        return self._cached_hop(text) if len(text) <= MAX_ENTRY else None

    def _parse_hop(self, text: bytes) -> Hop | None:
        address = _address(text.decode("latin-1"))
        return None if address is None else Hop(str(address), any(address in network for network in self._networks))


NO_PROXIES = TrustedProxies()


def _address(text: str) -> Address | None:
    found = _ENTRY.fullmatch(text)
    return None if found is None else parse_address(found["ipv4"] or found["bracketed"] or found["ipv6"])


def _network(entry: str) -> Network:
    try:
        network = ipaddress.ip_network(entry)
        if "%" in entry or (isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED)):
            raise ValueError("zones are not supported, and an IPv4 address is not written as IPv6")
    except ValueError:
        raise SetupError(f"{OPTION} holds {entry!r}, which is no address or network; {EXAMPLES}") from None
    if network.prefixlen == 0:
        raise SetupError(f"{OPTION} holds {entry!r}: then every caller could choose its address; name your proxies")
    return network


def quota_key(request: HttpRequest, proxies: TrustedProxies) -> str:
    """The caller in whose quota of sessions and streams a request counts; anonymous if the address is loopback."""
    address = proxies.address_of(request.scope) if request.owner is None else None
    parsed = _address(address or "")
    return caller_of(request.owner, None if parsed is not None and parsed.is_loopback else address, IPV6_SITE_BITS)
