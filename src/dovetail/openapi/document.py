"""OpenAPI documents: loaded from a file, a URL or a dict within bounds; their references, and their other files.

A reference leads to files in the folder of the document, or to its own origin. Nothing else is opened or fetched.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from itertools import takewhile
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import msgspec

from dovetail.errors import SetupError
from dovetail.schema.explain import excerpt
from dovetail.schema.validate import holds_more_than

Spec = dict[str, Any]
Source = str | os.PathLike[str] | Mapping[str, Any]

MAX_BYTES = 32 * 1024 * 1024  # of all files of a document
MAX_NODES = 3_000_000  # of one file; an alias of YAML counts each time
MAX_DEPTH = 100  # of YAML
MAX_FILES = 100
MAX_SECONDS = 30.0  # for all that is fetched
MAX_HOPS = 32  # from reference to reference

_URL = re.compile(r"https?://", re.IGNORECASE)
_SECRET = re.compile(r"(?<=//)[^/@]*@")  # the user and password of a URL
_YAML_NAME = re.compile(r"\.ya?ml\Z", re.IGNORECASE)
_SEPARATORS = (b",", b"\n", b"[", b"{", b"- ", b": ")  # each value has one of them before it
_VERSION = re.compile(r"3\.[012](\..*)?")
_INDEX = re.compile(r"[0-9]{1,9}")


class BadReference(Exception):
    """A reference that is not followed; says why."""


class Document:
    """An OpenAPI document of version 3. `origin` is the URL that it was fetched from."""

    def __init__(self, source: Source) -> None:
        self._bytes = 0
        self._deadline = time.monotonic() + MAX_SECONDS
        self._folder: Path | None = None
        self.origin: str | None = None
        self.base = ""  # the file of the document itself
        if isinstance(source, Mapping):
            loaded: Any = _plain(source, "the document")
        elif _URL.match(text := _address(source)):
            self.base, loaded = self._fetch(text)
            self.origin = self.base
        else:
            path = Path(text).resolve()
            self.base, self._folder, loaded = str(path), path.parent, self._open(path)
        self.spec: Spec = _checked(loaded, without_secrets(self.base) or "the document")
        self._files: dict[str, Any] = {self.base: self.spec}

    @classmethod
    def load(cls, source: Source) -> "Document":
        """Load a document from a dict, the path of a file (JSON or YAML) or a URL. Raises SetupError."""
        return cls(source)

    @property
    def security_schemes(self) -> dict[str, Spec]:
        """The security schemes by name, without those that can't be read."""
        found = {}
        for name, value in as_object(as_object(self.spec.get("components")).get("securitySchemes")).items():
            try:
                found[name] = as_object(self.follow(value, self.base)[0])
            except BadReference:
                continue
        return found

    def follow(self, value: Any, base: str) -> tuple[Any, str]:
        """The value itself, or what its `$ref` leads to, with the file that holds it. Raises BadReference."""
        for _ in range(MAX_HOPS):
            if not isinstance(value, dict) or not isinstance(reference := value.get("$ref"), str):
                return value, base
            value, base = self.resolve(reference, base)
        raise BadReference(f"the reference {excerpt(reference)} leads on and on")

    def resolve(self, reference: str, base: str) -> tuple[Any, str]:
        """What a reference in the file `base` leads to, with the file that holds it. Raises BadReference."""
        address, _, fragment = reference.partition("#")
        file = self._file(address, base) if address else base
        pointer, found = unquote(fragment), self._files[file]
        if pointer and not pointer.startswith("/"):
            raise BadReference(f"the reference {excerpt(reference)} names an anchor; use a path: #/components/…")
        for step in pointer.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and _INDEX.fullmatch(step) and int(step) < len(found):
                found = found[int(step)]
            elif isinstance(found, dict) and step in found:
                found = found[step]
            else:
                raise BadReference(f"the reference {excerpt(reference)} leads nowhere")
        return found, file

    def _file(self, address: str, base: str) -> str:
        """The name of another file of the document, which is read when it is first needed."""
        try:
            name = self._name(address, base)
        except (ValueError, OSError, RuntimeError):  # no address, no path, or a loop of links
            raise BadReference(f"{excerpt(address)} can't be opened") from None
        if name not in self._files:
            if len(self._files) >= MAX_FILES:
                raise BadReference(f"{excerpt(address)} is not opened: {MAX_FILES} files are the most")
            try:
                self._files[name] = self._fetch(name)[1] if self.origin else self._open(Path(name))
            except SetupError as error:
                self._files[name] = BadReference(str(error))
        if isinstance(self._files[name], BadReference):
            raise self._files[name]
        return name

    def _name(self, address: str, base: str) -> str:
        if self.origin is not None:
            url = urljoin(base, address)
            if origin_of(url) != origin_of(self.origin):
                raise BadReference(f"{excerpt(address)} is at another origin, and never fetched")
            return url
        path = (Path(base).parent / unquote(address)).resolve()
        if self._folder is None or urlsplit(address).scheme or not path.is_relative_to(self._folder):
            raise BadReference(f"{excerpt(address)} is not in the folder of the document, and never opened")
        return str(path)

    def _open(self, path: Path) -> Any:
        try:
            if not path.is_file():
                raise SetupError(f"{path}: there is no such file")
            with path.open("rb") as file:
                return self._parse(file.read(MAX_BYTES + 1), str(path))
        except OSError as error:
            raise SetupError(f"{str(path)[:200]}: it can't be read: {error.strerror}") from None

    def _fetch(self, url: str) -> tuple[str, Any]:
        """The last URL, after redirects, and the document there. The thread bounds names and headers that are slow."""
        left = max(self._deadline - time.monotonic(), 0.001)
        fetched: Future[tuple[str, bytes]] = Future()
        Thread(target=_fetch, args=(url, left, fetched), daemon=True).start()
        where = without_secrets(url)
        try:
            last, data = fetched.result(left)
        except TimeoutError:
            raise SetupError(f"{where}: it can't be fetched within {MAX_SECONDS:g} s") from None
        return last, self._parse(data, where)

    def _parse(self, data: bytes, where: str) -> Any:
        self._bytes += len(data)
        if self._bytes > MAX_BYTES or sum(map(data.count, _SEPARATORS)) > MAX_NODES:
            raise SetupError(f"{where}: it is too large; {MAX_BYTES:,} bytes are the most for all files")
        data = data.removeprefix(b"\xef\xbb\xbf").lstrip()
        if data.startswith(b"{"):
            try:
                return msgspec.json.decode(data)
            except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
                if not _YAML_NAME.search(where):
                    raise SetupError(f"{where}: it is no JSON: {error}") from None
        return _plain(_from_yaml(data, where), where)


