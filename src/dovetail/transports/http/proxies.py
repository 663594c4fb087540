"""Trusted proxies: the address of a caller behind them, from `X-Forwarded-For`, and the scheme that it used.

Any client can write that header. Of its entries only those count that a trusted proxy has added: the last
one if the connection is a trusted proxy's, the one before if the last is again a trusted proxy, and so on to the left.
The first that is not trusted is the caller. Where an entry can't be read, or there is none, the address found last
stays the caller: that is a proxy then, and all clients behind it count as one.
"""

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from dovetail.engine.rate_limits import IPV6_SITE_BITS, caller_of
from dovetail.errors import SetupError
from dovetail.transports.http.asgi import RawHeaders, Scope
from dovetail.transports.http.origin import Address, parse_address
from dovetail.transports.http.request import HttpRequest

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

OPTION = "trusted_proxies"
UNIX = "unix"  # the entry for clients of a Unix socket, which has no address
HEADER = b"x-forwarded-for"
SCHEME_HEADER = b"x-forwarded-proto"
MAX_HOPS = 20  # entries that are looked at, from the right
MAX_ENTRY = 80  # bytes: an address with brackets, zone and port is shorter
EXAMPLES = 'write an address or a network, like "127.0.0.1", "10.0.0.0/8" or "fd00::/8", or "unix" for Unix sockets'

_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")  # IPv4 addresses, as an IPv6 socket sees them
_ENTRY = re.compile(
    r"""(?: (?P<ipv4>[0-9.]+) (?::[0-9]{1,5})?
          | \[ (?P<bracketed>[0-9a-f:.]+) (?:%[^\]]*)? \] (?::[0-9]{1,5})?
          | (?P<ipv6>[0-9a-f:.]+) (?:%.*)? )""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)


class Hop(NamedTuple):
    """One of those that a request came by: its address, in one spelling for each, and whether it is a proxy of ours."""

    address: str
    trusted: bool


class TrustedProxies:
    """Addresses and networks whose `X-Forwarded-For` is believed. Raises SetupError, with the entry and the fix."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        given = list(entries)
        self.are_any = bool(given)
        self._networks = [_network(entry) for entry in given if entry != UNIX]
        self._trusts_unix = UNIX in given
        self._judged = lru_cache(maxsize=10_000)(self._judge)

    def caller(self, scope: Scope) -> str | None:
        """The address that a request comes from; None if that is not known."""
        client = scope.get("client")
        peer: str | None = client[0] if client else None
        return self._behind(peer, scope["headers"]) if self.are_any and self.trusts(peer) else peer

    def trusts(self, peer: str | None) -> bool:
        """Whether what this address says of others is believed."""
        if peer is None:
            return self._trusts_unix
        hop = self._hop(peer.encode("utf-8", "replace"))
        return hop is not None and hop.trusted

    def scheme(self, scope: Scope) -> str:
        """Of a trusted proxy also whether its client came by https."""
        own: str = scope.get("scheme", "http")
        client = scope.get("client")
        if not self.are_any or not self.trusts(client[0] if client else None):
            return own
        said = [value for name, value in scope["headers"] if name == SCHEME_HEADER]
        last = b",".join(said).rpartition(b",")[2].strip(b" \t").decode("latin-1").lower()
        return last if last in ("https", "http") else own

    def _behind(self, proxy: str | None, headers: RawHeaders) -> str | None:
        caller = proxy
        lines = [value for name, value in headers if name == HEADER]
        for entry in reversed(b",".join(lines).rsplit(b",", MAX_HOPS)[-MAX_HOPS:]):
            hop = self._hop(entry)
            if hop is None:
                break
            caller = hop.address
            if not hop.trusted:
                break
        return caller

    def _hop(self, entry: bytes) -> Hop | None:
        """An entry of the header, or what a socket says. None if that is no address."""
        text = entry.strip(b" \t")
        return self._judged(text) if len(text) <= MAX_ENTRY else None

    def _judge(self, text: bytes) -> Hop | None:
        address = _address(text.decode("latin-1"))
        return None if address is None else Hop(str(address), any(address in network for network in self._networks))


NOBODY = TrustedProxies()


def _address(text: str) -> Address | None:
    """With or without a port, a zone, brackets."""
    found = _ENTRY.fullmatch(text)
    return None if found is None else parse_address(found["ipv4"] or found["bracketed"] or found["ipv6"])


def _network(entry: str) -> Network:
    try:
        network = ipaddress.ip_network(entry)
        if "%" in entry or (isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED)):
            raise ValueError("zones are not told apart, and an IPv4 address is written as such")
    except ValueError:
        raise SetupError(f"{OPTION} holds {entry!r}, which is no address or network; {EXAMPLES}") from None
    if network.prefixlen == 0:
        raise SetupError(f"{OPTION} holds {entry!r}: then every caller could choose its address; name your proxies")
    return network


def share_of(visit: HttpRequest, proxies: TrustedProxies) -> str:
    """Whose share of sessions and streams a request counts towards. On loopback a proxy may stand for any number."""
    address = proxies.caller(visit.scope) if visit.owner is None else None
    parsed = _address(address or "")
    return caller_of(visit.owner, None if parsed is not None and parsed.is_loopback else address, IPV6_SITE_BITS)
