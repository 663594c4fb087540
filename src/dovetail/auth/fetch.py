"""HTTP requests to URLs of others, protected against SSRF; the only user of aiohttp in `auth`.

The server has to be public: its name is resolved here, all its addresses are checked, and the connection goes to these
addresses even if the name has others by then. No redirects, no cookies. Through an HTTP proxy, which resolves the names
itself, only addresses that stand in a URL can be checked; no proxy is used unless the maker of a fetch asks for it.
"""

import asyncio
import contextlib
import ipaddress
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from dovetail.auth.principal import Confidential
from dovetail.errors import SetupError

if TYPE_CHECKING:
    from aiohttp.abc import ResolveResult
    from yarl import URL

T = TypeVar("T")
MAX_BYTES = 64 * 1024  # of a response
MAX_URL = 4096  # characters
TIMEOUT = 5.0  # seconds, from the lookup of the name to the last byte

_VISIBLE = re.compile(r"[!-\[\]-~]+")  # without the backslash: some URL parsers take it for a slash
_PRIVATE, _SPECIAL, _CLOUD_METADATA = (
    tuple(map(ipaddress.ip_network, text.split()))
    for text in (
        "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7",
        "::ffff:0:0/96 2002::/16 2001::/23 192.88.99.0/24 3fff::/20",  # IPv4 in IPv6, its relays, documentation
        "192.0.0.0/24 168.63.129.16 100.100.100.200 fd00:ec2::/32 fd20:ce::254",  # they serve credentials of machines
    )
)
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # its last 32 bits are an IPv4 address


class FetchFailed(Exception):
    """There is no response; the message says why in plain words, and holds no secret."""


class FetchRequest(Confidential, frozen=True, kw_only=True):
    public_fields = ("method",)

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    timeout: float | None = None  # seconds; default: that of the fetch


class Fetched(Confidential, frozen=True, kw_only=True):
    """A response. The names of its headers are in lower case."""

    public_fields = ("status",)

    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""


Fetch = Callable[[FetchRequest], Awaitable[Fetched]]  # raises FetchFailed
Environment = Callable[[str, str, int], Mapping[str, Any]]  # of scheme, host and port: `proxy`, `ssl` … of aiohttp


class QueueFull(Exception):
    """Too many jobs wait for threads."""


class BoundedThreads:
    """Threads for one kind of blocking work that can't be cancelled, with a bounded queue."""

    def __init__(self, threads: int, max_jobs: int, name: str) -> None:
        """`max_jobs`: running and queued ones."""
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)  # starts threads when needed
        self._slots = threading.BoundedSemaphore(max_jobs)

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a job in a thread. Raises QueueFull."""
        if not self._slots.acquire(blocking=False):
            raise QueueFull
        try:
            job = self._threads.submit(function, *arguments)
        except BaseException:
            self._slots.release()
            raise
        job.add_done_callback(lambda _: self._slots.release())  # also if it was cancelled before it began
        return await asyncio.wrap_future(job)


def make_fetch(
    *,
    allow_loopback: bool = False,
    allow_private: bool = False,
    max_bytes: int = MAX_BYTES,
    timeout: float = TIMEOUT,
    environment: Environment = lambda *_: {},
) -> Fetch:
    """A fetch for public https URLs.

    `allow_loopback`: this machine too, also by http. `allow_private`: addresses of a private network too, for a URL
    that the operator configured; never for one that a caller sent.
    """
    try:
        import aiohttp as library
    except ImportError:
        raise SetupError('auth: remote keys and tokens need aiohttp: pip install "dovetail-mcp[auth]"') from None
    lookups = BoundedThreads(4, 32, "dovetail-names")

    async def fetch(request: FetchRequest) -> Fetched:
        url = _checked_url(library, request.url, allow_loopback=allow_loopback)
        seconds = timeout if request.timeout is None else request.timeout
        with _explained(library, url, seconds):
            async with asyncio.timeout(seconds):
                name, port = str(url.host), int(url.port or 0)
                options = environment(url.scheme, name, port)
                by_proxy = "proxy" in options and not _is_address(name)
                addresses = [] if by_proxy else await _resolve(lookups, name, port)
                for host in (each["host"] for each in addresses):
                    allowed = is_allowed_address(host, allow_loopback=allow_loopback, allow_private=allow_private)
                    if not allowed or (url.scheme == "http" and not is_loopback_host(host)):
                        raise FetchFailed(f"{url.host} is not an address that may be asked")
                return await _send(library, url, request, addresses, max_bytes, options)

    return fetch


def is_allowed_address(address: str, *, allow_loopback: bool = False, allow_private: bool = False) -> bool:
    """Whether callers could reach this IP address themselves, or an option allows it."""
    try:
        ip: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address)
    except ValueError:
        return False
    if ip in _NAT64:
        ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if any(ip in network for network in _SPECIAL + _CLOUD_METADATA):  # public for some versions of Python
        return False
    if ip.is_loopback:
        return allow_loopback
    if any(ip in network for network in _PRIVATE):
        return allow_private
    if ip.version == 6 and ip not in _GLOBAL_UNICAST:
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified or ip.is_link_local)


def _is_address(host: str) -> bool:
    """Whether a host is, for some reader at least, an address and no name: `10.1`, `0x7f.1` and `[::1]` too."""
    return ":" in host or re.fullmatch(r"[0-9]+|0[xX][0-9a-fA-F]*", host.rstrip(".").rpartition(".")[2]) is not None


def is_loopback_host(host: str) -> bool:
    """Whether a name is one of this machine, without a lookup."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_url(url: str) -> bool:
    try:
        return is_loopback_host(urlsplit(url).hostname or "")
    except ValueError:
        return False


