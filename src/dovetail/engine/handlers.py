"""Request handlers: one function for each method, all with the same signature."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from dovetail import engine as lazy
from dovetail import registry
from dovetail.engine.call_tool import (
    call_tool,
    excerpt,
    find_item,
    invoke,
    log_failure,
    require_object,
)
from dovetail.engine.concurrency import CallTimeout, HeldSlots
from dovetail.engine.request_context import InputNeeded, RequestContext
from dovetail.engine.subscriptions import LIST_KINDS, Change
from dovetail.errors import INTERNAL_ERROR, INVALID_PARAMS, ArgumentError, NotFound, ProtocolError, ToolError
from dovetail.protocol import jsonrpc, methods, results
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.pagination import CURSOR_TTL, decode_cursor, encode_cursor
from dovetail.protocol.results import Result
from dovetail.protocol.types import Definition
from dovetail.registry.catalog import CachedPage, Catalog
from dovetail.registry.functions import Invocation

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine
    from dovetail.registry.registration import AccessRule

Handler = Callable[["Engine", RequestContext], Awaitable[Result]]
log = logging.getLogger("dovetail")
EMPTY = results.EmptyResult()
ALL_CALLERS: Hashable | None = ()  # the visibility of a catalog without access rules
MAX_LISTEN_URIS = 1_000  # of one listen; a client that wants more opens several
MAX_LISTEN_BYTES = 256 * 1024  # of its params and its id, which stay in memory as long as it is open
LOOKUPS_PER_TURN = 50  # of URIs, until other tasks get a turn of the event loop


async def initialize(engine: "Engine", context: RequestContext) -> Result:
    return results.InitializeResult(engine.capabilities_for(context), await _instructions(engine, context))


async def discover(engine: "Engine", context: RequestContext) -> Result:
    return results.DiscoverResult(engine.capabilities, await _instructions(engine, context), engine.options.hint)


async def _instructions(engine: "Engine", context: RequestContext) -> str | None:
    found = None if engine.get_instructions is None else await engine.get_instructions(context)
    return engine.options.instructions or found


async def ping(engine: "Engine", context: RequestContext) -> Result:
    return EMPTY


async def set_level(engine: "Engine", context: RequestContext) -> Result:
    params: methods.SetLevelParams = context.request.params
    if context.session_access is not None:
        await context.session_access.change(lambda record: record.replace(log_level=params.level))
    return EMPTY


# ── lists ──


def list_handler(key: str, catalog_of: Callable[["Engine"], Catalog[Any]]) -> Handler:
    """A handler that encodes each page once, until the catalog changes."""

    async def handler(engine: "Engine", context: RequestContext) -> Result:
        params: methods.ListParams = context.request.params
        catalog, shown = catalog_of(engine), partial(_shown, engine if key == "tools" else None)
        if engine.before_list:
            await engine.fetch_catalogs(context)
        if key == "resources":
            await engine.resources.refresh_files()
        now = time.time()
        after = decode_cursor(params.cursor, scope=key, keys=engine.secrets, now=now)
        snapshot, shaper = catalog.snapshot, engine.shapers[context.request.revision.name]
        if rules := engine.rules_of(context):
            snapshot = catalog.snapshot_for(rules)
        if key == "tools" and engine.search is not None:
            snapshot = (await engine.search.view(context, snapshot)).listed
        size, hint, visibility = engine.options.page_size, engine.options.hint, ALL_CALLERS
        if snapshot.rules is not None:
            visibility = lazy.access.visibility(snapshot.rules, context.principal)
            hint = msgspec.structs.replace(hint, scope="private")
        # Servers may share a catalog, but not its pages: cursors are signed, and callers may see different parts.
        cache_key = ((shaper, engine.secrets, snapshot, visibility), after)
        cached = catalog.pages.get(cache_key)
        if cached is None or (cached.next_cursor is not None and now - cached.issued_at >= CURSOR_TTL / 2):
            if snapshot.rules is None:
                page = snapshot.page(after, size)
            else:
                page = await lazy.access.visible_page(engine, context, snapshot, after, size)
            last = page.next_after
            cursor = None if last is None else encode_cursor(last, scope=key, key=engine.secrets[0], now=now)
            cached = CachedPage(shaper.page(key, shown(page.items), cursor, hint), cursor, now, page.items)
            if visibility is not None:  # else it is unknown which callers see the same
                catalog.cache_page(cache_key, cached, snapshot.version)
        return results.ListResult(key, partial(shown, cached.items), cached.next_cursor, hint, cached.body)

    return handler


def _shown(engine: "Engine | None", items: Sequence[Any]) -> list[Definition]:
    return [item.definition if engine is None else engine.shown(item) for item in items]


def _with_input_required(handler: Handler) -> Handler:
    """A handler whose function may make server requests. `call_tool` does the same by itself."""

    async def interactive(engine: "Engine", context: RequestContext) -> Result:
        try:
            result = await handler(engine, context)
        except InputNeeded:
            return lazy.input_required.input_required_result(context)
        if context.server_requests is not None and not isinstance(result, results.InputRequiredResult):
            context.server_requests.check_replay()
        return result

    return interactive


# ── resources ──


async def read_resource(engine: "Engine", context: RequestContext) -> Result:
    params: methods.ReadResourceParams = context.request.params
    await engine.look_for(params.uri, context)
    rules = engine.rules_of(context)
    if engine.mounts is not None and (source := engine.mounts.resource(params.uri, rules)) is not None:
        found: Result = await lazy.mounts.read_mounted(engine, context, source, params.uri, is_request=True)
        return found
    if params.request_state is not UNSET or params.input_responses is not UNSET:
        lazy.input_required.resume(engine, context)
    return await engine.read(params.uri, context, call_in_slot)


async def subscribe(engine: "Engine", context: RequestContext) -> Result:
    params: methods.UriParams = context.request.params
    await engine.look_for(params.uri, context)
    rule = engine.resources.access_to(params.uri, engine.rules_of(context))
    if rule is not None and not await lazy.access.may_use(engine, context, rule):
        raise NotFound(uri=params.uri)
    if context.session_access is not None:
        await context.session_access.change(
            lambda record: record.replace(subscriptions=record.subscriptions | {params.uri})
        )
    return EMPTY


async def unsubscribe(engine: "Engine", context: RequestContext) -> Result:
    params: methods.UriParams = context.request.params
    if context.session_access is not None:
        await context.session_access.change(
            lambda record: record.replace(subscriptions=record.subscriptions - {params.uri})
        )
    return EMPTY


async def listen(engine: "Engine", context: RequestContext) -> Result:
    """Send the acknowledgement, then notifications, until the client cancels or the server stops."""
    params: methods.ListenParams = context.request.params
    if memoryview(context.request.raw_params).nbytes + len(encode(context.request.id)) > MAX_LISTEN_BYTES:
        text = f"subscriptions/listen takes {MAX_LISTEN_BYTES} bytes at most; ask for less, or in several listens"
        raise ProtocolError(text, code=INVALID_PARAMS, http_status=413)
    granted = await _grant(engine, context, params.notifications)
    kinds = [kind for kind in LIST_KINDS if getattr(granted, f"{kind}_list_changed")]
    context.keep_only_params(methods.ListenParams(notifications=granted))
    meta = {results.SUBSCRIPTION_KEY: context.request.id}
    following: asyncio.Task[None] | None = None
    context.subscription = subscription = engine.hub.subscribe(kinds, granted.resource_subscriptions)
    try:
        acknowledgement = encode({"notifications": granted, "_meta": meta})
        await context.emit(jsonrpc.notification("notifications/subscriptions/acknowledged", acknowledgement))
        if granted.task_ids and engine.tasks is not None:
            following = asyncio.create_task(engine.tasks.follow(context, granted.task_ids, meta))
        async for change in subscription:
            await context.emit(change_notification(change, meta))
    finally:
        subscription.end()
        if following is not None:
            following.cancel()
    return results.ListenEnded(meta)


async def _grant(engine: "Engine", context: RequestContext, requested: methods.ListenFilter) -> methods.ListenFilter:
    """The notifications that this server has and that this caller may get."""
    if engine.before_list and requested.resource_subscriptions:
        await engine.fetch_catalogs(context)
    names = engine.capabilities.names if engine.options.list_changed else frozenset[str]()
    rules: dict[str, AccessRule | None] = {}
    for number, uri in enumerate(dict.fromkeys(requested.resource_subscriptions[:MAX_LISTEN_URIS]), 1):
        with suppress(NotFound):
            rules[uri] = engine.resources.access_to(uri)  # which may have to try many templates
        if number % LOOKUPS_PER_TURN == 0:
            await asyncio.sleep(0)
    tasks = engine.tasks if requested.task_ids else None
    task_ids = [] if tasks is None else await tasks.grant(context, requested.task_ids[:MAX_LISTEN_URIS])
    has_rules = any(rule is not None for rule in rules.values())
    uris = await lazy.access.readable_uris(engine, context, rules) if has_rules else list(rules)
    lists = {
        name: getattr(requested, name) and kind in names for kind in LIST_KINDS for name in [f"{kind}_list_changed"]
    }
    return methods.ListenFilter(**lists, resource_subscriptions=uris, task_ids=task_ids)


def change_notification(change: Change, meta: dict[str, Any] | None = None) -> bytes:
    params: dict[str, Any] = {"uri": change.uri} if change.uri else {}
    if meta is not None:
        params["_meta"] = meta
    return jsonrpc.notification(change.method, encode(params) if params else None)


# ── prompts and completion ──


async def get_prompt(engine: "Engine", context: RequestContext) -> Result:
    params: methods.GetPromptParams = context.request.params
    prompt = await find_item(engine, context, lambda rules: engine.prompts.find(params.name, rules))
    if prompt is None or (prompt.access is not None and not await lazy.access.may_use(engine, context, prompt.access)):
        raise ProtocolError(f"Unknown prompt: {excerpt(params.name)}", code=INVALID_PARAMS)
    if prompt.mounted is not None:
        return await lazy.mounts.forward(prompt.mounted, context, name=prompt.mounted.own)
    if params.request_state is not UNSET or params.input_responses is not UNSET:
        lazy.input_required.resume(engine, context)
    try:
        arguments = prompt.decode(require_object(params.arguments))
    except ArgumentError as failure:
        raise ProtocolError(str(failure), code=INVALID_PARAMS, data={"errors": failure.problems}) from None
    to_result = partial(registry.prompts.to_prompt_result, description=prompt.definition.description)
    label = f"prompt {prompt.name}"
    result: results.PromptResult = await call_in_slot(engine, context, prompt.invocation, arguments, label, to_result)
    return result


async def call_in_slot(engine: "Engine", context: RequestContext, *call: Any) -> Any:
    """`call_function`, in one of the server's slots."""
    await engine.limit.acquire()
    context.slots = slots = HeldSlots((engine.limit,))
    try:
        return await call_function(engine, context, *call)
    finally:
        slots.close()


