"""Transport: what each connection of a client can do, what its `Receiver` is told, and the time limits of requests.

Time limits stand still while a person decides, and begin again at progress.
"""

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

MAX_UNREAD_RESPONSES = 1_000  # answers on their way to a server that asks on and does not take them
UNREAD_RESPONSES = "the server asks, and does not read the answers"


class OutgoingMessage(NamedTuple):
    """One message to the server: its bytes, and what a transport has to know of them.

    `id` is that of a request, `method` and `params` those of a request or a notification.
    """

    body: bytes
    id: RequestId | None = None
    method: str | None = None
    params: Mapping[str, Any] = {}

    @property
    def is_response(self) -> bool:
        return self.method is None

    @property
    def subject(self) -> str:
        """What an error begins with."""
        return self.method or "a message"


class PausableTimeout:
    """One `asyncio.Timeout` that can be paused, and extended up to a maximum."""

    __slots__ = ("_due", "_first_due", "_paused_at", "_pauses", "_timeout")

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._due = self._first_due = timeout.when()  # None: without a limit, or over
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

    def extend(self, seconds: float, most: float) -> None:
        """Begin again with these seconds; all in all it takes `most`, not counting pauses."""
        if self._due is None or self._first_due is None or self._timeout.expired():
            return
        now = self._paused_at if self._pauses else asyncio.get_running_loop().time()
        self._due = min(now + seconds, self._first_due + max(0.0, most - seconds))
        if not self._pauses:
            self._timeout.reschedule(self._due)

    def end(self) -> None:
        self._due = None


class RequestTimeouts:
    """Those of all requests on their way: a person may take longer to answer than a server may take to work.

    A question pauses the requests that were made before it. Others may be made because of it, and run.
    """

    def __init__(self) -> None:
        self._timeouts: set[PausableTimeout] = set()

    @contextmanager
    def track(self, timeout: asyncio.Timeout) -> Iterator[PausableTimeout]:
        """Inside, a request is on its way."""
        limit = PausableTimeout(timeout)
        self._timeouts.add(limit)
        try:
            yield limit
        finally:
            limit.end()
            self._timeouts.discard(limit)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, a question is open."""
        paused = tuple(self._timeouts)
        for limit in paused:
            limit.pause()
        try:
            yield
        finally:
            for limit in paused:
                limit.resume()


class Backoff:
    """Pauses between tries to connect: doubled with each failure in a row, and never in step with other clients."""

    def __init__(self, first: float = 1.0, longest: float = 30.0) -> None:
        self._first = first
        self._longest = longest
        self._failures = 0
        self.retry: float | None = None  # seconds that the server asks for

    def succeeded(self) -> None:
        self._failures = 0

    def ended(self, after: float) -> None:
        """A connection that was open for so many seconds has ended; one that lasted did not fail."""
        if after > 0.5:
            self.succeeded()

    def seconds(self) -> float:
        """Count a failure, and tell how long to wait for the next try."""
        first = self._first if self.retry is None else min(max(self.retry, 0.05), 10 * self._longest)
        pause = min(first * 2.0 ** min(self._failures, 20), max(self._longest, first))
        self._failures += 1
        return pause * random.uniform(1.0, 1.25)  # never sooner than the server asks for


class Receiver(Protocol):
    """The end of a link that listens."""

    timeouts: RequestTimeouts  # the time limits of the requests that wait for answers

    def receive(self, message: bytes, request_id: RequestId | None = None) -> None:
        """Take one message; never raises. `about`: the request that it is the only answer to, whatever its id says."""

    def is_pending(self, id: RequestId) -> bool:
        """Whether the answer to a request is still to come, and wanted."""

    def request_failed(self, id: RequestId | None, failure: DovetailError, body: bytes | None = None) -> None:
        """One message did not get through, or will not be answered. `said` is what the server had to say to it."""

    def messages_missed(self) -> None:
        """The server may have said something that nobody heard."""

    def session_ended(self, reason: str) -> None:
        """Nothing is answered any more that was asked so far; another handshake may follow on the same link."""

    def connection_lost(self, reason: str) -> None:
        """The server is gone; nothing more will come."""


class Transport(ABC):
    """One connection to one server."""

    probe_timeout = 10.0  # how long an unknown server may think about `server/discover`
    reconnects = False  # whether it still works after the server has gone away and come back
    modern = True  # whether a server behind it may speak a revision without a handshake
    # The arguments of each tool that travel as headers too; None where there are no headers.
    tool_headers: dict[str, tuple[HeaderParameter, ...]] | None = None

    @abstractmethod
    async def open(self, receiver: Receiver) -> None: ...

    @abstractmethod
    def write(self, message: OutgoingMessage) -> None:
        """Send one message; never blocks. With more than MAX_UNREAD answers that are not taken, the server is lost."""

    @abstractmethod
    async def drain(self) -> None:
        """Wait while the server reads too slowly."""

    @abstractmethod
    async def close(self) -> None:
        """Leave politely, and for good within a bounded time."""

    def set_revision(self, revision: Revision) -> None:  # noqa: B027
        """Both sides have come to terms."""

    def cancel_request(self, id: RequestId) -> bool:  # noqa: ARG002
        """Nobody waits for this answer any more. True if that alone tells the server to stop."""
        return False

    @property
    def identity(self) -> str | None:
        """For whom messages go out: empty where that can't change, None where nobody knows. It is secret."""
        return ""

    def backoff(self) -> Backoff:
        """For a connection that has broken."""
        return Backoff()

    async def wait_for_stream(self) -> None:  # noqa: B027
        """Wait until what the server says unasked arrives, or until it is clear that it will not."""


