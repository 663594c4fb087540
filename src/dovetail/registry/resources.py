"""Resources and templates, compiled from functions, files and folders; overlapping access rules."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from inspect import Signature
from pathlib import Path, PurePath
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_origin
from urllib.parse import unquote

import msgspec
from msgspec import UNSET

from dovetail.errors import NotFound, SetupError
from dovetail.protocol.results import CacheHint, ReadResourceResult
from dovetail.protocol.types import (
    CONTENT_TYPES,
    UNSAFE_KEY,
    Annotations,
    CacheScope,
    ResourceContents,
    ResourceDefinition,
    TemplateDefinition,
    tags_of,
)
from dovetail.protocol.uri_template import UriTemplate, Value, is_template, normalize_escapes, valid_uri
from dovetail.protocol.uri_template import normalize_uri as normalize_uri
from dovetail.registry.arguments import Arguments
from dovetail.registry.files import Directory, FileContents, FileEntry, ServedFile, type_of_uri
from dovetail.registry.functions import FunctionInfo, Invocation, inspect_function, members
from dovetail.registry.registration import (
    AccessRule,
    CommonOptions,
    access_rule,
    checked_options,
    convert_option,
    from_official,
)
from dovetail.registry.tools import closed_choices, definition_fields
from dovetail.schema.encode import encode_json

if TYPE_CHECKING:
    from dovetail.registry.mounts import Mounted


class ResourceOptions(CommonOptions, total=False):
    """Options of `@server.resource`."""

    name: str
    description: str
    mime_type: str
    annotations: Mapping[str, Any] | Annotations
    size: int
    cache: float
    ttl_ms: int
    cache_scope: CacheScope
    unsafe: Sequence[str]


TEXT, BYTES, JSON = "text/plain", "application/octet-stream", "application/json"
BINARY = (bytes, bytearray, memoryview)
FILE_OPTIONS = ResourceOptions.__optional_keys__ - {"size", "thread", "unsafe"}  # these make no sense for files
_ESCAPING = re.compile(r"\x00|(?:^|[/\\])\.\.(?:[/\\]|\Z)|^[/\\]|^[A-Za-z]:")


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource with a URI of its own."""

    definition: ResourceDefinition
    invocation: Invocation
    cache: float | None = None  # seconds for which the contents are cached
    hint: CacheHint | None = None
    path: Path | None = None  # a file that can be watched
    describe: Callable[[], ResourceDefinition] | None = None  # for each listing, since a file's size and time change
    folder: str | None = None  # the template of the folder that lists it
    folder_tags: frozenset[str] = frozenset()  # and its tags
    mime_type: str | None = None  # of its contents; None: by the type of the return value
    access: AccessRule | None = None  # None: every caller may read it
    mounted: "Mounted | None" = None

    @property
    def uri(self) -> str:
        return self.definition.uri


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """A resource template, or a folder of files."""

    definition: TemplateDefinition
    template: UriTemplate
    invocation: Invocation
    decode: Callable[[Mapping[str, Any]], dict[str, Any]]
    cache: float | None = None
    hint: CacheHint | None = None
    directory: Directory | None = None
    choices: Mapping[str, Sequence[str]] = {}
    mime_type: str | None = None
    access: AccessRule | None = None
    whole_uri: bool = False  # the function takes the URI, not the values of the variables
    guarded: Mapping[str, Any] = {}  # variables whose values must not escape from a folder, and the author's defaults
    mounted: "Mounted | None" = None

    @property
    def uri(self) -> str:
        return self.definition.uri_template

    def escaping_variable(self, values: Mapping[str, Any]) -> str | None:
        """A variable whose value, used as a path by the function, would escape from a folder: path traversal."""
        return next((n for n, own in self.guarded.items() if values.get(n, own) != own and _escapes(values[n])), None)

    @property
    def argument_names(self) -> Sequence[str]:
        return self.template.variables

    def match(self, text: str) -> dict[str, Value] | None:
        """The values of the variables in a normalized URI, as text; None if it does not match."""
        texts = self.template.match_normal(text)
        if texts is None or self.directory is None:
            return texts
        slashes = self.directory.prefix.count("/") + str(texts["path"]).count("/")
        return texts if slashes == text.count("/") else None  # a slash of the path must not be percent-encoded

    def path_of(self, uri: str) -> Path | None:
        return None if self.directory is None else self.directory.path_of(uri)


