"""HTTP requests of operations: arguments written into path, query, headers and body, in the styles of OpenAPI.

Arguments come from a model. None of them leads to another path than that of its operation, adds a header or a
parameter, or sets what belongs to the connection and its credentials.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from http.client import responses
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import msgspec
from msgspec import UNSET

from dovetail.auth.principal import Confidential
from dovetail.engine.redaction import REDACTED
from dovetail.errors import ArgumentError
from dovetail.openapi.operations import Body, Operation, Parameter, Part

JSON, OCTETS = "application/json", "application/octet-stream"
HEADER_NAME, HEADER_VALUE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), re.compile(r"[\t -~]*")
MIN_SECRET = 8  # characters: a shorter one may stand in a body by chance
RESERVED_HEADERS = {  # they belong to the connection, the body and the credentials
    *("host", "cookie", "authorization", "proxy-authorization", "content-length", "content-type", "transfer-encoding"),
    *("accept-encoding", "connection", "expect", "keep-alive", "te", "trailer", "upgrade"),
}
JSON_TYPE = re.compile(r"[^;,]*[/+]json\s*(;|\Z)", re.IGNORECASE)
_VARIABLE = re.compile(r"\{([^{}]*)\}")
_CHARSET = re.compile(
    r"""(?i)charset=["']?(utf-(?:16|32)|iso-8859-(?:[1-9]|1[013-6])|windows-125[0-8]|shift_jis|euc-jp|gb18030)\b"""
)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
_IN_PATHS = "/?!$&'()*+,;=:@%{}"  # of a specification
_IN_QUERIES = ":/?@!$'()*,="  # with allowReserved; # and & would end the value, and + is a blank for many servers

_encode = partial(quote, safe="")
_encode_reserved = partial(quote, safe=_IN_QUERIES)


class ApiRequest(Confidential, frozen=True, kw_only=True):
    """One request. It may hold credentials."""

    public_fields = ("method",)

    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes | None = None


class ApiResponse(Confidential, frozen=True):
    public_fields = ("status",)

    status: int
    headers: Mapping[str, str]  # by names in lower case
    body: bytes = b""

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def text(self) -> str:
        """The body in its charset, which is UTF-8 if it is none that servers use; broken characters are replaced."""
        charset = _CHARSET.search(self.headers.get("content-type", ""))
        return self.body.decode(charset[1] if charset else "utf-8-sig", "replace")

    @property
    def status_text(self) -> str:
        return f"{self.status} {responses[self.status]}" if self.status in responses else str(self.status)

    def without(self, secrets: Sequence[str]) -> "ApiResponse":
        """The response with the secrets of its request blacked out, which some APIs repeat."""
        body = self.body
        for secret in (each for each in secrets if len(each) >= MIN_SECRET):
            body = body.replace(secret.encode(), REDACTED.encode())
        return self if body == self.body else msgspec.structs.replace(self, body=body)


class ResponseTooLong(Exception):
    """A response exceeds its bound."""


class _Refused(ValueError):
    """An argument whose value has no place in a request; the text names it."""


def build_request(operation: Operation, arguments: Mapping[str, Any]) -> ApiRequest:
    """The request for valid arguments. Raises ArgumentError for values that a request can't hold."""
    filled = [
        (each, _json(value) if each.is_json else value)
        for each in operation.parameters
        if (value := arguments.get(each.argument)) is not None
    ]
    try:
        url = operation.base_url + _path(operation, filled)
        query = [_query(each, value) for each, value in filled if each.place == "query"]
        headers = {each.name: _header(each, value) for each, value in filled if _is_open_header(each)}
        body, content_type = _body(operation.body, arguments) if operation.body else (None, "")
    except _Refused as refused:
        raise ArgumentError(operation.name, [str(refused)]) from None
    if body is not None:
        headers["Content-Type"] = content_type
    return ApiRequest(method=operation.method, url=add_query(url, *query), headers=headers, body=body)


