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
from dovetail.engine.subscriptions import Change
from dovetail.errors import ArgumentError, NotFound, SetupError, ToolError
from dovetail.protocol.results import CompleteResult, PromptResult, ReadResourceResult, Result, ToolResult
from dovetail.protocol.session import EVERYTHING, Rules, VisibilityRule
from dovetail.protocol.uri_template import normalize_uri
from dovetail.registry import mounts as naming
from dovetail.registry.catalog import BACKEND_BLOCK, Catalog
from dovetail.registry.mounts import Mounted
from dovetail.registry.prompts import complete_choice
from dovetail.registry.resources import Resource, Template
from dovetail.registry.tools import Tool
from dovetail.registry.visibility import Names, fits, texts

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

log = logging.getLogger("dovetail")


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
        self.prefix = f"{namespace}_" if namespace else ""  # of names at the parent
        self.sources = {"tools": tools} if child is None else _catalogs(child)
        self.is_active = True  # its items are at the parent
        self._loop: asyncio.AbstractEventLoop | None = None  # on which it has entered the lifespan of the child
        self._mounts, self._targets = mounts, _catalogs(mounts.engine)
        self._entries: dict[str, dict[str, Entry]] = {kind: {} for kind in self.sources}  # by keys of the child
        self._versions: dict[str, int] = {}
        self._block = mounts.next_block  # of its items in the parent's lists

    @property
    def path(self) -> str:
        """The place of the child, in keys of the store."""
        return f"{self.parent.path}{self.namespace}({self.name})/"

    @property
    def whole_prefix(self) -> str:
        """Of names at the outermost parent."""
        above = self.parent.mount
        return self.prefix if above is None else above.whole_prefix + self.prefix

    # ── catalogs ──

    def tool_catalogs(self) -> list[Catalog[Tool]]:
        """Those of the child and of all below it."""
        below = None if self.child is None else self.child.mounts
        inner = [] if below is None else [tools for mount in below.all() for tools in mount.tool_catalogs()]
        return [self.sources["tools"], *inner]

    def sync(self, *, strict: bool = False) -> None:
        """Bring the parent's catalogs up to date.

        If `strict`, a name that is taken and the like raises SetupError, and nothing has changed; else it is logged.
        """
        with self._mounts.lock:
            stale = [kind for kind, source in self.sources.items() if self._versions.get(kind) != source.version]
            wanted = {kind: self._wanted(kind, strict=strict) for kind in stale if self.is_active}
            for kind, entries in wanted.items():
                self._put(kind, entries)

    def remove_all(self) -> None:
        self.is_active = False
        for kind in self.sources:
            self._put(kind, {})

    def _wanted(self, kind: str, *, strict: bool) -> dict[str, Entry]:
        source = self.sources[kind]
        self._versions[kind] = source.version
        wanted = {own: entry for own, entry in self._entries[kind].items() if source.get(own) is entry.source}
        taken = {entry.key for entry in wanted.values()}
        names = source.names()
        for own in names:
            item = source.get(own)
            if own in wanted or item is None or not fits(self.choice, item):
                continue
            try:
                wanted[own] = entry = self._entry(kind, item, taken)
                taken.add(entry.key)
            except SetupError as problem:
                if strict:
                    raise
                log.warning("%s; it is left out", problem)
        return {own: wanted[own] for own in names if own in wanted}

    def _put(self, kind: str, entries: dict[str, Entry]) -> None:
        known, self._entries[kind] = self._entries[kind], entries
        old, new = ({each.key: each.copy for each in some.values()} for some in (known, entries))
        self._targets[kind].exchange(old, new, self._block)

    def move(self, block: int) -> None:
        """List the items in another block, and those too whose names are free now."""
        self._block = block
        for kind in self.sources:
            self._put(kind, self._wanted(kind, strict=False))

    def _entry(self, kind: str, item: Any, taken: set[str]) -> Entry:
        """The copy of an item; raises SetupError if its name is taken or not possible, or if access rules overlap."""
        copy = naming.copy_item(self, item)
        key = copy.name if kind in ("tools", "prompts") else normalize_uri(copy.uri) if kind == "direct" else copy.uri
        elder = self._targets[kind].find(key)
        route = None if elder is None else route_of(elder)
        is_taken = key in taken or key in self._targets[kind].reserved
        if is_taken or (elder is not None and (route is None or route.mount is not self)):
            owner = self.name if key in taken else self.parent.info.name if route is None else route.mount.name
            one = f"the {self.sources[kind].noun} {item.definition.name!r} of {self.name!r}"
            fix = "mount it with another namespace=, or choose with only="
            raise SetupError(f"{self.where}: {one} would be {key!r} here, as one of {owner!r} is; {fix}")
        if isinstance(copy, Resource | Template):
            self.parent.resources.check_overlaps(copy, self.where, self)
        return Entry(item, key, copy)

    # ── URIs ──

    def parent_uri(self, uri: str, *, is_own: bool = False) -> str:
        """The parent's URI for one of the child's; others stay as they are. If `is_own`, it may be unknown yet."""
        source = None if self.child is None else self.child.resources.get(uri)
        if source is not None and source is self.child.resources.fallback:
            source = None  # a proxy reads what it does not list, too
        is_renamed = is_own if source is None else naming.rename_uri(source.uri, self.namespace) != source.uri
        return naming.rename_uri(uri, self.namespace) if is_renamed else uri

    def own_uri(self, source: Resource | Template, uri: str) -> str:
        """The child's URI for one of the parent's that leads to this source."""
        assert source.mounted is not None
        if isinstance(source, Resource):
            return source.mounted.own
        own = naming.own_uri(uri, self.namespace) if source.mounted.own != source.uri else None
        return own or uri

    def renamed(self, result: Any) -> Any:
        """The result of the child, with the parent's URIs."""
        if not self.namespace:
            return result
        rename = partial(naming.rename_content, rename=self.parent_uri)
        if isinstance(result, ToolResult) and (result.content or result.meta):
            meta = naming.rename_meta(result.meta, self.parent_uri)
            return replace(result, content=tuple(map(rename, result.content)), meta=meta)
        if isinstance(result, PromptResult):
            return replace(result, messages=[replace(each, content=rename(each.content)) for each in result.messages])
        if isinstance(result, ReadResourceResult):
            return replace(result, items=[*map(rename, result.items)])
        return result

    # ── changes of the child ──

    def relay(self, change: Change) -> None:
        """Publish a change of the child, as one of the parent."""
        if change.uri:
            self.parent.publish(replace(change, uri=self.parent_uri(change.uri, is_own=True)))
        else:
            self.sync()  # the parent publishes what changes there

    async def refresh(self, context: RequestContext) -> ToolError | None:
        """Have the child bring its lists up to date; returns why its backend can't be reached."""
        try:
            if self.child is not None:
                await self.child.fetch_catalogs(context)
                if context.request.method == "resources/list":
                    await self.child.resources.refresh_files()
        except ToolError as failure:
            return failure
        except Exception:
            log.exception("the lists of %r could not be brought up to date", self.name)
        finally:
            self.sync()
        return None

    # ── the lifespan of the child ──

    @property
    def waits(self) -> bool:
        """Whether the lifespan of the child has to be entered."""
        return self.child is not None and self._loop is not asyncio.get_running_loop()

    async def start(self) -> None:
        if self.waits:
            await self.child.start(self.given)
            self._loop = asyncio.get_running_loop()
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
            if (telemetry := context.served.telemetry) is not None:
                work = partial(telemetry.mounted, self.child.info.name, context.request, work)
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

    @property
    def next_block(self) -> int:
        return BACKEND_BLOCK + 1 + len(self._mounts)

    def all(self) -> list[Mount]:
        return self._mounts.copy()

    def engines(self) -> "list[Engine]":
        return [mount.child for mount in self._mounts if mount.child is not None]

    def status(self, path: str = "") -> list[MountStatus]:
        """All mounts, each followed by those of the mounted server; `path` is the namespace of this one."""
        found: list[MountStatus] = []
        for mount in tuple(self._mounts):
            child, namespace = mount.child, "_".join(filter(None, (path, mount.namespace)))
            backend = None if child is None else child.backend_status
            kind = "registry" if child is None else "server" if backend is None else "proxy"
            found.append(MountStatus(mount.name, namespace, kind, None if backend is None else backend()))
            found += [] if child is None or child.mounts is None else child.mounts.status(namespace)
        return found

    def mount(
        self, given: Any, child: "Engine | None", tools: Catalog[Tool], namespace: str | None, *,
        only: Names, tags: Names, transforms: Any,
    ) -> None:  # fmt: skip
        """Mount a server or a registry; raises SetupError, and then nothing has changed."""
        where = f"server.mount({'ToolRegistry' if child is None else child.info.name!r})"
        known = tools.names() if child is None or not child.awaits_lists else None
        transforms = naming.checked_transforms(transforms, known, where)
        namespace = naming.checked_namespace(namespace, where)
        choice = VisibilityRule(True, texts(tags, f"{where}: tags"), texts(only, f"{where}: only"))
        with self.lock:
            mount = Mount(self, given, child, tools, namespace, choice, transforms, where)
            self._check_place(mount)
            mount.sync(strict=True)
            self._mounts.append(mount)
            if child is None:
                tools.on_change(mount.sync)
            else:
                child.mount = mount
                if self.engine.metrics is not None:
                    lazy.metrics.watch(self.engine)
        if child is not None and child.refresher is not None:
            self.engine.open_refresher()
        self.engine.forget_capabilities()
        if self.engine.is_serving:
            self._run_late(self._enter(mount))

    def _check_place(self, new: Mount) -> None:
        where, child, here = new.where, new.child, self.engine.info.name
        if child is self.engine.root:
            raise SetupError(f"{where}: a server can't be mounted in itself, nor in a server that it holds")
        above: Engine | None = self.engine
        while above is not None:  # a registry below itself would hold copies of its copies
            if any(tools is above.tools for tools in new.tool_catalogs()):
                raise SetupError(f"{where}: its tools are those of {above.info.name!r} already, by Server(tools=)")
            above = above.parent
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
                self._run_late(self._leave(mount))
            for block, mount in enumerate(self._mounts, BACKEND_BLOCK + 1):
                mount.move(block)
        self.engine.forget_capabilities()
        return bool(found)

    # ── running ──

    async def start(self) -> None:
        """Enter the lifespans of all children; raises what one of them raises."""
        self._background = set()
        try:
            # One after the other: a lifespan may mount others, and unmount any.
            while (mount := next((each for each in self._mounts if each.waits), None)) is not None:
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
        """Enter or leave a lifespan in the background, from any thread, if the server runs."""
        loop = self.engine.loop
        if loop is None or loop.is_closed():
            return work.close()
        task = asyncio.run_coroutine_threadsafe(_logged(work), loop)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return None

    async def _enter(self, mount: Mount) -> None:
        await mount.start()
        self._watch_again()

    async def _leave(self, mount: Mount) -> None:
        for uri in [uri for uri, (place, _) in self._watched.items() if place is mount]:
            self.watch(uri, False)
        self._watch_again()
        await mount.stop()

    def _watch_again(self) -> None:
        """Pass on what clients have subscribed before the mount that has it now was there."""
        for uri in [uri for uri in self.engine.hub.uris() if uri not in self._watched]:
            self.watch(uri, True)

    # ── lists and subscriptions ──

    async def before_list(self, context: RequestContext) -> None:
        """Have all children bring their lists up to date, at once."""
        mounts = tuple(self._mounts)
        problems = await asyncio.gather(*(mount.refresh(context) for mount in mounts))
        wanted = getattr(context.request.params, "name", "")
        if self.engine.mount is not None:
            wanted = wanted.removeprefix(self.engine.mount.whole_prefix)  # as it is called here
        catalog: Catalog[Any] = self.engine.prompts if context.request.method == "prompts/get" else self.engine.tools
        is_known = catalog.get(wanted) is not None or wanted in catalog.reserved
        for mount, problem in zip(mounts, problems, strict=True) if not is_known else ():
            if problem is not None and wanted.startswith(mount.prefix):
                raise problem  # the backend may have what is called

    def forget(self, change: Change, *, from_other_worker: bool) -> None:
        """Drop cached contents of the children, which may be those of this change."""
        for mount in [each for each in self._mounts if each.child is not None]:
            if (own := naming.own_uri(change.uri, mount.namespace)) is not None:
                mount.child.forget_contents(replace(change, uri=own), from_other_worker=from_other_worker)

    def watch(self, uri: str, wanted: bool) -> bool:
        """Pass a subscription down, or its end; False if the URI is none of a child."""
        mount, own = self._place_of(uri) if wanted else self._watched.pop(uri, (None, ""))
        if mount is None:
            return False
        if wanted:
            self._watched[uri] = mount, own
        (mount.child.hub.retain_uri if wanted else mount.child.hub.release_uri)(own)
        return True

    def _place_of(self, uri: str) -> tuple[Mount | None, str]:
        """Where a URI is watched, and its URI there. A backend's lists may not be known yet, but its namespace is."""
        source = self.engine.resources.get(uri, EVERYTHING)
        if source is not None:
            mount = None if source.mounted is None else source.mounted.mount
            return mount, "" if mount is None else mount.own_uri(source, uri)
        places = [(each, naming.own_uri(uri, each.namespace)) for each in self._mounts if each.child is not None]
        return next(((mount, own) for mount, own in places if own is not None and own != uri), (None, ""))

    def resource(self, uri: str, rules: Rules) -> Resource | Template | None:
        """The mounted resource of a URI; None if there is none, or it is the server's own."""
        source = self.engine.resources.get(uri, rules)
        return None if source is None or source.mounted is None else source