def shown(url: str) -> str:
    """A URL, also an untrusted one, for messages: without parts that may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a URL that can't be read"
    return plain(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")


def plain(text: str) -> str:
    """Untrusted text on one short line."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:200]).strip()


def _checked_url(library: Any, text: str, *, allow_loopback: bool) -> "URL":
    """The URL, parsed by the library that makes the connection, so that both see the same host."""
    if len(text) > MAX_URL or not _VISIBLE.fullmatch(text):
        raise FetchFailed("this is not a URL")
    try:
        url: URL = library.client.URL(text, encoded=True)
        host, user = url.host, url.raw_user or url.raw_password
    except ValueError:
        raise FetchFailed("this is not a URL") from None
    if not host or user is not None:
        raise FetchFailed(f"{shown(text)} has no host, or a user before it")
    if url.scheme != "https" and not (url.scheme == "http" and allow_loopback and is_loopback_host(host)):
        raise FetchFailed(f"{shown(text)} is not https")
    return url


async def _resolve(lookups: BoundedThreads, host: str, port: int) -> "list[ResolveResult]":
    try:
        found = await lookups.run(partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
    except QueueFull:
        raise FetchFailed("too many names are being looked up") from None
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return [
        {"hostname": host, "host": str(address[0]), "port": port, "family": family, "proto": protocol, "flags": flags}
        for family, _, protocol, _, address in found
    ]


async def _send(
    library: Any, url: "URL", request: FetchRequest, addresses: "Sequence[ResolveResult]", max_bytes: int,
    options: Mapping[str, Any],
) -> Fetched:  # fmt: skip
    headers = {"User-Agent": "dovetail", "Accept": "application/json", **request.headers, "Accept-Encoding": "identity"}
    resolver = None if "proxy" in options else _pinned_resolver(addresses)
    async with (
        library.ClientSession(
            connector=library.TCPConnector(resolver=resolver, use_dns_cache=False, force_close=True),
            cookie_jar=library.DummyCookieJar(),
            timeout=library.ClientTimeout(total=None),  # `fetch` has one
            trust_env=False,
            auto_decompress=False,
        ) as session,
        session.request(
            request.method, url, headers=headers, data=request.body, allow_redirects=False, **options
        ) as response,
    ):
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise FetchFailed(f"{shown(str(url))} answered with a compressed body, which was not asked for")
        body = bytearray()
        while piece := await response.content.readany():
            body += piece
            if len(body) > max_bytes:
                raise FetchFailed(f"{shown(str(url))} answered with more than {max_bytes} bytes")
        lowered = {name.lower(): value for name, value in response.headers.items()}
        return Fetched(status=response.status, headers=lowered, body=bytes(body))


def _pinned_resolver(addresses: "Sequence[ResolveResult]") -> Any:
    from aiohttp.abc import AbstractResolver

    class Pinned(AbstractResolver):
        async def resolve(self, host: str, port: int = 0, family: int = 0) -> "list[ResolveResult]":  # noqa: ARG002
            return list(addresses)

        async def close(self) -> None:
            pass

    return Pinned()


@contextlib.contextmanager
def _explained(library: Any, url: "URL", seconds: float) -> Iterator[None]:
    """Raises FetchFailed for each failure, without messages of the library."""
    where = shown(str(url))
    try:
        yield
    except TimeoutError:
        raise FetchFailed(f"{where} did not answer within {seconds:g} s") from None
    except (socket.gaierror, UnicodeError):
        raise FetchFailed(f"there is no host {url.host}") from None
    except library.ClientSSLError:
        raise FetchFailed(f"{where} has no certificate that is valid here, or does not speak TLS") from None
    except library.ClientProxyConnectionError:
        raise FetchFailed(f"{where} can't be reached, because the proxy of the environment can't") from None
    except (library.ClientConnectionError, OSError):
        raise FetchFailed(f"{where} can't be reached") from None
    except library.ClientHttpProxyError as failure:
        raise FetchFailed(f"{where}: the proxy of the environment answers {failure.status}") from None
    except (library.ClientError, ValueError):
        raise FetchFailed(f"{where} does not speak HTTP as it should") from None
