"""Who is counted: a request comes in, and the network that it comes from goes out."""

import ipaddress

from dovetail.transports.routes import PageRequest

IPV6_NETWORK = 64  # bits; who has one address of it has all of them
IPV6_CUSTOMER = 48  # who has one network of it may have all of them; IPv4 addresses are too dear for that


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


def customer_of(network: str) -> str | None:
    """The networks that one customer may have, if this is one of many."""
    try:
        parsed = ipaddress.IPv6Network(network)
    except ValueError:
        return None
    return str(parsed.supernet(new_prefix=IPV6_CUSTOMER))
