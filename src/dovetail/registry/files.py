"""Files and folders as resources, and their MIME types.

Relative paths come from clients and are not trusted. A file that is outside the root, hidden, excluded or not regular
is `NotFound`, always with the same message, and no error shows an absolute path. Patterns are like those of .gitignore:
without a slash they match a name at any depth, with one they start at the root, and `**` spans folders. `include` must
match the file itself; `exclude` also covers all files below a folder that it matches, and ignores case.
"""

import errno
import fnmatch
import logging
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes

import msgspec

from dovetail.errors import NotFound, ProtocolError, SetupError
from dovetail.protocol.types import MAX_URI_LENGTH, EmbeddedResource, ResourceContents, ending_of, read_media
from dovetail.protocol.uri_template import normalize_uri

if TYPE_CHECKING:
    from dovetail.protocol.types import Annotations, Meta
    from dovetail.registry.resources import FileGuard

# The standard library's table differs between systems and versions, this one does not. "type:extension,extension …"
_TYPE_TABLE = {
    "text/": "plain:txt,text,log,cfg,conf,ini,properties,lock,rst,adoc,tex,srt,license,licence,copying,notice,authors,"
    "readme,changelog,todo,makefile,dockerfile,gitignore,gitattributes,dockerignore,editorconfig "
    "markdown:md,markdown,mdx html:html,htm css:css csv:csv tab-separated-values:tsv calendar:ics vcard:vcf vtt:vtt "
    "javascript:js,mjs,cjs,jsx",
    "text/x-": "typescript:ts,tsx,mts,cts python:py,pyi,pyw rust:rs go:go c:c,h c++:cc,cpp,cxx,hh,hpp,hxx csharp:cs "
    "java:java kotlin:kt,kts swift:swift ruby:rb php:php perl:pl,pm lua:lua r:r scala:scala haskell:hs elixir:ex,exs "
    "erlang:erl,hrl clojure:clj,cljs,edn dart:dart julia:jl zig:zig asm:s,asm shellscript:sh,bash,zsh,fish,ksh "
    "powershell:ps1,psm1 batch:bat,cmd diff:diff,patch protobuf:proto scss:scss,sass less:less vue:vue svelte:svelte",
    "application/": "json:json,map jsonl:jsonl,ndjson geo+json:geojson ld+json:jsonld x-ipynb+json:ipynb toml:toml "
    "yaml:yaml,yml xml:xml,xsd,xsl,xslt,plist xhtml+xml:xhtml sql:sql graphql:graphql,gql rtf:rtf pdf:pdf zip:zip,whl "
    "gzip:gz,tgz x-bzip2:bz2 x-xz:xz zstd:zst x-tar:tar x-7z-compressed:7z java-archive:jar wasm:wasm epub+zip:epub "
    "vnd.sqlite3:sqlite,sqlite3 vnd.apache.parquet:parquet msword:doc vnd.ms-excel:xls vnd.ms-powerpoint:ppt",
    "application/vnd.openxmlformats-officedocument.": "wordprocessingml.document:docx spreadsheetml.sheet:xlsx "
    "presentationml.presentation:pptx",
    "application/vnd.oasis.opendocument.": "text:odt spreadsheet:ods presentation:odp",
    "image/": "png:png jpeg:jpg,jpeg gif:gif webp:webp avif:avif bmp:bmp tiff:tif,tiff svg+xml:svg x-icon:ico",
    "audio/": "mpeg:mp3 mp4:m4a wav:wav ogg:ogg,oga,opus flac:flac",
    "video/": "mp4:mp4,m4v webm:webm quicktime:mov",
    "font/": "woff:woff woff2:woff2 ttf:ttf otf:otf",
}
_TYPES = {
    extension: family + kind
    for family, kinds in _TYPE_TABLE.items()
    for kind, _, extensions in (each.partition(":") for each in kinds.split())
    for extension in extensions.split(",")
}


def type_of_uri(uri: str) -> str | None:
    """The MIME type of a URI's extension; None if it has no known one."""
    name = re.split("[?#]", uri)[0].rpartition("/")[2]
    return _TYPES.get(name.rpartition(".")[2].lower()) if "." in name else None


