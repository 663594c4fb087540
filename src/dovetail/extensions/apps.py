"""MCP Apps: views of tools, HTML documents that hosts show in a frame; checked when they are added.

A view has no server of its own: what its document loads from elsewhere has to be named in `csp=`, or the frame stays
blank. So the sources that can be found in a document are compared with it at registration.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from html.parser import HTMLParser
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin
from urllib.parse import urljoin, urlsplit

from msgspec.structs import replace

from dovetail import registry
from dovetail.engine.context import Context
from dovetail.errors import SetupError
from dovetail.protocol.extensions import UI, UI_LINK_KEY, UI_MIME_TYPE
from dovetail.protocol.types import Audio, CacheScope, Image, ResourceContents
from dovetail.registry import registration
from dovetail.registry.functions import inspect_function, members
from dovetail.registry.mounts import Mounted
from dovetail.registry.registration import SWITCH, TEXT, CommonOptions, Kind
from dovetail.registry.tools import ToolOptions

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine
    from dovetail.registry.files import File

CSP_KEYS = {each: f"{each}Domains" for each in ("connect", "resource", "frame")} | {"base_uri": "baseUriDomains"}
PERMISSIONS = {each: each for each in ("camera", "microphone", "geolocation")} | {"clipboard_write": "clipboardWrite"}
_FIELDS = {"domain": "domain", "prefers_border": "prefersBorder"}
VISIBILITY = ("model", "app")
KINDS = {
    **registration.KINDS,
    "csp": Kind(dict[str, list[str]], "a dict of lists of origins"),
    "permissions": registration.NAMES,
    "visibility": registration.NAMES,
    "domain": TEXT,
    "prefers_border": SWITCH,
    "ui": TEXT,
}
MAX_SHOWN = 5  # sources in one error
_URI = re.compile(r"ui://[^\s{}]+")
_ORIGIN = re.compile(r"(https?|wss?)://((?:\*\.)?[a-z0-9._-]+|\[[0-9a-f:]+\])(?::(\d{1,5}|\*))?", re.ASCII | re.I)
_DOCUMENT = re.compile(r"\ufeff?(?>\s+|<!--.*?-->)*<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL)
log = logging.getLogger("dovetail")


class UiOptions(CommonOptions, total=False):
    """Options of `server.add_ui`."""

    name: str
    description: str
    ttl_ms: int
    cache_scope: CacheScope
    csp: Mapping[str, Sequence[str]]
    permissions: Sequence[str]
    domain: str
    prefers_border: bool


# ── views ──


def add_view(engine: "Engine", uri: Any, html: Any, options: UiOptions) -> None:
    """Add a view. Raises SetupError for a document that is none, or that loads what `csp=` does not allow."""
    where = f"server.add_ui({uri!r:.100})"
    if not isinstance(uri, str) or not _URI.fullmatch(uri):
        raise SetupError(f'{where}: the URI of a view begins with ui://, as in "ui://weather/chart"')
    given: dict[str, Any] = {**registration.checked_options(options, UiOptions.__optional_keys__, where, KINDS)}
    csp = _checked_csp(given.pop("csp", {}), where)
    ui: dict[str, Any] = {"csp": {CSP_KEYS[key]: origins for key, origins in csp.items()}}
    if "permissions" in given:
        ui["permissions"] = {PERMISSIONS[each]: {} for each in _known(given.pop("permissions"), PERMISSIONS, where)}
    ui |= {key: given.pop(name) for name, key in _FIELDS.items() if name in given}
    if not isinstance(html, str | Path):
        raise SetupError(f"{where}: give it the document as a string, or its file as a Path, not {html!r:.100}")
    source = html if isinstance(html, str) else registry.files.File(html, uri=uri, mime_type=UI_MIME_TYPE)
    given |= {"mime_type": UI_MIME_TYPE, "meta": {**(given.get("meta") or {}), "ui": ui}}
    given.setdefault("name", uri.removeprefix("ui://"))
    read: Any = _reader(uri, source, csp, {"ui": ui}, where)
    resource: Any = registry.resources.compile_resource(uri, read, given)  # type: ignore[arg-type]
    engine.resources.add(replace(resource, path=getattr(source, "path", None)), where=where)


def _reader(
    uri: str, source: "str | File", csp: Mapping[str, Sequence[str]], meta: dict[str, Any], where: str
) -> Callable[[], ResourceContents]:
    """The function of the view's resource. A file that has changed is checked again, which is logged."""
    checked = _text_of(source, where)
    if found := list(problems(checked, csp)):
        raise SetupError(f"{where}: {'; '.join(found)}")

    def read() -> ResourceContents:
        nonlocal checked
        text = _text_of(source, where)
        if text != checked:
            checked = text
            for problem in problems(text, csp):
                log.warning("%s: %s", where, problem)
        return ResourceContents(uri, UI_MIME_TYPE, text=text, meta=meta)

    return read


