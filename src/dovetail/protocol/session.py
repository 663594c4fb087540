"""A handshake-era session as a small frozen record, so that any worker can serve it.

What a client says is kept as the JSON that came, and bounded: decoded, it can take 25 times as many bytes.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from dovetail.errors import INVALID_PARAMS, ProtocolError
from dovetail.protocol import jsonrpc, revisions
from dovetail.protocol.methods import InitializeParams, LogLevel
from dovetail.protocol.revisions import Revision

MAX_CLIENT = 16 * 1024  # bytes of a client's capabilities and clientInfo together
MAX_RECORD = 64 * 1024  # bytes: these, and the resources that it subscribes to
MAX_SUBSCRIPTIONS = 1_000  # each costs more than its bytes


def bounded_client(client: bytes, capabilities: bytes, http_status: int = 200) -> bytes:
    """The clientInfo, without the icons that may be many times as large where it would not fit with them."""
    if len(client) + len(capabilities) > MAX_CLIENT:
        client = jsonrpc.encode({name: each for name, each in jsonrpc.members(client).items() if name != "icons"})
    if len(client) + len(capabilities) > MAX_CLIENT:
        text = f"A client's capabilities and clientInfo may take {MAX_CLIENT} bytes together"
        raise ProtocolError(text, code=INVALID_PARAMS, http_status=http_status)
    return client


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """What `initialize` agreed on, and what the client has asked for since."""

    id: str
    version: str
    client: bytes  # JSON objects
    capabilities: bytes
    initialized: bool = False  # `notifications/initialized` has come: from here on we may speak unasked
    log_level: LogLevel | None = None
    subscriptions: frozenset[str] = frozenset()
    announced: frozenset[str] = frozenset()  # the lists whose changes it was promised to hear of
    owner: str | None = None  # who opened it; nobody else may use it
    resume_change: int | None = None  # where a stream of changes begins if the client does not say
    resume_message: int = 0  # the same, in what is said to this session alone

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
        """The session that an accepted `initialize` begins. Raises ProtocolError if the client says too much."""
        capabilities = bytes(memoryview(jsonrpc.encode(params.capabilities)))  # which has room for more than it holds
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
        """`size`: of the encoded record. Raises ProtocolError if that is more than any session may hold."""
        if size > MAX_RECORD or len(self.subscriptions) > MAX_SUBSCRIPTIONS:
            text = f"A session may hold {MAX_RECORD} bytes and {MAX_SUBSCRIPTIONS} subscriptions"
            raise ProtocolError(text, code=INVALID_PARAMS)

    def replace(self, **changes: Any) -> "Session":
        return msgspec.structs.replace(self, **changes)
