"""What every connection of a client's can do, and what it tells about.

A link carries whole messages both ways. What arrives goes to its `Receiver`, which also hears of what will not arrive.
"""

from abc import ABC, abstractmethod
from typing import Protocol

from dovetail.client.patience import Patience
from dovetail.errors import DovetailError
from dovetail.protocol.headers import HeaderParameter
from dovetail.protocol.methods import RequestId
from dovetail.protocol.revisions import Revision

MAX_UNREAD = 1_000  # answers on their way to a server that asks on and does not take them
UNREAD = "the server asks, and does not read the answers"


class Receiver(Protocol):
    """The end of a link that listens."""

    patience: Patience  # the time limits of the requests that wait for answers

    def receive(self, message: bytes, about: RequestId | None = None) -> None:
        """Take one message; never raises. `about`: the request that it is the only answer to, whatever its id says."""

    def awaits(self, id: RequestId) -> bool:
        """Whether the answer to a request is still to come, and wanted."""

    def failed(self, id: RequestId | None, failure: DovetailError, said: bytes | None = None) -> None:
        """One message did not get through, or will not be answered. `said` is what the server had to say to it."""

    def missed(self) -> None:
        """The server may have said something that nobody heard."""

    def session_ended(self, reason: str) -> None:
        """Nothing is answered any more that was asked so far; another handshake may follow on the same link."""

    def lost(self, reason: str) -> None:
        """The server is gone; nothing more will come."""


class Link(ABC):
    """One connection to one server. Only what all of them have to do is left open here."""

    reconnects = False  # whether it still works after the server has gone away and come back
    modern = True  # whether a server behind it may speak a revision without a handshake
    # The arguments of each tool that travel as headers too; None where there are no headers.
    mirrored: dict[str, tuple[HeaderParameter, ...]] | None = None

    @abstractmethod
    async def open(self, receiver: Receiver) -> None: ...

    @abstractmethod
    def write(self, message: bytes) -> None:
        """Send one message; never blocks. With more than MAX_UNREAD answers that are not taken, the server is lost."""

    @abstractmethod
    async def drain(self) -> None:
        """Wait while the server reads too slowly."""

    @abstractmethod
    async def close(self) -> None:
        """Leave politely, and for good within a bounded time."""

    def agreed(self, revision: Revision) -> None:  # noqa: B027
        """Both sides have come to terms."""

    def abandon(self, id: RequestId) -> bool:  # noqa: ARG002
        """Nobody waits for this answer any more. True if that alone tells the server to stop."""
        return False

    @property
    def identity(self) -> str | None:
        """For whom messages go out: empty where that can't change, None where nobody knows. It is secret."""
        return ""

    @property
    def hears(self) -> bool:
        """Whether what the server says unasked arrives at this moment."""
        return True

    async def attend(self) -> None:  # noqa: B027
        """Wait until it does, or until it is clear that it will not."""
