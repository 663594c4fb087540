"""Access rules of resources that overlap: the check at registration, and the files that a folder leaves to others.

Three sentences (docs/authorization.md): a URI is normalised once on arrival; an exact URI goes before templates, a
guarded template before open ones, then the one with most literal characters; a template that overlaps something under
another rule is refused at registration. Files and folders may overlap, since each file is judged by its identity.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dovetail.errors import SetupError
from dovetail.protocol.uri_template import normalised
from dovetail.registry.resources import Resource, Template

if TYPE_CHECKING:
    from dovetail.registry.files import Directory
    from dovetail.registry.options import AccessRule

Identity = tuple[int, int]  # device and inode


def check_rules(source: Resource | Template, others: Iterable[Resource | Template], where: str) -> None:
    """Raise SetupError if a URI could be meant for the source as well as for another one with another rule."""
    for other in others:
        if other.uri != source.uri and not _is_same_rule(source.access, other.access) and _conflicts(source, other):
            raise SetupError(
                f"{where or 'resource'}: {source.uri!r} overlaps {other.uri!r}, which has another rule; give both the "
                "same scopes= and authorize=, or write one of them so that no URI fits both"
            )


def _conflicts(one: Resource | Template, other: Resource | Template) -> bool:
    if isinstance(one, Resource):
        one, other = other, one
    if isinstance(one, Resource):  # two URIs
        return False
    if isinstance(other, Resource):  # an open URI in a guarded template is what its author wants open
        is_file = one.directory is not None and other.path is not None
        return other.access is not None and not is_file and one.template.match_normal(normalised(other.uri)) is not None
    if not one.template.overlaps(other.template):
        return False
    if one.directory is None or other.directory is None:
        return True
    inner = max(one, other, key=lambda folder: folder.template.literal_length)
    return inner.access is None  # else the inner folder goes first, and the outer one leaves its files to it


def _is_same_rule(one: "AccessRule | None", other: "AccessRule | None") -> bool:
    if one is None or other is None:
        return one is other
    return one.scopes == other.scopes and one.authorize == other.authorize


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