async def _logged(work: Awaitable[None]) -> None:
    try:
        await work
    except Exception:
        log.exception("the lifespan of a mounted server failed")


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
        answer: Awaitable[Result] = mount.run(context, partial(handler, context))
        if (metrics := mount.child.metrics) is not None:
            answer = lazy.metrics.forwarded(metrics, mount, outer, answer)
        return await answer
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
    if isinstance(target, Tool) and target.rewriter is not None:  # the child does not know the argument by this name
        choices = target.choices.get(params.argument.name, ())
        return CompleteResult(complete_choice(choices, params.argument.value))
    return await forward(mounted, context, ref=replace(params.ref, name=mounted.own))


async def read_mounted(
    engine: "Engine", context: RequestContext, source: Resource | Template, uri: str, *, is_request: bool
) -> Any:
    """Read for `resources/read`, with the child's middleware, or for `ctx.read_resource`."""
    if source.access is not None and not await lazy.access.may_use(engine, context, source.access):
        raise NotFound(uri=uri)
    assert source.mounted is not None
    mount = source.mounted.mount
    own = mount.own_uri(source, uri)
    try:
        if is_request:
            return await forward(source.mounted, context, uri=own)
        return await mount.run(context, partial(mount.child.read, own, context))
    except NotFound as failure:
        raise NotFound(failure.message, uri=uri) from None