async def call_function(
    engine: "Engine", context: RequestContext, invocation: Invocation, arguments: dict[str, Any], label: str,
    to_result: Callable[[Any], Any],
) -> Any:  # fmt: skip
    """Call an author's function whose failures are JSON-RPC errors. Unexpected ones are logged."""
    try:
        return to_result(await invoke(engine, context, invocation, arguments, label))
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
    params: methods.CompleteParams = context.request.params
    ref, argument = params.ref, params.argument
    name = ref.uri if ref.type == "ref/resource" else ref.name
    target = await find_item(engine, context, lambda rules: engine.completion_target(ref.type, name, rules))
    rule = None if target is None else target.access
    if target is None or (rule is not None and not await lazy.access.may_use(engine, context, rule)):
        raise ProtocolError(f"There is nothing to complete for {ref.type} {excerpt(name)!r}", code=INVALID_PARAMS)
    own, of_all = (ref.type, name, argument.name), ("", "", "")
    if (completer := engine.completers.get(own) or engine.completers.get(of_all)) is not None:
        call = completer.invocation, completer.arguments(params), f"completion of {argument.name}", completer.read
        if (found := await call_in_slot(engine, context, *call)) is not None:
            return results.CompleteResult(found)
    if engine.mounts is not None and (mounted := lazy.mounts.route_of(target)) is not None:
        return await lazy.mounts.complete_mounted(mounted, target, context)
    is_concrete = ref.type == "ref/resource" and name not in engine.resources.templates.names()
    choices: Mapping[str, Sequence[str]] = {} if is_concrete else target.choices
    if ref.type == "ref/resource" and (paths := await engine.resources.paths_in(name)):
        choices = {"path": paths}
    return results.CompleteResult(registry.prompts.complete_choice(choices.get(argument.name, ()), argument.value))


HANDLERS: dict[str, Handler] = {
    "initialize": initialize,
    "server/discover": discover,
    "ping": ping,
    "logging/setLevel": set_level,
    "tools/list": list_handler("tools", attrgetter("tools")),
    "tools/call": call_tool,
    "resources/list": list_handler("resources", attrgetter("resources.direct")),
    "resources/templates/list": list_handler("resourceTemplates", attrgetter("resources.templates")),
    "resources/read": _with_input_required(read_resource),
    "resources/subscribe": subscribe,
    "resources/unsubscribe": unsubscribe,
    "subscriptions/listen": listen,
    "prompts/list": list_handler("prompts", attrgetter("prompts")),
    "prompts/get": _with_input_required(get_prompt),
    "completion/complete": complete,
}
