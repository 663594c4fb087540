"""HTTP requests to other servers that can't be turned against the network around us (SSRF).

Some of the URLs come from strangers, so what is asked has to be public: a name is resolved here, all its addresses are
judged, and the connection goes to these addresses and no others, even if the name means others by then. No redirect
is followed, no proxy of the environment is used, and no cookie is kept. Here, and only here in `auth`, aiohttp is used.
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
MAX_BYTES = 64 * 1024  # of an answer
MAX_URL = 4096  # characters
SECONDS = 5.0  # from the first look at the name to the last byte

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_VISIBLE = re.compile(r"[!-\[\]-~]+")  # without the backslash: some readers of URLs take it for a slash
_PRIVATE, _ODD, _OF_CLOUDS = (
    tuple(map(ipaddress.ip_network, text.split()))
    for text in (
        "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7",  # a company's own network
        "::ffff:0:0/96 2002::/16 2001::/23 192.88.99.0/24 3fff::/20",  # IPv4 in disguise, its relays, documentation
        "192.0.0.0/24 168.63.129.16 100.100.100.200 fd00:ec2::/32 fd20:ce::254",  # where machines find their secrets
    )
)
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # its last 32 bits are an IPv4 address


class FetchFailed(Exception):
    """Nothing came of it; the message says why in plain words, and holds no secret."""


class FetchRequest(Confidential, frozen=True, kw_only=True):
    """What is asked. A `repr` shows neither headers nor body, which hold secrets."""

    harmless = ("method",)

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    timeout: float | None = None  # seconds; those of the fetch, if not given


class Fetched(Confidential, frozen=True, kw_only=True):
    """What came back. The names of the headers are in lower case."""

    harmless = ("status",)

    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""


Fetch = Callable[[FetchRequest], Awaitable[Fetched]]  # one request, one answer; raises FetchFailed


class QueueFull(Exception):
    """Too many wait for the threads already."""


class BoundedThreads:
    """Threads of their own for one kind of blocking work, with a bounded queue.

    A thread can't be stopped, however long a stranger's name or password takes: so other work has no share in these.
    """

    def __init__(self, threads: int, most: int, name: str) -> None:
        """`most`: jobs at a time, with those that wait."""
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)  # which start when needed
        self._places = threading.BoundedSemaphore(most)

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Raises QueueIsFull."""
        if not self._places.acquire(blocking=False):
            raise QueueFull
        try:
            job = self._threads.submit(function, *arguments)
        except BaseException:
            self._places.release()
            raise
        job.add_done_callback(lambda _: self._places.release())  # also if it was given up before it began
        return await asyncio.wrap_future(job)


def make_fetch(
    *, allow_loopback: bool = False, allow_private: bool = False, max_bytes: int = MAX_BYTES, timeout: float = SECONDS
) -> Fetch:
    """A fetch for public https URLs.

    `allow_loopback`: this machine too, also by http. `allow_private`: addresses of a private network too, for a URL
    that the operator wrote down; never for one that a stranger did.
    """
    try:
        import aiohttp as library
    except ImportError:
        raise SetupError('auth: remote keys and tokens need aiohttp: pip install "dovetail-mcp[auth]"') from None
    lookups = BoundedThreads(4, 32, "dovetail-names")

    async def fetch(request: FetchRequest) -> Fetched:
        url = _checked_url(library, request.url, allow_loopback=allow_loopback)
        seconds = timeout if request.timeout is None else request.timeout
        with _in_words(library, url, seconds):
            async with asyncio.timeout(seconds):
                found = await _resolve(lookups, str(url.host), int(url.port or 0))
                for each in found:
                    good = may_reach(each["host"], allow_loopback=allow_loopback, allow_private=allow_private)
                    if not good or (url.scheme == "http" and not is_loopback_host(each["host"])):
                        raise FetchFailed(f"{url.host} is not an address that may be asked")
                return await _ask(library, url, request, found, max_bytes)

    return fetch