def compile_resource(
    uri: str, function: Callable[..., Any], options: ResourceOptions, *, injectable: type | None = None
) -> Resource | Template:
    """Compile a template if the URI has `{variables}`, else a resource; raises SetupError."""
    info = inspect_function(function, kind="resource", injectable=injectable, name=options.get("name"))
    options = checked_options(options, ResourceOptions.__optional_keys__, info.where)
    if not isinstance(uri, str):
        raise SetupError(f"{info.where}: the URI must be a string, not {type(uri).__name__}")
    if (is_cached := options.get("cache") is not None) and info.supplied:
        fix = f"leave out cache= or {min(info.supplied)}; what all callers share can be a global of the module"
        raise SetupError(f"{info.where}: cache= is for contents that depend on no caller; {fix}")
    common: dict[str, Any] = {
        "invocation": Invocation.from_info(info, {**options, "cache_shared": is_cached}),
        "mime_type": options.get("mime_type") or type_of_uri(uri),
        **_access_and_cache(options, info.where),
    }
    if is_template(uri):
        return _compile_template(uri, info, options, common)
    if names := ", ".join(parameter.name for parameter in info.parameters):
        raise SetupError(f"{info.where}: the parameters {names} have no {{variable}} in {uri!r}; add them there")
    if "unsafe" in options:
        raise SetupError(f"{info.where}: unsafe= is for the variables of a template, and {uri!r} has none")
    if not valid_uri(uri):
        shown = uri if len(uri) <= 80 else uri[:80] + "…"
        fix = "begins with a scheme, as in notes://all, has no spaces or control characters, and writes others as %20"
        raise SetupError(f"{info.where}: {shown!r} is not a URI; it {fix}")
    mime_type = common["mime_type"] or _mime_type_of(info.returns)
    described = _described(options, info.where, info.name, mime_type, info.summary)
    return Resource(definition=ResourceDefinition(uri=uri, size=options.get("size"), **described), **common)


def _mime_type_of(returns: Any) -> str:
    """The MIME type for a return annotation: text, unless the annotation is certainly another type."""
    kinds = [from_official(kind) for kind in members(returns) if kind is not NoneType]
    kind = (get_origin(kinds[0]) or kinds[0]) if len(kinds) == 1 else Any
    items = [from_official(each) for item in get_args(kinds[0]) for each in members(item)] if kinds else []
    if not isinstance(kind, type) or kind in (Any, object, Signature.empty) or ResourceContents in items:
        return TEXT
    return BYTES if issubclass(kind, BINARY) else TEXT if issubclass(kind, (str, ResourceContents)) else JSON


def _compile_template(uri: str, info: FunctionInfo, options: ResourceOptions, common: dict[str, Any]) -> Template:
    arguments = Arguments(info)
    kinds = {each.name: arguments.kinds(each.name) for each in info.parameters}
    wholes = [name for name, kind in kinds.items() if "string" in kind and "array" not in kind]
    try:
        template = UriTemplate(uri, wholes)
        template.check_matchable()
    except SetupError as problem:
        raise SetupError(f"{info.where}: {problem}") from None
    variables = set(template.variables)
    required = {parameter.name for parameter in info.parameters if parameter.required}
    if unknown := variables - kinds.keys():
        raise SetupError(f"{info.where}: {uri!r} has {sorted(unknown)}, which the function does not take; add them")
    if missing := required - variables:
        raise SetupError(f"{info.where}: {sorted(missing)} can't come from {uri!r}; give defaults or add variables")
    if single := sorted(name for name in template.exploded if "array" not in kinds[name]):
        raise SetupError(f"{info.where}: {single} get lists from {uri!r}; annotate them list[str], or drop the *")
    if absent := required & template.optional:
        raise SetupError(f"{info.where}: {sorted(absent)} may be missing from a URI like {uri!r}; give defaults")
    unsafe = options.get("unsafe", ())
    if not variables.issuperset(unsafe):
        raise SetupError(f"{info.where}: unsafe={unsafe!r} is not possible; {uri!r} has {sorted(variables)}")
    if unsafe:
        options = {**options, "meta": {**(options.get("meta") or {}), UNSAFE_KEY: list(unsafe)}}
    guarded = variables.difference(unsafe, choices := closed_choices(arguments.schema))
    described = _described(options, info.where, info.name, common["mime_type"], info.summary)
    return Template(
        definition=TemplateDefinition(uri_template=uri, **described),
        template=template,
        guarded={each.name: each.default for each in info.parameters if each.name in guarded},
        decode=arguments.decode_values,
        choices=choices,
        **common,
    )