# ── URLs of servers ──

PORTS = {"http": 80, "https": 443}
OUR_OWN_HEADERS = frozenset(
    {"accept", "accept-encoding", "connection", "content-length", "content-type", "last-event-id", "transfer-encoding"}
)
_SHOWN = 200  # characters of a URL that an error repeats
_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f\\]")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")

_Origin = tuple[str, str, int]


class ServerUrl(NamedTuple):
    """A checked URL."""

    url: str
    origin: _Origin

    @classmethod
    def parse(cls, url: str) -> "ServerUrl":
        split, problem = _split(url)
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
        """Without the query, which may hold secrets."""
        return self.url.partition("?")[0][:_SHOWN]

    def join(self, reference: str, base: str | None = None) -> str:
        """A URL that the server names, relative or not; BadAnswer if it leads to another origin."""
        try:
            url = reference if _NOT_IN_A_URL.search(reference) else urljoin(base or self.url, reference)
        except ValueError:
            url = reference
        split, problem = _split(url)
        if split is None or split.username is not None or split.password is not None:
            raise BadResponse(
                f"the server names {_printable(reference)!r}, which can't be used: {problem or 'credentials'}"
            )
        if _origin(split) != self.origin:
            raise BadResponse(
                f"the server names {_printable(reference)!r}, which is another origin; use that URL if you trust it"
            )
        return split._replace(fragment="").geturl()


def page_url(url: str) -> str | None:
    """A page as it may be shown to a person and opened, with its host as that is looked up (`xn--…`).

    None if it is no page of the web, or if something stands before its host: `https://bank.example@evil.example`.
    """
    split, _ = _split(url)
    try:
        host = "" if split is None else (split.hostname or "").encode("idna").decode().lower()
    except UnicodeError:
        return None
    if split is None or "@" in split.netloc or not re.fullmatch(r"[a-z0-9._:-]+", host):
        return None
    place = (f"[{host}]" if ":" in host else host) + ("" if split.port is None else f":{split.port}")
    return url if place == split.netloc else split._replace(netloc=place).geturl()


def _printable(url: str) -> str:
    """What may be shown of one that can't be used: no query, and nothing of where a password may be."""
    scheme, divided, _ = url.partition("://")
    shown = f"{scheme if divided else ''}{divided}…" if "@" in url else url
    return re.split("[?#]", shown, maxsplit=1)[0][:_SHOWN]


def _split(url: str) -> tuple[SplitResult | None, str]:
    """The parts of a usable URL, or what is wrong with it."""
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


def _origin(split: SplitResult) -> _Origin:
    default = PORTS[split.scheme]
    return split.scheme, (split.hostname or "").lower(), split.port if split.port is not None else default


def checked_headers(headers: Mapping[Any, Any]) -> dict[str, str]:
    """Headers of the user's that go out with every request; SetupError for what can't or must not be one."""
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise SetupError(f"Client: headers={{{name!r}: …}}: that is not the name of a header")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise SetupError(f"Client: headers={{{name!r}: …}}: the value must be one line of plain ASCII text")
        if name.lower() in OUR_OWN_HEADERS or name.lower().startswith("mcp-"):
            raise SetupError(f"Client: headers={{{name!r}: …}}: the client sets that one itself")
    return dict(headers)
