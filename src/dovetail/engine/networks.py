"""Whom an address counts for: an IP address comes in, and the network that is one caller goes out."""

import functools
import ipaddress

IPV6_NETWORK = 64  # bits of an address that name its network; the others are free for whoever has it
IPV6_LINE = 56  # bits that name a customer's line, which has many networks as a rule
ANONYMOUS = "anonymous"  # the caller of whom nothing is known; there may be many
KEPT = 10_000  # addresses that need not be read again


@functools.lru_cache(maxsize=KEPT)
def network_of(address: str, bits: int = IPV6_NETWORK) -> str | None:
    """Who has an IPv6 address has a whole network of them, and counts once. None if it is no address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, bits), strict=False))


def caller_of(owner: str | None, address: str | None, bits: int = IPV6_NETWORK) -> str:
    """Who has a share of its own: a principal, or else a network; those of whom neither is known are one."""
    if owner is not None:
        return f"principal {owner}"
    return ANONYMOUS if address is None else f"address {network_of(address, bits) or address}"
