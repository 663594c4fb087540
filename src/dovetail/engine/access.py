"""Access rules: whether a caller may use something, and the part of a catalog that a caller sees."""

import asyncio
import inspect
import logging
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from dovetail.engine import call_tool
from dovetail.engine.request_context import RequestContext
from dovetail.errors import Unauthorized
from dovetail.registry.catalog import Page, Snapshot
from dovetail.registry.functions import Invocation
from dovetail.registry.registration import AccessRule, AccessRules, Authorize

if TYPE_CHECKING:
    from dovetail.auth.principal import Principal
    from dovetail.engine.engine import Engine

log = logging.getLogger("dovetail")
NO_TOKEN = "no caller is signed in here, or not any more; start the server with a good token in DOVETAIL_TOKEN"
NO_PRINCIPAL = "no caller is signed in here; write Client(server, auth=…) or Client(server, principal=…)"


class Caller:
    """The caller of one request; each `authorize` function is called once."""

    def __init__(self, engine: "Engine", context: RequestContext) -> None:
        self.scopes = frozenset[str]() if context.principal is None else context.principal.scopes
        self._engine, self._context = engine, context
        self._authorized: dict[int, bool] = {}  # by the id of the function

    async def may_use(self, rule: AccessRule) -> bool:
        if not rule.scopes <= self.scopes:
            return False
        if rule.authorize is None:
            return True
        key = id(rule.authorize)
        if key not in self._authorized:
            self._authorized[key] = await self._authorize(rule.authorize)
        return self._authorized[key]

    async def _authorize(self, authorize: Authorize) -> bool:
        """Whether the author's function allows it; a failure of the function denies access."""
        try:
            work = self._verdict(authorize)
            if call_tool.run_in_context is not None:  # for `get_context`
                invocation = Invocation(function=authorize, is_async=True, in_thread=False)
                work = call_tool.run_in_context(self._engine, self._context, invocation, None, work)
            verdict: Any = await work
        except Exception:
            log.exception("authorize: %r failed, which denies access", authorize)
            return False
        if verdict is not None and not isinstance(verdict, bool):
            kind = type(verdict).__name__
            log.error("authorize: %r gave %s, which denies access; return True or False", authorize, kind)
        return verdict is True

    async def _verdict(self, authorize: Authorize) -> Any:
        verdict: Any = authorize(self._context.principal)
        if not inspect.isawaitable(verdict):
            return verdict
        async with asyncio.timeout(self._engine.options.timeout):
            return await verdict


async def may_use(engine: "Engine", context: RequestContext, rule: AccessRule) -> bool:
    """False hides the thing: the client gets "not found". Raises Unauthorized if the caller lacks a scope."""
    caller = Caller(engine, context)
    if not rule.scopes <= caller.scopes:
        raise _unauthorized(context, rule.scopes)
    return await caller.may_use(rule)


def _unauthorized(context: RequestContext, scopes: frozenset[str]) -> Unauthorized:
    refusal, principal = Unauthorized.for_scopes(scopes), context.principal
    name = None if principal is None else principal.name
    log.info("%s by %r was refused. %s", context.request.method, name, refusal.message)
    if principal is not None or context.request.headers is not None or context.locate is not None:
        return refusal
    message = f"{refusal.message}; {NO_PRINCIPAL if context.in_process else NO_TOKEN}"
    return Unauthorized(message, error=refusal.error, scopes=scopes, http_status=refusal.http_status)


async def readable_uris(engine: "Engine", context: RequestContext, rules: Mapping[str, AccessRule | None]) -> list[str]:
    caller = Caller(engine, context)
    return [uri for uri, rule in rules.items() if rule is None or await caller.may_use(rule)]


def visibility(rules: AccessRules, principal: "Principal | None") -> Hashable | None:
    """Cache key: callers that see the same part of a list share it. None if the server can't know that."""
    if not rules.has_keys:
        return None
    try:
        keys = tuple(key(principal) for key in rules.keys)
        hash(keys)
    except Exception:
        log.exception("authorize: a key failed, so the list is made anew for each caller")
        return None
    return (frozenset[str]() if principal is None else principal.scopes & rules.scopes), keys


async def visible_page(
    engine: "Engine", context: RequestContext, snapshot: Snapshot[Any], after: int, size: int
) -> Page[Any]:
    """Up to `size` items that the caller may use, registered after number `after`."""
    caller = Caller(engine, context)
    visible: list[Any] = []
    last = after
    for number, item in snapshot.items_after(after):
        if item.access is not None and not await caller.may_use(item.access):
            continue
        if len(visible) == size:  # there is one more
            return Page(visible, last)
        visible.append(item)
        last = number
    return Page(visible, None)
