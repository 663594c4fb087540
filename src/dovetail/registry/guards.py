"""One rule for one thing, however it is spelled: URIs and paths come in, what stands guard over them goes out.

A URI has many spellings (`%73` is an `s`, `%2F` may be a slash, named parameters come in any order, `7.0` is the number
7), and a file can be reached by many paths (links, file systems that ignore case). A rule holds for the thing, so it is
asked for by the plainest spelling of a URI, by the values that a template reads in it, and by the identity of a file.

Where two things can't be told apart for sure, they count as the same, and the one that has a rule is meant.

What this can't know: that a file has a hard link outside of a folder that is guarded as a whole, and what a function
makes of its values (if it takes capitals for small letters, or opens a path, it has to look where that leads), nor all
texts of a value that is no string if a template with a rule has only a part of it as its own text.
"""

import os
import posixpath
import re
import unicodedata
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import msgspec

from dovetail.errors import ArgumentError
from dovetail.protocol.uri import Value, normal
from dovetail.registry import alignments
from dovetail.registry.alignments import Texts

if TYPE_CHECKING:
    from dovetail.registry.access import AccessRule
    from dovetail.registry.files import Directory
    from dovetail.registry.resources import Resource, Template

_RAW = ":/?#[]@!$&'()*+,;="  # as they are where they stand; unreserved characters are never escaped
_PLAIN = re.compile(rf"[a-z0-9+.-]*(?::[A-Za-z0-9._~{re.escape(_RAW)}-]*)?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PATH = re.compile(r"([^:/?#]*:(?://)?/?)([^?#]*)(.*)", re.DOTALL)
_DEEPEST = 32  # levels of lists and objects at which values are still compared
_FIELD_TABLES = ("__dataclass_fields__", "__struct_fields__", "model_fields")  # the last one is pydantic's

_SIMPLE = frozenset((str, int, float, bool, type(None)))  # most values

Identity = tuple[int, int]
Found = tuple["Resource | Template", dict[str, Any]]  # with its values
FixedTexts = dict[tuple[str, ...], dict[Hashable, list[Texts]]]  # by the names of variables, and by their values


# ── URIs ──


def plainest(uri: str) -> str:
    """The spelling with the fewest escapes. Different things may share it, but no thing has two."""
    if _PLAIN.fullmatch(uri):
        return uri
    plain = _with_few_escapes(uri)
    scheme = _SCHEME.match(plain)
    return plain if scheme is None else scheme[0].lower() + plain[scheme.end() :]


def _with_few_escapes(text: str) -> str:
    try:
        return quote(unquote(text, errors="strict"), safe=_RAW)
    except UnicodeError:  # no text at all: it is no spelling of anything else
        return text


def other_spellings(uri: str, template: "Template", values: Mapping[str, Any]) -> list[str]:
    """How else one could ask for what the template was asked for, the plain way first."""
    plain = plainest(uri)
    if template.directory is not None:
        return [plain]
    texts = {name: _as_text(value) for name, value in values.items()}
    needed = {name: text for name, text in texts.items() if text != template.defaults.get(name, msgspec.UNSET)}
    found = [plain, plainest(template.template.expand(texts))]
    if len(needed) < len(texts):
        found.append(plainest(template.template.expand(needed)))
    found = list(dict.fromkeys(found))
    return list(dict.fromkeys([*found, *map(_without_detours, found)]))


def _without_detours(uri: str) -> str:
    """As a file system reads it: `.` and `..` lead where they lead, and a second slash adds nothing."""
    found = _PATH.fullmatch(uri)
    if found is None:
        return uri
    begin, path, end = found.groups()
    if "//" not in path and "/." not in path and not path.startswith((".", "/")):
        return uri
    slash = "/" if path.endswith("/") else ""
    return begin + posixpath.normpath("/" + path.lstrip("/")).removeprefix("/") + slash + end


def default_texts(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What default values are written like, as far as they are."""
    return {name: _as_text(value) for name, value in defaults.items() if value is not None}


def _as_text(value: Any) -> str | list[str] | dict[str, str] | None:
    """What a value is written like in a template that has it in its text."""
    if value is None or isinstance(value, str):
        return value
    if type(value) in _SIMPLE:
        return _word(value)
    if isinstance(value, Mapping):
        return {str(key): _word(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_word(item) for item in value]
    return _word(value)


def _word(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, Decimal) and value.is_finite():
        value = float(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        return str(value).lower() if isinstance(value, bool) else str(value)
    except RecursionError:  # nobody has such a thing in a template
        return ""


def comparable_value(value: Any, depth: int = 0) -> Hashable:
    """What is the same for values that are the same, and can be looked up. When in doubt, more is the same."""
    if depth == _DEEPEST:
        return None
    kind: Any = type(value)
    if kind in _SIMPLE or isinstance(value, Enum):
        return value if value == value else repr(value)  # a NaN is never equal, but it is the same
    if isinstance(value, Mapping):
        return frozenset(
            (comparable_value(key, depth + 1), comparable_value(item, depth + 1)) for key, item in value.items()
        )
    if isinstance(value, list | tuple):
        return tuple(comparable_value(item, depth + 1) for item in value)
    if isinstance(value, set | frozenset):
        return frozenset(comparable_value(item, depth + 1) for item in value)
    settings = getattr(kind, "__struct_config__", None)  # only this tells whether a Struct has an equality of its own
    if kind.__eq__ is not object.__eq__ and (settings is None or settings.eq):
        try:
            hash(value)
        except TypeError:
            pass
        else:
            return value if value == value else repr(value)
    return kind, tuple(comparable_value(getattr(value, name, None), depth + 1) for name in _fields(kind))


def _fields(kind: type) -> list[str]:
    """Those that a record was declared with; what it holds besides may lead anywhere."""
    names = [name for table in _FIELD_TABLES for name in getattr(kind, table, ())]
    return names + [field.name for field in getattr(kind, "__attrs_attrs__", ())]


class UriGuard:
    """All that has a rule at one moment, and how to find which of it is meant."""

    def __init__(self, resources: Iterable["Resource"], templates: "StrictTemplates") -> None:
        strict = [each for each in resources if each.access is not None]
        self.templates = templates
        self._chosen = [each for each in strict if each.folder is None]
        self._resources = {plainest(each.uri): each for each in (*strict, *self._chosen)}  # by the plainest spelling
        self._by_values: dict[str, dict[Hashable, Resource]] = {}  # for each template that was asked

    def instead(self, source: "Resource | Template", spellings: Iterable[str]) -> "Found | None":
        """What has a rule and one of these spellings, if that is not the source: that is meant, and not the source."""
        for spelling in dict.fromkeys(spellings):
            resource = self._resources.get(spelling)
            if resource is not None and is_rival(resource, source):
                return resource, {}
            found = self.templates.instead(source, spelling)
            if found is not None:
                return found
        return None

    def with_values(self, template: "Template", values: Mapping[str, Any]) -> "Resource | None":
        """The one in whose URI the template reads the same values, whatever text they have there."""
        if not self._chosen or template.directory is not None:
            return None
        known = self._by_values.get(template.uri)
        if known is None:
            known = self._by_values[template.uri] = dict(self._read_by(template))
        return known.get(comparable_value(values)) if known else None

    def _read_by(self, template: "Template") -> "Iterator[tuple[Hashable, Resource]]":
        for each in self._chosen:
            values = template.template.match(each.uri)
            if values is not None:
                try:
                    yield comparable_value(template.decode(values)), each
                except ArgumentError:
                    continue


class StrictTemplates:
    """The templates that have a rule at one moment, and which of them is meant."""

    def __init__(self, templates: Iterable["Template"]) -> None:
        strict = [each for each in templates if each.access is not None]
        self._forms = [(form.template.lead, each, form) for each in strict for form in _forms(each)]
        self._fixed: dict[str, FixedTexts] = {}  # for each template that was asked

    def instead(self, source: "Resource | Template", spelling: str) -> "Found | None":
        """The first one that the spelling fits, unless the source, or the folder that lists it, comes before it."""
        text = normal(spelling)
        for lead, template, form in self._forms:
            if not text.startswith(lead):
                continue
            is_own = template is source or (template.folder is not None and template.folder == source.folder)
            texts = form.texts_in(text) if is_own or is_rival(template, source) else None
            if texts is not None:
                try:
                    values = template.decode(texts)
                except ArgumentError:
                    continue
                return None if is_own else (template, values)
        return None

    def other_texts(
        self, template: "Template", texts: Mapping[str, Value], values: Mapping[str, Any]
    ) -> "Iterator[str]":
        """The URIs with the same values, but with the texts that those have in templates with a rule."""
        if not self._forms or template.directory is not None:
            return
        known = self._fixed.get(template.uri)
        if known is None:
            known = self._fixed[template.uri] = self._fixed_for(template, texts)
        for names, found in known.items():
            for fixed in found.get(_picked(values, names), ()):
                uri = template.template.expand(alignments.together(texts, fixed))
                plain = plainest(uri)
                yield from (uri, plain, _without_detours(plain))

    def _fixed_for(self, template: "Template", texts: Mapping[str, Value]) -> "FixedTexts":
        """What others have as mere text where the template has values; `texts` are some that it can read."""
        known: FixedTexts = {}
        for _, other, form in self._forms:
            fixed = alignments.fixed_texts(template.template, form.template) if other is not template else None
            if fixed:
                try:
                    values = template.decode(alignments.together(texts, fixed))
                except ArgumentError:
                    continue
                same = known.setdefault(tuple(fixed), {}).setdefault(_picked(values, fixed), [])
                if fixed not in same:
                    same.append(fixed)
        return known


def _picked(values: Mapping[str, Any], names: Iterable[str]) -> Hashable:
    return comparable_value([values.get(name) for name in names])


def _forms(template: "Template") -> "Iterator[Template]":
    """The template, and how it reads URIs in the plainest spelling if that is not how it is written itself."""
    yield template
    plain = alignments.respelled(template.uri, _with_few_escapes)
    if plain is not None:
        yield msgspec.structs.replace(template, template=plain)


def is_rival(other: "Resource | Template", source: "Resource | Template") -> bool:
    """Tell whether it has a rule for what the source may offer. Between folders `FileGuard` tells, by the files."""
    return other.access is not None and other is not source and (other.folder is None or source.folder is None)


# ── files ──


class FileGuard(msgspec.Struct, frozen=True, eq=False):
    """The files that a folder leaves to others, since their rules ask for more; often none."""

    root: Path
    files: frozenset[Path]
    folders: tuple["Directory", ...]

    @classmethod
    def of(cls, folder: "Template", resources: Iterable["Resource"], templates: Iterable["Template"]) -> "FileGuard":
        assert folder.directory is not None
        files = [
            each.path
            for each in resources
            if each.path is not None and each.folder is None and _asks_for_more(each.access, folder.access)
        ]
        others = [
            each.directory
            for each in templates
            if each.directory is not None and _asks_for_more(each.access, folder.access)
        ]
        return cls(folder.directory.root, frozenset(files), tuple(others))

    def covered(self, paths: Iterable[Path]) -> set[Path]:
        """Those of the real paths that are not the folder's to show, as the disk is now."""
        if not self.files and not self.folders:
            return set()
        files = {_identity(path) for path in self.files} - {None}
        folders: dict[Identity | Path, list[Directory]] = {}
        for each in self.folders:
            for key in (each.root, _identity(each.root)):  # also by name: it may be gone for a moment
                if key is not None:
                    folders.setdefault(key, []).append(each)
        known: dict[Path, Sequence[Directory]] = {}  # many files have the same folders
        return {
            path
            for path in paths
            if path in self.files or (files and _identity(path) in files) or self._is_in(folders, path, known)
        }

    def _is_in(
        self,
        folders: Mapping[Identity | Path, Sequence["Directory"]],
        path: Path,
        known: dict[Path, Sequence["Directory"]],
    ) -> bool:
        """Whether one offers the file that lies deeper than our root: who offers the same folder twice means it."""
        for parent in path.parents if folders else ():
            if parent == self.root:
                break
            if parent not in known:
                keys = parent, _identity(parent)
                known[parent] = [each for key in keys if key is not None for each in folders.get(key, ())]
            if any(each.offers(path.relative_to(parent).parts) for each in known[parent]):
                return True
        return False


def _asks_for_more(rule: "AccessRule | None", than: "AccessRule | None") -> bool:
    """Tell whether somebody may pass the other rule, but not this one, as far as can be seen."""
    if rule is None or than is None:
        return rule is not None
    return not (rule.scopes <= than.scopes and rule.authorize in (None, than.authorize))


def _identity(path: Path) -> Identity | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_spelled_so(root: Path, parts: Sequence[str]) -> bool:
    """Tell whether the names are those that the file system itself lists; some also answer to others."""
    folder = str(root)
    try:
        for name in parts:
            if _may_have_other_names(folder, name) and name not in os.listdir(folder):
                return False
            folder = os.path.join(folder, name)
    except OSError:  # gone meanwhile, or nobody may look which names there are
        return False
    return True


def _may_have_other_names(folder: str, name: str) -> bool:
    """A file system that ignores case, or how accents are composed, finds the file by another name as well."""
    if os.name == "nt":  # which also ignores dots at the end, and has short names
        return True
    others = {name.swapcase(), unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name)} - {name}
    return any(os.path.lexists(os.path.join(folder, other)) for other in others)