def _text_of(source: "str | File", where: str) -> str:
    text = source if isinstance(source, str) else source.read().data
    if not isinstance(text, str):
        raise SetupError(f"{where}: the document must be text in UTF-8")
    return text


def _checked_csp(given: Mapping[str, Sequence[str]], where: str) -> dict[str, list[str]]:
    """The origins of all keys, also where there are none: some hosts take a missing list for a mistake."""
    _known(given, CSP_KEYS, f"{where}, csp")
    for origin in (each for origins in given.values() for each in origins):
        if not is_origin(origin):
            fix = 'it must be an origin without a path, such as "https://api.example.com" or "https://*.example.com"'
            raise SetupError(f"{where}: csp= has {origin!r}; {fix}")
    return {key: [*given.get(key, ())] for key in CSP_KEYS}


def _known(given: Any, known: Mapping[str, str] | Sequence[str], where: str) -> Any:
    for each in given:
        if each not in known:
            hint = registration.did_you_mean(each, known)
            raise SetupError(f"{where}: {each!r} is unknown{hint}; known are {', '.join(known)}")
    return given


def is_origin(text: object) -> bool:
    """Whether it is an origin of `csp=`, which can stand in a Content-Security-Policy."""
    return isinstance(text, str) and _ORIGIN.fullmatch(text) is not None


# ── tools ──


def tool_options(engine: "Engine", function: Callable[..., Any], options: ToolOptions) -> ToolOptions:
    """The options of a tool with `ui=` or `visibility=` as those that every tool has. Raises SetupError."""
    info = inspect_function(
        function, injectable=Context, name=options.get("name"), open_ended="input_schema" in options
    )
    given: Any = {**registration.checked_options(options, ToolOptions.__optional_keys__, info.where, KINDS)}
    uri, visibility = given.pop("ui", None), given.pop("visibility", None)
    meta = {**(given.get("meta") or {})}
    ui = {**meta.get("ui", {})}
    if visibility is not None:
        if not visibility:
            raise SetupError(f'{info.where}: visibility=[] is empty; name "model", "app" or both')
        ui["visibility"] = [*_known(visibility, VISIBILITY, f"{info.where}, visibility")]
    if uri is not None:
        if given.get("output", "auto") not in ("auto", "both") or given.get("structured_output") is False:
            fix = "the view gets the structured value, and the model its text; leave the option out"
            raise SetupError(f"{info.where}: a tool with ui= sends both: {fix}")
        if "model" in ui.get("visibility", VISIBILITY) and _has_no_text(info.returns):
            fix = "return a value or a text too, for the model and for clients that show no views"
            raise SetupError(f"{info.where}: a tool with ui= that returns no text says nothing; {fix}")
        ui["resourceUri"] = meta[UI_LINK_KEY] = uri
        given["output"] = "both"
        given.setdefault("always_visible", True)  # hosts look for the view in the list
        if engine.is_serving:
            _check_view(engine, uri, info.where)
        engine.start_checks[UI] = partial(_check_views, engine)
    given["meta"] = {**meta, "ui": ui}
    checked: ToolOptions = given
    return checked


def _has_no_text(returns: Any) -> bool:
    if get_origin(returns) in (list, tuple, Sequence):
        return all(each is Ellipsis or _has_no_text(each) for each in get_args(returns))
    kinds = members(returns)
    if len(kinds) > 1:
        return all(map(_has_no_text, kinds))
    return returns in (None, type(None), Image, Audio)


def _check_views(engine: "Engine") -> None:
    """Raises SetupError if the view of a tool does not exist when serving begins."""
    for tool in engine.tools.registered.items:
        if UI_LINK_KEY in (meta := tool.definition.meta or {}) and not isinstance(tool.route, Mounted):
            _check_view(engine, meta[UI_LINK_KEY], tool.label)


def _check_view(engine: "Engine", uri: str, where: str) -> None:
    source = engine.resources.get(uri)
    if engine.awaits_lists or (source is not None and source.definition.mime_type == UI_MIME_TYPE):
        return
    views = [each.uri for each in engine.resources.direct.registered.items if each.mime_type == UI_MIME_TYPE]
    hint = registration.did_you_mean(uri, views)
    raise SetupError(f"{where}: ui={uri!r} is no view{hint}; add it with server.add_ui({uri!r}, …)")


# ── what a document loads ──

