"""One rule for one thing, however it is spelled: URIs and paths come in, what stands guard over them goes out.

A URI has many spellings (`%73` is an `s`, `%2F` may be a slash, named parameters come in any order, `7.0` is the number
7), and a file can be reached by many paths (links, file systems that ignore case). A rule holds for the thing, so it is
asked for by the plainest spelling of a URI, by the values that a template reads in it, and by the identity of a file.

Where two things can't be told apart for sure, they count as the same, and the one that has a rule is meant.

What this can't know: that a file has a hard link outside of a folder that is guarded as a whole, what a function makes
of its values (if it takes capitals for small letters, or opens a path, it has to look where that leads), nor all texts
of a value that a template with a rule has in part as its own text and in part in a variable.
"""

import os
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import msgspec

from dovetail.errors import ArgumentError, NotFound
from dovetail.protocol.uri import Value, normal
from dovetail.registry import alignments
from dovetail.registry.alignments import Proposal
from dovetail.registry.spellings import (
    few_escapes,
    few_escapes_in_parts,
    plain_in_parts,
    spelled_plainly,
    without_detours,
)
from dovetail.registry.spellings import plainest as plainest
from dovetail.registry.values import as_text
from dovetail.registry.values import comparable_value as comparable_value

if TYPE_CHECKING:
    from dovetail.registry.access import AccessRule
    from dovetail.registry.files import Directory
    from dovetail.registry.resources import Resource, Template

MOST_WORK = 50_000  # characters of all URIs that are tried in place of one that was asked for; some ten milliseconds
WORK_FOR_ANY = 100  # what each of them costs besides

_VARIABLES = re.compile(r"\{[^{}]*\}")

Identity = tuple[int, int]
Found = tuple["Resource | Template", dict[str, Any]]  # with its values
Spellings = tuple[str | None, ...]  # of one value; None: as it is


# ── URIs ──


def other_spellings(uri: str, template: "Template", values: Mapping[str, Any]) -> list[str]:
    """How else one could ask for what the template was asked for, the plain way first."""
    if template.directory is not None:
        return [plainest(uri)]
    texts = {name: as_text(value) for name, value in values.items()}
    needed = _needed(template, texts)
    bases = [texts] if len(needed) == len(texts) else [texts, needed]
    found = dict.fromkeys([uri, *(form.template.expand(base) for form in _forms(template) for base in bases)])
    return list(dict.fromkeys(spelling for each in found for spelling in spelled_plainly(each)))