def _escapes(value: Any, depth: int = 8) -> bool:
    """Whether a value escapes: `..` as a segment, an absolute path, a drive letter or NUL, even percent-encoded."""
    if not isinstance(value, (str, PurePath)):
        items = (*value, *value.values()) if isinstance(value, Mapping) else value
        return isinstance(value, Collection) and any(map(_escapes, items))
    text, decoded = str(value), unquote(str(value))
    return _ESCAPING.search(text) is not None or (decoded != text and (depth == 0 or _escapes(decoded, depth - 1)))


def _described(
    options: ResourceOptions, where: str, name: str, mime_type: str | None, summary: str | None = None
) -> dict[str, Any]:
    annotations = convert_option(options.get("annotations"), Annotations, where, "annotations")
    described = definition_fields(options, where, options.get("name", name), summary)
    return {**described, "mime_type": mime_type, "annotations": annotations}


def _access_and_cache(options: ResourceOptions, where: str) -> dict[str, Any]:
    access = access_rule(options, where)
    if access is not None and options.get("cache_scope") == "public":
        raise SetupError(f'{where}: it has an access rule, so cache_scope="public" is not possible; leave it out')
    is_hinted = "ttl_ms" in options or "cache_scope" in options
    hint = CacheHint(options.get("ttl_ms", 0), options.get("cache_scope", "private")) if is_hinted else None
    return {"access": access, "hint": hint, "cache": options.get("cache")}


def _file_invocation(function: Callable[..., FileContents], options: ResourceOptions) -> Invocation:
    return Invocation(function=function, is_async=False, in_thread=True, timeout=options.get("timeout", UNSET))


def compile_file(file: ServedFile, options: ResourceOptions) -> Resource:
    """A single file as a resource, with its present size and time in each listing."""
    where = f"file {file.uri}"
    options = checked_options(options, FILE_OPTIONS, where)

    def definition() -> ResourceDefinition:
        try:
            entry = file.entry()
        except NotFound:  # deleted since: it stays in the list, and reading it says so
            return base
        annotations = msgspec.structs.replace(base.annotations or Annotations(), last_modified=entry.last_modified)
        return msgspec.structs.replace(base, size=entry.size, annotations=annotations)

    base = ResourceDefinition(uri=file.uri, **_described(options, where, file.name, file.mime_type))
    return Resource(
        definition=base,
        invocation=_file_invocation(file.read, options),
        path=file.path,
        describe=definition,
        **_access_and_cache(options, where),
    )


def compile_directory(directory: Directory, options: ResourceOptions) -> Template:
    """A folder as a template whose one variable is the path below it."""
    where = f"directory {directory.template}"
    options = checked_options(options, FILE_OPTIONS, where)
    described = _described(options, where, directory.root.name or "files", options.get("mime_type"))
    return Template(
        definition=TemplateDefinition(uri_template=directory.template, **described),
        template=UriTemplate(directory.template),
        invocation=_file_invocation(directory.read, options),
        decode=lambda values: {"relative": values["path"]},
        mime_type=options.get("mime_type"),
        directory=directory,
        **_access_and_cache(options, where),
    )


def compile_entry(folder: Template, entry: FileEntry) -> Resource:
    """A file of a folder for the list of resources; it is read through the folder's template."""
    return Resource(
        definition=entry_definition(folder, entry),
        invocation=folder.invocation,
        cache=folder.cache,
        hint=folder.hint,
        access=folder.access,
        path=entry.path,
        folder=folder.uri,
        folder_tags=tags_of(folder.definition),
        mime_type=folder.mime_type,
    )


def entry_definition(folder: Template, entry: FileEntry) -> ResourceDefinition:
    return ResourceDefinition(
        uri=entry.uri,
        name=entry.name,
        mime_type=folder.mime_type or entry.mime_type,
        size=entry.size,
        annotations=Annotations(last_modified=entry.last_modified),
    )