_SOURCES = {  # attributes with URLs, and the key of `csp=` that allows them
    **dict.fromkeys([("script", "src"), ("link", "href"), ("input", "src"), ("track", "src")], "resource"),
    **dict.fromkeys([(tag, "src") for tag in ("img", "source", "video", "audio")], "resource"),
    **dict.fromkeys([("img", "srcset"), ("source", "srcset"), ("video", "poster")], "resource"),
    **dict.fromkeys([(tag, name) for tag in ("image", "use") for name in ("href", "xlink:href")], "resource"),
    ("iframe", "src"): "frame",
    ("base", "href"): "base_uri",
}
_LOADING = {"stylesheet", "preload", "modulepreload"}  # kinds of links
_LITERAL = r"\s*[\"'`]((?:https?:|wss?:)?//[^\"'`$\s]+)"
_CALLS = r"(?:\b(?:fetch|WebSocket|EventSource|sendBeacon)\(|\.open\(\s*[\"'`]\w+[\"'`]\s*,)"
_SCRIPT = {"connect": re.compile(_CALLS + _LITERAL), "resource": re.compile(rf"\b(?:import\s*\(?|from){_LITERAL}")}
_STYLE = re.compile(r"(?:(?<!@namespace )\burl\(\s*[\"']?|@import\s+[\"'])([^\"')\s]+)", re.IGNORECASE)
_WITHIN: dict[str | None, dict[str, re.Pattern[str]]] = {  # styles, and types of scripts
    "style": {"resource": _STYLE},
    "importmap": {"resource": re.compile(r"\"(https?://[^\"]+)\"")},
    **dict.fromkeys(("", "module", "text/javascript", "application/javascript"), _SCRIPT),
}
_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_STRICTER = {"http": ("https",), "ws": ("wss", "http", "https"), "wss": ("https",)}  # are allowed with it


class Sources(HTMLParser):
    """The URLs that a document loads, as far as they are written in it: pairs of a key of `csp=` and a URL."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.base = ""
        self._kind: str | None = None  # of the text: "style", or the type of the script that it is
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: (value or "").strip() for name, value in attrs}
        if tag == "base" and not self.base:
            self.base = given.get("href", "")
        if tag != "link" or not _LOADING.isdisjoint(given.get("rel", "").lower().split()):
            for name, value in given.items():
                if (key := _SOURCES.get((tag, name))) is not None:
                    parts = (part.split()[:1] for part in value.split(", ")) if name == "srcset" else [[value]]
                    self.found += [(key, url) for part in parts for url in part]
        self._kind = "style"
        self.handle_data(given.get("style", ""))
        self._kind = {"style": "style", "script": given.get("type", "").lower()}.get(tag)

    def handle_endtag(self, tag: str) -> None:
        self._kind = None if tag in ("style", "script") else self._kind

    def handle_data(self, data: str) -> None:
        for key, pattern in _WITHIN.get(self._kind, {}).items():
            self.found += [(key, url) for url in pattern.findall(data)]


def problems(document: str, csp: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Why a document is none, or what it loads that `csp` does not allow; a few of them."""
    if not _DOCUMENT.match(document):
        hint = "" if "<" in document or not document.endswith(".html") else f'; for a file write Path("{document}")'
        yield f"that is no HTML document: it begins with <!doctype html>{hint}"
        return
    try:
        sources = Sources(document)
    except AssertionError as failure:  # of the parser, for some of what begins with <![
        yield f"that is no HTML document: {failure!s:.200}"
        return
    found = (_problem(key, sources.base, url, csp[key]) for key, url in dict.fromkeys(sources.found))
    yield from islice(filter(None, found), MAX_SHOWN)


def _problem(key: str, base: str, url: str, allowed: Sequence[str]) -> str | None:
    try:
        url = url if key == "base_uri" else urljoin(base, url)
        if not url or url.startswith("#"):
            return None
        parts = urlsplit(f"https:{url}" if url.startswith("//") else url)
        port = parts.port
    except ValueError:
        return f"{url!r:.200} is no URL"
    if not parts.scheme:
        fix = "a view has no server to load it from; write it into the document, or use a whole URL"
        return f"{url!r:.200} is relative: {fix}"
    if parts.scheme not in _PORTS or any(_allows(origin, parts.scheme, parts.hostname, port) for origin in allowed):
        return None  # data:, blob: and the like come with the document
    origin = f"{parts.scheme}://{parts.netloc}"
    return f'it uses {url:.200}, which csp= does not allow; add "{key}": ["{origin}"]'


def _allows(origin: str, scheme: str, host: str | None, port: int | None) -> bool:
    found = _ORIGIN.fullmatch(origin.lower())
    assert found is not None
    kind, name, number = found.groups()
    if scheme != kind and scheme not in _STRICTER.get(kind, ()):
        return False
    if number != "*" and (port or _PORTS[scheme]) != (int(number) if number else _PORTS[scheme]):
        return False
    host = f"[{host}]" if ":" in (host or "") else host or ""
    return host.endswith(name[1:]) if name.startswith("*") else host == name
