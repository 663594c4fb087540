"""Mounts: the catalogs of children inside those of their parent, kept in step, and calls on their way to a child.

The parent's catalogs hold renamed copies, so a call is one lookup and lists stay cached bytes. A copy's call runs the
child's middleware and handler, with the child's names in the same `RequestContext`.
"""

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from dovetail import engine as lazy
from dovetail.engine.call_tool import failure_result
from dovetail.engine.handlers import HANDLERS
from dovetail.engine.request_context import RequestContext
from dovetail.engine.subscriptions import Change
from dovetail.errors import ArgumentError, NotFound, SetupError
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.results import PromptResult, ReadResourceResult, Result, ToolResult
from dovetail.protocol.uri_template import normalize_escapes, normalize_uri
from dovetail.registry import mounts as naming
from dovetail.registry.catalog import Catalog
from dovetail.registry.mounts import Choice, Item, Mounted, Renaming
from dovetail.registry.resources import Resource, Template
from dovetail.registry.tools import Tool

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

log = logging.getLogger("dovetail")
KINDS = {"tools": ("tools",), "prompts": ("prompts",), "resources": ("direct", "templates")}  # catalogs by change
NOUNS = {"tools": "tool", "prompts": "prompt", "direct": "resource", "templates": "resource template"}


def _catalogs(engine: "Engine") -> dict[str, Catalog[Any]]:
    direct, templates = engine.resources.direct, engine.resources.templates
    return {"tools": engine.tools, "prompts": engine.prompts, "direct": direct, "templates": templates}


class Entry(NamedTuple):
    """An item of the child, and its copy with its key in the catalog of the parent."""

    source: Any
    key: str
    copy: Any
    has_uris: bool  # in its `_meta`, so that it may change with the child's resources


class Plan(NamedTuple):
    """What a catalog of the parent has to change: keys to remove, items of the child to add or to replace."""

    removed: list[str]
    new: dict[str, Entry]
    replaced: dict[str, Entry]