def guess_mime_type(name: str) -> str:
    """The MIME type of the extension, or of the whole name for Makefile, LICENSE and the like."""
    extension = name.rpartition("/")[2].rpartition(".")[2]
    return _TYPES.get(extension.lower(), "application/octet-stream")


log = logging.getLogger("dovetail.files")
MAX_BYTES = 10_000_000  # of one file, unless max_bytes= says otherwise
MAX_PATH = 4096  # characters, relative to the folder
NAMES_PER_FILE = 10  # a listing scans at most this many names for each file that it may return

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_SECOND = 253_402_300_799  # of the year 9999

# A name is neither "." nor "..", starts with no drive letter, and holds no slash, backslash, NUL or lone surrogate.
_STREAMS = ":" if os.name == "nt" else ""  # Windows: "file:stream" is another name of "file"
_NAME = rf"(?!\.\.?(?:/|\Z))(?![A-Za-z]:)[^/\\\0\ud800-\udfff{_STREAMS}]+"
_RELATIVE = re.compile(f"{_NAME}(?:/{_NAME})*")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?:[\w.~!$&'()*+,;=:@/?\[\]-]|%[0-9A-Fa-f]{2})*", re.ASCII)
_NOT_A_PATH = re.compile(r"[?#]|%(?![0-9A-Fa-f]{2})")


# Open flags, as far as this system has them. O_NONBLOCK: opening a fifo returns at once.
_READ = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY"))
_FOLDER = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_PATH", "O_DIRECTORY", "O_NOFOLLOW"))
_NOT_FOUND = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENAMETOOLONG}

_TEXTUAL = re.compile(r"text/.*|application/(json|jsonl|toml|yaml|xml|sql|graphql|javascript)|.*\+(json|xml|yaml)")

Matcher = Callable[[str], object]
_MATCH_NOTHING: Matcher = re.compile("(?!)").match
OpenFile = Callable[[Path, Path], int]  # a descriptor for a real path below a root


class FileEntry(msgspec.Struct, frozen=True):
    """A file in a listing; `path` is for the server only."""

    uri: str
    name: str
    path: Path
    mime_type: str
    size: int
    last_modified: str


class FileContents(msgspec.Struct, frozen=True):
    """The contents of a file: text if its type is textual and its bytes are UTF-8, else bytes."""

    entry: FileEntry
    data: str | bytes