def may_reach(address: str, *, allow_loopback: bool = False, allow_private: bool = False) -> bool:
    """Whether a connection to this IP address is no way into a network that strangers can't reach."""
    try:
        ip: IpAddress = ipaddress.ip_address(address)
    except ValueError:
        return False
    if ip in _NAT64:
        ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if any(ip in network for network in _ODD + _OF_CLOUDS):  # some versions of Python call them public
        return False
    if ip.is_loopback:
        return allow_loopback
    if any(ip in network for network in _PRIVATE):
        return allow_private
    if ip.version == 6 and ip not in _GLOBAL_UNICAST:
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified or ip.is_link_local)


def is_loopback_host(host: str) -> bool:
    """Whether a name means this machine, without a lookup."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_this_machine(url: str) -> bool:
    """The same of a URL."""
    try:
        return is_loopback_host(urlsplit(url).hostname or "")
    except ValueError:
        return False


def shown(url: str) -> str:
    """A URL, of a stranger's too, as a message may show it: without what could be a secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a URL that can't be read"
    return plain(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")


def plain(text: str) -> str:
    """A stranger's words on one short line."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:200]).strip()


def _checked_url(library: Any, text: str, *, allow_loopback: bool) -> "URL":
    """Read by the same code that makes the connection, so that both see the same host."""
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
    """All addresses of a name, or of an address the address itself."""
    try:
        found = await lookups.run(partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
    except QueueFull:
        raise FetchFailed("too many names are being looked up") from None
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return [
        {"hostname": host, "host": str(address[0]), "port": port, "family": family, "proto": protocol, "flags": flags}
        for family, _, protocol, _, address in found
    ]


async def _ask(
    library: Any, url: "URL", request: FetchRequest, found: "Sequence[ResolveResult]", max_bytes: int
) -> Fetched:
    headers = {"User-Agent": "dovetail", "Accept": "application/json", **request.headers, "Accept-Encoding": "identity"}
    async with (
        library.ClientSession(
            connector=library.TCPConnector(resolver=_pinned(found), use_dns_cache=False, force_close=True),
            cookie_jar=library.DummyCookieJar(),
            timeout=library.ClientTimeout(total=None),  # there is one around all of it
            trust_env=False,
            auto_decompress=False,
        ) as session,
        session.request(request.method, url, headers=headers, data=request.body, allow_redirects=False) as response,
    ):
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise FetchFailed(f"{shown(str(url))} answered with a compressed body, which was not asked for")
        body = bytearray()
        while piece := await response.content.readany():
            body += piece
            if len(body) > max_bytes:
                raise FetchFailed(f"{shown(str(url))} answered with more than {max_bytes} bytes")
        named = {name.lower(): value for name, value in response.headers.items()}
        return Fetched(status=response.status, headers=named, body=bytes(body))


def _pinned(found: "Sequence[ResolveResult]") -> Any:
    """A resolver that knows these addresses only."""
    from aiohttp.abc import AbstractResolver

    class Pinned(AbstractResolver):
        async def resolve(self, host: str, port: int = 0, family: int = 0) -> "list[ResolveResult]":  # noqa: ARG002
            return list(found)

        async def close(self) -> None:
            pass

    return Pinned()


@contextlib.contextmanager
def _in_words(library: Any, url: "URL", seconds: float) -> Iterator[None]:
    """Each failure becomes FetchFailed, without the words of a library."""
    where = shown(str(url))
    try:
        yield
    except TimeoutError:
        raise FetchFailed(f"{where} did not answer within {seconds:g} s") from None
    except (socket.gaierror, UnicodeError):
        raise FetchFailed(f"there is no host {url.host}") from None
    except library.ClientSSLError:
        raise FetchFailed(f"{where} has no certificate that is valid here, or does not speak TLS") from None
    except (library.ClientConnectionError, OSError):
        raise FetchFailed(f"{where} can't be reached") from None
    except (library.ClientError, ValueError):
        raise FetchFailed(f"{where} does not speak HTTP as it should") from None