class Mount:
    """One child of a server. Without an engine it is a registry, whose tools run at the parent."""

    def __init__(
        self, parent: "Engine", given: Any, child: "Engine | None", tools: Catalog[Tool], namespace: str,
        choice: Choice, transforms: Mapping[str, Any], where: str,
    ) -> None:  # fmt: skip
        self.parent, self.given, self._child = parent, given, child
        self.namespace, self.choice, self.where = namespace, choice, where
        self.sources = {"tools": tools} if child is None else _catalogs(child)
        self.renaming = Renaming(self, namespace, transforms, where, self.is_own, child is not None)
        self.is_active = True  # its items are at the parent
        self.is_started = False  # the lifespan of the child has been entered, for this mount
        self.starting: concurrent.futures.Future[None] | None = None  # that lifespan, mounted at run time
        self.calls = 0  # in flight
        self.idle: asyncio.Event | None = None  # set when the last one ends, if it is awaited
        self._targets = _catalogs(parent)
        self._entries: dict[str, dict[str, Entry]] = {kind: {} for kind in self.sources}  # by keys of the child
        self._versions: dict[str, int] = {}
        self._left_out: dict[tuple[str, str], Item] = {}

    @property
    def child(self) -> "Engine":
        assert self._child is not None
        return self._child

    @property
    def has_engine(self) -> bool:
        return self._child is not None

    @property
    def name(self) -> str:
        return "a ToolRegistry" if self._child is None else repr(self._child.info.name)

    # ── catalogs ──

    def plan(self, kind: str, *, strict: bool) -> Plan:
        """Compare a catalog with the copies. What is not possible is a SetupError if `strict`, else left out."""
        source, known = self.sources[kind], self._entries[kind]
        self._versions[kind] = source.version
        items = {own: item for own in source.names() if (item := source.get(own)) is not None and self._takes(item)}
        gone = [own for own, entry in known.items() if items.get(own) is not entry.source]
        keys = {known[own].key for own in gone}  # that are free again
        made: dict[str, Entry] = {}
        for own, item in items.items():
            if own in known and known[own].source is item:
                continue
            try:
                entry = self._entry(kind, item)
                self._check(kind, entry, keys, made)
            except SetupError as problem:
                if strict:
                    raise
                if self._left_out.get((kind, own)) is not item:
                    log.warning("%s; it is left out", problem)
                self._left_out[kind, own] = item
            else:
                made[own] = entry
        replaced = {own: new for own, new in made.items() if own in known and self._holds(kind, known[own], new.key)}
        return Plan([own for own in gone if own not in replaced], made, replaced)

    def _takes(self, item: Any) -> bool:
        folder = getattr(item, "folder", None)  # the files of a folder come along with it
        source = None if folder is None else self.sources["templates"].get(folder)
        return self.choice.takes(item) or (source is not None and self.choice.takes(source))

    def _entry(self, kind: str, item: Any) -> Entry:
        copy, meta = self.renaming.copy(item), item.definition.meta
        key = copy.name if kind in ("tools", "prompts") else copy.uri
        has_uris = bool(self.namespace and meta) and b"://" in encode(meta)
        return Entry(item, normalize_uri(key) if kind == "direct" else key, copy, has_uris)

    def _check(self, kind: str, entry: Entry, freed: set[str], made: Mapping[str, Entry]) -> None:
        """Raises SetupError if the name is taken, or if access rules overlap."""
        own, noun, other = entry.source.definition.name, NOUNS[kind], self._targets[kind].get(entry.key)
        twice = (
            next((each for each in made.values() if each.key == entry.key), None) if self.renaming.transforms else None
        )
        if twice is not None or (other is not None and entry.key not in freed):
            route = None if other is None else route_of(other)
            elder = self.parent.info.name if route is None else route.mount.given.name
            whose = f"that of {self.name}" if twice is not None else f"the one of {elder!r}"
            fix = "mount it with another namespace=, or choose with only="
            raise SetupError(
                f"{self.where}: the {noun} {own!r} of {self.name} has the name {entry.key!r}, and {whose} has it too; {fix}"
            )
        if kind in KINDS["resources"]:
            self.parent.resources.check_overlaps(entry.copy, self.where, self)

    def _holds(self, kind: str, entry: Entry, key: str | None = None) -> bool:
        """Whether the parent still has the copy; its author may have removed or replaced it."""
        return self._targets[kind].get(entry.key) is entry.copy and key in (None, entry.key)

    def apply(self, kind: str, plan: Plan) -> bool:
        """Change the parent's catalog; True if its listeners were called."""
        known, target = self._entries[kind], self._targets[kind]
        removed = [known[own].key for own in plan.removed if self._holds(kind, known[own])]
        for own, entry in plan.replaced.items():
            target.replace(known[own].key, entry.copy)
        for own in plan.removed:
            del known[own]
        known.update(plan.new)
        new = {entry.key: entry.copy for own, entry in plan.new.items() if own not in plan.replaced}
        if not removed and not new:
            return False
        if kind == "direct":  # as files: each worker finds out by itself
            self.parent.resources.swap(removed, new)
        else:
            target.update(removed, new)
        return True

    def sync(self, kinds: Iterable[str]) -> bool:
        """Bring catalogs of the parent up to date; True if its listeners were called."""
        stale = [
            kind for kind in kinds if kind in self.sources and self._versions.get(kind) != self.sources[kind].version
        ]
        changed = [self.apply(kind, self.plan(kind, strict=False)) for kind in stale]
        if {"direct", "templates"} & set(stale):
            self._rename_again()
        return any(changed)

    def _rename_again(self) -> None:
        """The child has other resources: URIs in `_meta` may be its own now, or not any more."""
        for kind, known in self._entries.items():
            for own, entry in known.items():
                if entry.has_uris and self._holds(kind, entry):
                    again = self._entry(kind, entry.source)
                    if again.copy.definition != entry.copy.definition:
                        self._targets[kind].replace(entry.key, again.copy)
                        known[own] = again

    def remove_all(self) -> None:
        self.is_active = False
        for kind, known in self._entries.items():
            self.apply(kind, Plan(list(known), {}, {}))

    # ── URIs ──

    def is_own(self, uri: str) -> bool:
        """Whether a URI is one of the child's that have another one at the parent."""
        source = None if self._child is None else self._child.resources.get(uri)
        return source is not None and naming.rename_uri(source.uri, self.namespace) != source.uri

    def own_uri(self, source: Resource | Template, uri: str) -> str:
        """The child's URI for one of the parent's that leads to this source."""
        assert source.mounted is not None
        if isinstance(source, Resource) or source.mounted.own == source.uri:
            return source.mounted.own if isinstance(source, Resource) else uri
        return naming.own_uri(normalize_uri(uri), self.namespace) or uri

    def renamed(self, result: Any) -> Any:
        """The result of the child, with the parent's URIs."""
        if not self.namespace:
            return result
        rename = partial(naming.rename_content, namespace=self.namespace, is_own=self.is_own)
        if isinstance(result, ToolResult) and (result.content or result.meta):
            meta = naming.rename_meta(result.meta, self.namespace, self.is_own)
            return replace(result, content=tuple(map(rename, result.content)), meta=meta)
        if isinstance(result, PromptResult):
            return replace(result, messages=[replace(each, content=rename(each.content)) for each in result.messages])
        if isinstance(result, ReadResourceResult):
            return replace(result, items=[*map(rename, result.items)])
        return result

    # ── the lifespan of the child ──

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Count a call: the child's lifespan is not left before its end."""
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1
            if not self.calls and self.idle is not None:
                self.idle.set()

    async def start(self) -> None:
        if self.has_engine and not self.is_started:
            await self.child.start(self.given)
            self.is_started = True

    async def stop(self) -> None:
        if self.is_started:
            self.is_started = False
            await self.child.stop()

    async def leave(self) -> None:
        """Leave the lifespan after the last call, or when the parent stops."""
        try:
            while self.calls:
                self.idle = asyncio.Event()
                await self.idle.wait()
            if self.starting is not None:
                await asyncio.wait([asyncio.wrap_future(self.starting)])
        finally:
            await self.stop()


