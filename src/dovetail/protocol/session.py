"""A handshake-era session as a small frozen record, so that any worker can serve it."""

from typing import Any

import msgspec

from dovetail.protocol import revisions
from dovetail.protocol.methods import InitializeParams, LogLevel
from dovetail.protocol.revisions import Revision


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """What `initialize` agreed on, and what the client has asked for since."""

    id: str
    version: str
    client: dict[str, Any]
    capabilities: dict[str, Any]
    initialized: bool = False  # `notifications/initialized` has come: from here on we may speak unasked
    log_level: LogLevel | None = None
    subscriptions: frozenset[str] = frozenset()

    @classmethod
    def open(cls, id: str, params: InitializeParams, revision: Revision) -> "Session":
        """The session that an accepted `initialize` begins."""
        return cls(id=id, version=revision.name, client=params.client_info, capabilities=params.capabilities)

    @property
    def revision(self) -> Revision:
        return revisions.HANDSHAKE[self.version]

    def replace(self, **changes: Any) -> "Session":
        return msgspec.structs.replace(self, **changes)
