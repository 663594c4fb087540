"""Capabilities of server and client, log levels, and the limits of completion."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

import msgspec

from dovetail.errors import METHOD_NOT_FOUND, MissingCapability, ProtocolError
from dovetail.protocol.elicitation import ServerRequest
from dovetail.protocol.extensions import DeclaredExtension, declared_extensions
from dovetail.protocol.methods import REQUESTS, LogLevel, Method
from dovetail.protocol.revisions import Revision

LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
SEVERITY = {level: rank for rank, level in enumerate(LEVELS)}  # emergency is the highest
MAX_COMPLETIONS = 100

DEPRECATED = {
    "logging": "MCP 2026-07-28 deprecates logging to the client; prefer your own log or telemetry",
    "sampling": "MCP 2026-07-28 deprecates sampling; call a model provider directly",
    "roots": "MCP 2026-07-28 deprecates roots; take paths as tool arguments or configuration",
}


class ServerCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The capabilities of a server: their names, and what it can notify of and remember."""

    names: frozenset[str]
    list_changed: bool = True  # clients are notified when a list changes
    sessions: bool = True  # subscriptions and log levels can be remembered
    experimental: Mapping[str, Any] = {}
    extensions: Mapping[str, DeclaredExtension] = {}  # by id
    tasks: Mapping[str, Any] = {}  # as 2025-11-25 has them

    def without_sessions(self) -> "ServerCapabilities":
        """The capabilities for a handshake client without a session: no notifications, subscriptions or log level."""
        return msgspec.structs.replace(self, names=self.names - {"logging"}, list_changed=False, sessions=False)

    def without_task_list(self) -> "ServerCapabilities":
        """The capabilities for a client that is not known: it is shown no list of tasks, since it has none."""
        tasks = {name: parts for name, parts in self.tasks.items() if name != "list"}
        return msgspec.structs.replace(self, tasks=tasks)

    def for_revision(self, revision: Revision) -> dict[str, Any]:
        """The `capabilities` object of `initialize` and `server/discover`."""
        changes = {"listChanged": True} if self.list_changed else {}
        updates = {"subscribe": True} if self.sessions else {}
        possible: dict[str, dict[str, Any]] = {
            "logging": {},
            "completions": {},
            "prompts": changes,
            "resources": {**updates, **changes},
            "tools": changes,
        }
        names = self.names if revision.completions_capability else self.names - {"completions"}
        shown = {name: parts for name, parts in possible.items() if name in names}
        if self.tasks and revision.core_tasks:
            shown["tasks"] = dict(self.tasks)
        if self.experimental:
            shown["experimental"] = dict(self.experimental)
        for id, extension in self.extensions.items():
            if revision.name in extension.versions:
                shown.setdefault("extensions", {})[id] = extension.settings
        return shown

    def unconditional_methods(self) -> frozenset[str]:
        """The methods that need no `check`, in any revision, with or without a session."""
        names = {None, *self.without_sessions().names}
        return frozenset(row.name for row in REQUESTS if not row.stateful and row.capability in names)

    def check(self, row: Method, revision: Revision) -> None:
        """Raises unless the server has the capability behind the method, and a session if it needs one."""
        if row.stateful and not self.sessions:
            text = f"Method not found: {row.name} needs a session, and this server has none"
            raise ProtocolError(text, code=METHOD_NOT_FOUND)
        if row.capability is None or row.capability in self.names:
            return
        if row.capability == "completions" and not revision.completions_capability:
            return  # this revision has no such capability, so its clients may always complete
        status = 200 if revision.handshake else 404
        raise ProtocolError(f"Method not found: {row.name}", code=METHOD_NOT_FOUND, http_status=status)


def require_capabilities(required: Collection[str], declared: Mapping[str, Any], why: str | None = None) -> None:
    """Raises MissingCapability with all that the client did not declare.

    `sampling.tools` is a part of `sampling`; a name with a slash is the id of an extension.
    """
    missing: dict[str, Any] = {}
    for path in required:
        if "/" in path:
            if path not in declared_extensions(declared):
                missing.setdefault("extensions", {})[path] = {}
            continue
        name, _, part = path.partition(".")
        have = declared.get(name)
        if have is None or (part and not _has_part(name, part, have)):
            missing.setdefault(name, {}).update({part: {}} if part else {})
    if missing:
        raise MissingCapability(missing, why)


# The field of a revision that says whether its clients can declare this capability.
_REVISION_FIELDS = {
    "elicitation.form": "elicitation",
    "elicitation.url": "url_elicitation",
    "sampling.tools": "rich_sampling",
    "sampling.context": "rich_sampling",
}


def require_client_support(request: ServerRequest, revision: Revision, declared: Mapping[str, Any]) -> None:
    """Raises MissingCapability unless the client can handle the request."""
    needed = request.requires
    if not revision.rich_sampling:  # older clients that sample may always include context
        needed = tuple(path for path in needed if path != "sampling.context")
    if all(getattr(revision, _REVISION_FIELDS.get(path, "name")) for path in needed):
        require_capabilities(needed, declared)
    else:
        require_capabilities(needed, {}, f"{revision.name} does not know that")


def _has_part(name: str, part: str, declared: Any) -> bool:
    if not isinstance(declared, Mapping):
        return False
    if name == "elicitation" and part == "form" and not declared:
        return True  # an empty declaration means forms, which were the only mode once
    return part in declared


def passes_level(level: LogLevel, threshold: LogLevel) -> bool:
    return SEVERITY[level] >= SEVERITY[threshold]


class Completion(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Suggestions for an argument, best first."""

    values: Sequence[str]
    total: int | None = None
    has_more: bool | None = None


def bound_completion(completion: Completion) -> Completion:
    """At most 100 values, with their total unless the author only said that there are more."""
    values, total, has_more = list(completion.values), completion.total, completion.has_more
    if len(values) > MAX_COMPLETIONS:
        return Completion(values[:MAX_COMPLETIONS], total=max(total or 0, len(values)), has_more=True)
    if total is None and not has_more:
        total = len(values)
    return Completion(values, total, (total or 0) > len(values) if has_more is None else has_more)
