"""The session of a handshake revision as a small frozen record, which any worker can load.

What the client sent stays encoded, because decoded it can take 25 times as many bytes, and is bounded.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from dovetail.errors import INVALID_PARAMS, ProtocolError
from dovetail.protocol import jsonrpc, revisions
from dovetail.protocol.methods import InitializeParams, LogLevel
from dovetail.protocol.revisions import Revision

MAX_CLIENT = 16 * 1024  # bytes of capabilities and clientInfo together
MAX_RECORD = 64 * 1024  # bytes of the whole record, subscriptions included
MAX_SUBSCRIPTIONS = 1_000  # each costs more than its bytes


def bounded_client(client: bytes, capabilities: bytes, http_status: int = 200) -> bytes:
    """The clientInfo, without its icons if it is too large with them. Raises ProtocolError."""
    if len(client) + len(capabilities) > MAX_CLIENT:
        client = jsonrpc.encode({name: each for name, each in jsonrpc.members(client).items() if name != "icons"})
    if len(client) + len(capabilities) > MAX_CLIENT:
        text = f"A client's capabilities and clientInfo may take {MAX_CLIENT} bytes together"
        raise ProtocolError(text, code=INVALID_PARAMS, http_status=http_status)
    return client


class VisibilityRule(msgspec.Struct, frozen=True, array_like=True):
    """Enables or disables what has one of these tags and one of these names, which may be patterns; empty: any."""

    enabled: bool
    tags: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


Rules = tuple[VisibilityRule, ...]  # the last one that fits counts
EVERYTHING: Rules = (VisibilityRule(True),)  # also what the server has disabled


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """What `initialize` negotiated, and what the client has requested since."""

    id: str
    version: str
    client: bytes  # a JSON object, as `capabilities`
    capabilities: bytes
    initialized: bool = False  # `notifications/initialized` has arrived: the server may send requests
    log_level: LogLevel | None = None
    subscriptions: frozenset[str] = frozenset()
    announced: frozenset[str] = frozenset()  # the lists whose changes the server notifies of
    owner: str | None = None  # the principal that opened it; no other may use it
    resume_change: int | None = None  # where a GET stream without Last-Event-ID begins in the change log
    resume_message: int = 0  # the same in the log of messages to this session alone
    rules: Rules = ()  # of `ctx.enable` and `ctx.disable`, after those of the server

    @classmethod
    def open(
        cls,
        id: str,
        params: InitializeParams,
        revision: Revision,
        *,
        announced: Iterable[str] = (),
        owner: str | None = None,
        resume_change: int | None = None,
    ) -> "Session":
        """The session that an `initialize` opens. Raises ProtocolError if its params are too large."""
        capabilities = bytes(memoryview(jsonrpc.encode(params.capabilities)))  # without the encoder's spare capacity
        return cls(
            id=id,
            version=revision.name,
            client=bounded_client(jsonrpc.encode(params.client_info), capabilities),
            capabilities=capabilities,
            announced=frozenset(announced),
            owner=owner,
            resume_change=resume_change,
        )

    @property
    def revision(self) -> Revision:
        return revisions.HANDSHAKE[self.version]

    def check_size(self, size: int) -> None:
        """Raises ProtocolError if the record, `size` bytes when encoded, is larger than allowed."""
        if size > MAX_RECORD or len(self.subscriptions) > MAX_SUBSCRIPTIONS:
            text = f"A session may hold {MAX_RECORD} bytes and {MAX_SUBSCRIPTIONS} subscriptions"
            raise ProtocolError(text, code=INVALID_PARAMS)

    def replace(self, **changes: Any) -> "Session":
        return msgspec.structs.replace(self, **changes)
