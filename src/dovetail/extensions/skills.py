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
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from dovetail import engine as lazy
from dovetail.engine.call_tool import excerpt
from dovetail.engine.handlers import Handler
from dovetail.engine.request_context import RequestContext
from dovetail.engine.subscriptions import Change
from dovetail.errors import INVALID_PARAMS, NotFound, ProtocolError, SetupError
from dovetail.extensions.extension import ExtensionResult
from dovetail.extensions.frontmatter import FrontMatter, FrontMatterError, read_front_matter
from dovetail.protocol.extensions import DeclaredExtension
from dovetail.protocol.methods import EVERY, ListParams, Method, UriParams
from dovetail.protocol.pagination import decode_cursor, encode_cursor
from dovetail.protocol.results import CacheHint, Result
from dovetail.protocol.session import Rules
from dovetail.protocol.types import MAX_URI_LENGTH, ResourceContents, ResourceDefinition
from dovetail.protocol.uri_template import normalize_uri
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
MAX_ENTRIES = 100_000  # of one folder; what comes after them is not seen
NAME = re.compile(r"(?=.{1,64}\Z)[a-z0-9]+(?:-[a-z0-9]+)*\Z")
RESERVED = "io.modelcontextprotocol/"  # keys of `metadata`
BOM = "\ufeff"
READ_DIRECTORY = "resources/directory/read"
FOLDER = "inode/directory"  # the MIME type of what has files and folders in it
log = logging.getLogger("dovetail")

Parts = tuple[str, ...]  # of a path below the folder
UriOf = Callable[[Parts], str]


class Snapshot(msgspec.Struct):
    """What a folder held at one moment, all by URI."""

    resources: dict[str, Resource] = {}
    listed: dict[str, dict[str, Any]] = {}  # uri, digest and size of the files
    frontmatter: dict[str, FrontMatter] = {}
    skills: dict[str, dict[str, Any]] = {}  # as clients see them
    directories: dict[str, list[ResourceDefinition]] = {}  # their files and folders


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
        children: dict[str, list[str]] = {}  # of directories
        for parts in sorted([*names, *folders]):
            above = [parts[:depth] for depth in range(len(parts)) if parts[:depth] in roots]
            if parts not in folders:
                for root in above:
                    members[root].append(parts)
            elif above or parts in roots:
                children[uri_of(parts)] = []
            if above:
                children[uri_of(parts[:-1])].append(uri_of(parts))
        for root in sorted(roots):
            self._read_skill(root, members[root], uri_of, found)
        for uri, inner in children.items():
            known = {each: found.resources[each].definition for each in inner if each in found.resources}
            found.directories[uri] = [known.get(each) or _folder(each) for each in inner]
        return found

    def _walk(self) -> tuple[list[Parts], set[Parts]]:
        """The files, and the folders. A link to a folder counts as a file, which can't be read."""
        names: list[Parts] = []
        folders: list[Parts] = [()]
        for here in folders:  # which grow
            for item, is_folder in self.files.scan(here, MAX_ENTRIES):
                if self.files.admits(parts := (*here, item.name)):
                    (folders if is_folder else names).append(parts)
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
        listed = [found.listed[each] for each in uris]
        found.skills[uri] = {"uri": uri, "frontmatter": found.frontmatter[uri].fields, "resources": listed}

    def _read_file(self, uri: str, parts: Parts, name: str, found: Snapshot) -> None:
        try:
            data = self.files.read("/".join(parts)).data
        except ProtocolError as problem:
            words = "it is no regular file, or leads out of the folder" if isinstance(problem, NotFound) else problem
            raise self.fail(parts, f"{words}; put a copy there, or leave it out with exclude=") from None
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


