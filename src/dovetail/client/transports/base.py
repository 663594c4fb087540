"""The interface of a client's transports, timeouts that can be paused, and checked server URLs."""

import asyncio
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol
from urllib.parse import SplitResult, urljoin, urlsplit

from dovetail.errors import BadResponse, DovetailError, SetupError
from dovetail.protocol.headers import HeaderParameter
from dovetail.protocol.methods import RequestId
from dovetail.protocol.revisions import Revision

ToolHeaders = dict[str, tuple[HeaderParameter, ...]]  # arguments that are sent as headers too, by tool
Headers = Mapping[str, str]

MAX_UNREAD = 1_000  # responses to requests of a server that does not read them


class OutgoingMessage(NamedTuple):
    """One message to the server: a request with `id` and `method`, a notification with `method`, or a response."""

    body: bytes
    id: RequestId | None = None
    method: str | None = None
    params: Mapping[str, Any] = {}

    @property
    def is_response(self) -> bool:
        return self.method is None

    @property
    def subject(self) -> str:
        return self.method or "a message"  # errors begin with it


class PausableTimeout:
    """One `asyncio.Timeout` that can be paused, and extended up to a maximum."""

    __slots__ = ("_due", "_first_due", "_paused_at", "_pauses", "_timeout")

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._due = self._first_due = timeout.when()  # None: without a limit, or ended
        self._pauses = 0
        self._paused_at = 0.0

    def pause(self) -> None:
        self._pauses += 1
        if self._pauses == 1 and self._due is not None and not self._timeout.expired():
            self._paused_at = asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def resume(self) -> None:
        self._pauses -= 1
        if self._pauses or self._due is None or self._first_due is None or self._timeout.expired():
            return
        paused = asyncio.get_running_loop().time() - self._paused_at
        self._due, self._first_due = self._due + paused, self._first_due + paused
        self._timeout.reschedule(self._due)

    def extend(self, seconds: float, maximum: float) -> None:
        """Restart with these seconds; in total it takes at most `maximum`, not counting pauses."""
        if self._due is None or self._first_due is None or self._timeout.expired():
            return
        now = self._paused_at if self._pauses else asyncio.get_running_loop().time()
        self._due = min(now + seconds, self._first_due + max(0.0, maximum - seconds))
        if not self._pauses:
            self._timeout.reschedule(self._due)

    def end(self) -> None:
        self._due = None


class RequestTimeouts:
    """The timeouts of all pending requests. They are paused while the user answers a request of the server.

    Requests that are made during the pause are not paused: the user's handler may have made them.
    """

    def __init__(self) -> None:
        self._timeouts: set[PausableTimeout] = set()

    @contextmanager
    def track(self, timeout: asyncio.Timeout) -> Iterator[PausableTimeout]:
        limit = PausableTimeout(timeout)
        self._timeouts.add(limit)
        try:
            yield limit
        finally:
            limit.end()
            self._timeouts.discard(limit)

    @contextmanager
    def paused(self) -> Iterator[None]:
        paused = tuple(self._timeouts)
        for limit in paused:
            limit.pause()
        try:
            yield
        finally:
            for limit in paused:
                limit.resume()


class Backoff:
    """Delays before reconnecting: doubled with each failure in a row, with jitter against clients in step."""

    def __init__(self, first_delay: float = 1.0, max_delay: float = 30.0) -> None:
        self._first_delay = first_delay
        self._max_delay = max_delay
        self._failures = 0
        self.retry: float | None = None  # seconds that the server asks for

    def succeeded(self) -> None:
        self._failures = 0

    def ended(self, after: float) -> None:
        """Record that a connection has ended after so many seconds; one that lasted does not count as a failure."""
        if after > 0.5:
            self._failures = 0

    def next_delay(self) -> float:
        """Count a failure, and return the seconds to wait before the next try."""
        first = self._first_delay if self.retry is None else min(max(self.retry, 0.05), 10 * self._max_delay)
        delay = min(first * 2.0 ** min(self._failures, 20), max(self._max_delay, first))
        self._failures += 1
        return delay * random.uniform(1.0, 1.25)  # never sooner than the server asks for


class Receiver(Protocol):
    """Receives messages and failures from a transport; implemented by the dispatcher."""

    timeouts: RequestTimeouts

    def receive(self, message: bytes, request_id: RequestId | None = None) -> None:
        """Handle one message; never raises. `request_id`: the request it responds to if it has no id of its own."""

    def is_pending(self, id: RequestId) -> bool:
        """Whether a caller still waits for the response to a request."""

    def request_failed(self, id: RequestId | None, failure: DovetailError, body: bytes | None = None) -> None:
        """Report a message that was not delivered or gets no response. `body`: the JSON-RPC error that refused it."""

    def messages_missed(self) -> None:
        """Report that a stream broke, so notifications of the server may have been lost."""

    def session_ended(self, reason: str) -> None:
        """Report that pending requests get no response; another handshake may follow on the same transport."""

    def connection_lost(self, reason: str) -> None:
        """Report that the server has ended, or can't be reached any more."""