class Mounts:
    """All children of a server."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self._mounts: list[Mount] = []
        self._by_engine: dict[Engine, Mount] = {}  # also those that are being left
        self._watched: dict[str, tuple[Mount, str]] = {}  # by URI: where it is watched, and its URI there
        self._leaving: dict[concurrent.futures.Future[None], None] = {}
        self._lock = threading.RLock()  # tools in worker threads may register tools
        engine.before_list.append(self.before_list)

    def all(self) -> list[Mount]:
        return list(self._mounts)

    def engines(self) -> "list[Engine]":
        return [mount.child for mount in self._mounts if mount.has_engine]

    def path_of(self, child: "Engine") -> str:
        mount = self._by_engine[child]
        return f"{self.engine.path}{mount.namespace or f'({child.info.name})'}/"

    def mount(
        self, given: Any, child: "Engine | None", tools: Catalog[Tool], namespace: str | None, *,
        only: Any = None, tags: Any = None, transforms: Any = None,
    ) -> None:  # fmt: skip
        """Mount a server or a registry; raises SetupError, and then nothing has changed."""
        where = f"server.mount({'ToolRegistry' if child is None else child.info.name!r})"
        self._check_place(child, tools, where)
        if not isinstance(transforms or {}, Mapping):
            raise SetupError(f"{where}: transforms={transforms!r} is not possible; it must be a dict by names of tools")
        choice, namespace = Choice.from_options(only, tags, where), naming.checked_namespace(namespace, where)
        mount = Mount(self.engine, given, child, tools, namespace, choice, transforms or {}, where)
        if child is None or not child.before_list:  # else it may have more than it knows of now
            mount.renaming.check_transforms(tools.names())
            items = [item for catalog in mount.sources.values() for item in catalog.all()]
            for pattern in choice.only or ():
                if not any(choice.fits(pattern, item) for item in items):
                    log.warning("%s: only= has %r, which fits nothing there so far", where, pattern)
        with self._lock:
            plans = {kind: mount.plan(kind, strict=True) for kind in mount.sources}
            self._mounts.append(mount)
            if child is None:
                tools.on_change(partial(self._sync, mount, ("tools",)))
            else:
                child.parent, self._by_engine[child] = self.engine, mount
            for kind, plan in plans.items():
                mount.apply(kind, plan)
        self.engine.forget_capabilities()
        if child is not None and self.engine.loop is not None and self.engine.is_serving:
            mount.starting = asyncio.run_coroutine_threadsafe(self._start_late(mount), self.engine.loop)

    def _check_place(self, child: "Engine | None", tools: Catalog[Tool], where: str) -> None:
        above: Engine | None = self.engine
        while above is not None:
            if above is child:
                raise SetupError(f"{where}: a server can't be mounted in itself, nor in a server that it holds")
            if any(below is above.tools for below in _tools_below(child, tools)):
                raise SetupError(f"{where}: its tools are those of {above.info.name!r} already, by Server(tools=)")
            above = above.parent
        if child is not None and child.parent is not None:
            fix = "make another Server for the second place, or unmount it there first"
            raise SetupError(
                f"{where} in {self.engine.info.name!r}: it is in {child.parent.info.name!r} already; {fix}"
            )

    def unmount(self, which: Any) -> bool:
        """Unmount a server, a registry, or all of a namespace; True if there was one."""
        with self._lock:
            found = [
                each for each in self._mounts if each.given is which or (each.namespace and each.namespace == which)
            ]
            for mount in found:
                self._remove(mount)
        return bool(found)

    def _remove(self, mount: Mount) -> None:
        self._mounts.remove(mount)
        mount.remove_all()
        for uri in [uri for uri, (place, _) in self._watched.items() if place is mount]:
            self.watch(uri, False)
        self.engine.forget_capabilities()
        if not mount.has_engine:
            return
        if not mount.calls:
            self._forget(mount)
        loop = self.engine.loop
        if loop is not None and self.engine.is_serving:
            leaving = asyncio.run_coroutine_threadsafe(mount.leave(), loop)
            self._leaving[leaving] = None
            leaving.add_done_callback(partial(self._left, mount))
        else:
            self._forget(mount)

    def _left(self, mount: Mount, leaving: "concurrent.futures.Future[None]") -> None:
        self._leaving.pop(leaving, None)
        self._forget(mount)
        if not leaving.cancelled() and (failure := leaving.exception()) is not None:
            log.error("%s: its lifespan failed at the end", mount.where, exc_info=failure)

    def _forget(self, mount: Mount) -> None:
        if self._by_engine.get(mount.child) is mount:
            del self._by_engine[mount.child]
            mount.child.parent = None

    # ── running ──

    async def start(self) -> None:
        """Enter the lifespans of all children; raises what one of them raises."""
        try:
            for mount in tuple(self._mounts):
                await mount.start()
        except BaseException:
            await self.stop()
            raise

    async def _start_late(self, mount: Mount) -> None:
        try:
            await mount.start()
        except Exception:
            log.exception("%s: its lifespan failed, so it is unmounted", mount.where)
            if mount.is_active:
                with self._lock:
                    self._remove(mount)
            raise
        finally:
            mount.starting = None
        self._watch_again()

    async def stop(self) -> None:
        for leaving in tuple(self._leaving):
            leaving.cancel()
            await asyncio.wait([asyncio.wrap_future(leaving)])
        failures: list[Exception] = []
        for mount in reversed(self._mounts):
            try:
                await mount.stop()
            except Exception as failure:
                failures.append(failure)
        for failure in failures:
            raise failure

    # ── changes and subscriptions ──

    def _sync(self, mount: Mount, kinds: Iterable[str]) -> bool:
        with self._lock:
            changed = mount.is_active and mount.sync(kinds)
        if changed:
            self._watch_again()
        return changed

    async def before_list(self, context: RequestContext) -> None:
        """Have all children bring their catalogs up to date, at once."""
        work = [(child, refresh(context)) for child in self.engines() for refresh in child.before_list]
        if context.request.method == "resources/list":
            work += [(child, child.resources.refresh_files()) for child in self.engines()]
        for (child, _), outcome in zip(work, await _gather(each for _, each in work), strict=True):
            if isinstance(outcome, Exception):
                log.error("the lists of %r could not be brought up to date", child.info.name, exc_info=outcome)
        for mount in tuple(self._mounts):
            self._sync(mount, mount.sources)

    def relay(self, child: "Engine", change: Change) -> None:
        """Publish a change of a child, as one of the parent."""
        mount = self._by_engine.get(child)
        if mount is None or not mount.is_active:
            return
        if change.uri:
            is_own = mount.is_own(change.uri) or child.resources.get(change.uri) is None
            self.engine.publish(
                replace(change, uri=naming.rename_uri(change.uri, mount.namespace) if is_own else change.uri)
            )
        elif not self._sync(mount, KINDS[change.kind]):
            self.engine.publish(change)

    def forget(self, change: Change, *, from_other_worker: bool) -> None:
        """Drop cached contents of the children, which may be those of this change."""
        for mount in self._mounts:
            own = naming.own_uri(change.uri, mount.namespace) if change.uri else ""
            if mount.has_engine and own is not None:
                mount.child.forget_contents(replace(change, uri=own), from_other_worker=from_other_worker)

    def watch(self, uri: str, wanted: bool) -> bool:
        """Pass a subscription down, or its end; False if the URI is none of a child."""
        if wanted and (source := self.resource(uri)) is not None:
            assert source.mounted is not None
            mount = source.mounted.mount
            self._watched[uri] = mount, mount.own_uri(source, uri)
            mount.child.hub.retain_uri(self._watched[uri][1])
        elif not wanted and uri in self._watched:
            mount, own = self._watched.pop(uri)
            mount.child.hub.release_uri(own)
            return True
        return uri in self._watched

    def _watch_again(self) -> None:
        """Pass subscriptions down whose resources have come since."""
        if asyncio._get_running_loop() is self.engine.loop is not None:
            for uri in self.engine.hub.uris():
                if uri not in self._watched:
                    self.watch(uri, True)

    def resource(self, uri: str) -> Resource | Template | None:
        """The mounted resource of a URI; None if there is none, or it is the server's own."""
        source = self.engine.resources.get(uri)
        return None if source is None or source.mounted is None else source