def _address(source: Any) -> str:
    if not isinstance(source, str | os.PathLike):
        wanted = "a path, a URL or a dict; an app is given to OpenApi.from_app"
        raise SetupError(f"OpenApi: its source must be {wanted}, not {type(source).__name__}")
    return str(source)


class _SameOrigin(HTTPRedirectHandler):
    """Follows redirects at the origin of the document only."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        if origin_of(newurl) != origin_of(req.full_url):
            raise OSError(f"it is redirected to another origin, {'://'.join(map(str, origin_of(newurl)[:2]))}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetch(url: str, timeout: float, fetched: Future[tuple[str, bytes]]) -> None:
    try:
        request = Request(url, headers={"Accept": "application/json, application/yaml;q=0.9, */*;q=0.1"})
        if "@" in urlsplit(url).netloc:
            raise OSError("its URL has a user or password; fetch it yourself, and give the dict")
        with build_opener(_SameOrigin).open(request, timeout=timeout) as response:
            fetched.set_result((response.geturl(), response.read(MAX_BYTES + 1)))
    except Exception as error:  # urllib raises many
        fetched.set_exception(SetupError(f"{without_secrets(url)}: it can't be fetched: {error}"))


def origin_of(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port of a URL. Raises ValueError."""
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme.lower())


def without_secrets(url: str) -> str:
    """A URL as messages show it: without user, password and query."""
    return _SECRET.sub("", url.partition("?")[0])


