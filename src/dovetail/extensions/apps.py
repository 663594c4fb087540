"""MCP Apps: views of tools, HTML documents that hosts show in a frame; checked when they are added.

A view has no server of its own: what its document loads from elsewhere has to be named in `csp=`, or the frame stays
blank. So the sources that can be found in a document are compared with it at registration.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from msgspec.structs import replace

from dovetail import registry
from dovetail.engine.context import Context
from dovetail.errors import SetupError
from dovetail.protocol.extensions import UI_LINK_KEY, UI_MIME_TYPE
from dovetail.protocol.session import EVERYTHING
from dovetail.protocol.types import Audio, CacheScope, Image, ResourceContents
from dovetail.registry import registration
from dovetail.registry.functions import inspect_function
from dovetail.registry.mounts import Mounted
from dovetail.registry.registration import TEXT, CommonOptions, Kind
from dovetail.registry.tools import ToolOptions

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine
    from dovetail.registry.files import ServedFile

CSP_KEYS = {each: f"{each}Domains" for each in ("connect", "resource", "frame")} | {"base_uri": "baseUriDomains"}
VISIBILITY = ("model", "app")
KINDS = {
    **registration.KINDS,
    "csp": Kind(dict[str, list[str]], "a dict of lists of origins"),
    "visibility": registration.NAMES,
    "ui": TEXT,
}
MAX_SHOWN = 5  # sources in one error
_URI = re.compile(r"ui://[^\s{}]+")
_ORIGIN = re.compile(r"(https?|wss?)://((?:\*\.)?[a-z0-9._-]+|\[[0-9a-f:]+\])(?::(\d{1,5}|\*))?", re.ASCII | re.I)
_URL = re.compile(rf"{_ORIGIN.pattern}(?=[/?#]|$)", _ORIGIN.flags)  # with a scheme, and nothing computed in its host
DEFAULT_PORTS = {None, "80", "443"}
_DOCUMENT = re.compile(r"\ufeff?(?>\s+|<!--.*?-->)*<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL)


class UiOptions(CommonOptions, total=False):
    """Options of `server.add_ui`."""

    name: str
    description: str
    ttl_ms: int
    cache_scope: CacheScope
    csp: Mapping[str, Sequence[str]]  # what it may load: origins by connect, resource, frame, base_uri


# ── views ──


def add_view(engine: "Engine", uri: Any, html: Any, options: UiOptions) -> None:
    """Add a view. Raises SetupError for a document that is none, or that loads what `csp=` does not allow."""
    where = f"server.add_ui({uri!r:.100})"
    if not isinstance(uri, str) or not _URI.fullmatch(uri):
        raise SetupError(f'{where}: the URI of a view begins with ui://, as in "ui://weather/chart"')
    given: dict[str, Any] = {**registration.checked_options(options, UiOptions.__optional_keys__, where, KINDS)}
    csp = _checked_csp(given.pop("csp", {}), where)
    meta, ui = _meta_of(given, where)
    if "csp" in ui:
        raise SetupError(f'{where}: meta= has a "csp"; use csp=, which is checked and sent')
    ui["csp"] = {CSP_KEYS[key]: origins for key, origins in csp.items()}
    if not isinstance(html, str | Path):
        raise SetupError(f"{where}: give it the document as a string, or its file as a Path, not {html!r:.100}")
    source = html if isinstance(html, str) else registry.files.ServedFile(html, uri=uri, mime_type=UI_MIME_TYPE)
    given |= {"mime_type": UI_MIME_TYPE, "meta": {**meta, "ui": ui}}
    given.setdefault("name", uri.removeprefix("ui://"))
    _check_document(_text_of(source, where), csp, where)

    def read() -> ResourceContents:
        return ResourceContents(uri, UI_MIME_TYPE, text=_text_of(source, where), meta={"ui": ui})

    resource: Any = registry.resources.compile_resource(uri, read, given)  # type: ignore[arg-type]
    engine.resources.add(replace(resource, path=getattr(source, "path", None)), where=where)


def _meta_of(options: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `meta=` of a view or tool, and what it has under "ui". Raises SetupError."""
    meta = {**(options.get("meta") or {})}
    if not isinstance(ui := meta.get("ui", {}), Mapping):
        raise SetupError(f'{where}: meta["ui"] must be a dict, not {ui!r:.100}')
    return meta, {**ui}


def _text_of(source: "str | ServedFile", where: str) -> str:
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
    meta, ui = _meta_of(given, info.where)
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
        if engine.is_serving:
            _check_view(engine, uri, info.where)
        engine.start_checks[UI_LINK_KEY] = partial(_check_views, engine)
    if uri is not None or "app" in (visibility or ()):
        given.setdefault("always_visible", True)  # hosts look in the list for views, and for what views may call
    given["meta"] = {**meta, "ui": ui}
    checked: ToolOptions = given
    return checked


def _has_no_text(returns: Any) -> bool:
    parts = get_args(returns)  # of a list, a tuple or a union
    return all(map(_has_no_text, parts)) if parts else returns in (None, type(None), ..., Image, Audio)


