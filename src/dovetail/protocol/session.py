"""A handshake-era session as a small frozen record, so that any worker can serve it."""

from collections.abc import Iterable
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
    announced: frozenset[str] = frozenset()  # the lists whose changes it was promised to hear of
    owner: str | None = None  # who opened it; nobody else may use it
    unheard_since: int | None = None  # where a stream of changes begins if the client does not say
    unheard_message: int = 0  # the same, in what is said to this session alone
    roots: bytes | None = None  # the client's answer to `roots/list` as it came, while it holds
    roots_version: int = 0  # how often the client has said that they have changed

    @classmethod
    def open(
        cls,
        id: str,
        params: InitializeParams,
        revision: Revision,
        *,
        announced: Iterable[str] = (),
        owner: str | None = None,
        unheard_since: int | None = None,
    ) -> "Session":
        """The session that an accepted `initialize` begins."""
        return cls(
            id=id,
            version=revision.name,
            client=params.client_info,
            capabilities=params.capabilities,
            announced=frozenset(announced),
            owner=owner,
            unheard_since=unheard_since,
        )

    @property
    def revision(self) -> Revision:
        return revisions.HANDSHAKE[self.version]

    def replace(self, **changes: Any) -> "Session":
        return msgspec.structs.replace(self, **changes)

    def without_roots(self) -> "Session":
        """The client says that its roots have changed."""
        return self.replace(roots=None, roots_version=self.roots_version + 1)
