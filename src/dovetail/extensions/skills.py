"""Skills (SEP-2640): folders with a SKILL.md, served from snapshots of their bytes.

A snapshot is read when a folder is added, and again when its files change. Digests, front matter, directories and the
resources themselves come from the same bytes, so what a host reads is what it was promised.
"""

import asyncio
import hashlib
import logging
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from dovetail import engine as lazy
from dovetail.engine.call_tool import excerpt
from dovetail.engine.handlers import Handler, list_handler
from dovetail.engine.request_context import RequestContext
from dovetail.engine.resources import WatchedFolder
from dovetail.engine.subscriptions import Change
from dovetail.errors import INVALID_PARAMS, Busy, NotFound, ProtocolError, SetupError
from dovetail.extensions.frontmatter import FrontMatterError, read_front_matter
from dovetail.protocol.extensions import DeclaredExtension
from dovetail.protocol.methods import EVERY, ListParams, Method, UriParams
from dovetail.protocol.pagination import decode_cursor, encode_cursor
from dovetail.protocol.results import CacheHint, Result, Shaper
from dovetail.protocol.session import Rules
from dovetail.protocol.types import MAX_URI_LENGTH, ResourceContents, ResourceDefinition
from dovetail.protocol.uri_template import normalize_uri
from dovetail.registry.catalog import Catalog
from dovetail.registry.files import Directory, guess_mime_type
from dovetail.registry.functions import Invocation
from dovetail.registry.registration import AccessRule, Authorize, access_rule
from dovetail.registry.resources import Resource

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine
    from dovetail.engine.file_watcher import FileStat

ID = "io.modelcontextprotocol/skills"
SKILL_FILE = "SKILL.md"
DIRECTORY_TYPE = "inode/directory"
MAX_FILES = 512  # of a skill
MAX_BYTES = 16 * 2**20  # of all files of a skill
MAX_NOTES = 20  # warnings for one front matter
MAX_ENTRIES = 100_000  # files and folders below a folder that is added
BUSY_DELAY = 1.0  # seconds until a reload that got no thread tries again
NAME = re.compile(r"(?=.{1,64}\Z)[a-z0-9]+(?:-[a-z0-9]+)*\Z")
RESERVED = "io.modelcontextprotocol/"  # keys of `metadata`
BOM = "\ufeff"
READ_DIRECTORY = "resources/directory/read"
log = logging.getLogger("dovetail")

Parts = tuple[str, ...]  # of a path below the folder
UriOf = Callable[[Parts], str]


class SkillDefinition(msgspec.Struct, frozen=True):
    """A skill as clients see it."""

    uri: str  # of its SKILL.md
    frontmatter: Mapping[str, Any]
    resources: Sequence[Mapping[str, Any]]  # uri, digest and size of each file
    # It has nothing that depends on the revision:
    title: ClassVar[None] = None
    icons: ClassVar[None] = None
    annotations: ClassVar[None] = None
    meta: ClassVar[None] = None


class SkillEntry(msgspec.Struct, frozen=True):
    """A skill in the catalog."""

    definition: SkillDefinition
    access: AccessRule | None

    @property
    def uri(self) -> str:
        return self.definition.uri


class FileSnapshot(msgspec.Struct, frozen=True):
    """A file as it was read."""

    resource: Resource
    contents: ResourceContents
    digest: str

    def is_same(self, other: "FileSnapshot") -> bool:
        return self.digest == other.digest and self.resource.definition == other.resource.definition


class Snapshot(msgspec.Struct, frozen=True):
    """What a folder held at one moment, all by URI."""

    files: Mapping[str, FileSnapshot] = {}
    skills: Mapping[str, SkillEntry] = {}
    directories: Mapping[str, Sequence[str]] = {}  # the URIs of their files and folders


class SkillResult(msgspec.Struct, frozen=True):
    """The result of `skills/get`, or of reading a directory, which has no cache hint."""

    fields: Mapping[str, Any]
    hint: CacheHint | None = None

    def encode(self, shaper: Shaper) -> bytes:
        return shaper.body(self.fields) if self.hint is None else shaper.cacheable({**self.fields}, self.hint)


class ReadDirectoryParams(UriParams, frozen=True):
    cursor: str | None = None


# ── reading folders ──