def as_object(value: Any) -> dict[str, Any]:
    """A value that should be an object; an empty one in its place if it is none."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _checked(spec: Any, where: str) -> Spec:
    """The document, if it is one of OpenAPI 3. Raises SetupError."""
    if not isinstance(spec, dict):
        raise SetupError(f"{where}: an OpenAPI document is an object, not {excerpt(spec)}")
    if "swagger" in spec:
        raise SetupError(f"{where}: it is Swagger 2.0; convert it to OpenAPI 3, for example by swagger2openapi")
    if not _VERSION.fullmatch(str(spec.get("openapi"))):
        raise SetupError(f'{where}: "openapi" is {excerpt(spec.get("openapi"))}; OpenAPI 3.0 and 3.1 can be read')
    if not isinstance(spec.get("paths", {}), dict):
        raise SetupError(f'{where}: "paths" is {excerpt(spec["paths"])}; it is an object of path items')
    return spec


def _plain(value: Any, where: str) -> Any:
    """A copy that holds JSON's types only and shares nothing. Raises SetupError."""
    if holds_more_than(MAX_NODES, value):
        raise SetupError(f"{where}: it is too large, or contains itself; {MAX_NODES:,} values are the most")
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise SetupError(f"{where}: it is no JSON: {error}") from None


# The core schema of YAML 1.2, as OpenAPI asks for: dates, `yes` and `12:30` are texts.
_YAML_WORDS: dict[str, bool | None] = {"": None, "~": None}
for _word, _meaning in (("null", None), ("true", True), ("false", False)):
    _YAML_WORDS |= dict.fromkeys((_word, _word.title(), _word.upper()), _meaning)
_YAML_NUMBERS = (
    (re.compile(r"[-+]?(0|[1-9][0-9]{0,400})"), int),
    (re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][-+]?[0-9]{1,2})?"), float),
)


def _from_yaml(data: bytes, where: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]  # late: an extra, for YAML only
    except ImportError:
        install = 'pip install "dovetail-mcp[openapi]"'
        raise SetupError(f"{where}: YAML needs PyYAML: {install}; or write it as JSON") from None
    try:
        return _YamlReader(yaml.parse(data, getattr(yaml, "CSafeLoader", yaml.SafeLoader))).read()
    except (yaml.YAMLError, ValueError) as error:
        raise SetupError(f"{where}: it can't be read as YAML: {' '.join(str(error).split())[:200]}") from None


class _YamlReader:
    """Makes values of the events of a YAML text: PyYAML's own loader crashes if they are nested deeply."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchors: dict[str, Any] = {}
        self._merged = 0  # keys, by `<<`

    def read(self) -> Any:
        """The first value; None if there is none. Raises ValueError, YAMLError."""
        return next((self._value(event, 1) for event in self._events if _begins(event)), None)

    def _value(self, event: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"{_line(event)}: it is nested deeper than {MAX_DEPTH} levels")
        match type(event).__name__:
            case "AliasEvent":
                if event.anchor not in self._anchors:
                    raise ValueError(f"{_line(event)}: there is no anchor {event.anchor!r} before it")
                return self._anchors[event.anchor]
            case "ScalarEvent":
                value = _scalar(event)
            case "SequenceStartEvent":
                value = [self._value(each, depth + 1) for each in takewhile(_begins, self._events)]
            case _:
                value = self._mapping(depth)
        if event.anchor:
            self._anchors[event.anchor] = value
        return value

    def _mapping(self, depth: int) -> dict[str, Any]:
        value, merged = dict[str, Any](), list[Any]()
        for key in takewhile(_begins, self._events):
            if type(key).__name__ != "ScalarEvent":
                raise ValueError(f"{_line(key)}: a key is a text")
            inner = self._value(next(self._events), depth + 1)
            if key.value == "<<":
                merged += inner if isinstance(inner, list) else [inner]
            else:
                value[key.value] = inner
        for other in map(as_object, merged):
            self._merged += len(other)
            if self._merged > MAX_NODES:
                raise ValueError("it merges too many keys")
            for name, inner in other.items():
                value.setdefault(name, inner)
        return value


def _begins(event: Any) -> bool:
    """Whether a value begins with it."""
    return hasattr(event, "anchor")


def _line(event: Any) -> str:
    return f"line {event.start_mark.line + 1}"


def _scalar(event: Any) -> Any:
    """The value of a scalar; a quoted one, and one with a tag, is a text."""
    text: str = event.value
    if event.style or not event.implicit[0]:
        return text
    if text in _YAML_WORDS:
        return _YAML_WORDS[text]
    return next((kind(text) for pattern, kind in _YAML_NUMBERS if pattern.fullmatch(text)), text)