def _needed(template: "Template", texts: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the texts without which a URI could not do, or would not have the same values."""
    defaults = {name: text for name, text in template.defaults.items() if name in template.template.optional}
    return {name: text for name, text in texts.items() if text != defaults.get(name, msgspec.UNSET)}


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
        asked: set[str] = set()
        for spelling in spellings:
            if spelling in asked:
                continue
            asked.add(spelling)
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
        shapes = [shape for form in _forms(template) for shape in alignments.with_shortcut(form.template)]
        for each in self._chosen:
            for spelling, shape in product(dict.fromkeys((each.uri, *spelled_plainly(each.uri))), shapes):
                values = shape.match(spelling)
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
        self._known: dict[str, KnownTexts] = {}  # for each template that was asked

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
        known = self._known.get(template.uri)
        if known is None:
            known = self._known[template.uri] = KnownTexts.of(template, texts, self._forms)
        bases = _bases(template, texts, values)
        work = 0
        for choice in known.choices(values, bases):
            for uri in _combined(template, bases, choice):
                work += len(uri) + WORK_FOR_ANY
                if work > MOST_WORK:  # so nobody gets it
                    raise NotFound("Resource not found: it can't be told which rule holds for it")
                yield from spelled_plainly(uri)


class KnownTexts(msgspec.Struct, frozen=True):
    """What templates with a rule have as text, by their numbers, where another template has values."""

    spelled: dict[str, dict[Hashable, dict[int, Spellings]]]  # by variable, value and number
    apart: frozenset[int]  # those that begin differently, so that only a detour leads there

    @classmethod
    def of(
        cls, template: "Template", texts: Mapping[str, Value], forms: "Sequence[tuple[str, Template, Template]]"
    ) -> "KnownTexts":
        """`texts` are some that the template can read."""
        known = cls({}, frozenset(_apart(template, forms)))
        read = _reader(template, texts)
        for number, (_, other, form) in enumerate(forms):
            if other is template or not alignments.have_same_scheme(template.template, form.template):
                continue
            for proposal in _proposed(template, form):
                value = read(proposal)
                if value is not msgspec.UNSET:
                    known._add(proposal, value, number)
        return known

    def _add(self, proposal: Proposal, value: Hashable, number: int) -> None:
        by_number = self.spelled.setdefault(proposal.name, {}).setdefault(value, {})
        if not proposal.is_enough:
            by_number[number] = tuple(dict.fromkeys((*by_number.get(number, (None,)), proposal.spelled)))
        elif number not in by_number:
            by_number[number] = (proposal.spelled,)

    def choices(self, values: Mapping[str, Any], bases: Sequence[Mapping[str, Any]]) -> list[dict[str, Spellings]]:
        """For each of the templates with a rule that can be met, the spellings for some of the values."""
        found: dict[int, dict[str, Spellings]] = {}
        for name, by_value in self.spelled.items():
            for number, spelled in by_value.get(comparable_value(values.get(name)), {}).items():
                if None in spelled or name in bases[-1]:  # else it can be left out, there as well as here
                    found.setdefault(number, {})[name] = spelled
        met = {number: choice for number, choice in found.items() if self._is_met(number, choice, bases)}
        return list({tuple(choice.items()): choice for choice in met.values()}.values())

    def _is_met(self, number: int, choice: Mapping[str, Spellings], bases: Sequence[Mapping[str, Any]]) -> bool:
        if number not in self.apart:
            return True
        spelled = [unquote(text) for texts in choice.values() for text in texts if text is not None]
        return _may_lead_away([*spelled, *(text for base in bases for text in base.values())])


def _reader(template: "Template", texts: Mapping[str, Value]) -> Callable[[Proposal], Hashable]:
    """Tells the value of a text, or UNSET if it is none there; many templates propose the same."""
    known: dict[tuple[str, str], Hashable] = {}

    def read(proposal: Proposal) -> Hashable:
        name, text = proposal.name, proposal.text
        if (name, repr(text)) not in known:
            try:
                known[name, repr(text)] = comparable_value(template.decode({**texts, name: text}).get(name))
            except ArgumentError:
                known[name, repr(text)] = msgspec.UNSET
        return known[name, repr(text)]

    return read


def _apart(template: "Template", forms: "Sequence[tuple[str, Template, Template]]") -> Iterator[int]:
    plain = plainest(_VARIABLES.sub("x", template.uri))
    if without_detours(plain) == plain:
        for number, (_, _, form) in enumerate(forms):
            if not alignments.begin_alike(template.template, form.template):
                yield number


def _may_lead_away(texts: Iterable[Any]) -> bool:
    """Tell whether there may be a detour in a path with these texts; only lone ones are looked at closely."""
    known = [text for text in texts if text is not None]
    return not all(isinstance(text, str) and text[:1] not in ("", ".") and "/" not in text for text in known)


def _proposed(template: "Template", strict: "Template") -> Iterator[Proposal]:
    """Texts that the values of the template may have in the other one: those that stand there, or can be chosen."""
    for form in _forms(template):
        yield from alignments.possible_texts(form.template, strict.template)
    yield from alignments.chosen_texts(template.template, strict.template, strict.choices)


def _bases(template: "Template", texts: Mapping[str, Value], values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The texts as they came, without those that are the default anyway, and at last the same in plain words."""
    needed = _needed(template, {name: as_text(value) for name, value in values.items()})
    bases = [texts, {name: text for name, text in texts.items() if name in needed}, needed]
    return [base for place, base in enumerate(bases) if base not in bases[place + 1 :]]


def _combined(
    template: "Template", bases: Sequence[Mapping[str, Any]], choice: Mapping[str, Spellings]
) -> Iterator[str]:
    """The URIs with these spellings of some of the values."""
    for base, form in product(bases, list(_forms(template))):
        own = {name: quote(text, safe="") for name, text in base.items() if isinstance(text, str) and name in choice}
        options = [dict.fromkeys(None if text == own.get(name) else text for text in choice[name]) for name in choice]
        for chosen in product(*options):
            spelled = {name: text for name, text in zip(choice, chosen, strict=True) if text is not None}
            yield alignments.expanded(form.template, base, spelled)


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
