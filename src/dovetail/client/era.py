"""How a client and a server come to terms: a conversation comes in, the revision they agree on goes out.

Without a pinned revision, `server/discover` is tried first. A server that answers it, or refuses it in the modern way,
is modern; anything else, silence included, comes from a server that wants `initialize`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from dovetail.client.conversation import Conversation
from dovetail.client.results import read
from dovetail.errors import (
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    BadAnswer,
    ConnectionLost,
    ServerError,
    SetupError,
    TooManyRequests,
)
from dovetail.protocol import revisions
from dovetail.protocol.definitions import Implementation
from dovetail.protocol.methods import LogLevel, RequestMeta
from dovetail.protocol.outbound import SERVER_INFO_KEY
from dovetail.protocol.revisions import Revision

PROBE_SECONDS = 10.0  # how long an unknown server may think about `server/discover`
MODERN_REFUSALS = (HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION)


class Identity(msgspec.Struct, frozen=True):
    """Who the client is and what it can do, which depends on the revision."""

    info: Mapping[str, Any]
    capabilities: Callable[[Revision], Mapping[str, Any]]

    def stamp(self, revision: Revision, log_level: LogLevel | None = None) -> dict[str, Any]:
        """What every request carries in its `_meta`."""
        if revision.handshake:
            return {}
        meta = RequestMeta(
            version=revision.name,
            capabilities=dict(self.capabilities(revision)),
            client=dict(self.info),
            log_level=log_level if log_level is not None else UNSET,
        )
        stamp: dict[str, Any] = msgspec.to_builtins(meta)
        return stamp


class Agreement(msgspec.Struct, frozen=True):
    """What a server said about itself, and the revision that both sides speak."""

    revision: Revision
    server_info: Implementation | None
    capabilities: dict[str, Any]
    instructions: str | None


class _Discovered(msgspec.Struct, frozen=True, rename="camel"):
    supported_versions: list[str]
    capabilities: dict[str, Any]
    instructions: str | None = None
    meta: dict[str, Any] = msgspec.field(name="_meta", default_factory=dict)


class _Initialized(msgspec.Struct, frozen=True, rename="camel"):
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


async def agree(
    conversation: Conversation, identity: Identity, pinned: Revision | None, timeout: float | None
) -> Agreement:
    if pinned is not None and not pinned.handshake:
        return await _discover_pinned(conversation, identity, pinned, timeout)
    if pinned is not None or not conversation.modern:
        return await begin_session(conversation, identity, pinned or revisions.LATEST_HANDSHAKE, pinned, timeout)
    probe = PROBE_SECONDS if timeout is None else min(timeout, PROBE_SECONDS)
    revision = revisions.LATEST
    for last in (False, True):
        try:
            return await discover(conversation, identity, revision, probe)
        except ServerError as refusal:
            if isinstance(refusal, TooManyRequests):
                raise
            if refusal.code not in MODERN_REFUSALS:
                break
            revision = _next_best(refusal)
            if revision.handshake:
                return await initialize(conversation, identity, revision, timeout)
            if last:
                raise
        except (BadAnswer, TimeoutError):
            break
        except ConnectionLost:
            if conversation.is_over:
                raise
            break  # the request is lost, but not yet the server
    return await initialize(conversation, identity, revisions.LATEST_HANDSHAKE, timeout)


async def _discover_pinned(
    conversation: Conversation, identity: Identity, pinned: Revision, timeout: float | None
) -> Agreement:
    try:
        return await discover(conversation, identity, pinned, timeout)
    except ServerError as refusal:
        if pinned.name not in _supported(refusal):
            raise
    return await discover(conversation, identity, pinned, timeout)  # refused, and named as the one to use


async def begin_session(
    conversation: Conversation,
    identity: Identity,
    proposed: Revision,
    pinned: Revision | None,
    timeout: float | None,
) -> Agreement:
    """With a server of which it is known that it wants a handshake."""
    agreed = await initialize(conversation, identity, proposed, timeout)
    if pinned is not None and agreed.revision is not pinned:
        raise BadAnswer(f"The server does not speak {pinned.name}; it offers {agreed.revision.name}")
    return agreed


def _next_best(refusal: ServerError) -> Revision:
    """The newest revision that a modern server speaks, by its own word; it may be the one that it has just refused."""
    if refusal.code != UNSUPPORTED_VERSION:
        raise refusal
    names = _supported(refusal)
    for revision in reversed(revisions.ALL):
        if revision.name in names:
            return revision
    theirs = ", ".join(str(name)[:100] for name in names[:20]) or "not said which"
    raise BadAnswer(f"No common protocol revision: the server speaks {theirs}") from refusal


def _supported(refusal: ServerError) -> list[Any]:
    known = refusal.code == UNSUPPORTED_VERSION and isinstance(refusal.data, dict)
    supported = refusal.data.get("supported") if known else None
    return supported if isinstance(supported, list) else []


async def discover(
    conversation: Conversation, identity: Identity, revision: Revision, timeout: float | None
) -> Agreement:
    method = "server/discover"
    params = {"_meta": identity.stamp(revision)}
    # Not cancellable: an old server would have to read a notification before its handshake.
    raw = await conversation.ask(method, params, timeout=timeout, cancellable=False)
    found = read(method, raw, _Discovered)
    conversation.agreed(revision)
    return Agreement(revision, _server_info(found.meta), found.capabilities, found.instructions)


def _server_info(meta: Mapping[str, Any]) -> Implementation | None:
    try:
        return msgspec.convert(meta.get(SERVER_INFO_KEY), Implementation)
    except msgspec.ValidationError:
        return None  # a server need not say who it is


async def initialize(
    conversation: Conversation, identity: Identity, revision: Revision, timeout: float | None
) -> Agreement:
    method = "initialize"
    params = {
        "protocolVersion": revision.name,
        "capabilities": identity.capabilities(revision),
        "clientInfo": identity.info,
    }
    raw = await conversation.ask(method, params, timeout=timeout, cancellable=False)
    found = read(method, raw, _Initialized)
    agreed = revisions.HANDSHAKE.get(found.protocol_version)
    if agreed is None:
        raise BadAnswer(f"No common protocol revision: the server speaks {found.protocol_version[:100]}")
    conversation.agreed(agreed)
    conversation.tell("notifications/initialized")
    return Agreement(agreed, found.server_info, found.capabilities, found.instructions)
