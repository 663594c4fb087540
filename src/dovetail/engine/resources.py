"""Resources of a server, also files and folders: lookup, reading, listing and watching."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from dovetail import engine as lazy
from dovetail import registry
from dovetail.engine.subscriptions import Change
from dovetail.engine.threads import ThreadPool
from dovetail.errors import ArgumentError, Busy, NotFound
from dovetail.protocol.results import CacheHint, ReadResourceResult
from dovetail.protocol.session import EVERYTHING, Rules
from dovetail.protocol.types import MAX_URI_LENGTH, ResourceDefinition
from dovetail.registry.catalog import Catalog
from dovetail.registry.functions import Invocation

if TYPE_CHECKING:
    from pathlib import Path

    from dovetail.engine.file_watcher import Watcher
    from dovetail.registry.files import FileEntry
    from dovetail.registry.registration import AccessRule
    from dovetail.registry.resources import FileGuard, Resource, Template

log = logging.getLogger("dovetail")
FOLDER = "folder "  # before the template of a folder that is watched: no URI begins so

Call = Callable[[Invocation, dict[str, Any], str, Callable[[Any], Any]], Awaitable[Any]]
MayRead = Callable[["AccessRule"], Awaitable[bool]]


class CachedContents(msgspec.Struct, frozen=True):
    """The contents of a resource, until when they are good, and who may read them."""

    contents: ReadResourceResult
    until: float
    access: "AccessRule | None"


class Resources:
    """All resources. `on_update` is called when a watched file changed, `on_list` when files were added or removed.

    A listing of files is good for `listed` seconds. `max_cached_size` is in characters and bytes together.
    `watch_options` are those of the `Watcher`.
    """

    def __init__(
        self, threads: ThreadPool, hint: CacheHint, on_update: Callable[[Change], None], on_list: Callable[[], None],
        *, listed: float = 1.0, max_cached: int = 1_000, max_cached_size: int = 100_000_000,
    ) -> None:  # fmt: skip
        self.direct: Catalog[Resource] = Catalog("resource")  # those with one URI, also the files of folders
        self.templates: Catalog[Template] = Catalog("resource template")
        self.fallback: Template | None = None  # takes every URI that nothing else matches
        self._threads = threads
        self._hint = hint
        self._on_update = on_update
        self._on_list = on_list
        self._max_cached = max_cached
        self._max_cached_size = max_cached_size
        self.watch_options: dict[str, Any] = {}
        self.reloads: dict[str, tuple[Path, Callable[[], Awaitable[None]]]] = {}  # of more folders, by a name of each
        self._watcher: Watcher | None = None
        self._watched_folders: dict[str, Path] = {}  # their roots by their templates
        self._is_watching = False  # folders
        self._cached: dict[str, CachedContents] = {}
        self._cached_size = 0  # of all contents that were cached since the cache was last cleared
        self._changes = 0  # that made contents stale
        self._listed_seconds = listed
        self._files_listed = -listed  # when the last listing of all files began, and how long it took
        self._listing_took = 0.0
        self._stale_since = self._files_listed
        self._listing = asyncio.Lock()  # requests wait for a listing that runs, and see what it found
        self._adding = threading.RLock()  # so that two threads can't register what overlaps
        self._in_order: tuple[object, list[Template]] = (None, [])  # a snapshot of the templates, and its order
        self._file_guards: dict[str, tuple[object, object, FileGuard]] = {}  # by folder, with the snapshots they guard
        for catalog in (self.direct, self.templates):
            catalog.on_change(self._clear_cache)  # another function may answer for a URI from now on

    def add(self, source: "Resource | Template", *, where: str = "") -> None:
        """Add a resource. Raises SetupError if its URI is taken, or if it overlaps one with another access rule."""
        with self._adding:
            self.check_overlaps(source, where)
            if isinstance(source, registry.resources.Template):
                self.templates.add(source.uri, source, where=where)
            else:
                self.direct.add(registry.resources.normalize_uri(source.uri), source, where=where)
        if source.access is not None:
            self.mark_files_stale()  # a folder may list less now

    def check_overlaps(self, source: "Resource | Template", where: str, mount: object = None) -> None:
        """Raises SetupError for a resource with another access rule that overlaps, unless both are of one mount."""
        others: list[Resource | Template] = []
        direct, templates = self.direct.registered.items, self.templates.registered.items
        if isinstance(source, registry.resources.Template):
            if source.access is not None or self._has_rules():
                others = [*(each for each in direct if each.folder is None), *templates]
        elif source.access is not None:
            others = [*templates]
        if mount is not None:
            others = [each for each in others if each.mounted is None or each.mounted.mount is not mount]
        registry.resources.check_overlaps(source, others, where)

    def _find(self, uri: str, rules: Rules) -> "tuple[Resource | Template, dict[str, Any]]":
        """The resource of a URI, a direct one before templates, and the values of the URI. Raises NotFound."""
        if len(uri) > MAX_URI_LENGTH:  # without an echo of it
            raise NotFound(f"Resource not found: its URI is longer than {MAX_URI_LENGTH:,} characters")
        resource, text = self.direct.find(uri, rules), uri  # its names are normalized
        if resource is None:
            text = registry.resources.normalize_uri(uri)
            resource = self.direct.find(text, rules)
        if resource is not None and resource.folder is None:
            return resource, {}
        problem: ArgumentError | None = None
        for template in self._ordered(rules):
            texts = template.match(text)
            if texts is None:
                continue
            if template.whole_uri:
                return template, {"uri": uri}
            try:
                return template, template.decode(texts)
            except ArgumentError as failure:  # it has the template's shape, but names nothing there
                if template.access is None:  # else not every caller may know that there is such a template
                    problem = problem or failure
        if self.fallback is not None and problem is None and not self._is_disabled(text):
            return self.fallback, {"uri": uri}
        raise NotFound("Resource not found" if problem is None else f"Resource not found. {problem}", uri=uri)

    def _is_disabled(self, uri: str) -> bool:
        """Whether a resource that is disabled has this URI, which is normalized."""
        templates = self.templates.registered.items
        return self.direct.find(uri) is not None or any(each.match(uri) is not None for each in templates)

    def _ordered(self, rules: Rules) -> "list[Template]":
        """Templates in the order of lookup: guarded before open ones, then by literal characters, then by age."""
        known, templates = self._in_order
        if known is not (snapshot := self.templates.snapshot_for(rules)):
            templates = sorted(snapshot.items, key=lambda each: (each.access is None, -each.template.literal_length))
            self._in_order = snapshot, templates
        return templates

    def _has_rules(self) -> bool:
        """Whether anything has an access rule. What is disabled counts: a folder must not offer it instead."""
        return self.direct.registered.rules is not None or self.templates.registered.rules is not None

    def get(self, uri: str, rules: Rules = ()) -> "Resource | Template | None":
        try:
            return self._find(uri, rules)[0]
        except NotFound:
            return None

    def access_to(self, uri: str, rules: Rules = ()) -> "AccessRule | None":
        """The access rule of a URI; None if every caller may read it. Raises NotFound."""
        return self._find(uri, rules)[0].access

    def remove(self, uri: str) -> bool:
        """Remove a resource, or a template and, if it is a folder, the files it listed."""
        if not self.templates.remove(uri):
            return self.direct.remove(registry.resources.normalize_uri(uri))
        self._file_guards.pop(uri, None)
        self.swap([resource.uri for resource in self.files_in(uri)], {})
        return True

    async def read(self, uri: str, call: Call, may_read: MayRead, rules: Rules = ()) -> ReadResourceResult:
        """The contents behind a URI; `call` runs the function, `may_read` is called if there is an access rule."""
        cached = None if rules else self._cached.get(uri)
        if cached is not None and cached.until > time.monotonic():
            if cached.access is not None and not await may_read(cached.access):
                raise NotFound(uri=uri)
            return cached.contents
        changes = self._changes
        source, values = self._find(uri, rules)
        if isinstance(source, registry.resources.Template) and (name := source.escaping_variable(values)) is not None:
            log.info("%s: a value of %s leads out of a folder: not found; unsafe=[%r] takes it", source.uri, name, name)
            raise NotFound(uri=uri)
        if source.access is not None and not await may_read(source.access):
            raise NotFound(uri=uri)
        try:
            to_result = partial(registry.resources.to_contents, uri=uri, mime_type=source.mime_type)
            items = await call(source.invocation, values, f"resource {source.uri}", to_result)
        except NotFound as failure:
            raise NotFound(failure.message, uri=uri) from None
        hint = source.hint or self._hint
        if source.access is not None:
            hint = msgspec.structs.replace(hint, scope="private")
        contents = ReadResourceResult(items, hint)
        is_new = changes == self._changes and not rules  # else it may be out of date already, or not be for all
        if source.cache is not None and is_new and uri == registry.resources.normalize_uri(uri):
            self._cache(uri, CachedContents(contents, time.monotonic() + source.cache, source.access))
        return contents

    def _cache(self, uri: str, cached: CachedContents) -> None:
        size = sum(len(item.text or item.blob or "") for item in cached.contents.items)
        self._cached_size += size
        if len(self._cached) >= self._max_cached or self._cached_size > self._max_cached_size:
            self._cached.clear()
            self._cached_size = size
        self._cached[uri] = cached

    def forget(self, uri: str) -> None:
        """Drop the cached contents of a resource that has changed."""
        self._changes += 1
        self._cached.pop(registry.resources.normalize_uri(uri), None)

    def _clear_cache(self) -> None:
        self._changes += 1
        self._cached.clear()
        self._cached_size = 0

    # ── files ──

    def add_folder(self, folder: "Template") -> None:
        """Add a folder, with the files that it has now."""
        assert folder.directory is not None
        folder.directory.guard = partial(self._guard_of, folder)
        self.add(folder)
        self.mark_files_stale()
        others = self.folders() if folder.access is not None else []  # they may have listed files that are guarded now
        for each in [*(other for other in others if other is not folder), folder]:
            self._sync(each, self._entries_of(each))

    def folders(self) -> "list[Template]":
        return [template for template in self.templates.registered.items if template.directory is not None]

    def files_in(self, folder: str) -> "list[Resource]":
        return [resource for resource in self.direct.registered.items if resource.folder == folder]

    def _guard_of(self, folder: "Template") -> "FileGuard | None":
        """The access rule of a folder's files; None if every caller may read all. May be called from any thread."""
        if not self._has_rules():
            return None
        snapshots = self.direct.registered, self.templates.registered
        known = self._file_guards.get(folder.uri)
        if known is None or known[:2] != snapshots:
            guard = registry.resources.FileGuard.for_folder(folder, snapshots[0].items, snapshots[1].items)
            self._file_guards[folder.uri] = known = (*snapshots, guard)
        return known[2]

    async def paths_in(self, template: str) -> list[str]:
        """The paths of the files that a folder has now; none if the URI is not the template of a folder."""
        if any(folder.uri == template for folder in self.folders()):
            await self.refresh_files()
        return [file.definition.name for file in self.files_in(template)]

    def mark_files_stale(self) -> None:
        """Have the next request for a list read the folders again: a folder is new, or another worker found files."""
        self._stale_since = time.monotonic()

    async def refresh_files(self, timeout: float = 1.0) -> None:
        """List the files again, at most once a second. Requests wait `timeout` seconds for a listing that runs."""
        since = max(self._stale_since, time.monotonic() - self._listed_seconds)
        if self._files_listed > since:
            return
        try:
            async with asyncio.timeout(timeout) as waiting, self._listing:
                waiting.reschedule(None)
                if self._files_listed <= since:
                    await self._list_files()
        except TimeoutError:
            if not waiting.expired():  # but the disk has given up
                raise

    async def _list_files(self) -> None:
        began = time.monotonic()
        self._watch_folders()  # first, so that no change from now on is missed
        for resource in self.direct.registered.items:
            if (describe := resource.describe) is not None:
                self._update(resource, await self._threads.run(describe, label=f"file {resource.uri}"))
        for folder in self.folders():
            entries = await self._threads.run(partial(self._entries_of, folder), label=f"directory {folder.uri}")
            if self.templates.find(folder.uri) is folder:  # it may have been removed meanwhile
                self._sync(folder, entries)
        self._files_listed, self._listing_took = began, time.monotonic() - began

    def _update(self, resource: "Resource", definition: ResourceDefinition) -> None:
        key = registry.resources.normalize_uri(resource.uri)
        if definition != resource.definition and self.direct.find(key) is resource:
            self.direct.replace(key, msgspec.structs.replace(resource, definition=definition))

    def _entries_of(self, folder: "Template") -> "list[FileEntry]":
        """The files whose URIs belong to this folder and to no other template. From any thread: there may be many."""
        assert folder.directory is not None
        entries = folder.directory.entries()
        if len(self.templates.registered.items) == 1:
            return entries
        return [entry for entry in entries if self.get(entry.uri, EVERYTHING) is folder]

    def _sync(self, folder: "Template", entries: "Sequence[FileEntry]") -> None:
        found = {entry.uri: entry for entry in entries}
        known = {resource.uri: resource for resource in self.files_in(folder.uri)}
        for uri in known.keys() & found.keys():
            self._update(known[uri], registry.resources.entry_definition(folder, found[uri]))
        compile_entry = partial(registry.resources.compile_entry, folder)
        new = {uri: compile_entry(entry) for uri, entry in found.items() if self.direct.find(uri) is None}
        self.swap(sorted(known.keys() - found.keys()), new)

    def swap(self, gone: "Sequence[str]", new: "Mapping[str, Resource]") -> None:
        if self.direct.swap(gone, new):
            self._clear_cache()
            self._on_list()

    # ── watching ──

    def watch(self, uri: str, wanted: bool) -> None:
        """Watch the file of a URI, from the first subscription to the last."""
        if not wanted:
            if self._watcher is not None:  # without a look at the path: the file may be deleted
                self._watcher.unwatch(uri)
        elif (path := self._path(uri)) is not None:
            self._open_watcher().watch(uri, path)

    def _open_watcher(self) -> "Watcher":
        if self._watcher is None:
            run = self._run_in_thread
            self._watcher = lazy.file_watcher.Watcher(self._changed, run=run, **self.watch_options)
        return self._watcher

    async def _run_in_thread(self, work: Callable[[], Any]) -> Any:
        """Run `work` in a thread, shielded: it ends soon after its watcher is closed, so it is never abandoned."""
        return await asyncio.shield(self._threads.run(work, label="file watching"))

    def begin(self, *, watching: bool) -> None:
        """Start watching folders until `close`; the loop may differ from that of an earlier start."""
        self._listing, self._is_watching = asyncio.Lock(), watching
        self._watcher, self._watched_folders = None, {}
        self._watch_folders()

    def _watch_folders(self) -> None:
        folders = self.folders() if self._is_watching else []
        roots = {folder.uri: folder.directory.root for folder in folders if folder.directory is not None}
        roots |= {name: root for name, (root, _) in self.reloads.items() if self._is_watching}
        watched, self._watched_folders = self._watched_folders, roots
        for uri, _ in watched.items() - roots.items():
            self._open_watcher().unwatch(FOLDER + uri)
        for uri, root in roots.items() - watched.items():
            is_new = uri in self.reloads  # it may have changed since it was read
            self._open_watcher().watch(FOLDER + uri, root, is_new=is_new)

    def _changed(self, uri: str) -> Awaitable[None] | None:
        if not uri.startswith(FOLDER):
            return self._on_update(Change("updated", uri))
        found = self.reloads.get(uri.removeprefix(FOLDER))
        return self._list_again() if found is None else found[1]()

    async def _list_again(self) -> None:
        """List all files, at most once a second and for a tenth of the time, unless a listing began meanwhile."""
        asked, last = time.monotonic(), self._files_listed
        while self._files_listed <= asked:
            await asyncio.sleep(last + max(self._listed_seconds, 10 * self._listing_took) - time.monotonic())
            last = time.monotonic()
            with suppress(Busy):  # no thread is free: once more
                await self.refresh_files()

    def _path(self, uri: str) -> "Path | None":
        source = self.get(uri, EVERYTHING)
        if isinstance(source, registry.resources.Template):
            return source.path_of(registry.resources.normalize_uri(uri))
        return None if source is None else source.path

    async def close(self) -> None:
        watcher, self._watcher, self._is_watching = self._watcher, None, False
        if watcher is not None:
            await watcher.close()