def open_by_folder(root: Path, path: Path) -> int:
    """Open each folder on the way, so that no symlink is followed that was made since the path was resolved."""
    *folders, name = path.relative_to(root).parts
    folder = os.open(root, _FOLDER)
    try:
        for each in folders:
            inner = os.open(each, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(name, _READ | os.O_NOFOLLOW, dir_fd=folder)
    finally:
        os.close(folder)


def open_and_compare(_root: Path, path: Path) -> int:
    """Open a file where folders can't be opened, then check that the path still leads to the same file."""
    descriptor = os.open(path, _READ)
    try:
        if os.path.realpath(path) != str(path) or not os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            raise FileNotFoundError(errno.ENOENT, "replaced while it was opened")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


_CAN_OPEN_FOLDERS = hasattr(os, "O_NOFOLLOW") and os.open in os.supports_dir_fd
open_below: OpenFile = open_by_folder if _CAN_OPEN_FOLDERS else open_and_compare


class Directory:
    """The files below a root, each with a URI; the module says which of them are offered."""

    def __init__(
        self,
        root: str | Path,
        *,
        uri: str | None = None,
        include: Sequence[str] = ("**/*",),
        exclude: Sequence[str] = (),
        hidden: bool = False,
        max_bytes: int = MAX_BYTES,
        max_files: int = 10_000,
        open_file: OpenFile = open_below,
    ) -> None:
        if not os.path.isdir(root):
            raise SetupError(f"There is no directory {str(root)!r}: create it first, or name one that exists")
        _require_positive(max_bytes=max_bytes, max_files=max_files)
        self.root = Path(os.path.realpath(root))
        self.uri = normalize_uri(_checked_uri(self.root.as_uri() if uri is None else uri))
        self.prefix = self.uri if self.uri.endswith("/") else f"{self.uri}/"
        self.template = f"{self.prefix}{{+path}}"
        self.max_bytes = max_bytes
        self.max_files = max_files
        self._hidden = hidden
        self._include = [_compile_glob(pattern) for pattern in _checked_patterns("include", include)]
        self._exclude = [[*_compile_glob(_fold(each)), None] for each in _checked_patterns("exclude", exclude)]
        self._open_file = open_file
        self._has_warned = False
        self.guard: Callable[[], FileGuard | None] | None = None  # None: no other file or folder has an access rule

    def entries(self) -> list[FileEntry]:
        """All offered files, sorted by name, at most `max_files`. Symlinks to folders are not followed."""
        found = list(islice(self._walk(), self.max_files + 1))
        if len(found) > self.max_files:
            self._warn_of_limit()
        covered = self._covered_by_others(entry.path for entry in found)
        shown = [entry for entry in found[: self.max_files] if entry.path not in covered]
        return sorted(shown, key=lambda entry: entry.name)

    def resolve(self, relative: str) -> Path:
        """The real path of an offered file. `relative` is percent-decoded already."""
        try:
            parts = _split(relative)
            path = Path(os.path.realpath(self.root.joinpath(*parts), strict=True))
            real_parts = path.relative_to(self.root).parts
            offered = self.offers(parts) and self.offers(real_parts) and stat.S_ISREG(os.lstat(path).st_mode)
        except (OSError, ValueError):
            offered = False
        if not offered or self._covered_by_others([path]):
            raise _missing(relative)
        return path

    def read(self, relative: str) -> FileContents:
        """The contents of an offered file; raises ProtocolError if it is too large."""
        path = self.resolve(relative)
        with _translated_errors(relative):
            status, data = _read_regular(self._open_file(self.root, path), relative, self.max_bytes)
        return _contents(_entry(self.uri_of(relative), relative, path, status), data)

    def uri_of(self, relative: str) -> str:
        """The URI of a relative path, whether or not there is a file."""
        uri = self.prefix + quote(relative) if _RELATIVE.fullmatch(relative) else None
        if uri is None or len(uri) > MAX_URI_LENGTH:  # no request could name it
            raise _missing(relative)
        return uri

    def path_of(self, uri: str) -> Path | None:
        """The path of an offered file, or the root for the directory's own URI; None for others."""
        if uri in (self.uri, self.prefix):
            return self.root
        relative = uri.removeprefix(self.prefix)
        if relative == uri or _NOT_A_PATH.search(relative):
            return None
        with suppress(NotFound, UnicodeError):
            return self.resolve(unquote_to_bytes(relative).decode())
        return None

    def _covered_by_others(self, paths: Iterable[Path]) -> set[Path]:
        guard = None if self.guard is None else self.guard()
        return set() if guard is None else guard.covered(paths)

    def offers(self, parts: Sequence[str]) -> bool:
        return self.admits(parts) and any(_matches(glob, parts) for glob in self._include)

    def admits(self, parts: Sequence[str]) -> bool:
        """Whether a file or folder is neither hidden nor excluded."""
        if not self._hidden and any(part.startswith(".") for part in parts):
            return False
        folded = [_fold(part) for part in parts] if self._exclude else []
        return not any(_matches(glob, folded) for glob in self._exclude)

    def _walk(self) -> Iterator[FileEntry]:
        remaining = self.max_files * NAMES_PER_FILE
        pending: list[tuple[str, ...]] = [()]
        while pending and remaining > 0:
            folder = pending.pop()
            inner: list[tuple[str, ...]] = []
            for item, is_folder in self.scan(folder, remaining):
                remaining -= 1
                parts = (*folder, item.name)
                if not is_folder and (entry := self._entry_of(item, parts)) is not None:
                    yield entry
                elif is_folder and self.admits(parts):
                    inner.append(parts)
            pending.extend(reversed(inner))
        if remaining <= 0:
            self._warn_of_limit()

    def scan(self, parts: tuple[str, ...], limit: int) -> list[tuple[os.DirEntry[str], bool]]:
        folder = str(self.root.joinpath(*parts))
        try:
            if os.path.realpath(folder) != folder:  # a junction, or replaced by a symlink since it was listed
                return []
            with os.scandir(folder) as items:
                found = [(item, item.is_dir(follow_symlinks=False)) for item in islice(items, limit)]
        except OSError:  # deleted meanwhile, or not readable
            return []
        return sorted(found, key=lambda each: each[0].name)

    def _entry_of(self, item: os.DirEntry[str], parts: tuple[str, ...]) -> FileEntry | None:
        name = "/".join(parts)
        try:
            if not self.offers(_split(name)):
                return None
            path = self.resolve(name) if item.is_symlink() else Path(item.path)
            uri, status = self.uri_of(name), os.lstat(path)
        except (OSError, ValueError, NotFound):
            return None
        return _entry(uri, name, path, status) if stat.S_ISREG(status.st_mode) else None

    def _warn_of_limit(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("%s has more files than a listing shows; raise max_files or narrow the patterns", self.root)


class ServedFile:
    """A single file as a resource. The author chose it, so it may be hidden, or a symlink to any file."""

    def __init__(
        self, path: str | Path, uri: str | None = None, mime_type: str | None = None, max_bytes: int = MAX_BYTES
    ) -> None:
        if not os.path.isfile(path):
            raise SetupError(f"There is no file {str(path)!r}: create it first, or name one that exists")
        _require_positive(max_bytes=max_bytes)
        self.path = Path(os.path.abspath(path))
        self.name = self.path.name
        self.uri = _checked_uri(self.path.as_uri() if uri is None else uri)
        self.mime_type = mime_type or guess_mime_type(self.name)
        self.max_bytes = max_bytes

    def entry(self) -> FileEntry:
        with _translated_errors(self.name):
            status = os.stat(self.path)
        if not stat.S_ISREG(status.st_mode):
            raise _missing(self.name)
        return _entry(self.uri, self.name, self.path, status, self.mime_type)

    def read(self) -> FileContents:
        with _translated_errors(self.name):
            status, data = _read_regular(os.open(self.path, _READ), self.name, self.max_bytes)
        return _contents(_entry(self.uri, self.name, self.path, status, self.mime_type), data)


def _split(relative: str) -> tuple[str, ...]:
    if len(relative) > MAX_PATH or not _RELATIVE.fullmatch(relative):
        raise ValueError("not a plain relative path")
    return tuple(relative.split("/"))


def _entry(uri: str, name: str, path: Path, status: os.stat_result, mime_type: str | None = None) -> FileEntry:
    seconds = min(max(int(status.st_mtime), 0), _LAST_SECOND)
    modified = (_EPOCH + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
    return FileEntry(uri, name, path, mime_type or guess_mime_type(name), status.st_size, modified)


def _contents(entry: FileEntry, data: bytes) -> FileContents:
    return FileContents(entry, _text_or_bytes(data, entry.mime_type))


def _text_or_bytes(data: bytes, mime_type: str) -> str | bytes:
    if _TEXTUAL.fullmatch(mime_type.partition(";")[0].strip().lower()):
        with suppress(UnicodeDecodeError):
            return data.decode()
    return data


def _read_regular(descriptor: int, name: str, max_bytes: int) -> tuple[os.stat_result, bytes]:
    """Read and close a file. One byte more than allowed is read, to notice a file that grows meanwhile."""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            data = stream.read(max_bytes + 1 if status.st_size <= max_bytes else 0)
        if max(status.st_size, len(data)) > max_bytes:
            raise ProtocolError(f"The file {_excerpt(name)} is larger than the limit of {max_bytes:,} bytes")
        return status, data
    finally:
        os.close(descriptor)


@contextmanager
def _translated_errors(name: str) -> Iterator[None]:
    """Turn errors of the operating system into errors for the client, with the file's name and without its path."""
    try:
        yield
    except OSError as problem:
        if problem.errno in _NOT_FOUND:
            raise _missing(name) from None
        log.warning("%s can't be read: %s", _excerpt(name), problem.strerror)
        raise ProtocolError(f"The file {_excerpt(name)} can't be read") from None


def _missing(name: str) -> NotFound:
    return NotFound(f"There is no file {_excerpt(name)}")


def _excerpt(name: str) -> str:
    """A client's text, shortened and encodable as UTF-8."""
    return repr(name if len(name) <= 200 else f"{name[:200]}…").encode(errors="replace").decode()


def _fold(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def _compile_glob(pattern: str) -> list[Matcher | None]:
    """A matcher for each name of the path; None stands for `**`."""
    names = pattern.strip("/").split("/")
    if "/" not in pattern.rstrip("/"):
        names.insert(0, "**")
    return [None if name == "**" else re.compile(fnmatch.translate(name)).match for name in names]


def _matches(glob: Sequence[Matcher | None], parts: Sequence[str]) -> bool:
    """Whether the parts of a path match. On a mismatch the last `**` takes one part more: quadratic at worst."""
    at = part = 0
    retry: tuple[int, int] | None = None
    while part < len(parts):
        matcher = glob[at] if at < len(glob) else _MATCH_NOTHING
        if matcher is None:
            at += 1
            retry = at, part
        elif matcher(parts[part]):
            at, part = at + 1, part + 1
        elif retry is None:
            return False
        else:
            at, part = retry = retry[0], retry[1] + 1
    return all(matcher is None for matcher in glob[at:])


def _checked_patterns(option: str, patterns: Sequence[str]) -> Sequence[str]:
    if isinstance(patterns, str):
        raise SetupError(f"{option}={patterns!r} must be a list of patterns: write {option}=[{patterns!r}]")
    if not all(pattern.strip("/") for pattern in patterns):
        raise SetupError(f"{option}={patterns!r} holds an empty pattern: remove it")
    return patterns


def _checked_uri(uri: str) -> str:
    if len(uri) > MAX_URI_LENGTH or not _URI.fullmatch(uri):
        raise SetupError(f"{uri!r} is not a URI: write a scheme, a colon and a path, such as 'docs://handbook'")
    return uri


def _require_positive(**limits: int) -> None:
    if wrong := [f"{name}={value}" for name, value in limits.items() if value < 1]:
        raise SetupError(f"{', '.join(wrong)} must be at least 1")


class _FileType(msgspec.StructMeta):
    """`File(path="a.pdf")` reads the file, `File(data, format="pdf")` has it already. Decoded messages do neither."""

    def __call__(
        cls, data: Any = None, *, path: Any = None, format: str = "", mime_type: str = "", name: str = "",
        uri: str = "", **named: Any,
    ) -> Any:  # fmt: skip
        data, ending = read_media("File", data, path), ending_of("File", format)
        name = name or ("resource" if path is None else os.path.basename(path))
        name += f".{ending}" if ending and "." not in name else ""
        mime_type = mime_type or (_TYPES.get(ending, f"application/{ending}") if ending else guess_mime_type(name))
        contents = _text_or_bytes(data, mime_type)
        parts = {"text": contents} if isinstance(contents, str) else {"blob": contents}
        resource = ResourceContents(uri or f"file:///{quote(name)}", mime_type, **parts)
        return super().__call__(resource, **named)


class File(EmbeddedResource, frozen=True, tag_field="type", tag="resource", metaclass=_FileType):
    """A file as content: `File(path="report.pdf")`, or `File(data, format="pdf", name="report")`.

    Its URI has the name of the file and not its folder, unless `uri=` says it all.
    """

    if TYPE_CHECKING:  # the parameters of the metaclass

        def __init__(
            self, data: bytes | None = None, *, path: str | os.PathLike[str] | None = None, format: str = "",
            mime_type: str = "", name: str = "", uri: str = "",
            annotations: "Annotations | None" = None, meta: "Meta | None" = None,
        ) -> None: ...  # fmt: skip
