"""Mounts: renamed copies of a child's items in the catalogs of its parent, and the way of their calls to the child.

A call stays one lookup, and lists stay cached bytes. It runs the child's middleware and handler, with the child's names
in the same `RequestContext`.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from dovetail import engine as lazy
from dovetail.engine.call_tool import failure_result
from dovetail.engine.handlers import HANDLERS
from dovetail.engine.request_context import RequestContext
from dovetail.engine.subscriptions import Change
from dovetail.errors import ArgumentError, NotFound, SetupError, ToolError
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.results import PromptResult, ReadResourceResult, Result, ToolResult
from dovetail.protocol.uri_template import normalize_escapes, normalize_uri
from dovetail.registry import mounts as naming
from dovetail.registry.catalog import Catalog
from dovetail.registry.mounts import Choice, Mounted, Renaming
from dovetail.registry.resources import Resource, Template
from dovetail.registry.tools import Tool

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

log = logging.getLogger("dovetail")
KINDS = {"tools": ("tools",), "prompts": ("prompts",), "resources": ("direct", "templates")}  # catalogs by change


def _catalogs(engine: "Engine") -> dict[str, Catalog[Any]]:
    direct, templates = engine.resources.direct, engine.resources.templates
    return {"tools": engine.tools, "prompts": engine.prompts, "direct": direct, "templates": templates}


class BackendStatus(msgspec.Struct, frozen=True):
    """A server elsewhere, as its proxy knows it."""

    target: str  # without the parts that may hold a secret
    state: str  # "reachable", "unreachable" or "not connected"
    problem: str  # why it is unreachable
    revision: str | None
    latency: float | None  # milliseconds, the median of the last calls


class MountStatus(msgspec.Struct, frozen=True):
    """A mounted server or registry."""

    name: str
    namespace: str
    kind: str  # "server", "registry" or "proxy"
    counts: dict[str, int]  # of the tools, resources and prompts that came along
    backend: BackendStatus | None


class Entry(NamedTuple):
    """An item of the child, and its copy with its key in the catalog of the parent."""

    source: Any
    key: str
    copy: Any
    has_uris: bool  # in its `_meta`, which may or may not be those of the child's resources


class Mount:
    """One child of a server. Without an engine it is a registry, whose tools run at the parent."""

    def __init__(
        self, parent: "Engine", given: Any, child: "Engine | None", tools: Catalog[Tool], namespace: str,
        choice: Choice, transforms: Mapping[str, Any], where: str,
    ) -> None:  # fmt: skip
        self.parent, self.given, self.engine = parent, given, child
        self.namespace, self.choice, self.where = namespace, choice, where
        self.name = "ToolRegistry" if child is None else child.info.name
        self.sources = {"tools": tools} if child is None else _catalogs(child)
        self.renaming = Renaming(self, namespace, transforms, where, self.is_own, child is not None)
        self.is_active = True  # its items are at the parent
        self.on_change: Callable[[], object] = bool  # of a registry
        self._is_started = False  # it has entered the lifespan of the child
        self._targets = _catalogs(parent)
        self._entries: dict[str, dict[str, Entry]] = {kind: {} for kind in self.sources}  # by keys of the child
        self._versions: dict[str, int] = {}
        self._left_out: dict[tuple[str, str], Any] = {}  # the items that could not be mounted

    @property
    def child(self) -> "Engine":
        assert self.engine is not None
        return self.engine

    # ── catalogs ──

    def plan(self, kind: str, *, strict: bool, again: bool = False) -> dict[str, Entry | None]:
        """What has changed, by keys of the child; None is gone. What is not possible raises if `strict`, else is gone.

        `again`: the child has other resources, so that URIs in `_meta` may be its own now.
        """
        source, known = self.sources[kind], self._entries[kind]
        self._versions[kind] = source.version
        gone = [own for own, each in known.items() if source.get(own) is not each.source or (again and each.has_uris)]
        plan: dict[str, Entry | None] = dict.fromkeys(gone)
        free, taken = {known[own].key for own in gone}, set[str]()
        for own in [own for own in source.names() if own not in known or own in plan]:
            item = source.get(own)
            if item is None or not self._takes(item):
                continue
            try:
                entry = self._entry(kind, item)
                self._check(kind, entry, free, taken)
                plan[own] = entry
                taken.add(entry.key)
            except SetupError as problem:
                if strict:
                    raise
                if self._left_out.get((kind, own)) is not item:
                    log.warning("%s; it is left out", problem)
                self._left_out[kind, own] = item
        return plan

    def _takes(self, item: Any) -> bool:
        folder = getattr(item, "folder", None)  # whose files come along with it
        return self.choice.takes(item if folder is None else self.sources["templates"].get(folder) or item)

    def _entry(self, kind: str, item: Any) -> Entry:
        copy, meta = self.renaming.copy(item), item.definition.meta
        key = copy.name if kind in ("tools", "prompts") else copy.uri
        has_uris = bool(self.namespace and meta) and b"://" in encode(meta)
        return Entry(item, normalize_uri(key) if kind == "direct" else key, copy, has_uris)

    def _check(self, kind: str, entry: Entry, free: set[str], taken: set[str]) -> None:
        """Raises SetupError if the name is taken, or if access rules overlap."""
        other = self if entry.key in taken else self._targets[kind].get(entry.key)
        if other is self or (other is not None and entry.key not in free):
            route = Mounted(self, "") if other is self else route_of(other)
            elder = self.parent.info.name if route is None else route.mount.name
            one = f"the {self.sources[kind].noun} {entry.source.definition.name!r} of {self.name!r}"
            fix = "mount it with another namespace=, or choose with only="
            raise SetupError(f"{self.where}: {one} would be {entry.key!r} here, as one of {elder!r} is; {fix}")
        if kind in KINDS["resources"]:
            self.parent.resources.check_overlaps(entry.copy, self.where, self)

    def apply(self, kind: str, plan: Mapping[str, Entry | None]) -> bool:
        """Change the parent's catalog; True if its listeners were called."""
        known, target, removed, new = self._entries[kind], self._targets[kind], list[str](), dict[str, Any]()
        for own, entry in plan.items():
            old = known.pop(own, None)
            if old is not None and target.get(old.key) is not old.copy:  # the parent's author has removed it
                old = None
            if entry is not None:
                known[own] = entry
            if old is not None and entry is not None and old.key == entry.key:
                target.replace(entry.key, entry.copy)
                continue
            removed += [] if old is None else [old.key]
            new |= {} if entry is None else {entry.key: entry.copy}
        if removed or new:  # resources change as files do: each worker finds out by itself
            (self.parent.resources.swap if kind == "direct" else target.update)(removed, new)
        return bool(removed or new)

    def sync(self, kinds: Iterable[str]) -> bool:
        """Bring catalogs of the parent up to date; True if listeners were called."""
        stale = {kind for kind in kinds if self._versions.get(kind) != self.sources[kind].version}
        again = not stale.isdisjoint(KINDS["resources"])
        plans = {kind: self.plan(kind, strict=False, again=again) for kind in (self.sources if again else stale)}
        return sum(self.apply(kind, plan) for kind, plan in plans.items()) > 0  # all of them, so not `any`

    def remove_all(self) -> None:
        self.is_active = False
        for kind, known in self._entries.items():
            self.apply(kind, dict.fromkeys(known))

    def status(self, path: str) -> "MountStatus":
        """`path`: the namespace, with those of the servers around it."""
        status = None if self.engine is None else self.engine.backend_status
        kind = "registry" if self.engine is None else "server" if status is None else "proxy"
        counts = {name: sum(len(self._entries.get(each, ())) for each in kinds) for name, kinds in KINDS.items()}
        return MountStatus(self.name, path, kind, counts, None if status is None else status())

    # ── URIs ──

    def is_own(self, uri: str) -> bool:
        """Whether a URI is one of the child's that have another one at the parent."""
        source = None if self.engine is None else self.engine.resources.get(uri)
        return source is not None and naming.rename_uri(source.uri, self.namespace) != source.uri

    def own_uri(self, source: Resource | Template, uri: str) -> str:
        """The child's URI for one of the parent's that leads to this source."""
        assert source.mounted is not None
        if isinstance(source, Resource):
            return source.mounted.own
        is_renamed = source.mounted.own != source.uri
        return (naming.own_uri(normalize_uri(uri), self.namespace) or uri) if is_renamed else uri

    def renamed(self, result: Any) -> Any:
        """The result of the child, with the parent's URIs."""
        rename = partial(naming.rename_content, namespace=self.namespace, is_own=self.is_own)
        if isinstance(result, ToolResult) and self.namespace and (result.content or result.meta):
            meta = naming.rename_meta(result.meta, self.namespace, self.is_own)
            return replace(result, content=tuple(map(rename, result.content)), meta=meta)
        if isinstance(result, PromptResult) and self.namespace:
            return replace(result, messages=[replace(each, content=rename(each.content)) for each in result.messages])
        if isinstance(result, ReadResourceResult) and self.namespace:
            return replace(result, items=[*map(rename, result.items)])
        return result

    # ── the lifespan of the child ──

    async def start(self) -> None:
        if self.engine is not None and not self._is_started:
            await self.engine.start(self.given)
            self._is_started = True

    async def stop(self) -> None:
        if self.engine is not None and self._is_started:
            self._is_started = False
            await self.engine.stop()

    async def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run a call. It counts as a user of the lifespan, which may be entered just now, or left."""
        await self.child.start(self.given)
        try:
            return self.renamed(await work())
        finally:
            await self.child.stop()


class Mounts:
    """All children of a server."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._mounts: list[Mount] = []
        self._watched: dict[str, tuple[Mount, str]] = {}  # by URI: where it is watched, and its URI there
        self._lifespans = AsyncExitStack()
        self._background: set[Future[None]] = set()  # lifespans that are entered or left while the parent runs
        self._lock = threading.RLock()  # tools in worker threads may register tools
        engine.before_list.append(self.before_list)

    def engines(self) -> "list[Engine]":
        return [mount.engine for mount in self._mounts if mount.engine is not None]

    def path_of(self, child: "Engine") -> str:
        namespaces = [mount.namespace for mount in self._mounts if mount.engine is child]
        return f"{self._engine.path}{''.join(namespaces) or f'({child.info.name})'}/"

    def status(self, path: str = "") -> list[MountStatus]:
        """All mounts, each followed by those of the mounted server."""
        found: list[MountStatus] = []
        for mount in tuple(self._mounts):
            own = "_".join(filter(None, (path, mount.namespace)))
            found.append(mount.status(own))
            if mount.engine is not None and mount.engine.mounts is not None:
                found += mount.engine.mounts.status(own)
        return found

    def tools_below(self) -> list[Catalog[Tool]]:
        below = [each for child in self.engines() if child.mounts is not None for each in child.mounts.tools_below()]
        return [*(mount.sources["tools"] for mount in self._mounts), *below]

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
        mount = Mount(self._engine, given, child, tools, namespace, choice, transforms or {}, where)
        mount.on_change = partial(self._sync, mount, ("tools",))
        if child is None or not child.before_list:  # else it may have tools that it does not know of yet
            mount.renaming.check_transforms(tools.names())
        with self._lock:
            plans = {kind: mount.plan(kind, strict=True) for kind in mount.sources}
            self._mounts.append(mount)
            if child is None:
                tools.on_change(mount.on_change)
            else:
                child.parent = self._engine
            for kind, plan in plans.items():
                mount.apply(kind, plan)
        self._engine.forget_capabilities()
        self._run_late(self._start_late(mount))

    def _check_place(self, child: "Engine | None", tools: Catalog[Tool], where: str) -> None:
        below = [tools, *(child.mounts.tools_below() if child is not None and child.mounts is not None else [])]
        line = _line_of(self._engine)
        if child in line:
            raise SetupError(f"{where}: a server can't be mounted in itself, nor in a server that it holds")
        for above in line:
            if any(each is above.tools for each in below):
                raise SetupError(f"{where}: its tools are those of {above.info.name!r} already, by Server(tools=)")
        if child is not None and child.options.auth is not None and self._engine.options.auth is None:
            fix = f"give {self._engine.info.name!r} auth=, or leave it out there"
            raise SetupError(f"{where}: its auth= does not come along, since its parent meets the callers; {fix}")
        if child is not None and child.parent is not None:
            fix = "make another Server for the second place, or unmount it there first"
            raise SetupError(
                f"{where} in {self._engine.info.name!r}: it is in {child.parent.info.name!r} already; {fix}"
            )

    def unmount(self, which: Any) -> bool:
        """Unmount a server, a registry, or all of a namespace; True if there was one."""
        with self._lock:
            found = [each for each in self._mounts if each.given is which or each.namespace == which != ""]
            for mount in found:
                self._remove(mount)
        return bool(found)

    def _remove(self, mount: Mount) -> None:
        self._mounts.remove(mount)
        mount.remove_all()
        for uri in [uri for uri, (place, _) in self._watched.items() if place is mount]:
            self.watch(uri, False)
        if mount.engine is None:
            mount.sources["tools"].off_change(mount.on_change)
        else:
            mount.engine.parent = None
        self._engine.forget_capabilities()
        self._run_late(mount.stop())

    # ── running ──

    async def start(self) -> None:
        """Enter the lifespans of all children; raises what one of them raises."""
        async with AsyncExitStack() as stack:
            for mount in self._mounts:  # which may grow: a lifespan may mount others
                stack.push_async_callback(mount.stop)
                await mount.start()
            self._lifespans = stack.pop_all()

    async def stop(self) -> None:
        if self._background:
            await asyncio.wait([asyncio.wrap_future(each) for each in tuple(self._background)])
        await self._lifespans.aclose()

    def _run_late(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in the background if the server runs; from any thread."""
        loop = self._engine.loop
        if loop is None or not self._engine.is_serving:
            return work.close()
        task = asyncio.run_coroutine_threadsafe(work, loop)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return None

    async def _start_late(self, mount: Mount) -> None:
        self._lifespans.push_async_callback(mount.stop)
        try:
            await mount.start()
        except Exception:
            log.exception("%s: its lifespan failed, so it is unmounted", mount.where)
            self.unmount(mount.given)
        if not mount.is_active:
            await mount.stop()
        self._watch_again()

    # ── changes and subscriptions ──

    def _sync(self, mount: Mount, kinds: Iterable[str]) -> bool:
        with self._lock:
            has_changed = mount.is_active and mount.sync(kinds)
        if has_changed:
            self._watch_again()
        return has_changed

    async def before_list(self, context: RequestContext) -> None:
        """Have all children bring their catalogs up to date, at once."""
        children = [mount for mount in self._mounts if mount.engine is not None]
        work = [(mount, refresh(context)) for mount in children for refresh in mount.child.before_list]
        if context.request.method == "resources/list":
            work += [(mount, mount.child.resources.refresh_files()) for mount in children]
        outcomes = await asyncio.gather(*(each for _, each in work), return_exceptions=True)
        for mount in tuple(self._mounts):
            self._sync(mount, mount.sources)
        wanted = getattr(context.request.params, "name", "")
        is_found = (self._engine.prompts if context.request.method == "prompts/get" else self._engine.tools).get(wanted)
        for (mount, _), outcome in zip(work, outcomes, strict=True):
            if isinstance(outcome, ToolError) and is_found is None and wanted.startswith(mount.namespace):
                raise outcome  # a backend that can't be reached may have what is called
            if isinstance(outcome, Exception) and not isinstance(outcome, ToolError):
                log.error("the lists of %r could not be brought up to date", mount.name, exc_info=outcome)

    def relay(self, child: "Engine", change: Change) -> None:
        """Publish a change of a child, as one of the parent."""
        for mount in [each for each in self._mounts if each.engine is child]:
            if not change.uri:
                if not self._sync(mount, KINDS[change.kind]):
                    self._engine.publish(change)
            elif mount.is_own(change.uri) or child.resources.get(change.uri) is None:
                self._engine.publish(replace(change, uri=naming.rename_uri(change.uri, mount.namespace)))
            else:
                self._engine.publish(change)

    def forget(self, change: Change, *, from_other_worker: bool) -> None:
        """Drop cached contents of the children, which may be those of this change."""
        for mount in [each for each in self._mounts if each.engine is not None]:
            if (own := naming.own_uri(change.uri, mount.namespace)) is not None:
                mount.child.forget_contents(replace(change, uri=own), from_other_worker=from_other_worker)

    def watch(self, uri: str, wanted: bool) -> bool:
        """Pass a subscription down, or its end; False if the URI is none of a child."""
        if not wanted:
            mount, own = self._watched.pop(uri, (None, ""))
            if mount is not None:
                mount.child.hub.release_uri(own)
            return mount is not None
        if (source := self.resource(uri)) is not None and (route := route_of(source)) is not None:
            self._watched[uri] = route.mount, route.mount.own_uri(source, uri)
            route.mount.child.hub.retain_uri(self._watched[uri][1])
        return uri in self._watched

    def _watch_again(self) -> None:
        """Pass subscriptions down whose resources have come since; only on the loop."""
        if asyncio._get_running_loop() is self._engine.loop is not None:
            for uri in self._engine.hub.uris():
                if uri not in self._watched:
                    self.watch(uri, True)

    def resource(self, uri: str) -> Resource | Template | None:
        """The mounted resource of a URI; None if there is none, or it is the server's own."""
        source = self._engine.resources.get(uri)
        return None if source is None or source.mounted is None else source


def _line_of(engine: "Engine | None") -> "list[Engine]":
    """The engine and all above it."""
    return [] if engine is None else [engine, *_line_of(engine.parent)]


# ── calls ──


def route_of(item: Any) -> Mounted | None:
    route = item.route if isinstance(item, Tool) else item.mounted
    return route if isinstance(route, Mounted) else None


async def forward(mounted: Mounted, context: RequestContext, **changes: Any) -> Result:
    """The child's result for the request, with these params of its own."""
    outer, mount = context.request, mounted.mount
    child: Engine = mount.child
    handler = child.chain or partial(HANDLERS[outer.method], child)
    context.original_params = context.original_params or outer.params
    context.request = replace(outer, params=replace(outer.params, **changes))
    try:
        result: Result = await mount.run(partial(handler, context))
        return result
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
    if ref.type != "ref/resource":
        return await forward(mounted, context, ref=replace(ref, name=mounted.own))
    own = mounted.own if ref.uri == target.uri else mounted.mount.own_uri(target, ref.uri)
    return await forward(mounted, context, ref=replace(ref, uri=own))


async def read_mounted(
    engine: "Engine", context: RequestContext, source: Resource | Template, uri: str, *, is_request: bool
) -> Any:
    """Read for `resources/read`, with the child's middleware, or for `ctx.read_resource`."""
    if source.access is not None and not await lazy.access.may_use(engine, context, source.access):
        raise NotFound(uri=uri)
    assert source.mounted is not None
    mount, asked = source.mounted.mount, uri if uri.isascii() else normalize_escapes(uri)
    own, usual = mount.own_uri(source, uri), normalize_uri(uri)
    try:
        read = partial(mount.child.read, own, context)
        result = await (forward(source.mounted, context, uri=own) if is_request else mount.run(read))
    except NotFound as failure:
        raise NotFound(failure.message, uri=uri) from None
    if not isinstance(result, ReadResourceResult):
        return result
    items = [replace(item, uri=asked) if normalize_uri(item.uri) == usual else item for item in result.items]
    return replace(result, items=items)