async def _gather(work: Iterable[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*work, return_exceptions=True)


def _tools_below(child: "Engine | None", tools: Catalog[Tool]) -> Iterator[Catalog[Tool]]:
    yield tools
    for mount in () if child is None or child.mounts is None else child.mounts.all():
        yield from _tools_below(mount.child if mount.has_engine else None, mount.sources["tools"])


# ── calls ──


def route_of(item: Any) -> Mounted | None:
    route = item.route if isinstance(item, Tool) else item.mounted
    return route if isinstance(route, Mounted) else None


async def forward(mounted: Mounted, context: RequestContext, **changes: Any) -> Result:
    """The child's result for the request with these params of its own; its middleware sees that request."""
    mount: Mount = mounted.mount
    result = await _in_child(mount, context, changes)
    renamed: Result = mount.renamed(result)
    return renamed


async def _in_child(mount: Mount, context: RequestContext, changes: Mapping[str, Any]) -> Any:
    outer, child = context.request, mount.child
    context.original_params = context.original_params or outer.params
    with mount.in_use():
        if mount.starting is not None:
            await asyncio.shield(asyncio.wrap_future(mount.starting))
        context.request = replace(outer, params=replace(outer.params, **changes))
        try:
            return await (HANDLERS[outer.method](child, context) if child.chain is None else child.chain(context))
        finally:
            context.request = outer


async def call_mounted(engine: "Engine", context: RequestContext, tool: Tool) -> Result:
    assert isinstance(tool.route, Mounted)
    changes: dict[str, Any] = {"name": tool.route.own}
    if tool.rewrite is not None:
        try:
            changes["arguments"] = tool.rewrite(context.request.params.arguments)
        except ArgumentError as failure:
            return failure_result(engine, context, tool, failure)
    return await forward(tool.route, context, **changes)


async def forward_completion(mounted: Mounted, target: Any, context: RequestContext) -> Result:
    ref = context.request.params.ref
    own = mounted.own
    if ref.type == "ref/resource" and ref.uri != target.uri:  # a URI with all its values
        own = mounted.mount.own_uri(target, ref.uri)
    return await forward(mounted, context, ref=replace(ref, **{"uri" if ref.type == "ref/resource" else "name": own}))


async def forward_read(engine: "Engine", context: RequestContext, source: Resource | Template) -> Result:
    """`resources/read` of a mounted resource."""
    uri = context.request.params.uri
    mount, own = await _place_of(engine, context, source, uri)
    return await _as_asked(mount, own, uri, _in_child(mount, context, {"uri": own}))


async def read_mounted(
    engine: "Engine", context: RequestContext, source: Resource | Template, uri: str
) -> ReadResourceResult:
    """`ctx.read_resource` of a mounted resource."""
    mount, own = await _place_of(engine, context, source, uri)
    with mount.in_use():
        contents: ReadResourceResult = await _as_asked(mount, own, uri, mount.child.read(own, context))
        return contents


async def _place_of(
    engine: "Engine", context: RequestContext, source: Resource | Template, uri: str
) -> tuple[Mount, str]:
    if source.access is not None and not await lazy.access.may_use(engine, context, source.access):
        raise NotFound(uri=uri)
    assert source.mounted is not None
    mount: Mount = source.mounted.mount
    return mount, mount.own_uri(source, uri)


async def _as_asked(mount: Mount, own: str, uri: str, reading: Awaitable[Any]) -> Any:
    """The child's contents of `own`, which the client knows as `uri`."""
    try:
        result = await reading
    except NotFound as failure:
        raise NotFound(failure.message, uri=uri) from None
    if not isinstance(result, ReadResourceResult):
        return result
    asked = uri if uri.isascii() else normalize_escapes(uri)
    items = [item.uri == normalize_escapes(own) or item.uri == own for item in result.items]
    renamed = mount.renamed(result)
    return replace(
        renamed,
        items=[replace(new, uri=asked) if same else new for new, same in zip(renamed.items, items, strict=True)],
    )
