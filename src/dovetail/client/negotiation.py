"""Negotiation of the protocol revision: `server/discover`, or `initialize` with an older server.

Without a pinned revision, `server/discover` is tried first. A server that answers it, or refuses it in the modern way,
is modern; any other answer, and silence, comes from a server that wants `initialize`. One that was silent and knows no
handshake was only slow to start, and is asked once more.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from dovetail.client.dispatcher import Dispatcher
from dovetail.client.results import read
from dovetail.errors import (
    HEADER_MISMATCH,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    BadResponse,
    ConnectionLost,
    ServerError,
    SetupError,
    TooManyRequests,
)
from dovetail.protocol import revisions
from dovetail.protocol.inbound import CAPABILITIES_KEY, CLIENT_KEY
from dovetail.protocol.methods import LogLevel, RequestMeta
from dovetail.protocol.results import SERVER_INFO_KEY
from dovetail.protocol.revisions import Revision
from dovetail.protocol.types import Implementation


class ClientIdentity(msgspec.Struct, frozen=True):
    """Who the client is and what it can do, which depends on the revision."""

    info: Mapping[str, Any]
    capabilities: Callable[[Revision], Mapping[str, Any]]

    def request_meta(self, revision: Revision, log_level: LogLevel | None = None) -> dict[str, Any]:
        """What every request carries in its `_meta`."""
        if revision.handshake:
            return {}
        meta = RequestMeta(version=revision.name, log_level=log_level if log_level is not None else UNSET)
        said = {CAPABILITIES_KEY: dict(self.capabilities(revision)), CLIENT_KEY: dict(self.info)}
        return {**msgspec.to_builtins(meta), **said}


class NegotiatedProtocol(msgspec.Struct, frozen=True):
    """What a server said about itself, and the revision that both sides speak."""

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
        raise SetupError(f"Client: protocol_version={name!r} is unknown; use one of {', '.join(revisions.SUPPORTED)}")
    return revisions.BY_NAME[name]


async def negotiate(
    dispatcher: Dispatcher, identity: ClientIdentity, pinned: Revision | None, timeout: float | None
) -> NegotiatedProtocol:
    if pinned is None and dispatcher.transport.modern:
        return _complete(dispatcher, await _negotiate_unpinned(dispatcher, identity, timeout))
    if pinned is None or pinned.handshake:
        return await start_session(dispatcher, identity, pinned or revisions.LATEST_HANDSHAKE, pinned, timeout)
    try:
        found = await discover(dispatcher, identity, pinned, timeout)
    except ServerError as refusal:
        if pinned.name not in _supported(refusal):
            raise
        found = await discover(dispatcher, identity, pinned, timeout)  # refused, and named as the one to use
    return _complete(dispatcher, found)


async def start_session(
    dispatcher: Dispatcher, identity: ClientIdentity, proposed: Revision, pinned: Revision | None, timeout: float | None
) -> NegotiatedProtocol:
    """With a server of which it is known that it wants a handshake."""
    agreed = await initialize(dispatcher, identity, proposed, timeout)
    if pinned is not None and agreed.revision is not pinned:
        raise BadResponse(f"The server does not speak {pinned.name}; it offers {agreed.revision.name}")
    return _complete(dispatcher, agreed)


def _complete(dispatcher: Dispatcher, agreed: NegotiatedProtocol) -> NegotiatedProtocol:
    dispatcher.set_revision(agreed.revision)
    if agreed.revision.handshake:
        dispatcher.notify("notifications/initialized")
    return agreed


# ── an unknown server ──


async def _negotiate_unpinned(
    dispatcher: Dispatcher, identity: ClientIdentity, timeout: float | None
) -> NegotiatedProtocol:
    probe_timeout = dispatcher.transport.probe_timeout
    found = await _probe(dispatcher, identity, probe_timeout if timeout is None else min(timeout, probe_timeout))
    if isinstance(found, NegotiatedProtocol):
        return found
    if found is None or found.handshake:
        try:
            return await initialize(dispatcher, identity, found or revisions.LATEST_HANDSHAKE, timeout)
        except ServerError as refusal:
            was_slow = found is None and refusal.code == METHOD_NOT_FOUND
            if not was_slow and refusal.code != UNSUPPORTED_VERSION:
                raise
            found = revisions.LATEST
    return await discover(dispatcher, identity, found, timeout)


async def _probe(
    dispatcher: Dispatcher, identity: ClientIdentity, timeout: float | None
) -> NegotiatedProtocol | Revision | None:
    """What comes of `server/discover`: an agreement, or else the revision that should be tried next; None: silence."""
    try:
        return await discover(dispatcher, identity, revisions.LATEST, timeout)
    except TooManyRequests:
        raise
    except ServerError as refusal:
        if refusal.code == UNSUPPORTED_VERSION:
            return _newest(_supported(refusal))
        if refusal.code in (HEADER_MISMATCH, MISSING_CAPABILITY):
            raise
    except BadResponse:
        pass
    except TimeoutError:
        return None
    except ConnectionLost:  # the request is lost, but not yet the server
        if dispatcher.is_closed:
            raise
        return None
    return revisions.LATEST_HANDSHAKE


def _newest(names: Sequence[Any]) -> Revision:
    """Of those that both sides speak."""
    for revision in reversed(revisions.ALL):
        if revision.name in names:
            return revision
    raise BadResponse(f"No common protocol revision: the server speaks {_listed(names)}")


def _supported(refusal: ServerError) -> list[Any]:
    known = refusal.code == UNSUPPORTED_VERSION and isinstance(refusal.data, dict)
    supported = refusal.data.get("supported") if known else None
    return supported if isinstance(supported, list) else []


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(str(name)[:100] for name in names[:20]) or "not said which"


# ── the requests ──


async def discover(
    dispatcher: Dispatcher, identity: ClientIdentity, revision: Revision, timeout: float | None
) -> NegotiatedProtocol:
    params = {"_meta": identity.request_meta(revision)}
    # Not cancellable: an old server would have to read a notification before its handshake.
    raw = await dispatcher.request("server/discover", params, timeout=timeout, cancellable=False)
    found = read("server/discover", raw, _DiscoverResult)
    if revision.name not in found.supported_versions:
        words = f"The server does not speak {revision.name}; it offers {_listed(found.supported_versions)}"
        raise ServerError(UNSUPPORTED_VERSION, words, {"supported": found.supported_versions})
    try:
        info = msgspec.convert(found.meta.get(SERVER_INFO_KEY), Implementation)
    except msgspec.ValidationError:
        info = None  # a server need not say who it is
    return NegotiatedProtocol(revision, info, found.capabilities, found.instructions)


async def initialize(
    dispatcher: Dispatcher, identity: ClientIdentity, revision: Revision, timeout: float | None
) -> NegotiatedProtocol:
    params = {
        "protocolVersion": revision.name,
        "capabilities": identity.capabilities(revision),
        "clientInfo": identity.info,
    }
    raw = await dispatcher.request("initialize", params, timeout=timeout, cancellable=False)
    found = read("initialize", raw, _InitializeResult)
    agreed = revisions.HANDSHAKE.get(found.protocol_version)
    if agreed is None:
        raise BadResponse(f"No common protocol revision: the server speaks {found.protocol_version[:100]}")
    return NegotiatedProtocol(agreed, found.server_info, found.capabilities, found.instructions)