def _check_views(engine: "Engine") -> None:
    """Raises SetupError if the view of a tool does not exist when serving begins."""
    for tool in engine.tools.registered.items:
        if UI_LINK_KEY in (meta := tool.definition.meta or {}) and not isinstance(tool.route, Mounted):
            _check_view(engine, meta[UI_LINK_KEY], tool.label)


def _check_view(engine: "Engine", uri: str, where: str) -> None:
    source = engine.resources.get(uri, EVERYTHING)  # a disabled one too
    if engine.awaits_lists or (source is not None and source.definition.mime_type == UI_MIME_TYPE):
        return
    views = [each.uri for each in engine.resources.direct.registered.items if each.mime_type == UI_MIME_TYPE]
    hint = registration.did_you_mean(uri, views)
    raise SetupError(f"{where}: ui={uri!r} is no view{hint}; add it with server.add_ui({uri!r}, …)")


# ── what a document loads ──

_SOURCES = {  # attributes with URLs, and the key of `csp=` that allows them
    **dict.fromkeys([(tag, "src") for tag in ("script", "img", "source", "video", "audio", "track")], "resource"),
    **dict.fromkeys([("link", "href"), ("image", "href"), ("use", "href"), ("video", "poster")], "resource"),
    ("iframe", "src"): "frame",
    ("base", "href"): "base_uri",
}
_LOADING = {"stylesheet", "preload", "modulepreload"}  # kinds of links
_STYLE = re.compile(r"(?:(?<!@namespace )\burl\(\s*[\"']?|@import\s+[\"'])([^\"')\s]+)", re.IGNORECASE)
_CALL = re.compile(r"\b(?:fetch|WebSocket|EventSource)\(\s*[\"'`]([^\"'`\s]+)")
_IMPORT = re.compile(r"\bimport\b[\w\s{},*$]*+(?:\(\s*)?[\"'`]([^\"'`\s]+)")
_SCRIPT = [("connect", _CALL), ("resource", _IMPORT)]
_WITHIN: dict[
    str | None, list[tuple[str, re.Pattern[str]]]
] = {  # styles, and types of scripts; scripts of other types are data
    "style": [("resource", _STYLE)],
    **dict.fromkeys(("", "module", "text/javascript", "application/javascript"), _SCRIPT),
    "importmap": [("resource", re.compile(r"\"(https?://[^\"\s]+)\""))],
}


class _Sources(HTMLParser):
    """Finds the URLs that a document loads, as far as they are written in it: pairs of a key of `csp=` and a URL."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self._within: str | None = None  # of the element whose text comes: its tag, or the type of a script
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: (value or "").strip() for name, value in attrs}
        if tag != "link" or not _LOADING.isdisjoint(given.get("rel", "").lower().split()):
            self.found += [(_SOURCES[tag, name], url) for name, url in given.items() if (tag, name) in _SOURCES]
        self._search("style", given.get("style", ""))
        self._within = given.get("type", "").lower() if tag == "script" else tag

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002
        self._within = None

    def handle_data(self, data: str) -> None:
        self._search(self._within, data)

    def _search(self, element: str | None, text: str) -> None:
        self.found += [(key, url) for key, pattern in _WITHIN.get(element, ()) for url in pattern.findall(text)]


def _check_document(document: str, csp: Mapping[str, Sequence[str]], where: str) -> None:
    """Raises SetupError for a document that is none, or that loads from elsewhere what `csp=` does not allow."""
    if not _DOCUMENT.match(document):
        hint = "" if "<" in document or not document.endswith(".html") else f'; for a file write Path("{document}")'
        raise SetupError(f"{where}: that is no HTML document: it begins with <!doctype html>{hint}")
    try:
        sources = _Sources(document)
    except AssertionError as failure:  # of the parser, for some of what begins with <![
        raise SetupError(f"{where}: that is no HTML document: {failure!s:.200}") from None
    missing = [
        f'it uses {url:.200}, which csp= does not allow; add "{key}": ["{origin.group()}"]'
        for key, url in dict.fromkeys(sources.found)
        if (origin := _URL.match(_with_scheme(url.lower()))) is not None
        and not any(_allows(each, origin) for each in csp[key])
    ]
    if missing:
        raise SetupError(f"{where}: {'; '.join(missing[:MAX_SHOWN])}")


def _with_scheme(url: str) -> str:
    return f"https:{url}" if url.startswith("//") else url


def _allows(allowed: str, used: re.Match[str]) -> bool:
    """Whether an origin of `csp=` allows that of a URL; one with http allows https too, as in browsers."""
    found = _ORIGIN.fullmatch(allowed.lower())
    assert found is not None
    (scheme, host, port), (used_scheme, used_host, used_port) = found.groups(), used.groups()
    is_host = used_host.endswith(host[1:]) if host.startswith("*") else used_host == host
    is_port = port in ("*", used_port) or {port, used_port} <= DEFAULT_PORTS
    return used_scheme.startswith(scheme) and is_host and is_port