async def cancel_and_wait(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def check_unread(receiver: Receiver, responses: int) -> None:
    if responses > MAX_UNREAD:
        receiver.connection_lost("the server sends requests, but does not read the responses")


class Transport(ABC):
    """One connection to one server."""

    probe_timeout = 10.0  # seconds for an unknown server to respond to `server/discover`
    reconnects = False  # whether it works on after the server was away
    modern = True  # whether the server may speak a revision without a handshake
    tool_headers: ToolHeaders | None = None  # None: messages have no headers

    @abstractmethod
    async def open(self, receiver: Receiver) -> None: ...

    @abstractmethod
    def write(self, message: OutgoingMessage) -> None:
        """Send without blocking. If over MAX_UNREAD responses wait to be read, the connection is lost."""

    @abstractmethod
    async def drain(self) -> None:
        """Wait while the server reads too slowly."""

    @abstractmethod
    async def close(self) -> None:
        """End the connection in a bounded time."""

    def set_revision(self, revision: Revision) -> None:  # noqa: B027
        """Use the negotiated revision."""

    def cancel_request(self, id: RequestId) -> bool:  # noqa: ARG002
        """Stop waiting for a response. True if the server stops the request because of that."""
        return False

    @property
    def identity(self) -> str | None:
        """The identity of the credentials: empty if it can't change, None if it is unknown. It is secret."""
        return ""

    def backoff(self) -> Backoff:
        return Backoff()

    async def wait_for_stream(self) -> None:  # noqa: B027
        """Wait until the stream for the server's notifications is open, or will not open."""


# ── URLs of servers ──

_PORTS = {"http": 80, "https": 443}
_RESERVED_HEADERS = frozenset(
    {"accept", "accept-encoding", "connection", "content-length", "content-type", "last-event-id", "transfer-encoding"}
)
_MAX_SHOWN_CHARS = 200  # of a URL in an error
_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f\\]")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")

Origin = tuple[str, str, int]  # scheme, host, port


class ServerUrl(NamedTuple):
    """The URL of a server, checked; its origin is the only one that requests go to."""

    url: str
    origin: Origin

    @classmethod
    def parse(cls, url: str) -> "ServerUrl":
        split, problem = split_url(url)
        if split is None:
            raise SetupError(f"Client: can't connect to {_printable(url)!r}: {problem}")
        if split.username is not None or split.password is not None:
            raise SetupError(
                "Client: the URL holds a user or a password; leave them out and use "
                'headers={"Authorization": "Basic …"} instead'
            )
        if split.fragment:
            raise SetupError("Client: the URL has a part after #, which no server sees; leave it out")
        return cls(url, _origin(split))

    @property
    def shown(self) -> str:
        """The URL without its query, which may hold secrets."""
        return self.url.partition("?")[0][:_MAX_SHOWN_CHARS]

    def join(self, reference: str, base: str | None = None, advice: str = "; use that URL if you trust it") -> str:
        """A URL, absolute or relative, that the server names. Raises BadResponse if it is of another origin."""
        try:
            url = reference if _NOT_IN_A_URL.search(reference) else urljoin(base or self.url, reference)
        except ValueError:
            url = reference
        split, problem = split_url(url)
        named = f"the server names {_printable(reference)!r}"
        if split is None or split.username is not None or split.password is not None:
            raise BadResponse(f"{named}, which can't be used: {problem or 'credentials'}")
        if _origin(split) != self.origin:
            raise BadResponse(f"{named}, which is another origin{advice}")
        return split._replace(fragment="").geturl()


def page_url(url: str) -> str | None:
    """A web page as it may be shown and opened, with its host as DNS knows it (`xn--…`).

    None for anything else, and for `https://bank.example@evil.example`, which misleads the user.
    """
    split, _ = split_url(url)
    try:
        host = "" if split is None else (split.hostname or "").encode("idna").decode().lower()
    except UnicodeError:
        return None
    if split is None or "@" in split.netloc or not re.fullmatch(r"[a-z0-9._:-]+", host):
        return None
    netloc = (f"[{host}]" if ":" in host else host) + ("" if split.port is None else f":{split.port}")
    return url if netloc == split.netloc else split._replace(netloc=netloc).geturl()


def _printable(url: str) -> str:
    """An unusable URL for an error: without query, fragment and password."""
    scheme, separator, _ = url.partition("://")
    shown = f"{scheme if separator else ''}{separator}…" if "@" in url else url
    return re.split("[?#]", shown, maxsplit=1)[0][:_MAX_SHOWN_CHARS]


def split_url(url: str) -> tuple[SplitResult | None, str]:
    """The parts of a usable URL, or the problem with it."""
    if _NOT_IN_A_URL.search(url):
        return None, "it holds spaces, backslashes or control characters"
    try:
        split = urlsplit(url)
        _origin(split)
    except KeyError:
        return None, "a URL has to begin with http:// or https://"
    except ValueError:
        return None, "its host or its port can't be read"
    return (split, "") if split.hostname else (None, "it has no host")


def _origin(split: SplitResult) -> Origin:
    default_port = _PORTS[split.scheme]
    return split.scheme, (split.hostname or "").lower(), split.port if split.port is not None else default_port


def checked_headers(headers: Mapping[Any, Any]) -> dict[str, str]:
    """The user's headers for every request. Raises SetupError for one that is malformed or reserved for the client."""
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise SetupError(f"Client: headers={{{name!r}: …}}: that is not the name of a header")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise SetupError(f"Client: headers={{{name!r}: …}}: the value must be one line of plain ASCII text")
        if name.lower() in _RESERVED_HEADERS or name.lower().startswith("mcp-"):
            raise SetupError(f"Client: headers={{{name!r}: …}}: the client sets that one itself")
    return dict(headers)