class SkillFolder:
    """A folder that was added, with its skills as they were last read."""

    def __init__(self, files: Directory, access: AccessRule | None, where: str) -> None:
        self.files, self.access, self.where = files, access, where
        self.snapshot = Snapshot()
        self.last_read: FileStat | None = None  # its state before that
        self.reloads = 0  # that were begun

    def fail(self, parts: Parts, problem: str) -> SetupError:
        place = "/".join(parts).encode(errors="replace").decode() or self.files.root
        return SetupError(f"{self.where}: {place}: {problem}")

    def read(self) -> Snapshot:
        """Read all skills. Raises SetupError."""
        self.last_read = lazy.file_watcher.stat_path(str(self.files.root))
        names, folders = self._walk()
        roots = {parts[:-1] for parts in names if parts[-1] == SKILL_FILE}
        if not roots:
            raise self.fail((), "there is no folder with a SKILL.md; name one that holds skills, or is a skill")
        uri_of = partial(_uri, (self.files.root.name,) if () in roots else ())
        members: dict[Parts, list[Parts]] = defaultdict(list)  # of skills
        children: dict[str, list[str]] = {}  # of directories
        for parts in sorted([*names, *folders]):
            above = [parts[:depth] for depth in range(len(parts)) if parts[:depth] in roots]
            if parts not in folders:
                for root in above:
                    members[root].append(parts)
            elif above or parts in roots:
                children[uri_of(parts)] = []
            if above:
                children.setdefault(uri_of(parts[:-1]), []).append(uri_of(parts))
        files: dict[str, FileSnapshot] = {}
        skills = {}
        for root in sorted(roots):
            entry = self._skill(root, members[root], uri_of, files)
            skills[entry.uri] = entry
        return Snapshot(files, skills, children)

    def _walk(self) -> tuple[list[Parts], set[Parts]]:
        """The files, and the folders. A link to a folder counts as a file, which can't be read."""
        root, names, folders = self.files.root, list[Parts](), set[Parts]()
        for path, inner, found in os.walk(root, onerror=self._fail_unreadable):
            here = Path(path).relative_to(root).parts
            links = [name for name in inner if os.path.islink(os.path.join(path, name))]
            inner[:] = [name for name in inner if name not in links and self.files.admits((*here, name))]
            folders.update((*here, name) for name in inner)
            names += [(*here, name) for name in (*found, *links) if self.files.offers((*here, name))]
            if len(names) + len(folders) > MAX_ENTRIES:
                raise self.fail((), f"it has more than {MAX_ENTRIES:,} files; name a folder with nothing but skills")
        return names, folders

    def _fail_unreadable(self, problem: OSError) -> None:
        raise self.fail((), f"a folder can't be read: {problem}")

    def _skill(self, root: Parts, members: list[Parts], uri_of: UriOf, files: dict[str, FileSnapshot]) -> SkillEntry:
        """The skill of a folder, whose files are added to those that are read already."""
        if len(members) > MAX_FILES:
            raise self.fail(root, f"it has {len(members)} files, and a skill has {MAX_FILES} at most; exclude= some")
        listed, total = [], 0
        for parts in members:
            uri = uri_of(parts)
            found = files[uri] = files.get(uri) or self._file(uri, parts, "/".join(parts[len(root) :]))
            size = found.resource.definition.size or 0
            listed.append({"uri": uri, "digest": found.digest, "size": size})
            total += size
            if total > MAX_BYTES:
                raise self.fail(root, f"its files have more than {MAX_BYTES:,} bytes together; exclude= some")
        uri = uri_of((*root, SKILL_FILE))
        fields = self._front_matter(root, files[uri].contents.text)
        definition = replace(files[uri].resource.definition, name=fields["name"], description=fields["description"])
        files[uri] = replace(files[uri], resource=replace(files[uri].resource, definition=definition))
        return SkillEntry(SkillDefinition(uri, fields, listed), self.access)

    def _file(self, uri: str, parts: Parts, name: str) -> FileSnapshot:
        try:
            data = self.files.read("/".join(parts)).data
        except ProtocolError as problem:
            words = "it is no regular file, or leads out of the folder" if isinstance(problem, NotFound) else problem
            raise self.fail(parts, f"{words}; put a copy there, or leave it out with exclude=") from None
        if len(uri) > MAX_URI_LENGTH:
            raise self.fail(parts, "its path is too long; shorten it")
        raw = data.encode() if isinstance(data, str) else data
        text = data if isinstance(data, str) and not data.startswith(BOM) else None  # clients may drop the BOM
        contents = ResourceContents(uri, guess_mime_type(name), text, raw if text is None else None)
        resource = Resource(
            definition=ResourceDefinition(uri=uri, name=name, mime_type=contents.mime_type, size=len(raw)),
            invocation=Invocation(function=lambda: contents, is_async=False, in_thread=False),
            path=self.files.root.joinpath(*parts),
            access=self.access,
        )
        return FileSnapshot(resource, contents, f"sha256:{hashlib.sha256(raw).hexdigest()}")

    def _front_matter(self, root: Parts, text: str | None) -> dict[str, Any]:
        """The front matter of a skill, checked."""
        place, folder = (*root, SKILL_FILE), root[-1] if root else self.files.root.name
        try:
            fields, ambiguous = read_front_matter(text or "")
        except FrontMatterError as problem:
            words = "it must be UTF-8 without a byte order mark" if text is None else str(problem)
            raise self.fail(place, words) from None
        name, description = fields.get("name"), fields.get("description")
        if not isinstance(name, str) or not NAME.match(name):
            fix = "write 1 to 64 of a-z, 0-9 and single hyphens, none of them at an end"
            raise self.fail(place, f"name: {name!r:.100} is not possible; {fix}")
        if name != folder:
            raise self.fail(place, f"name: {name} differs from the name of its folder, {folder}; rename one of them")
        if not isinstance(description, str) or not description.strip():
            raise self.fail(place, "description: is missing, or no text; say what the skill does, and when to use it")
        notes = [f"{each}: YAML 1.1 reads another value; put it in quotes" for each in ambiguous]
        metadata = fields.get("metadata")
        reserved = [key for key in metadata if key.startswith(RESERVED)] if isinstance(metadata, dict) else []
        notes += [f"metadata: {key} is reserved for MCP; rename it" for key in reserved]
        for note in notes[:MAX_NOTES]:
            log.warning("%s", self.fail(place, note))
        return fields


