"""Negotiation of the protocol revision: `server/discover`, or `initialize` with an older server.

Without a pinned revision, `server/discover` is sent first. A result, or an error that only modern servers give, shows a
modern server; after any other response, or none in time, `initialize` is sent. A server that gave no response and does
not know `initialize` was only slow to start: it gets `server/discover` once more.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from dovetail import errors
from dovetail.client.dispatcher import Dispatcher
from dovetail.client.results import read_result
from dovetail.protocol import revisions
from dovetail.protocol.inbound import CAPABILITIES_KEY, CLIENT_KEY
from dovetail.protocol.methods import LogLevel, RequestMeta
from dovetail.protocol.results import SERVER_INFO_KEY
from dovetail.protocol.revisions import Revision
from dovetail.protocol.types import Implementation


class ClientIdentity(msgspec.Struct, frozen=True):
    """What a client says about itself; its capabilities depend on the revision."""

    info: Mapping[str, Any]
    capabilities: Callable[[Revision], Mapping[str, Any]]

    def request_meta(self, revision: Revision, log_level: LogLevel | None = None) -> dict[str, Any]:
        if revision.handshake:
            return {}
        meta = RequestMeta(version=revision.name, log_level=log_level if log_level is not None else UNSET)
        client = {CAPABILITIES_KEY: dict(self.capabilities(revision)), CLIENT_KEY: dict(self.info)}
        return {**msgspec.to_builtins(meta), **client}


class NegotiatedProtocol(msgspec.Struct, frozen=True):
    revision: Revision
    server_info: Implementation | None
    capabilities: dict[str, Any]
    instructions: str | None


class _DiscoverResult(msgspec.Struct, frozen=True, rename="camel"):
    supported_versions: list[str]
    capabilities: dict[str, Any]
    instructions: str | None = None
    meta: dict[str, Any] = msgspec.field(name="_meta", default_factory=dict)


class _InitializeResult(msgspec.Struct, frozen=True, rename="camel"):
    protocol_version: str
    capabilities: dict[str, Any]
    server_info: Implementation
    instructions: str | None = None


def pinned_revision(name: str | None) -> Revision | None:
    if name is None:
        return None
    if name not in revisions.BY_NAME:
        known = ", ".join(revisions.SUPPORTED)
        raise errors.SetupError(f"Client: protocol_version={name!r} is unknown; use one of {known}")
    return revisions.BY_NAME[name]


class Negotiation(NamedTuple):
    """Negotiates over one connection; `pinned` is the only revision that the user allows."""

    dispatcher: Dispatcher
    identity: ClientIdentity
    pinned: Revision | None
    timeout: float | None

    async def run(self) -> NegotiatedProtocol:
        pinned = self.pinned
        if pinned is None and self.dispatcher.transport.modern:
            return self._complete(await self._negotiate_unpinned())
        if pinned is None or pinned.handshake:
            return await self.start_session(pinned or revisions.LATEST_HANDSHAKE)
        try:
            found = await self._discover(pinned, self.timeout)
        except errors.ServerError as refusal:
            if pinned.name not in _supported(refusal):
                raise
            found = await self._discover(pinned, self.timeout)  # refused, but named as supported
        return self._complete(found)

    async def start_session(self, proposed: Revision) -> NegotiatedProtocol:
        """Start a session with a server that is known to require a handshake."""
        found = await self._initialize(proposed)
        if self.pinned is not None and found.revision is not self.pinned:
            raise errors.BadResponse(f"The server does not speak {self.pinned.name}; it offers {found.revision.name}")
        return self._complete(found)

    def _complete(self, found: NegotiatedProtocol) -> NegotiatedProtocol:
        self.dispatcher.set_revision(found.revision)
        if found.revision.handshake:
            self.dispatcher.notify("notifications/initialized")
        return found

    async def _negotiate_unpinned(self) -> NegotiatedProtocol:
        found = await self._probe()
        if isinstance(found, NegotiatedProtocol):
            return found
        if found is None or found.handshake:
            try:
                return await self._initialize(found or revisions.LATEST_HANDSHAKE)
            except errors.ServerError as refusal:
                was_slow = found is None and refusal.code == errors.METHOD_NOT_FOUND
                if not was_slow and refusal.code != errors.UNSUPPORTED_VERSION:
                    raise
                found = revisions.LATEST
        return await self._discover(found, self.timeout)

    async def _probe(self) -> NegotiatedProtocol | Revision | None:
        """The outcome of `server/discover`: a result, or the revision to try next; None without a response."""
        probe_timeout = self.dispatcher.transport.probe_timeout
        try:
            timeout = probe_timeout if self.timeout is None else min(self.timeout, probe_timeout)
            return await self._discover(revisions.LATEST, timeout)
        except errors.TooManyRequests:
            raise
        except errors.ServerError as refusal:
            if refusal.code == errors.UNSUPPORTED_VERSION:
                return _newest_common(_supported(refusal))
            if refusal.code in (errors.HEADER_MISMATCH, errors.MISSING_CAPABILITY):
                raise
        except errors.BadResponse:
            pass
        except TimeoutError:
            return None
        except errors.ConnectionLost:  # of the request; the server may still be there
            if self.dispatcher.is_closed:
                raise
            return None
        return revisions.LATEST_HANDSHAKE

    async def _discover(self, revision: Revision, timeout: float | None) -> NegotiatedProtocol:
        params = {"_meta": self.identity.request_meta(revision)}
        # Not cancellable: an old server would have to read a notification before its handshake.
        raw = await self.dispatcher.request("server/discover", params, timeout=timeout, cancellable=False)
        found = read_result("server/discover", raw, _DiscoverResult)
        if revision.name not in found.supported_versions:
            words = f"The server does not speak {revision.name}; it offers {_listed(found.supported_versions)}"
            raise errors.ServerError(errors.UNSUPPORTED_VERSION, words, {"supported": found.supported_versions})
        try:
            info = msgspec.convert(found.meta.get(SERVER_INFO_KEY), Implementation)
        except msgspec.ValidationError:
            info = None  # optional
        return NegotiatedProtocol(revision, info, found.capabilities, found.instructions)

    async def _initialize(self, revision: Revision) -> NegotiatedProtocol:
        capabilities = self.identity.capabilities(revision)
        params = {"protocolVersion": revision.name, "capabilities": capabilities, "clientInfo": self.identity.info}
        raw = await self.dispatcher.request("initialize", params, timeout=self.timeout, cancellable=False)
        found = read_result("initialize", raw, _InitializeResult)
        agreed = revisions.HANDSHAKE.get(found.protocol_version)
        if agreed is None:
            raise errors.BadResponse(f"No common protocol revision: the server speaks {found.protocol_version[:100]}")
        return NegotiatedProtocol(agreed, found.server_info, found.capabilities, found.instructions)


def _newest_common(names: Sequence[Any]) -> Revision:
    for revision in reversed(revisions.ALL):
        if revision.name in names:
            return revision
    raise errors.BadResponse(f"No common protocol revision: the server speaks {_listed(names)}")


def _supported(refusal: errors.ServerError) -> list[Any]:
    known = refusal.code == errors.UNSUPPORTED_VERSION and isinstance(refusal.data, dict)
    supported = refusal.data.get("supported") if known else None
    return supported if isinstance(supported, list) else []


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(str(name)[:100] for name in names[:20]) or "not said which"