def to_contents(value: Any, uri: str, mime_type: str | None) -> list[ResourceContents]:
    """The contents for a return value: str becomes text, bytes a blob, any other value JSON text."""
    uri = uri if uri.isascii() else normalize_escapes(uri)  # a client may ask by an IRI
    value = from_official(value)
    if isinstance(value, ResourceContents):
        return [value]
    if isinstance(value, ReadResourceResult):
        return list(value.items)
    if isinstance(value, FileContents):
        return to_contents(value.data, uri, mime_type or value.entry.mime_type)
    if isinstance(value, str):
        return [ResourceContents(uri, mime_type or TEXT, text=value)]
    if isinstance(value, BINARY):
        return [ResourceContents(uri, mime_type or BYTES, blob=bytes(value))]
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, ResourceContents) for item in value):
        return list(value)
    for kind in set(map(type, value)) if isinstance(value, (list, tuple)) else [type(value)]:
        if issubclass(kind, CONTENT_TYPES):
            raise TypeError(
                f"a resource returned {kind.__name__}, which is for tools and prompts; use ResourceContents"
            )
    return [ResourceContents(uri, mime_type or JSON, text=encode_json(value).decode())]


# Overlaps of access rules, as docs/authorization.md says: a URI is normalized once on arrival; an exact URI goes before
# templates, a template with a rule before those without, then the one with most literal characters; a template that
# overlaps another under another rule is refused. Files and folders may overlap: files have an identity.


def check_overlaps(source: Resource | Template, others: Iterable[Resource | Template], where: str) -> None:
    """Raise SetupError if a URI could match both the source and another one with another rule."""
    for other in others:
        if other.uri != source.uri and not _is_same_rule(source.access, other.access) and _conflicts(source, other):
            problem = f"{where or 'resource'}: {source.uri!r} overlaps {other.uri!r}, which has another rule"
            fix = "give both the same scopes= and authorize=, or write one of them so that no URI fits both"
            raise SetupError(f"{problem}; {fix}")


def _conflicts(one: Resource | Template, other: Resource | Template) -> bool:
    if isinstance(one, Resource):
        one, other = other, one
    if isinstance(one, Resource):  # two URIs
        return False
    if isinstance(other, Resource):  # a URI without a rule in a template with one: the author wants it open
        is_file = one.directory is not None and other.path is not None
        return (
            other.access is not None and not is_file and one.template.match_normal(normalize_uri(other.uri)) is not None
        )
    if not one.template.overlaps(other.template):
        return False
    if one.directory is None or other.directory is None:
        return True
    inner = max(one, other, key=lambda folder: folder.template.literal_length)
    return inner.access is None  # else the inner folder goes first, and the outer one does not offer its files


def _is_same_rule(one: AccessRule | None, other: AccessRule | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.scopes == other.scopes and one.authorize == other.authorize


class FileGuard(msgspec.Struct, frozen=True, eq=False):
    """The files and folders that a folder does not offer, because they are offered elsewhere with stricter rules."""

    root: Path
    files: frozenset[Path]
    folders: frozenset[Path]

    @classmethod
    def for_folder(cls, folder: Template, resources: Iterable[Resource], templates: Iterable[Template]) -> "FileGuard":
        assert folder.directory is not None
        strict_files = [each for each in resources if _is_stricter(each.access, folder.access)]
        strict_folders = [each for each in templates if _is_stricter(each.access, folder.access)]
        files = {each.path for each in strict_files if each.path is not None and each.folder is None}
        folders = {each.directory.root for each in strict_folders if each.directory is not None}
        return cls(folder.directory.root, frozenset(files), frozenset(folders))

    def covered(self, paths: Iterable[Path]) -> set[Path]:
        """The real paths that the folder must not offer, as the disk is now: by name and by identity."""
        if not self.files and not self.folders:
            return set()
        files = self.files | {_identity(path) for path in self.files} - {None}
        folders = self.folders | {_identity(path) for path in self.folders} - {None}
        known = {self.root: False, Path(self.root.anchor): False}  # an author may offer the same folder twice

        def is_covered(folder: Path) -> bool:
            if folder not in known:
                known[folder] = folder in folders or _identity(folder) in folders or is_covered(folder.parent)
            return known[folder]

        return {path for path in paths if path in files or _identity(path) in files or is_covered(path.parent)}


def _is_stricter(rule: AccessRule | None, than: AccessRule | None) -> bool:
    """Whether some caller may satisfy the other rule, but not this one."""
    if rule is None or than is None:
        return rule is not None
    return not (rule.scopes <= than.scopes and rule.authorize in (None, than.authorize))


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
