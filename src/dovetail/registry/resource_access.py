"""Access rules of resources that overlap: the check at registration, and the files that a folder leaves to others.

Three sentences (docs/authorization.md): a URI is normalised once on arrival; an exact URI goes before templates, a
guarded template before open ones, then the one with most literal characters; a template that overlaps something under
another rule is refused at registration. Files and folders may overlap, since each file is judged by its identity.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dovetail.errors import SetupError
from dovetail.protocol.uri_template import normalised
from dovetail.registry.resources import Resource, Template

if TYPE_CHECKING:
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
    """What a folder leaves to others, since their rules ask for more: files, and folders with all that lies in them."""

    root: Path
    files: frozenset[Path]
    folders: frozenset[Path]

    @classmethod
    def of(cls, folder: "Template", resources: Iterable["Resource"], templates: Iterable["Template"]) -> "FileGuard":
        assert folder.directory is not None
        files = (
            each.path
            for each in resources
            if each.path is not None and each.folder is None and _asks_for_more(each.access, folder.access)
        )
        folders = (
            each.directory.root
            for each in templates
            if each.directory is not None and _asks_for_more(each.access, folder.access)
        )
        return cls(folder.directory.root, frozenset(files), frozenset(folders))

    def covered(self, paths: Iterable[Path]) -> set[Path]:
        """Those of the real paths that are not the folder's to show, as the disk is now: by name and by identity."""
        if not self.files and not self.folders:
            return set()
        files = self.files | {_identity(path) for path in self.files} - {None}
        folders = self.folders | {_identity(path) for path in self.folders} - {None}
        known = {self.root: False, Path(self.root.anchor): False}  # who offers the same folder twice means it

        def is_left(folder: Path) -> bool:
            if folder not in known:
                known[folder] = folder in folders or _identity(folder) in folders or is_left(folder.parent)
            return known[folder]

        return {path for path in paths if path in files or _identity(path) in files or is_left(path.parent)}


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
