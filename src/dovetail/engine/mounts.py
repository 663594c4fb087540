"""Mounts: renamed copies of a child's items in the catalogs of its parent, and the way of their calls to the child.

A call stays one lookup, and lists stay cached bytes. It runs the child's middleware and handler, with the child's names
in the same `RequestContext`.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
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
from dovetail.engine.subscriptions import Change, ChangeKind
from dovetail.errors import ArgumentError, NotFound, SetupError, ToolError
from dovetail.protocol.capabilities import Completion
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.results import CompleteResult, PromptResult, ReadResourceResult, Result, ToolResult
from dovetail.protocol.session import EVERYTHING, Rules, VisibilityRule
from dovetail.protocol.uri_template import normalize_escapes, normalize_uri
from dovetail.registry import mounts as naming
from dovetail.registry.catalog import Catalog
from dovetail.registry.mounts import Mounted
from dovetail.registry.resources import Resource, Template
from dovetail.registry.tools import Tool
from dovetail.registry.visibility import Names, fits, texts

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

log = logging.getLogger("dovetail")
# The list that a catalog is part of:
KINDS: dict[str, ChangeKind]
KINDS = {"tools": "tools", "prompts": "prompts", "direct": "resources", "templates": "resources"}


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


class Mount:
    """One child of a server. Without an engine it is a registry, whose tools run at the parent."""

    def __init__(
        self, mounts: "Mounts", given: Any, child: "Engine | None", tools: Catalog[Tool], namespace: str,
        choice: VisibilityRule, transforms: Mapping[str, Any], where: str,
    ) -> None:  # fmt: skip
        self.parent, self.given = mounts.engine, given
        self.child: Any = child  # its engine; None of a registry
        self.namespace, self.choice, self.transforms, self.where = namespace, choice, transforms, where
        self.name = "ToolRegistry" if child is None else child.info.name
        self.sources = {"tools": tools} if child is None else _catalogs(child)
        self.is_active = True  # its items are at the parent
        self._loop: asyncio.AbstractEventLoop | None = None  # on which it has entered the lifespan of the child
        self._mounts, self._targets = mounts, _catalogs(mounts.engine)
        self._entries: dict[str, dict[str, Entry]] = {kind: {} for kind in self.sources}  # by keys of the child
        self._left_out: dict[str, set[str]] = {kind: set() for kind in self.sources}  # problems that were logged
        self._versions: dict[str, int] = {}

    @property
    def path(self) -> str:
        """The place of the child, in keys of the store."""
        return f"{self.parent.path}{self.namespace}({self.name})/"

    # ── catalogs ──

    def sync(self, *, strict: bool = False) -> set[ChangeKind]:
        """Bring the parent's catalogs up to date; returns the lists whose changes were announced.

        If `strict`, a name that is taken and the like raises SetupError, and nothing has changed; else it is logged.
        """
        with self._mounts.lock:
            stale = {kind for kind, source in self.sources.items() if self._versions.get(kind) != source.version}
            if not stale or not self.is_active:
                return set()
            again = not stale.isdisjoint(("direct", "templates"))  # URIs in `_meta` may be the child's own now
            kinds = self.sources if again else stale
            wanted = {kind: self._wanted(kind, strict=strict, again=again) for kind in kinds}
            changed = {KINDS[kind] for kind, entries in wanted.items() if self._put(kind, entries)}
        if "resources" in changed:
            self._mounts.watch_again()
        return changed

    def remove_all(self) -> None:
        self.is_active = False
        for kind in self.sources:
            self._put(kind, {})

    def _wanted(self, kind: str, *, strict: bool, again: bool) -> dict[str, Entry]:
        source, known, problems = self.sources[kind], self._entries[kind], set[str]()
        self._versions[kind] = source.version
        wanted = {
            own: entry
            for own, entry in known.items()
            if source.get(own) is entry.source and not (again and self._has_uris(entry.source))
        }
        taken = {entry.key for entry in wanted.values()}
        for own in [each for each in source.names() if each not in wanted]:
            if (item := source.get(own)) is None or not fits(self.choice, item):
                continue
            try:
                wanted[own] = entry = self._entry(kind, item, taken)
                taken.add(entry.key)
            except SetupError as problem:
                if strict:
                    raise
                problems.add(str(problem))
        for text in sorted(problems - self._left_out[kind]):
            log.warning("%s; it is left out", text)
        self._left_out[kind] = problems
        return wanted

    def _put(self, kind: str, entries: dict[str, Entry]) -> bool:
        known, self._entries[kind] = self._entries[kind], entries
        old, new = ({each.key: each.copy for each in some.values()} for some in (known, entries))
        return self._targets[kind].exchange(old, new)

    def _has_uris(self, item: Any) -> bool:
        return bool(self.namespace and item.definition.meta) and b"://" in encode(item.definition.meta)

    def _entry(self, kind: str, item: Any, taken: set[str]) -> Entry:
        """The copy of an item; raises SetupError if its name is taken or not possible, or if access rules overlap."""
        copy = naming.copy_item(self, item)
        key = copy.name if kind in ("tools", "prompts") else normalize_uri(copy.uri) if kind == "direct" else copy.uri
        elder = self._targets[kind].find(key)
        route = None if elder is None else route_of(elder)
        if key in taken or (elder is not None and (route is None or route.mount is not self)):
            owner = self.name if key in taken else self.parent.info.name if route is None else route.mount.name
            one = f"the {self.sources[kind].noun} {item.definition.name!r} of {self.name!r}"
            fix = "mount it with another namespace=, or choose with only="
            raise SetupError(f"{self.where}: {one} would be {key!r} here, as one of {owner!r} is; {fix}")
        if KINDS[kind] == "resources":
            self.parent.resources.check_overlaps(copy, self.where, self)
        return Entry(item, key, copy)

    def status(self, path: str) -> "MountStatus":
        """`path`: the namespace, with those of the servers around it."""
        status = None if self.child is None else self.child.backend_status
        kind = "registry" if self.child is None else "server" if status is None else "proxy"
        counts: dict[str, int] = dict.fromkeys(KINDS.values(), 0)
        for catalog, entries in self._entries.items():
            counts[KINDS[catalog]] += len(entries)
        return MountStatus(self.name, path, kind, counts, None if status is None else status())

    # ── URIs ──

    def is_own(self, uri: str) -> bool:
        """Whether a URI is one of the child's that have another one at the parent."""
        source = None if self.child is None else self.child.resources.get(uri)
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

    # ── changes of the child ──

    def relay(self, change: Change) -> None:
        """Publish a change of the child, as one of the parent."""
        if not change.uri:
            if change.kind not in self.sync():
                self.parent.publish(change)
            return
        is_renamed = self.is_own(change.uri) or self.child.resources.get(change.uri) is None
        uri = naming.rename_uri(change.uri, self.namespace) if is_renamed else change.uri
        self.parent.publish(replace(change, uri=uri))

    # ── the lifespan of the child ──

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        if self.child is not None and self._loop is not loop:
            await self.child.start(self.given)
            self._loop = loop
            if not self.is_active:  # it was unmounted meanwhile
                await self.stop()

    async def stop(self) -> None:
        if self._loop is asyncio.get_running_loop():
            self._loop = None
            await self.child.stop()

    async def run(self, context: RequestContext, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run a call. It counts as a user of the lifespan, which may be entered just now, or left."""
        context.served = context.served or self.parent
        await self.child.start(self.given)
        try:
            return self.renamed(await work())
        finally:
            await self.child.stop()


class Mounts:
    """All children of a server."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self._mounts: list[Mount] = []
        self._watched: dict[str, tuple[Mount, str]] = {}  # by URI: where it is watched, and its URI there
        self._background: set[Future[None]] = set()  # lifespans that are entered or left while the parent runs
        self.lock = threading.RLock()  # tools in worker threads may register tools
        engine.before_list.append(self.before_list)

    def engines(self) -> "list[Engine]":
        return [mount.child for mount in self._mounts if mount.child is not None]

    def status(self, path: str = "") -> list[MountStatus]:
        """All mounts, each followed by those of the mounted server."""
        found: list[MountStatus] = []
        for mount in tuple(self._mounts):
            own = "_".join(filter(None, (path, mount.namespace)))
            found.append(mount.status(own))
            if mount.child is not None and mount.child.mounts is not None:
                found += mount.child.mounts.status(own)
        return found

    def tools_below(self) -> list[Catalog[Tool]]:
        below = [each for child in self.engines() if child.mounts is not None for each in child.mounts.tools_below()]
        return [*(mount.sources["tools"] for mount in self._mounts), *below]

    def mount(
        self, given: Any, child: "Engine | None", tools: Catalog[Tool], namespace: str | None, *,
        only: Names, tags: Names, transforms: Any,
    ) -> None:  # fmt: skip
        """Mount a server or a registry; raises SetupError, and then nothing has changed."""
        where = f"server.mount({'ToolRegistry' if child is None else child.info.name!r})"
        known = tools.names() if child is None or not child.before_list else None  # else it may not know its tools yet
        transforms = naming.checked_transforms(transforms, known, where)
        namespace = naming.checked_namespace(namespace, where)
        choice = VisibilityRule(True, texts(tags, f"{where}: tags"), texts(only, f"{where}: only"))
        mount = Mount(self, given, child, tools, namespace, choice, transforms, where)
        with self.lock:
            self._check_place(mount)
            mount.sync(strict=True)
            self._mounts.append(mount)
            if child is None:
                tools.on_change(mount.sync)
            else:
                child.mount = mount
            mount.sync()  # another thread may have changed something before it was followed
        if child is not None and child.refresher is not None:
            self.engine.open_refresher()
        self.engine.forget_capabilities()
        if self.engine.is_serving:
            self._run_late(self._start_late(mount))

    def _check_place(self, new: Mount) -> None:
        where, child, here = new.where, new.child, self.engine.info.name
        line = _line_of(self.engine)
        if child in line:
            raise SetupError(f"{where}: a server can't be mounted in itself, nor in a server that it holds")
        below = child.mounts.tools_below() if child is not None and child.mounts is not None else []
        for above in line:
            if any(each is above.tools for each in (new.sources["tools"], *below)):
                raise SetupError(f"{where}: its tools are those of {above.info.name!r} already, by Server(tools=)")
        if child is None:
            return
        if child.options.auth is not None and self.engine.options.auth is None:
            fix = f"give {here!r} auth=, or leave it out there"
            raise SetupError(f"{where}: its auth= does not come along, since its parent meets the callers; {fix}")
        if child.parent is not None:
            fix = "make another Server for the second place, or unmount it there first"
            raise SetupError(f"{where} in {here!r}: it is in {child.parent.info.name!r} already; {fix}")
        if any(each.child is not None and each.path == new.path for each in self._mounts):  # their states are the same
            fix = "mount it with another namespace=, or give it another name"
            raise SetupError(f"{where}: there is a server {new.name!r} in this namespace already; {fix}")

    def unmount(self, which: Any) -> bool:
        """Unmount a server, a registry, or all of a namespace; True if there was one."""
        with self.lock:
            found = [each for each in self._mounts if each.given is which or each.namespace == which != ""]
            for mount in found:
                self._mounts.remove(mount)
                mount.remove_all()
                if mount.child is None:
                    mount.sources["tools"].off_change(mount.sync)
                else:
                    mount.child.mount = None
                self._run_late(self._stop_late(mount))
        self.engine.forget_capabilities()
        return bool(found)

    # ── running ──

    async def start(self) -> None:
        """Enter the lifespans of all children; raises what one of them raises."""
        self._background = set()
        try:
            for mount in self._mounts:  # which may grow: a lifespan may mount others
                await mount.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        if self._background:
            await asyncio.wait([asyncio.wrap_future(each) for each in tuple(self._background)])
        async with AsyncExitStack() as stack:  # the last one first, and all of them
            for mount in self._mounts:
                stack.push_async_callback(mount.stop)

    def _run_late(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in the background, from any thread, if the server has been started."""
        loop = self.engine.loop
        if loop is None or loop.is_closed():
            return work.close()
        task = asyncio.run_coroutine_threadsafe(work, loop)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return None

    async def _start_late(self, mount: Mount) -> None:
        try:
            await mount.start()
        except Exception:
            log.exception("%s: its lifespan failed, so it is unmounted", mount.where)
            self.unmount(mount.given)
        self.watch_again()

    async def _stop_late(self, mount: Mount) -> None:
        for uri in [uri for uri, (place, _) in self._watched.items() if place is mount]:
            self.watch(uri, False)
        try:
            await mount.stop()
        except Exception:
            log.exception("%s: its lifespan failed at its end", mount.where)

    # ── lists and subscriptions ──

    async def before_list(self, context: RequestContext) -> None:
        """Have all children bring their catalogs up to date, at once."""
        children = [mount for mount in self._mounts if mount.child is not None]
        work = [(mount, refresh(context)) for mount in children for refresh in mount.child.before_list]
        if context.request.method == "resources/list":
            work += [(mount, mount.child.resources.refresh_files()) for mount in children]
        outcomes = await asyncio.gather(*(each for _, each in work), return_exceptions=True)
        for mount in tuple(self._mounts):
            mount.sync()
        wanted = getattr(context.request.params, "name", "")
        for mount in [above.mount for above in reversed(_line_of(self.engine)) if above.mount is not None]:
            wanted = wanted.removeprefix(f"{mount.namespace}_")  # as it is called here
        is_found = (self.engine.prompts if context.request.method == "prompts/get" else self.engine.tools).get(wanted)
        for (mount, _), outcome in zip(work, outcomes, strict=True):
            if isinstance(outcome, ToolError) and is_found is None and wanted.startswith(mount.namespace):
                raise outcome  # a backend that can't be reached may have what is called
            if isinstance(outcome, Exception) and not isinstance(outcome, ToolError):
                log.error("the lists of %r could not be brought up to date", mount.name, exc_info=outcome)

    def forget(self, change: Change, *, from_other_worker: bool) -> None:
        """Drop cached contents of the children, which may be those of this change."""
        for mount in [each for each in self._mounts if each.child is not None]:
            if (own := naming.own_uri(change.uri, mount.namespace)) is not None:
                mount.child.forget_contents(replace(change, uri=own), from_other_worker=from_other_worker)

    def watch(self, uri: str, wanted: bool) -> bool:
        """Pass a subscription down, or its end; False if the URI is none of a child."""
        if not wanted:
            mount, own = self._watched.pop(uri, (None, ""))
            if mount is not None:
                mount.child.hub.release_uri(own)
            return mount is not None
        if (source := self.resource(uri, EVERYTHING)) is not None and source.mounted is not None:
            mount = source.mounted.mount
            self._watched[uri] = mount, mount.own_uri(source, uri)
            mount.child.hub.retain_uri(self._watched[uri][1])
        return uri in self._watched

    def watch_again(self) -> None:
        """Pass subscriptions down whose resources have come since; only on the loop."""
        if asyncio._get_running_loop() is self.engine.loop is not None:
            for uri in self.engine.hub.uris():
                if uri not in self._watched:
                    self.watch(uri, True)

    def resource(self, uri: str, rules: Rules) -> Resource | Template | None:
        """The mounted resource of a URI; None if there is none, or it is the server's own."""
        source = self.engine.resources.get(uri, rules)
        return None if source is None or source.mounted is None else source


def _line_of(engine: "Engine | None") -> "list[Engine]":
    """The engine and all above it."""
    return [] if engine is None else [engine, *_line_of(engine.parent)]


# ── calls ──


def route_of(item: Any) -> Mounted | None:
    route = item.route if isinstance(item, Tool) else item.mounted
    return route if isinstance(route, Mounted) else None


async def forward(mounted: Mounted, context: RequestContext, /, **changes: Any) -> Result:
    """The child's result for the request, with these params of its own."""
    outer, mount = context.request, mounted.mount
    handler = mount.child.chain or partial(HANDLERS[outer.method], mount.child)
    context.original_params = context.original_params or outer.params
    context.request = replace(outer, params=replace(outer.params, **changes))
    try:
        result: Result = await mount.run(context, partial(handler, context))
        return result
    finally:
        context.request = outer


async def call_mounted(engine: "Engine", context: RequestContext, tool: Tool) -> Result:
    assert isinstance(tool.route, Mounted)
    changes: dict[str, Any] = {"name": tool.route.own}
    if tool.rewriter is not None:
        try:
            changes["arguments"] = tool.rewriter.rewrite(context.request.params.arguments)
        except ArgumentError as failure:
            return failure_result(engine, context, tool, failure)
    return await forward(tool.route, context, **changes)


async def complete_mounted(mounted: Mounted, target: Any, context: RequestContext) -> Result:
    params = context.request.params
    if params.ref.type == "ref/resource":
        own = mounted.own if params.ref.uri == target.uri else mounted.mount.own_uri(target, params.ref.uri)
        return await forward(mounted, context, ref=replace(params.ref, uri=own))
    changes: dict[str, Any] = {"ref": replace(params.ref, name=mounted.own)}
    if isinstance(target, Tool) and target.rewriter is not None:
        names = target.rewriter.own_names
        if params.argument.name not in names:
            return CompleteResult(Completion([]))
        others = {names[each]: value for each, value in params.context.arguments.items() if each in names}
        changes["argument"] = replace(params.argument, name=names[params.argument.name])
        changes["context"] = replace(params.context, arguments=others)
    return await forward(mounted, context, **changes)


async def read_mounted(
    engine: "Engine", context: RequestContext, source: Resource | Template, uri: str, *, is_request: bool
) -> Any:
    """Read for `resources/read`, with the child's middleware, or for `ctx.read_resource`."""
    if source.access is not None and not await lazy.access.may_use(engine, context, source.access):
        raise NotFound(uri=uri)
    assert source.mounted is not None
    mount, asked = source.mounted.mount, uri if uri.isascii() else normalize_escapes(uri)
    own, usual = mount.own_uri(source, uri), normalize_uri(uri)
    read = partial(mount.child.read, own, context)
    try:
        result = await (forward(source.mounted, context, uri=own) if is_request else mount.run(context, read))
    except NotFound as failure:
        raise NotFound(failure.message, uri=uri) from None
    if not isinstance(result, ReadResourceResult):
        return result
    items = [replace(item, uri=asked) if normalize_uri(item.uri) == usual else item for item in result.items]
    return replace(result, items=items)
