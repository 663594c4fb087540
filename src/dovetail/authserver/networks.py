"""Who is counted: a request comes in, and the network that it comes from goes out."""

import ipaddress

from dovetail.transports.routes import PageRequest

IPV6_NETWORK = 64  # bits; who has one address of it has all of them


def caller_of(request: PageRequest) -> str:
    return network_of(request.client)


def network_of(address: str | None) -> str:
    try:
        parsed = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, IPV6_NETWORK), strict=False))
