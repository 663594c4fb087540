"""One rule for one thing, however it is spelled: URIs and paths come in, what stands guard over them goes out.

A URI has many spellings (`%73` is an `s`, `%2F` may be a slash, named parameters come in any order, `7.0` is the number
7), and a file can be reached by many paths (links, file systems that ignore case). A rule holds for the thing, so it is
asked for by the plainest spelling of a URI, by the values that a template reads in it, and by the identity of a file.

Where two things can't be told apart for sure, they count as the same, and the one that has a rule is meant.

What this can't know: that a file has a hard link outside of a folder that is guarded as a whole, what a function makes
of its values (if it takes capitals for small letters, or opens a path, it has to look where that leads), nor all texts
of a value that a template with a rule has in part as its own text and in part in a variable.
"""

import math
import os
import unicodedata
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from dovetail.errors import ArgumentError, NotFound
from dovetail.protocol.uri import Value, normal
from dovetail.registry import alignments
from dovetail.registry.alignments import Proposal
from dovetail.registry.spellings import few_escapes, few_escapes_in_parts, plain_in_parts, spelled_plainly
from dovetail.registry.spellings import plainest as plainest

if TYPE_CHECKING:
    from dovetail.registry.access import AccessRule
    from dovetail.registry.files import Directory
    from dovetail.registry.resources import Resource, Template

MOST_COMBINATIONS = 1_000  # of texts of several values that are tried for one template with a rule
_DEEPEST = 32  # levels of lists and objects at which values are still compared
_FIELD_TABLES = ("__dataclass_fields__", "__struct_fields__", "model_fields")  # the last one is pydantic's

_SIMPLE = frozenset((str, int, float, bool, type(None)))  # most values

Identity = tuple[int, int]
Found = tuple["Resource | Template", dict[str, Any]]  # with its values
KnownTexts = dict[str, dict[Hashable, dict[int, list[str]]]]  # by variable, value, and number of the form


# ── URIs ──


def other_spellings(uri: str, template: "Template", values: Mapping[str, Any]) -> list[str]:
    """How else one could ask for what the template was asked for, the plain way first."""
    if template.directory is not None:
        return [plainest(uri)]
    texts = {name: _as_text(value) for name, value in values.items()}
    needed = _needed(template, texts)
    bases = [texts] if len(needed) == len(texts) else [texts, needed]
    found = dict.fromkeys([uri, *(form.template.expand(base) for form in _forms(template) for base in bases)])
    return list(dict.fromkeys(spelling for each in found for spelling in spelled_plainly(each)))


def _needed(template: "Template", texts: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the texts that do not stand for the default anyway."""
    return {name: text for name, text in texts.items() if text != template.defaults.get(name, msgspec.UNSET)}


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
        self._texts: dict[str, KnownTexts] = {}  # for each template that was asked

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
        """The URIs with the same values, but with the texts that those may have in templates with a rule."""
        if not self._forms or template.directory is not None:
            return
        known = self._texts.get(template.uri)
        if known is None:
            known = self._texts[template.uri] = self._texts_for(template, texts)
        found: dict[int, dict[str, list[str]]] = {}  # for each of the forms, those for some variables
        for name, by_value in known.items():
            for form, same in by_value.get(comparable_value(values.get(name)), {}).items():
                found.setdefault(form, {})[name] = same
        for choice in found.values():
            yield from _combined(template, texts, values, choice)

    def _texts_for(self, template: "Template", texts: Mapping[str, Value]) -> "KnownTexts":
        """What others have as mere text where the template has values; `texts` are some that it can read."""
        known: KnownTexts = {}
        for number, (_, other, form) in enumerate(self._forms):
            if other is template:
                continue
            for name, text, spelled in _proposed(template, form):
                try:
                    value = template.decode({**texts, name: text}).get(name)
                except ArgumentError:
                    continue
                same = known.setdefault(name, {}).setdefault(comparable_value(value), {}).setdefault(number, [])
                if spelled not in same:
                    same.append(spelled)
        return known


def _proposed(template: "Template", strict: "Template") -> Iterator[Proposal]:
    """Texts that the values of the template may have in the other one: those that stand there, or can be chosen."""
    for form in _forms(template):
        yield from alignments.possible_texts(form.template, strict.template)
    for name in template.template.variables:
        if name not in template.template.exploded:
            for text in (text for texts in strict.choices.values() for text in texts):
                yield Proposal(name, text, quote(text, safe=""))


def _combined(
    template: "Template", texts: Mapping[str, Value], values: Mapping[str, Any], choice: Mapping[str, list[str]]
) -> Iterator[str]:
    """The URIs with these spellings of some of the values, or not, and with or without what is the default anyway."""
    if math.prod(len(spelled) + 1 for spelled in choice.values()) > MOST_COMBINATIONS:
        raise NotFound("Resource not found: it can't be told which rule holds for it")  # so nobody gets it
    needed = _needed(template, {name: _as_text(value) for name, value in values.items()})
    bases = (texts, {name: text for name, text in texts.items() if name in needed}, needed)
    for chosen in product(*([*spelled, None] for spelled in choice.values())):
        spelled = {name: text for name, text in zip(choice, chosen, strict=True) if text is not None}
        for form, base in product(_forms(template), bases):
            uri = alignments.expanded(form.template, base, spelled)
            yield from spelled_plainly(uri)


def _forms(template: "Template") -> "Iterator[Template]":
    """The template, and how it reads URIs in plain spellings if that is not how it is written itself."""
    yield template
    for spell, spell_first in ((few_escapes, plainest), (few_escapes_in_parts, plain_in_parts)):
        plain = alignments.respelled(template.uri, spell, spell_first)
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
