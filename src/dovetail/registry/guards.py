"""One rule for one thing, however it is spelled: URIs and paths come in, what stands guard over them goes out.

A URI has many spellings (`%73` is an `s`, `%2F` may be a slash, named parameters come in any order), and a file can be
reached by many paths (links, file systems that ignore case). A rule holds for the thing, so it is asked for by the
plainest spelling of a URI, and by the identity of a file.

What this can't know: that a file has a hard link outside of a folder that is guarded as a whole, and what a function
makes of its values (if it opens `a/../b`, it has to look where that leads).
"""

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import msgspec

if TYPE_CHECKING:
    from dovetail.registry.files import Directory
    from dovetail.registry.resources import Resource, Template

_RAW = ":/?#[]@!$&'()*+,;="  # as they are where they stand; unreserved characters are never escaped
_PLAIN = re.compile(rf"[A-Za-z0-9._~{re.escape(_RAW)}-]*")

Identity = tuple[int, int]


def plainest(uri: str) -> str:
    """The spelling with the fewest escapes. Different things may share it, but no thing has two."""
    if _PLAIN.fullmatch(uri):
        return uri
    try:
        return quote(unquote(uri, errors="strict"), safe=_RAW)
    except UnicodeError:  # no text at all: it is no spelling of anything else
        return uri


def other_spellings(uri: str, template: "Template", values: Mapping[str, Any]) -> list[str]:
    """How else one could ask for what the template was asked for: plainly, and in the template's own way."""
    found = [plainest(uri)]
    if template.directory is None:
        expanded = template.template.expand({name: _as_text(value) for name, value in values.items()})
        found.append(plainest(expanded))
    return list(dict.fromkeys(found))


def _as_text(value: Any) -> str | list[str] | dict[str, str] | None:
    """What a value is written like, so that 7 and 007 are the same."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {str(key): str(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [str(item) for item in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def guarded_uris(resources: Iterable["Resource"]) -> dict[str, "Resource"]:
    """Those that have a rule, by their plainest spelling."""
    return {plainest(each.uri): each for each in resources if each.access is not None}


class FileGuard(msgspec.Struct, frozen=True, eq=False):
    """The files that a folder leaves to others, which have a rule for them; often none."""

    files: tuple[Path, ...]
    folders: tuple["Directory", ...]

    @classmethod
    def of(cls, folder: "Template", resources: Iterable["Resource"], templates: Iterable["Template"]) -> "FileGuard":
        """All that has a rule, if the folder has none; else what has its URI inside the folder, and another rule."""
        assert folder.directory is not None
        own = folder.directory
        files = [
            each.path
            for each in resources
            if each.path is not None and each.folder is None and _is_stricter(each, folder)
        ]
        inner = [
            each.directory
            for each in templates
            if each.directory is not None and _is_stricter(each, folder) and _lies_below(each.directory.root, own.root)
        ]
        return cls(tuple(files), tuple(inner))

    def covered(self, paths: Iterable[Path]) -> set[Path]:
        """Those of the real paths that are not the folder's to show."""
        if not self.files and not self.folders:
            return set()
        files = {identity for path in self.files if (identity := _identity(path)) is not None}
        folders: dict[Identity, list[Directory]] = {}
        for each in self.folders:
            if (identity := _identity(each.root)) is not None:
                folders.setdefault(identity, []).append(each)
        known: dict[Path, Sequence[Directory]] = {}  # many files have the same folders
        found = set()
        for path in paths:
            if (files and _identity(path) in files) or (folders and _is_offered(path, folders, known)):
                found.add(path)
        return found


def _is_offered(
    path: Path, folders: Mapping[Identity, "Sequence[Directory]"], known: "dict[Path, Sequence[Directory]]"
) -> bool:
    for parent in path.parents:
        if parent not in known:
            identity = _identity(parent)
            known[parent] = () if identity is None else folders.get(identity, ())
        if known[parent] and any(each.offers(path.relative_to(parent).parts) for each in known[parent]):
            return True
    return False


def _is_stricter(other: "Resource | Template", folder: "Template") -> bool:
    """It has a rule, and the folder has none or has the other's URI among its own."""
    if other is folder or other.access is None:
        return False
    if folder.access is None:
        return True
    if (other.access.scopes, other.access.authorize) == (folder.access.scopes, folder.access.authorize):
        return False
    assert folder.directory is not None
    return plainest(other.uri).startswith(plainest(folder.directory.prefix))


def _lies_below(inner: Path, outer: Path) -> bool:
    """Strictly: who offers the same folder twice means it. Also by name, for the folder may be gone for a moment."""
    identity = _identity(outer)
    return outer in inner.parents or (
        identity is not None and any(_identity(parent) == identity for parent in inner.parents)
    )


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
