"""Skills (SEP-2640): folders with a SKILL.md, served from snapshots of their bytes.

A snapshot is read when a folder is added, and again when its files change. Digests, front matter, directories and the
resources themselves come from the same bytes, so what a host reads is what it was promised.
"""

import hashlib
import logging
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from dovetail import engine as lazy
from dovetail.engine.call_tool import excerpt
from dovetail.engine.handlers import Handler, list_handler
from dovetail.engine.request_context import RequestContext
from dovetail.engine.subscriptions import Change
from dovetail.errors import INVALID_PARAMS, NotFound, ProtocolError, SetupError
from dovetail.extensions.frontmatter import FrontMatter, FrontMatterError, read_front_matter
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

ID = "io.modelcontextprotocol/skills"
SKILL_FILE = "SKILL.md"
MAX_FILES = 512  # of a skill
MAX_BYTES = 16 * 2**20  # of all files of a skill
MAX_DESCRIPTION = 1_024  # characters
MAX_NOTES = 20  # warnings for one front matter
MAX_ENTRIES = 100_000  # files and folders below a folder that is added
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

    uri: str
    definition: SkillDefinition
    access: AccessRule | None


class Snapshot(msgspec.Struct):
    """What a folder held at one moment, all by URI."""

    resources: dict[str, Resource] = {}
    listed: dict[str, dict[str, Any]] = {}  # uri, digest and size of the files
    frontmatter: dict[str, FrontMatter] = {}
    skills: dict[str, SkillEntry] = {}
    directories: dict[str, list[str]] = {}  # the URIs of their files and folders

    def definition(self, uri: str) -> ResourceDefinition:
        if uri in self.resources:
            return self.resources[uri].definition
        return ResourceDefinition(uri=uri, name=unquote(uri.rpartition("/")[2]), mime_type="inode/directory")


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
        self.reloads = 0  # that were begun

    def fail(self, parts: Parts, problem: object) -> SetupError:
        place = "/".join(parts).encode(errors="replace").decode() or self.files.root
        return SetupError(f"{self.where}: {place}: {problem}")

    def read(self) -> Snapshot:
        """Read all skills. Raises SetupError."""
        names, folders = self._walk()
        roots = {parts[:-1] for parts in names if parts[-1] == SKILL_FILE}
        if not roots:
            raise self.fail((), "there is no folder with a SKILL.md; name one that holds skills, or is a skill")
        uri_of = partial(_uri, (self.files.root.name,) if () in roots else ())
        found, members = Snapshot(), defaultdict[Parts, list[Parts]](list)  # of skills
        for parts in sorted([*names, *folders]):
            above = [parts[:depth] for depth in range(len(parts)) if parts[:depth] in roots]
            if parts not in folders:
                for root in above:
                    members[root].append(parts)
            elif above or parts in roots:
                found.directories[uri_of(parts)] = []
            if above:
                found.directories[uri_of(parts[:-1])].append(uri_of(parts))
        for root in sorted(roots):
            self._read_skill(root, members[root], uri_of, found)
        return found

    def _walk(self) -> tuple[list[Parts], set[Parts]]:
        """The files, and the folders. A link to a folder counts as a file, which can't be read."""
        names: list[Parts] = []
        folders: list[Parts] = [()]
        for here in folders:  # which grow
            for item, is_folder in self.files.scan(here, MAX_ENTRIES + 1):
                if self.files.admits(parts := (*here, item.name)):
                    (folders if is_folder else names).append(parts)
            if len(names) + len(folders) > MAX_ENTRIES:
                raise self.fail((), f"it has more than {MAX_ENTRIES:,} files; name a folder with nothing but skills")
        return names, set(folders)

    def _read_skill(self, root: Parts, members: list[Parts], uri_of: UriOf, found: Snapshot) -> None:
        if len(members) > MAX_FILES:
            raise self.fail(root, f"it has {len(members)} files, and a skill has {MAX_FILES} at most; exclude= some")
        total, uris = 0, [uri_of(parts) for parts in members]
        for parts, uri in zip(members, uris, strict=True):
            if uri not in found.listed:  # by a skill around this one
                self._read_file(uri, parts, "/".join(parts[len(root) :]), found)
            total += found.listed[uri]["size"]
            if total > MAX_BYTES:
                raise self.fail(root, f"its files have more than {MAX_BYTES:,} bytes together; exclude= some")
        uri = uri_of((*root, SKILL_FILE))
        definition = SkillDefinition(uri, found.frontmatter[uri].fields, [found.listed[each] for each in uris])
        found.skills[uri] = SkillEntry(uri, definition, self.access)

    def _read_file(self, uri: str, parts: Parts, name: str, found: Snapshot) -> None:
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
        definition = ResourceDefinition(uri=uri, name=name, mime_type=contents.mime_type, size=len(raw))
        if parts[-1] == SKILL_FILE:
            found.frontmatter[uri] = self._front_matter(parts, text)
            fields = found.frontmatter[uri].fields
            definition = replace(definition, name=fields["name"], description=fields["description"])
        found.resources[uri] = Resource(
            definition=definition,
            invocation=Invocation(function=lambda: contents, is_async=False, in_thread=False),
            path=self.files.root.joinpath(*parts),
            access=self.access,
        )
        found.listed[uri] = {"uri": uri, "digest": f"sha256:{hashlib.sha256(raw).hexdigest()}", "size": len(raw)}

    def _front_matter(self, parts: Parts, text: str | None) -> FrontMatter:
        """The front matter of a skill, checked."""
        if text is None:
            raise self.fail(parts, "it must be UTF-8 without a byte order mark")
        try:
            found = read_front_matter(text)
        except FrontMatterError as problem:
            raise self.fail(parts, problem) from None
        for fault in problems_of(found.fields, parts[-2] if parts[:-1] else self.files.root.name):
            raise self.fail(parts, fault)
        return found


