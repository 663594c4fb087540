"""Who is counted: a request comes in, and the network that it comes from goes out."""

import ipaddress

from dovetail.engine.networks import network_of
from dovetail.transports.routes import PageRequest

IPV6_CUSTOMER = 48  # bits; who has one network of it may have all of them; IPv4 addresses are too dear for that


def caller_of(request: PageRequest) -> str:
    return network_of(request.client or "") or "unknown"


def customer_of(network: str) -> str | None:
    """The networks that one customer may have, if this is one of many."""
    try:
        parsed = ipaddress.IPv6Network(network)
    except ValueError:
        return None
    return str(parsed.supernet(new_prefix=IPV6_CUSTOMER))
