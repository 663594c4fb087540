"""Access to the console: why a request is refused, or None.

- The caller must be on this machine, unless `remote`. A proxy that forwards for others is not, unless it is a trusted
  one that says so of all of them.
- `Host` must be a name that means this machine; with `remote`, one of `allowed_hosts`. Otherwise a web page could let
  its own name point here (DNS rebinding) and be the same origin.
- Data goes only to the page itself: a header that no other page can send unasked, and no foreign `Origin`.
"""

from dovetail.transports.http.in_flight import Overview
from dovetail.transports.http.origin import DEFAULT_PORTS, is_loopback, parse_authority, parse_origin
from dovetail.transports.http.proxies import HEADER, NOBODY, TrustedProxies
from dovetail.transports.http.routes import OVERVIEW, PROXIES, PageRequest

# What proxies, tunnels and the forwarding of ports add to a request; and whatever begins like the first.
FORWARDED_PREFIX = b"x-forwarded"
FORWARDED = frozenset(
    {b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"x-original-forwarded-for",
     b"x-envoy-external-address", b"cf-connecting-ip", b"true-client-ip", b"fly-client-ip", b"cdn-loop"}
)  # fmt: skip
MARK = "x-dovetail-console"  # a header of ours: another page's script needs leave to send it, which it does not get

NOT_LOCAL = (
    "The console is for this machine only. If others may see what clients do with this server, "
    "write Console(server, remote=True), or dovetail run --console-remote."
)
NOT_THIS_NAME = (
    "The console is reached by a name that means this machine, such as http://localhost or http://127.0.0.1."
)
NO_NAMES = (
    "A console for others needs allowed_hosts (DOVETAIL_ALLOWED_HOSTS): the names that this server is reached by."
)
NOT_THE_PAGE = "This is for the console's own page."


def why_not(request: PageRequest, *, remote: bool) -> str | None:
    """Why a request may not have any of it."""
    if not remote:
        if not _is_here(request):
            return NOT_LOCAL
        return None if _has_local_host(request) else NOT_THIS_NAME
    overview: Overview = request.scope[OVERVIEW]
    return None if overview.knows_its_hosts or _has_local_host(request) else NO_NAMES


def why_no_data(request: PageRequest) -> str | None:
    """Why a request may not have what only the page itself gets."""
    headers = request.headers
    from_page = headers.get(MARK) == "1" and headers.get("sec-fetch-site", "same-origin") == "same-origin"
    return None if from_page and _is_same_origin(headers.get("origin"), headers.get("host", "")) else NOT_THE_PAGE


def _is_here(request: PageRequest) -> bool:
    client = request.scope.get("client")
    if client is None or not is_loopback(client[0]):
        return False
    if not any(name in FORWARDED or name.startswith(FORWARDED_PREFIX) for name in request.headers.raw):
        return True
    proxies: TrustedProxies = request.scope.get(PROXIES, NOBODY)
    hops = ",".join(request.headers.all(HEADER.decode())).split(",")
    return proxies.are_any and proxies.trusts(client[0]) and all(is_loopback(hop.strip()) for hop in hops)


def _has_local_host(request: PageRequest) -> bool:
    authority = parse_authority(request.headers.get("host", ""))
    return authority is not None and is_loopback(authority.name)


def _is_same_origin(given: str | None, host: str) -> bool:
    if given is None:
        return True
    origin, authority = parse_origin(given), parse_authority(host)
    if origin is None or authority is None or origin.scheme not in DEFAULT_PORTS:
        return False
    port = DEFAULT_PORTS[origin.scheme] if authority.port is None else authority.port
    return (origin.name, origin.port) == (authority.name, port)