def add_query(url: str, *pairs: str) -> str:
    query = "&".join(filter(None, pairs))
    return f"{url}{'&' if '?' in url else '?'}{query}" if query else url


# ── styles ──


class _Style(NamedTuple):
    """How a value is written. The styles of OpenAPI are those of RFC 6570, and three more."""

    start: str = ""
    separator: str = "&"  # of exploded values
    joint: str = ","  # of others
    is_named: bool = True


_STYLES = {
    "simple": _Style(separator=",", is_named=False),
    "label": _Style(".", ".", is_named=False),
    "matrix": _Style(";", ";"),
    "form": _Style(),
    "spaceDelimited": _Style(joint="%20"),
    "pipeDelimited": _Style(joint="%7C"),
}


def _expand(name: str, value: Any, style: _Style, explode: bool, encode: Callable[[str], str]) -> str:
    """A value in a style; empty for an empty list or object."""
    head = f"{_encode(name)}=" if style.is_named else ""
    if explode and isinstance(value, dict):
        parts = [f"{encode(key)}={encode(_text(each))}" for key, each in value.items() if each is not None]
    elif explode and isinstance(value, list):
        parts = [head + encode(_text(each)) for each in value if each is not None]
    else:
        texts = [encode(each) for each in _flat(value)]
        parts = [head + style.joint.join(texts)] if texts else []
    return style.start + style.separator.join(parts) if parts else ""


def _flat(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, each in value.items() if each is not None for text in (key, _text(each))]
    return [_text(each) for each in value if each is not None] if isinstance(value, list) else [_text(value)]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _form(name: str, value: Any, style: str, *, explode: bool, allow_reserved: bool) -> str:
    """A parameter of a query, or a property of a form."""
    encode = _encode_reserved if allow_reserved else _encode
    if style == "deepObject":
        return "&".join(f"{_encode(path)}={encode(_text(each))}" for path, each in _deep_object(name, value))
    return _expand(name, value, _STYLES.get(style, _STYLES["form"]), explode, encode)