def _uri(base: Parts, parts: Parts) -> str:
    return normalize_uri("skill://" + "/".join(quote(part, safe="", errors="replace") for part in (*base, *parts)))


def problems_of(fields: Mapping[str, Any], folder: str) -> Iterator[str]:
    """What hosts refuse in the front matter of a skill in a folder of this name."""
    name, description = fields.get("name"), fields.get("description")
    if not isinstance(name, str) or not NAME.match(name):
        fix = "write 1 to 64 of a-z, 0-9 and single hyphens, none of them at an end"
        yield f"name: {name!r:.100} is not possible; {fix}"
    elif name != folder:
        yield f"name: {name} differs from the name of its folder, {folder}; rename one of them"
    if not isinstance(description, str) or not description.strip():
        yield "description: is missing, or no text; say what the skill does, and when to use it"


def warnings_of(found: FrontMatter) -> Iterator[str]:
    """What hosts read in different ways, or not at all."""
    description, metadata = found.fields.get("description"), found.fields.get("metadata")
    yield from (f"{each}: YAML 1.1 reads another value; put it in quotes" for each in found.ambiguous)
    if isinstance(description, str) and (length := len(description)) > MAX_DESCRIPTION:
        yield f"description: has {length} characters, and hosts show {MAX_DESCRIPTION} at most; shorten it"
    for key, value in metadata.items() if isinstance(metadata, dict) else ():
        if key.startswith(RESERVED):
            yield f"metadata: {key} is reserved for MCP; rename it"
        elif not isinstance(value, str):
            yield f"metadata: {key} is no string; put it in quotes"


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
        self.folders.append(folder)
        self._put(folder, new)
        reload = partial(self.reload, folder)
        self.engine.on_refresh(reload)
        if watch:
            self.engine.resources.reloads[f"{files.root} {len(self.folders)}"] = files.root, reload

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
        for uri in [each for each in new.resources if each not in folder.snapshot.resources]:
            if self.engine.resources.direct.find(uri) is not None:
                raise SetupError(f"{folder.where}: there is already a resource {uri}; rename one of their folders")
            self.engine.resources.check_overlaps(new.resources[uri], folder.where)

    def _put(self, folder: SkillFolder, new: Snapshot) -> None:
        """Put a snapshot in the place of the last one, in one step for all requests; clients are notified."""
        old, folder.snapshot = folder.snapshot, new
        resources, listed = self.engine.resources, new.listed
        for uri in new.resources.keys() & old.resources.keys():
            resources.direct.replace(uri, new.resources[uri])
        self.catalog.exchange(old.skills, new.skills, self.folders.index(folder) + 1)
        resources.swap([*(old.resources.keys() - new.resources.keys())], new.resources)  # which announces the list
        if old.resources.keys() == new.resources.keys():
            self.engine.publish(Change("resources"))
        for uri in [each for each in old.listed if old.listed[each] != listed.get(each)]:
            self.engine.publish(Change("updated", uri))
        for uri, found in new.frontmatter.items():
            for note in islice(warnings_of(found), MAX_NOTES):
                log.warning("%s: %s: %s", folder.where, uri, note)
        names = Counter(entry.definition.frontmatter["name"] for entry in self.catalog.registered.items)
        if doubled := sorted(name for name, count in names.items() if count > 1):
            log.warning("%s: hosts may mix up the skills of one name: %s", folder.where, ", ".join(doubled[:MAX_NOTES]))

    async def reload(self, folder: SkillFolder) -> None:
        """Read a folder again; if that fails, its skills stay as they were."""
        folder.reloads += 1
        turn = folder.reloads
        try:
            new = await self.engine.threads.run(folder.read, label="skills", must_run=True)
            is_other = (new.listed, new.directories) != (folder.snapshot.listed, folder.snapshot.directories)
            if is_other and turn == folder.reloads:  # else a later one reads what is there now
                self._check(folder, new)
                self._put(folder, new)
        except SetupError as problem:
            log.error("%s; the skills stay as they were", problem)

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
        found = [snapshot.definition(each) for each in snapshot.directories[uri]]
        fields: dict[str, Any] = {"resources": found[begin : begin + size]}
        if begin + size < len(found):
            fields["nextCursor"] = encode_cursor(begin + size, scope=scope, key=engine.secrets[0], now=now)
        return SkillResult(fields)

    def _is_in_skill(self, uri: str, rules: Rules) -> bool:
        """Whether a directory is, or is below, that of a skill which is not disabled."""
        parts = uri.split("/")
        above = ("/".join(parts[:depth]) for depth in range(len(parts), 2, -1))
        return any(self.catalog.find(f"{each}/{SKILL_FILE}", rules) is not None for each in above)


def _known_uri(context: RequestContext) -> str:
    """The URI of a request, normalized; a very long one is not looked for."""
    uri: str = context.request.params.uri
    return normalize_uri(uri) if len(uri) <= MAX_URI_LENGTH else uri[:MAX_URI_LENGTH]
