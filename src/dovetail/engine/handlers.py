"""What each request does: one function for each row of the method table, all of the same shape."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from dovetail import engine as lazy
from dovetail import registry
from dovetail.engine.call_tool import arguments_object, call_tool, invoke, log_failure, shown
from dovetail.engine.concurrency import CallTimeout, HeldSlots
from dovetail.engine.request_context import RequestContext, Unanswered
from dovetail.engine.subscriptions import LIST_KINDS, Change
from dovetail.errors import INTERNAL_ERROR, INVALID_PARAMS, ArgumentError, NotFound, ProtocolError, ToolError
from dovetail.protocol import jsonrpc
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.methods import (
    CompleteParams,
    GetPromptParams,
    ListenFilter,
    ListenParams,
    ListParams,
    ReadResourceParams,
    SetLevelParams,
    UriParams,
)
from dovetail.protocol.pagination import LIFETIME, decode_cursor, encode_cursor
from dovetail.protocol.results import (
    SUBSCRIPTION_KEY,
    CacheHint,
    CompleteResult,
    DiscoverResult,
    EmptyResult,
    InitializeResult,
    ListenEnded,
    ListResult,
    PromptResult,
    Result,
    Shaper,
)
from dovetail.protocol.types import Definition
from dovetail.registry.catalog import CachedPage, Catalog, Page
from dovetail.registry.functions import Invocation

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine
    from dovetail.registry.registration import AccessRule

Handler = Callable[["Engine", RequestContext], Awaitable[Result]]
log = logging.getLogger("dovetail")
EMPTY = EmptyResult()
EVERYBODY: Hashable | None = ()  # sees the same
MAX_LISTENED = 1_000  # resources of one listen; who wants more opens several
MAX_LISTEN_BYTES = 256 * 1024  # of its params and its id, which are kept as long as it is open
LOOKED_UP_AT_ONCE = 50  # of them; then others have their turn


# ── lifecycle ──


async def initialize(engine: "Engine", context: RequestContext) -> Result:
    return InitializeResult(engine.offer_to(context), engine.options.instructions)


async def discover(engine: "Engine", context: RequestContext) -> Result:
    return DiscoverResult(engine.offer, engine.options.instructions, engine.options.hint)


async def ping(engine: "Engine", context: RequestContext) -> Result:
    return EMPTY


async def set_level(engine: "Engine", context: RequestContext) -> Result:
    params: SetLevelParams = context.request.params
    if context.sessions is not None:
        await context.sessions.change(lambda record: record.replace(log_level=params.level))
    return EMPTY


# ── lists ──


def _list(key: str, catalog_of: Callable[["Engine"], Catalog[Any]]) -> Handler:
    async def handler(engine: "Engine", context: RequestContext) -> Result:
        params: ListParams = context.request.params
        catalog = catalog_of(engine)
        if key == "resources":
            await engine.library.refresh_files()
        now = time.time()
        after = decode_cursor(params.cursor, scope=key, keys=engine.secrets, now=now)
        return await _page(engine, context, key, catalog, after, now)

    return handler


async def _page(
    engine: "Engine", context: RequestContext, key: str, catalog: Catalog[Any], after: int, now: float
) -> ListResult:
    """What the caller sees behind position `after`, with the bytes it had last time if nothing has changed since."""
    edition, shaper = catalog.snapshot, engine.shapers[context.request.revision.name]
    size, hint, sight = engine.options.page_size, engine.options.hint, EVERYBODY
    if edition.rules is not None:
        sight = lazy.access.sight(edition.rules, context.principal)
        hint = msgspec.structs.replace(hint, scope="private")
    # Servers may share a catalogue, but not its pages, which are signed; nor may callers who do not see the same.
    place = ((shaper, engine.secrets, edition.version, sight), after)
    kept = catalog.pages.get(place)
    if kept is None or not _is_fresh(kept, now):
        if edition.rules is None:
            page = edition.page(after, size)
        else:
            page = await lazy.access.visible_page(engine, context, edition, after, size)
        kept = _encoded(engine, shaper, key, page, hint, now)
        if sight is not None:  # else nobody knows who sees the same
            catalog.cache_page(place, kept, edition.version)
    return ListResult(key, partial(_definitions, kept.items), kept.next_cursor, hint, kept.body)


def _is_fresh(kept: CachedPage, now: float) -> bool:
    return kept.next_cursor is None or now - kept.issued_at < LIFETIME / 2


def _encoded(engine: "Engine", shaper: Shaper, key: str, page: Page[Any], hint: CacheHint, now: float) -> CachedPage:
    following = page.next_after
    cursor = None if following is None else encode_cursor(following, scope=key, key=engine.secrets[0], now=now)
    return CachedPage(shaper.page(key, _definitions(page.items), cursor, hint), cursor, now, page.items)


def _definitions(items: Sequence[Any]) -> list[Definition]:
    return [item.definition for item in items]


# ── whoever may ask the client ──


def _asking(handler: Handler) -> Handler:
    """A handler whose function may leave questions open: then they are the result. `call_tool` does that by itself."""

    async def asking(engine: "Engine", context: RequestContext) -> Result:
        try:
            result = await handler(engine, context)
        except Unanswered:
            return lazy.input_required.interim(context)
        if context.client_requests is not None:
            context.client_requests.finished()
        return result

    return asking


# ── resources ──


async def read_resource(engine: "Engine", context: RequestContext) -> Result:
    params: ReadResourceParams = context.request.params
    if params.request_state is not UNSET or params.input_responses is not UNSET:
        lazy.input_required.resume(engine, context)
    return await engine.read(params.uri, context, in_slot)


async def subscribe(engine: "Engine", context: RequestContext) -> Result:
    params: UriParams = context.request.params
    rule = engine.library.access_to(params.uri)
    if rule is not None and not await lazy.access.may_use(engine, context, rule):
        raise NotFound(uri=params.uri)
    if context.sessions is not None:
        await context.sessions.change(lambda record: record.replace(subscriptions=record.subscriptions | {params.uri}))
    return EMPTY


async def unsubscribe(engine: "Engine", context: RequestContext) -> Result:
    params: UriParams = context.request.params
    if context.sessions is not None:
        await context.sessions.change(lambda record: record.replace(subscriptions=record.subscriptions - {params.uri}))
    return EMPTY


async def listen(engine: "Engine", context: RequestContext) -> Result:
    """Stays until the client cancels or the server stops: acknowledgement first, then what was asked for."""
    params: ListenParams = context.request.params
    if memoryview(context.request.raw_params).nbytes + len(encode(context.request.id)) > MAX_LISTEN_BYTES:
        text = f"subscriptions/listen takes {MAX_LISTEN_BYTES} bytes at most; ask for less, or in several listens"
        raise ProtocolError(text, code=INVALID_PARAMS, http_status=413)
    honoured = await _honoured(engine, context, params.notifications)
    kinds = [kind for kind in LIST_KINDS if getattr(honoured, f"{kind}_list_changed")]
    params = ListenParams(notifications=honoured)
    context.keep_only(params)
    mark = {SUBSCRIPTION_KEY: context.request.id}
    context.subscription = subscription = engine.hub.subscribe(kinds, honoured.resource_subscriptions)
    try:
        acknowledgement = {"notifications": honoured, "_meta": mark}
        name = "notifications/subscriptions/acknowledged"
        await context.emit(jsonrpc.notification(name, encode(acknowledgement)))
        async for change in subscription:
            await context.emit(change_notification(change, mark))
    finally:
        subscription.end()
    return ListenEnded(mark)


async def _honoured(engine: "Engine", context: RequestContext, asked: ListenFilter) -> ListenFilter:
    """The part of what was asked for that this server really serves, to this caller."""
    names = engine.offer.names if engine.options.list_changed else frozenset[str]()
    rules: dict[str, AccessRule | None] = {}
    for place, uri in enumerate(dict.fromkeys(asked.resource_subscriptions[:MAX_LISTENED])):
        with suppress(NotFound):
            rules[uri] = engine.library.access_to(uri)  # which may mean looking at many templates
        if place % LOOKED_UP_AT_ONCE == LOOKED_UP_AT_ONCE - 1:
            await asyncio.sleep(0)
    for_all = all(rule is None for rule in rules.values())
    uris = list(rules) if for_all else await lazy.access.readable(engine, context, rules)
    lists = {name: getattr(asked, name) and kind in names for kind in LIST_KINDS for name in [f"{kind}_list_changed"]}
    return ListenFilter(**lists, resource_subscriptions=uris)


def change_notification(change: Change, meta: dict[str, Any] | None = None) -> bytes:
    params: dict[str, Any] = {"uri": change.uri} if change.uri else {}
    if meta is not None:
        params["_meta"] = meta
    return jsonrpc.notification(change.method, encode(params) if params else None)


# ── prompts and completion ──


async def get_prompt(engine: "Engine", context: RequestContext) -> Result:
    params: GetPromptParams = context.request.params
    prompt = engine.prompts.get(params.name)
    if prompt is None or (prompt.access is not None and not await lazy.access.may_use(engine, context, prompt.access)):
        raise ProtocolError(f"Unknown prompt: {shown(params.name)}", code=INVALID_PARAMS)
    if params.request_state is not UNSET or params.input_responses is not UNSET:
        lazy.input_required.resume(engine, context)
    try:
        arguments = prompt.decode(arguments_object(params.arguments))
    except ArgumentError as failure:
        raise ProtocolError(str(failure), code=INVALID_PARAMS, data={"errors": failure.problems}) from None
    shape = partial(registry.prompts.shape_prompt, description=prompt.definition.description)
    label = f"prompt {prompt.name}"
    result: PromptResult = await in_slot(engine, context, prompt.invocation, arguments, label, shape)
    return result


async def in_slot(engine: "Engine", context: RequestContext, *call: Any) -> Any:
    """`guarded`, within one of the server's slots."""
    await engine.limit.acquire()
    context.slots = slots = HeldSlots((engine.limit,))
    try:
        return await guarded(engine, context, *call)
    finally:
        slots.leave()