def _folder(uri: str) -> ResourceDefinition:
    return ResourceDefinition(uri=uri, name=unquote(uri.rpartition("/")[2]), mime_type=FOLDER)


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
            (Method("skills/list", EVERY, ListParams, **cached), self.list_skills),
            (Method("skills/get", EVERY, UriParams, **cached), self.get),
            (Method(READ_DIRECTORY, EVERY, ReadDirectoryParams, capability="resources"), self.read_directory),
        ]
        methods = {row.name: (row, handler) for row, handler in rows}
        self.engine.add_extension(ID, DeclaredExtension({"directoryRead": True}), methods, where)

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
        resources.swap([*(old.resources.keys() - new.resources.keys())], new.resources)  # which announces the list
        if old.resources.keys() == new.resources.keys():
            self.engine.publish(Change("resources"))
        for uri in [each for each in old.listed if old.listed[each] != listed.get(each)]:
            self.engine.publish(Change("updated", uri))
        for uri, found in new.frontmatter.items():
            for note in warnings_of(found) if found != old.frontmatter.get(uri) else ():
                log.warning("%s: %s: %s", folder.where, uri, note)
        names = Counter(found.fields["name"] for each in self.folders for found in each.snapshot.frontmatter.values())
        if doubled := sorted(name for name, count in names.items() if count > 1):
            log.warning("%s: hosts may mix up the skills of one name: %s", folder.where, ", ".join(doubled))

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

    async def list_skills(self, engine: "Engine", context: RequestContext) -> Result:
        rules, direct = engine.rules_of(context), engine.resources.direct
        skills = {uri: skill for folder in self.folders for uri, skill in folder.snapshot.skills.items()}
        access = {uri: found.access for uri in skills if (found := direct.find(uri, rules)) is not None}
        uris = await lazy.access.readable_uris(engine, context, access)
        hint = _hint(engine, any(rule is not None for rule in access.values()))
        return _page(engine, context, "skills", [skills[uri] for uri in uris], hint)

    async def get(self, engine: "Engine", context: RequestContext) -> Result:
        skill, folder = await self._find(context, "skills", "Unknown skill:")
        return ExtensionResult({"skill": skill}, _hint(engine, folder.access is not None))

    async def read_directory(self, engine: "Engine", context: RequestContext) -> Result:
        definitions, _ = await self._find(context, "directories", "There is no directory")
        rules, find = engine.rules_of(context), engine.resources.direct.find
        seen = [each for each in definitions if each.mime_type == FOLDER or find(each.uri, rules) is not None]
        return _page(engine, context, "resources", seen)

    async def _find(self, context: RequestContext, kind: str, problem: str) -> tuple[Any, SkillFolder]:
        """The skill or directory that a request names, and its folder. Raises ProtocolError."""
        engine, uri = self.engine, normalize_uri(context.request.params.uri[: MAX_URI_LENGTH + 1])
        for folder in self.folders:
            found, access = getattr(folder.snapshot, kind).get(uri), folder.access
            if found is None or not self._is_enabled(uri, engine.rules_of(context)):
                continue
            if access is None or await lazy.access.may_use(engine, context, access):
                return found, folder
        raise ProtocolError(f"{problem} {excerpt(uri)}", code=INVALID_PARAMS)

    def _is_enabled(self, uri: str, rules: Rules) -> bool:
        """Whether a skill is not disabled, or one of those that a directory belongs to."""
        parts, find = uri.split("/"), self.engine.resources.direct.find
        above = ["/".join([*parts[:depth], SKILL_FILE]) for depth in range(len(parts), 2, -1)]
        return any(find(each, rules) is not None for each in ([uri] if parts[-1] == SKILL_FILE else above))


def _hint(engine: "Engine", is_private: bool) -> CacheHint:
    return replace(engine.options.hint, scope="private") if is_private else engine.options.hint


def _page(
    engine: "Engine", context: RequestContext, key: str, items: Sequence[Any], hint: CacheHint | None = None
) -> ExtensionResult:
    params, size, now = context.request.params, engine.options.page_size, time.time()
    scope = f"{context.request.method} {getattr(params, 'uri', '')}"
    begin = decode_cursor(params.cursor, scope=scope, keys=engine.secrets, now=now)
    fields: dict[str, Any] = {key: items[begin : begin + size]}
    if begin + size < len(items):
        fields["nextCursor"] = encode_cursor(begin + size, scope=scope, key=engine.secrets[0], now=now)
    return ExtensionResult(fields, hint)