def _uri(base: Parts, parts: Parts) -> str:
    return normalize_uri("skill://" + "/".join(quote(part, safe="", errors="replace") for part in (*base, *parts)))


# ── serving ──


class Skills:
    """The skills of one server."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self.catalog: Catalog[SkillEntry] = Catalog("skill")
        self.folders: list[SkillFolder] = []

    def add(
        self, path: str | Path, *, exclude: Sequence[str], hidden: bool, watch: bool, scopes: Sequence[str] | None,
        authorize: Authorize | None,
    ) -> None:  # fmt: skip
        """Add all skills of a folder. Raises SetupError, and then nothing has changed."""
        where = f"server.add_skills({str(path)!r})"
        access = access_rule({"scopes": scopes, "authorize": authorize}, where)  # type: ignore[typeddict-item]
        files = Directory(path, uri="skill://", exclude=exclude, hidden=hidden, max_bytes=MAX_BYTES)
        folder = SkillFolder(files, access, where)
        new = folder.read()
        self._check(folder, new)
        if not self.folders:
            self._declare(where)
        self._put(folder, new, len(self.folders) + 1)
        self.folders.append(folder)
        reload = partial(self.reload, folder, len(self.folders))
        self.engine.on_refresh(reload)
        if watch:
            watched = WatchedFolder(files.root, reload, lambda: folder.last_read)
            self.engine.resources.reloads[f"{files.root} {len(self.folders)}"] = watched

    def _declare(self, where: str) -> None:
        cached: dict[str, Any] = {"capability": "resources", "cacheable": True}
        rows: list[tuple[Method, Handler]] = [
            (Method("skills/list", EVERY, ListParams, **cached), list_handler("skills", lambda _: self.catalog)),
            (Method("skills/get", EVERY, UriParams, **cached), self.get),
            (Method(READ_DIRECTORY, EVERY, ReadDirectoryParams, capability="resources"), self.read_directory),
        ]
        methods = {row.name: (row, handler) for row, handler in rows}
        self.engine.add_extension(ID, DeclaredExtension({"directoryRead": True}), methods, where)
        self.catalog.set_visibility(self.engine.resources.direct.rules)
        self.engine.extension_catalogs.append(self.catalog)

    def _check(self, folder: SkillFolder, new: Snapshot) -> None:
        """Raises SetupError if something else has the URI of a new file."""
        added = {uri: each.resource for uri, each in new.files.items() if uri not in folder.snapshot.files}
        for uri, resource in added.items():
            if self.engine.resources.direct.find(uri) is not None:
                raise SetupError(f"{folder.where}: there is already a resource {uri}; rename one of their folders")
            self.engine.resources.check_overlaps(resource, folder.where)

    def _put(self, folder: SkillFolder, new: Snapshot, block: int) -> None:
        """Put a snapshot in the place of the last one, in one step for all requests; clients are notified."""
        old, resources = folder.snapshot.files, self.engine.resources
        files = {uri: old[uri] if uri in old and old[uri].is_same(each) else each for uri, each in new.files.items()}
        added = {uri: each.resource for uri, each in files.items() if uri not in old}
        changed = [uri for uri, each in files.items() if uri in old and old[uri] is not each]
        gone = [uri for uri in old if uri not in files]
        for uri in changed:
            resources.direct.replace(uri, files[uri].resource)
        self.catalog.exchange(folder.snapshot.skills, new.skills, block)
        folder.snapshot = replace(new, files=files)
        resources.swap(gone, added)  # which announces the list
        if changed and not gone and not added:
            self.engine.publish(Change("resources"))
        for uri in (*changed, *gone):
            self.engine.publish(Change("updated", uri))
        names = Counter(entry.definition.frontmatter["name"] for entry in self.catalog.registered.items)
        if doubled := sorted(name for name, count in names.items() if count > 1):
            log.warning("%s: hosts may mix up the skills of one name: %s", folder.where, ", ".join(doubled[:MAX_NOTES]))

    async def reload(self, folder: SkillFolder, block: int) -> None:
        """Read a folder again; if that fails, its skills stay as they were."""
        folder.reloads += 1
        turn = folder.reloads
        while turn == folder.reloads:  # else a later one reads what is there now
            try:
                new = await self.engine.threads.run(folder.read, label="skills")
                if turn == folder.reloads:
                    self._check(folder, new)
                    self._put(folder, new, block)
                return
            except Busy:
                await asyncio.sleep(BUSY_DELAY)
            except SetupError as problem:
                log.error("%s; the skills stay as they were", problem)
                return

    async def get(self, engine: "Engine", context: RequestContext) -> Result:
        uri = _known_uri(context)
        entry = self.catalog.find(uri, engine.rules_of(context))
        if entry is None or not await self._may_use(context, entry.access):
            raise ProtocolError(f"Unknown skill: {excerpt(uri)}", code=INVALID_PARAMS)
        hint = engine.options.hint if entry.access is None else replace(engine.options.hint, scope="private")
        return SkillResult({"skill": entry.definition}, hint)

    async def _may_use(self, context: RequestContext, rule: AccessRule | None) -> bool:
        return rule is None or await lazy.access.may_use(self.engine, context, rule)

    async def read_directory(self, engine: "Engine", context: RequestContext) -> Result:
        uri, rules = _known_uri(context), engine.rules_of(context)
        folder = next((each for each in self.folders if uri in each.snapshot.directories), None)
        snapshot = Snapshot() if folder is None else folder.snapshot  # a reload may come before the caller is checked
        if folder is None or not self._is_in_skill(uri, rules) or not await self._may_use(context, folder.access):
            raise ProtocolError(f"There is no directory {excerpt(uri)}", code=INVALID_PARAMS)
        scope, size, now = f"directory {uri}", engine.options.page_size, time.time()
        begin = decode_cursor(context.request.params.cursor, scope=scope, keys=engine.secrets, now=now)
        children = snapshot.directories[uri]
        found = [self._child(each, snapshot, rules) for each in children[begin : begin + size]]
        fields: dict[str, Any] = {"resources": [each for each in found if each is not None]}
        if begin + size < len(children):
            fields["nextCursor"] = encode_cursor(begin + size, scope=scope, key=engine.secrets[0], now=now)
        return SkillResult(fields)

    def _is_in_skill(self, uri: str, rules: Rules) -> bool:
        """Whether a directory is, or is below, that of a skill which is not disabled."""
        parts = uri.split("/")
        above = ("/".join(parts[:depth]) for depth in range(len(parts), 2, -1))
        return any(self.catalog.find(f"{each}/{SKILL_FILE}", rules) is not None for each in above)

    def _child(self, uri: str, snapshot: Snapshot, rules: Rules) -> ResourceDefinition | None:
        """A file or folder of a directory; None if it is disabled."""
        if uri in snapshot.directories:
            name = unquote(uri.rpartition("/")[2])
            return ResourceDefinition(uri=uri, name=name, mime_type=DIRECTORY_TYPE)
        resource = self.engine.resources.direct.find(uri, rules)
        return None if resource is None else resource.definition


def _known_uri(context: RequestContext) -> str:
    """The URI of a request, normalized; a very long one is not looked for."""
    uri: str = context.request.params.uri
    return normalize_uri(uri) if len(uri) <= MAX_URI_LENGTH else uri[:MAX_URI_LENGTH]