async def guarded(
    engine: "Engine", context: RequestContext, invocation: Invocation, arguments: dict[str, Any], label: str,
    shape: Callable[[Any], Any],
) -> Any:  # fmt: skip
    """Call a function whose failures are protocol errors: what it says on purpose is told, the rest is logged."""
    try:
        return shape(await invoke(engine, context, invocation, arguments, label))
    except ToolError as failure:
        raise ProtocolError(str(failure), code=INTERNAL_ERROR) from None
    except CallTimeout as failure:
        log.warning("%s timed out after %g s", label, failure.seconds)
        raise ProtocolError(f"The {label} did not finish within {failure.seconds:g} s", code=INTERNAL_ERROR) from None
    except ProtocolError:
        raise
    except Exception as failure:
        details = log_failure(engine, context, failure, label)
        raise ProtocolError(f"The {label} failed{details}", code=INTERNAL_ERROR) from None


async def complete(engine: "Engine", context: RequestContext) -> Result:
    params: CompleteParams = context.request.params
    ref, argument = params.ref, params.argument
    name = ref.uri if ref.type == "ref/resource" else ref.name
    choices, rule = engine.choices(ref.type, name) or (None, None)
    if choices is None or (rule is not None and not await lazy.access.may_use(engine, context, rule)):
        raise ProtocolError(f"There is nothing to complete for {ref.type} {shown(name)!r}", code=INVALID_PARAMS)
    completer = engine.completers.get((ref.type, name, argument.name))
    if completer is None:
        if ref.type == "ref/resource" and (paths := await engine.library.paths_in(name)):
            choices = {"path": paths}
        return CompleteResult(registry.prompts.complete_choice(choices.get(argument.name, ()), argument.value))
    arguments: dict[str, Any] = {"value": argument.value}
    if completer.takes_arguments:
        arguments["arguments"] = dict(params.context.arguments)
    label, shape = f"completion of {argument.name}", registry.prompts.shape_completion
    async with engine.limit:
        suggested = await guarded(engine, context, completer.invocation, arguments, label, shape)
    return CompleteResult(suggested)


HANDLERS: dict[str, Handler] = {
    "initialize": initialize,
    "server/discover": discover,
    "ping": ping,
    "logging/setLevel": set_level,
    "tools/list": _list("tools", attrgetter("tools")),
    "tools/call": call_tool,
    "resources/list": _list("resources", attrgetter("library.resources")),
    "resources/templates/list": _list("resourceTemplates", attrgetter("library.templates")),
    "resources/read": _asking(read_resource),
    "resources/subscribe": subscribe,
    "resources/unsubscribe": unsubscribe,
    "subscriptions/listen": listen,
    "prompts/list": _list("prompts", attrgetter("prompts")),
    "prompts/get": _asking(get_prompt),
    "completion/complete": complete,
}
