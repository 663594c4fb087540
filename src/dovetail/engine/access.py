"""Who may use what: a rule and a caller come in, a yes or a no goes out; of a catalogue, the part that a caller sees.

Loaded with the first rule.
"""

import inspect
import logging
from collections.abc import Awaitable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from dovetail.engine.concurrency import with_timeout
from dovetail.engine.request_context import RequestContext
from dovetail.errors import Unauthorized
from dovetail.registry.catalog import Page, Snapshot
from dovetail.registry.registration import AccessRule, AccessRules, Authorize

if TYPE_CHECKING:
    from dovetail.auth.principal import Principal
    from dovetail.engine.engine import Engine

log = logging.getLogger("dovetail")
ON_A_PIPE = "nobody is signed in here, or not any more; start the server with a good token in DOVETAIL_TOKEN"
IN_PROCESS = "nobody is signed in here; write Client(server, auth=…) or Client(server, principal=…)"
ANSWERS = (True, False, None)  # of `authorize`; who says nothing says no


class Caller:
    """Whoever makes a request, for as long as it takes: each `authorize` is asked once."""

    def __init__(self, engine: "Engine", principal: "Principal | None") -> None:
        self.scopes = frozenset[str]() if principal is None else principal.scopes
        self._principal = principal
        self._timeout = engine.options.timeout
        self._answers: dict[int, bool] = {}  # by the id of the function

    async def may_use(self, rule: AccessRule) -> bool:
        if not rule.scopes <= self.scopes:
            return False
        if rule.authorize is None:
            return True
        known = self._answers.get(id(rule.authorize))
        if known is None:
            known = self._answers[id(rule.authorize)] = await self._ask(rule.authorize)
        return known

    async def _ask(self, authorize: Authorize) -> bool:
        """Whatever goes wrong here is a no."""
        try:
            answer: Any = authorize(self._principal)
            if inspect.isawaitable(answer):
                answer = await (answer if self._timeout is None else with_timeout(_awaited(answer), self._timeout))
        except Exception:
            log.exception("authorize: %r failed, which counts as a no", authorize)
            return False
        if not any(answer is meant for meant in ANSWERS):
            kind = type(answer).__name__
            log.error("authorize: %r gave %s, which counts as a no; return True or False", authorize, kind)
        return answer is True


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


# ── one thing ──


async def may_use(engine: "Engine", context: RequestContext, rule: AccessRule) -> bool:
    """False means that the caller is to be told that there is no such thing.

    Raises Unauthorized, with all scopes that are needed, if it has not all of them.
    """
    caller = Caller(engine, context.principal)
    if not rule.scopes <= caller.scopes:
        raise _refusal(context, rule.scopes)
    return await caller.may_use(rule)


def _refusal(context: RequestContext, scopes: frozenset[str]) -> Unauthorized:
    refusal, principal = Unauthorized.for_scopes(scopes), context.principal
    name = None if principal is None else principal.name
    log.info("%s by %r was refused. %s", context.request.method, name, refusal.message)
    if principal is not None or context.request.headers is not None or context.locate is not None:
        return refusal
    message = f"{refusal.message}; {IN_PROCESS if context.in_process else ON_A_PIPE}"
    return Unauthorized(message, error=refusal.error, scopes=scopes, http_status=refusal.http_status)


# ── several ──


async def readable(engine: "Engine", context: RequestContext, rules: Mapping[str, AccessRule | None]) -> list[str]:
    """Those of several URIs that the caller may read."""
    caller = Caller(engine, context.principal)
    return [uri for uri, rule in rules.items() if rule is None or await caller.may_use(rule)]


def sight(rules: AccessRules, principal: "Principal | None") -> Hashable | None:
    """What decides which part of a list a caller sees: the same for all who see the same. None if nobody knows."""
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
    engine: "Engine", context: RequestContext, edition: Snapshot[Any], after: int, size: int
) -> Page[Any]:
    """Up to `size` items that the caller may use, registered after number `after`."""
    caller = Caller(engine, context.principal)
    shown: list[Any] = []
    last = after
    for number, item in edition.items_after(after):
        if item.access is not None and not await caller.may_use(item.access):
            continue
        if len(shown) == size:  # there is one more
            return Page(shown, last)
        shown.append(item)
        last = number
    return Page(shown, None)
