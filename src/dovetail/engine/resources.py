"""The resources of a server: exact URIs, templates, files and folders are found, read, listed and watched."""

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
from dovetail.engine.threads import ThreadPool
from dovetail.errors import ArgumentError, Busy, NotFound
from dovetail.protocol.results import CacheHint, ReadResourceResult
from dovetail.protocol.types import LONGEST_URI, ResourceDefinition
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
    """The contents of a resource, for as long as they are good and for whom they are meant."""

    contents: ReadResourceResult
    until: float
    access: "AccessRule | None"


class Resources:
    """Finds, reads, lists, watches. `on_update` hears of a watched file that changed, `on_list` of a changed folder.

    A listing of files is good for `listed` seconds. `max_cached` contents of resources that asked for it are kept, of
    `max_cached_size` characters and bytes together.
    """

    def __init__(
        self, threads: ThreadPool, hint: CacheHint, on_update: Callable[[str], None], on_list: Callable[[], None],
        *, listed: float = 1.0, max_cached: int = 1_000, max_cached_size: int = 100_000_000,
    ) -> None:  # fmt: skip
        self.resources: Catalog[Resource] = Catalog("resource")
        self.templates: Catalog[Template] = Catalog("resource template")
        self._threads = threads
        self._hint = hint
        self._on_update = on_update
        self._on_list = on_list
        self._max_cached = max_cached
        self._max_cached_size = max_cached_size
        self._watcher: Watcher | None = None
        self._watched_folders: dict[str, Path] = {}  # their roots by their templates
        self._is_watching = False  # folders
        self._cached: dict[str, CachedContents] = {}
        self._cached_size = 0  # of all that was put in since it was last emptied
        self._changes = 0  # counts what made something stale
        self._listed_seconds = listed
        self._files_listed = -listed  # when the last look at all of them began, and how long it took
        self._listing_took = 0.0
        self._stale_since = self._files_listed
        self._listing = asyncio.Lock()  # requests meanwhile wait, and see what was found
        self._adding = threading.RLock()  # what two threads register at once is compared too
        self._in_order: tuple[object, list[Template]] = (None, [])  # of which edition
        self._file_guards: dict[str, tuple[object, object, FileGuard]] = {}  # of which editions, for each folder
        for catalog in (self.resources, self.templates):
            catalog.on_change(self._forget_all)  # another function may answer for a URI from now on

    def add(self, source: "Resource | Template", *, where: str = "") -> None:
        """Offer one more. Raises SetupError if its URI is taken, or if it overlaps what has another rule."""
        with self._adding:
            if isinstance(source, registry.resources.Template):
                if source.access is not None or self._has_rules():
                    chosen = [each for each in self.resources.all() if each.folder is None]
                    registry.resources.check_overlaps(source, [*chosen, *self.templates.all()], where)
                self.templates.add(source.uri, source, where=where)
            else:
                if source.access is not None:
                    registry.resources.check_overlaps(source, self.templates.all(), where)
                self.resources.add(registry.resources.normalised(source.uri), source, where=where)
        if source.access is not None:
            self.look_again()  # a folder may list less now

    def _find(self, uri: str) -> "tuple[Resource | Template, dict[str, Any]]":
        """What a URI stands for, with its values: an exact one before templates. Raises NotFound."""
        if len(uri) > LONGEST_URI:  # without an echo of it
            raise NotFound(f"Resource not found: its URI is longer than {LONGEST_URI:,} characters")
        resource, text = self.resources.get(uri), uri  # its names are normalised
        if resource is None:
            text = registry.resources.normalised(uri)
            resource = self.resources.get(text)
        if resource is not None and resource.folder is None:
            return resource, {}
        return self._fitting(text, uri)

    def _fitting(self, text: str, uri: str) -> "tuple[Template, dict[str, Any]]":
        """Guarded templates before open ones, then the one with most literal characters, then the first."""
        misfit: ArgumentError | None = None
        for template in self._ordered():
            texts = template.match(text)
            if texts is None:
                continue
            try:
                return template, template.decode(texts)
            except ArgumentError as failure:  # it has the template's shape, but names nothing there
                if template.access is None:  # else not everybody may know that there is such a template
                    misfit = misfit or failure
        raise NotFound("Resource not found" if misfit is None else f"Resource not found. {misfit}", uri=uri)

    def _ordered(self) -> "list[Template]":
        edition, templates = self._in_order
        if edition is not self.templates.snapshot:
            edition = self.templates.snapshot
            templates = sorted(edition.items, key=lambda each: (each.access is None, -each.template.literal_length))
            self._in_order = edition, templates
        return templates

    def _has_rules(self) -> bool:
        return self.resources.snapshot.rules is not None or self.templates.snapshot.rules is not None

    def get(self, uri: str) -> "Resource | Template | None":
        """What a URI stands for."""
        try:
            return self._find(uri)[0]
        except NotFound:
            return None

    def access_to(self, uri: str) -> "AccessRule | None":
        """None if everybody may read it. Raises NotFound."""
        return self._find(uri)[0].access

    def remove(self, uri: str) -> bool:
        """Take away a resource, or a template and, if it is a folder, the files it listed."""
        if not self.templates.remove(uri):
            return self.resources.remove(registry.resources.normalised(uri))
        self._file_guards.pop(uri, None)
        self._swap([resource.uri for resource in self.files_in(uri)], {})
        return True

    # ── reading ──

    async def read(
        self, uri: str, call: Call, may_read: MayRead, is_for_all: Callable[[], bool] = lambda: True
    ) -> ReadResourceResult:
        """The contents behind a URI; `call` runs the function.

        `may_read` is asked if there is a rule. `is_for_all` tells afterwards whether what the function gave is the
        same for everybody who may read it.
        """
        kept = self._cached.get(uri)
        if kept is not None and kept.until > time.monotonic():
            if kept.access is not None and not await may_read(kept.access):
                raise NotFound(uri=uri)
            return kept.contents
        changes = self._changes
        source, values = self._find(uri)
        if isinstance(source, registry.resources.Template) and (name := source.escaping_variable(values)) is not None:
            log.info("%s: a value of %s leads out of a folder: not found; unsafe=[%r] takes it", source.uri, name, name)
            raise NotFound(uri=uri)
        if source.access is not None and not await may_read(source.access):
            raise NotFound(uri=uri)
        try:
            shape = partial(registry.resources.shape_contents, uri=uri, mime_type=source.mime_type)
            items = await call(source.invocation, values, f"resource {source.uri}", shape)
        except NotFound as failure:
            raise NotFound(failure.message, uri=uri) from None
        hint = source.hint or self._hint
        contents = ReadResourceResult(
            items, hint if source.access is None else msgspec.structs.replace(hint, scope="private")
        )
        is_new = changes == self._changes  # else it may be out of date already
        if source.cache is not None and is_new and is_for_all() and uri == registry.resources.normalised(uri):
            self._keep(uri, CachedContents(contents, time.monotonic() + source.cache, source.access))
        return contents

    def _keep(self, uri: str, kept: CachedContents) -> None:
        size = sum(len(item.text or item.blob or "") for item in kept.contents.items)
        self._cached_size += size
        if len(self._cached) >= self._max_cached or self._cached_size > self._max_cached_size:
            self._cached.clear()
            self._cached_size = size
        self._cached[uri] = kept

    def forget(self, uri: str) -> None:
        """The resource has changed: what was kept of it is stale."""
        self._changes += 1
        self._cached.pop(registry.resources.normalised(uri), None)

    def _forget_all(self) -> None:
        self._changes += 1
        self._cached.clear()
        self._cached_size = 0

    # ── files ──

    def add_folder(self, folder: "Template") -> None:
        """Offer a folder, with the files that are there now."""
        assert folder.directory is not None
        folder.directory.guard = partial(self._guard_of, folder)
        self.add(folder)
        self.look_again()
        others = self.folders() if folder.access is not None else []  # which may have listed what is guarded now
        for each in [*(other for other in others if other is not folder), folder]:
            self._sync(each, self._files_of(each))

    def folders(self) -> "list[Template]":
        return [template for template in self.templates.all() if template.directory is not None]

    def files_in(self, folder: str) -> "list[Resource]":
        return [resource for resource in self.resources.all() if resource.folder == folder]

    def _guard_of(self, folder: "Template") -> "FileGuard | None":
        """None if everybody may read everything. In any thread."""
        if not self._has_rules():
            return None
        editions = self.resources.snapshot, self.templates.snapshot
        known = self._file_guards.get(folder.uri)
        if known is None or known[:2] != editions:
            guard = registry.resources.FileGuard.for_folder(folder, editions[0].items, editions[1].items)
            self._file_guards[folder.uri] = known = (*editions, guard)
        return known[2]

    async def paths_in(self, template: str) -> list[str]:
        """Of the files that are there now; none if it is no folder's template."""
        if any(folder.uri == template for folder in self.folders()):
            await self.refresh_files()
        return [file.definition.name for file in self.files_in(template)]

    def look_again(self) -> None:
        """There is a new folder, or another worker found files: whoever asks for the list sees them."""
        self._stale_since = time.monotonic()

    async def refresh_files(self, patience: float = 1.0) -> None:
        """Bring the listed files up to date with the disk, at most once a second.

        A request waits `patience` seconds for a listing that runs already: the disk may hang.
        """
        since = max(self._stale_since, time.monotonic() - self._listed_seconds)
        if self._files_listed > since:
            return
        try:
            async with asyncio.timeout(patience) as waiting, self._listing:
                waiting.reschedule(None)
                if self._files_listed <= since:
                    await self._list_files()
        except TimeoutError:
            if not waiting.expired():  # but the disk has given up
                raise

    async def _list_files(self) -> None:
        began = time.monotonic()
        self._watch_folders()  # first: what changes from now on is told
        for resource in self.resources.all():
            if (describe := resource.describe) is not None:
                self._relist(resource, await self._threads.run(describe, label=f"file {resource.uri}"))
        for folder in self.folders():
            entries = await self._threads.run(partial(self._files_of, folder), label=f"directory {folder.uri}")
            if self.templates.get(folder.uri) is folder:  # it may have been removed meanwhile
                self._sync(folder, entries)
        self._files_listed, self._listing_took = began, time.monotonic() - began

    def _relist(self, resource: "Resource", definition: ResourceDefinition) -> None:
        key = registry.resources.normalised(resource.uri)
        if definition != resource.definition and self.resources.get(key) is resource:
            self.resources.replace(key, msgspec.structs.replace(resource, definition=definition))

    def _files_of(self, folder: "Template") -> "list[FileEntry]":
        """The files whose URIs stand for this folder, and for no other template. In any thread: there may be many."""
        assert folder.directory is not None
        entries = folder.directory.entries()
        return entries if len(self.templates) == 1 else [entry for entry in entries if self.get(entry.uri) is folder]

    def _sync(self, folder: "Template", entries: "Sequence[FileEntry]") -> None:
        there = {entry.uri: entry for entry in entries}
        known = {resource.uri: resource for resource in self.files_in(folder.uri)}
        for uri in known.keys() & there.keys():
            self._relist(known[uri], registry.resources.entry_definition(folder, there[uri]))
        compile_entry = partial(registry.resources.compile_entry, folder)
        new = {uri: compile_entry(entry) for uri, entry in there.items() if self.resources.get(uri) is None}
        self._swap(sorted(known.keys() - there.keys()), new)

    def _swap(self, gone: "Sequence[str]", new: "Mapping[str, Resource]") -> None:
        if self.resources.swap(gone, new):
            self._forget_all()
            self._on_list()

    # ── watching ──

    def watch(self, uri: str, wanted: bool) -> None:
        """Files are watched from the first subscription to the last."""
        if not wanted:
            if self._watcher is not None:  # without a look at the path: the file may be gone
                self._watcher.unwatch(uri)
        elif (path := self._path(uri)) is not None:
            self._open_watcher().watch(uri, path)

    def _open_watcher(self) -> "Watcher":
        if self._watcher is None:
            self._watcher = lazy.file_watcher.Watcher(self._changed, run=self._look)
        return self._watcher

    async def _look(self, work: Callable[[], Any]) -> Any:
        """It goes on when its watcher is closed: it is over soon, and no thread is given up for it."""
        return await asyncio.shield(self._threads.run(work, label="file watching"))

    def begin(self, *, watching: bool) -> None:
        """The server starts, perhaps on another loop than before; folders are watched until `close`."""
        self._listing, self._is_watching = asyncio.Lock(), watching
        self._watcher, self._watched_folders = None, {}
        self._watch_folders()

    def _watch_folders(self) -> None:
        folders = self.folders() if self._is_watching else []
        roots = {folder.uri: folder.directory.root for folder in folders if folder.directory is not None}
        watched, self._watched_folders = self._watched_folders, roots
        for uri, _ in watched.items() - roots.items():
            self._open_watcher().unwatch(FOLDER + uri)
        for uri, root in roots.items() - watched.items():
            self._open_watcher().watch(FOLDER + uri, root)

    def _changed(self, uri: str) -> Awaitable[None] | None:
        return self._catch_up() if uri.startswith(FOLDER) else self._on_update(uri)

    async def _catch_up(self) -> None:
        """A folder looks different: list all, once a second and a tenth of the time at most.

        One listing serves all who asked before it began.
        """
        asked, last = time.monotonic(), self._files_listed
        while self._files_listed <= asked:
            await asyncio.sleep(last + max(self._listed_seconds, 10 * self._listing_took) - time.monotonic())
            last = time.monotonic()
            with suppress(Busy):  # no thread is free: once more
                await self.refresh_files()

    def _path(self, uri: str) -> "Path | None":
        try:
            source, _ = self._find(uri)
        except NotFound:
            return None
        if isinstance(source, registry.resources.Resource):
            return source.path
        return source.path_of(registry.resources.normalised(uri))

    async def close(self) -> None:
        watcher, self._watcher, self._is_watching = self._watcher, None, False
        if watcher is not None:
            await watcher.close()