def _deep_object(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Values by paths such as `name[key]`, in the way that PHP, Rails and qs read them."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _deep_object(f"{name}[{key}]", each)
    elif isinstance(value, list):
        is_nested = any(isinstance(each, (dict, list)) for each in value)
        for number, each in enumerate(value):
            yield from _deep_object(f"{name}[{number}]" if is_nested else f"{name}[]", each)
    elif value is not None:
        yield name, value


# ── parameters ──


def _query(parameter: Parameter, value: Any) -> str:
    explode, allow_reserved = parameter.explode, parameter.allow_reserved
    return _form(parameter.name, value, parameter.style, explode=explode, allow_reserved=allow_reserved)


def _is_open_header(parameter: Parameter) -> bool:
    """Whether arguments may fill it: a header, and none that a request has by itself."""
    name = parameter.name
    return parameter.place == "header" and name.lower() not in RESERVED_HEADERS and bool(HEADER_NAME.fullmatch(name))


def _header(parameter: Parameter, value: Any) -> str:
    text = _expand(parameter.name, value, _STYLES["simple"], parameter.explode, str)
    if not HEADER_VALUE.fullmatch(text):
        raise _Refused(f"{parameter.argument}: must be one line of ASCII text, because it is sent as a header")
    return text


def _path(operation: Operation, filled: list[tuple[Parameter, Any]]) -> str:
    values = {each.argument: value for each, value in filled}
    texts = {
        quote(each.name, safe=_IN_PATHS): (each.argument, _path_text(each, values.get(each.argument, "")))
        for each in operation.parameters
        if each.place == "path"
    }
    segments = quote(operation.path, safe=_IN_PATHS).split("/")
    return "/".join(_segment(segment, texts) for segment in segments)


def _path_text(parameter: Parameter, value: Any) -> str:
    if not any(_flat(value)):
        raise _Refused(f"{parameter.argument}: must not be empty, because it is a part of the path")
    style = _STYLES.get(parameter.style, _STYLES["simple"])
    return _expand(parameter.name, value, style, parameter.explode, _encode)


def _segment(template: str, texts: Mapping[str, tuple[str, str]]) -> str:
    """A segment with its variables filled in; it stays one segment, for servers too that decode more than once."""
    names = [each for each in _VARIABLE.findall(template) if each in texts]
    segment = template
    for name in names:
        segment = segment.replace(f"{{{name}}}", texts[name][1])
    decoded = segment
    for _ in range(4):
        decoded = unquote(decoded)
    if names and (_CONTROLS.search(decoded) or {".", ".."} & {*re.split(r"[/\\]", decoded)}):
        arguments = ", ".join(texts[name][0] for name in names)
        raise _Refused(f"{arguments}: must hold no control characters and no . or .. as a part of the path")
    return segment


# ── bodies ──


def _body(body: Body, arguments: Mapping[str, Any]) -> tuple[bytes | None, str]:
    """The body and its content type; None if no argument is for it."""
    if body.properties is None:
        value = arguments.get(body.argument, UNSET)
    else:
        value = {name: arguments[each] for each, name in body.properties.items() if each in arguments}
        value = value if value or body.required else UNSET
    if value is UNSET or (value is None and body.kind != "json"):
        return None, ""
    match body.kind:
        case "form" if isinstance(value, dict):
            fields = [_field(name, each, body.parts.get(name, Part())) for name, each in value.items()]
            return "&".join(filter(None, fields)).encode(), body.content_type
        case "multipart" if isinstance(value, dict):
            return _multipart(body, value)
        case "binary":
            return _bytes(body.argument, value), body.content_type
        case "text":
            return _text(value).encode(), body.content_type
    return msgspec.json.encode(value), body.content_type


def _field(name: str, value: Any, part: Part) -> str:
    if value is None:
        return ""
    is_json = _is_json(part.content_type) or (part.style is None and isinstance(value, dict))
    value = _json(value) if is_json else value
    return _form(name, value, part.style or "form", explode=part.explode, allow_reserved=part.allow_reserved)


def _multipart(body: Body, value: Mapping[str, Any]) -> tuple[bytes, str]:
    pieces: list[bytes] = []
    arguments = {name: argument for argument, name in (body.properties or {}).items()}
    for name, each in value.items():
        part = body.parts.get(name, Part())
        items = each if isinstance(each, list) and not _is_json(part.content_type) else [each]
        pieces += [_piece(name, item, part, arguments.get(name, name)) for item in items if item is not None]
    boundary = hashlib.sha256(b"".join(pieces)).hexdigest()  # no text can hold its own hash
    delimiter = b"--" + boundary.encode()
    content = b"".join(b"%b\r\n%b\r\n" % (delimiter, piece) for piece in pieces)
    return content + delimiter + b"--\r\n", f"{body.content_type}; boundary={boundary}"


def _piece(name: str, value: Any, part: Part, argument: str) -> bytes:
    """One part: its headers, an empty line, its content."""
    shown = re.sub(r'["\r\n]', lambda found: _encode(found[0]), name)
    lines = [f'Content-Disposition: form-data; name="{shown}"']
    content_type = part.content_type
    if part.is_binary:
        content = _bytes(argument, value)
        lines[0] += f'; filename="{shown}"'
        content_type = OCTETS if re.search(r"[*,]", content_type or "*") else content_type
    else:
        is_json = _is_json(content_type) or isinstance(value, (dict, list))
        content = msgspec.json.encode(value) if is_json else _text(value).encode()
        content_type = content_type or (JSON if is_json else None)
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    return "\r\n".join([*lines, "", ""]).encode() + content


def _is_json(content_type: str | None) -> bool:
    return JSON_TYPE.match(content_type or "") is not None


def _bytes(argument: str, value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise _Refused(f"{argument}: must be base64, because its bytes are sent") from None
