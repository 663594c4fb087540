"""HTTP requests of operations: arguments written into path, query, headers and body, in the styles of OpenAPI.

Arguments come from a model. None of them leads to another path than that of its operation, adds a header, or sets what
belongs to the connection and its credentials.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.client import responses
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import UNSET

from dovetail.auth.fetch import Fetched, FetchRequest
from dovetail.engine.redaction import REDACTED
from dovetail.errors import ArgumentError
from dovetail.openapi.operations import Body, Operation, Parameter, Part

JSON, OCTETS = "application/json", "application/octet-stream"
HEADER_NAME, HEADER_VALUE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), re.compile(r"[\t -~]*")
JSON_TYPE = re.compile(r"[^;,]*[/+]json\s*(;|\Z)", re.IGNORECASE)
_MEDIA_TYPE = re.compile(r"\s*([!-:<-~]{1,100}/[!-:<-~]{1,100})")
_CHARSET = re.compile(r"""(?i)charset=["']?(utf-16|iso-8859-(?:[1-9]|15)|windows-125[0-8]|shift_jis|gb18030)\b""")
_VARIABLE = re.compile(r"\{([^{}]+)\}")
_IN_PATHS = "/!$&'()*+,;=:@%"  # of a specification; % because its values are encoded already

encode = partial(quote, safe="")


class ApiResponse(Fetched, frozen=True, kw_only=True):
    """A response, and the secrets of its request, which some APIs repeat."""

    secrets: tuple[str, ...] = ()

    @property
    def content_type(self) -> str:
        """The media type in lower case; empty if there is none that can be one."""
        found = _MEDIA_TYPE.match(self.headers.get("content-type", ""))
        return found[1].lower() if found else ""

    @property
    def text(self) -> str:
        """The body in its charset, UTF-8 if that is none that servers use; without secrets and broken characters."""
        charset = _CHARSET.search(self.headers.get("content-type", ""))
        return black_out(self.body.decode(charset[1] if charset else "utf-8-sig", "replace"), self.secrets)

    @property
    def status_text(self) -> str:
        return f"{self.status} {responses[self.status]}" if self.status in responses else str(self.status)


def black_out(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return text


class _Refused(ValueError):
    """An argument whose value has no place in a request; the text names it."""


def build_request(operation: Operation, arguments: Mapping[str, Any]) -> FetchRequest:
    """The request for valid arguments. Raises ArgumentError for values that a request can't hold."""
    given = [(each, arguments[each.argument]) for each in operation.parameters if each.argument in arguments]
    filled = [(each, _json(value) if each.is_json else value) for each, value in given if value is not None]
    try:
        path = _path(operation, {each.name: value for each, value in filled if each.place == "path"})
        query = [_form(each.name, value, each) for each, value in filled if each.place == "query"]
        headers = {each.name: _header(each, value) for each, value in filled if each.place == "header"}
        body, content_type = _body(operation.body, arguments) if operation.body else (None, "")
    except _Refused as refused:
        raise ArgumentError(operation.name, [str(refused)]) from None
    if body is not None:
        headers["Content-Type"] = content_type
    url = with_query(operation.base_url + path, query)
    return FetchRequest(method=operation.method, url=url, headers=headers, body=body)


def with_query(url: str, pairs: list[str]) -> str:
    query = "&".join(filter(None, pairs))
    return f"{url}?{query}" if query else url


# ── styles ──

_STYLES = {  # what is before a value, between its exploded parts, between its others; and whether it is named
    "simple": ("", ",", ",", False),
    "label": (".", ".", ",", False),
    "matrix": (";", ";", ",", True),
    "form": ("", "&", ",", True),
    "spaceDelimited": ("", "&", "%20", True),
    "pipeDelimited": ("", "&", "%7C", True),
}


def _expand(name: str, value: Any, style: str, explode: bool, encoded: Callable[[str], str] = encode) -> str:
    """A value in a style; empty for an empty list or object."""
    start, separator, joint, is_named = _STYLES[style]
    head = f"{encode(name)}=" if is_named else ""
    if explode and isinstance(value, dict):
        parts = [f"{encoded(key)}={encoded(_text(each))}" for key, each in value.items() if each is not None]
    elif explode and isinstance(value, list):
        parts = [head + encoded(_text(each)) for each in value if each is not None]
    else:
        texts = [encoded(each) for each in _flat(value)]
        parts = [head + joint.join(texts)] if texts else []
    return start + separator.join(parts) if parts else ""


def _flat(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, each in value.items() if each is not None for text in (key, _text(each))]
    return [_text(each) for each in value if each is not None] if isinstance(value, list) else [_text(value)]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _form(name: str, value: Any, how: Parameter | Part) -> str:
    """A parameter of a query, or a property of a form."""
    if how.style == "deepObject":
        return "&".join(f"{encode(path)}={encode(_text(each))}" for path, each in _deep_object(name, value))
    return _expand(name, value, how.style or "form", how.explode)


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


def _header(parameter: Parameter, value: Any) -> str:
    text = _expand(parameter.name, value, "simple", parameter.explode, str)
    if not HEADER_NAME.fullmatch(parameter.name) or not HEADER_VALUE.fullmatch(text):
        raise _Refused(f"{parameter.argument}: must be one line of ASCII text, because it is sent as a header")
    return text


def _path(operation: Operation, values: Mapping[str, Any]) -> str:
    """The path with its variables filled in. No value leads up, also at servers that decode more than once."""
    parameters = {each.name: each for each in operation.parameters if each.place == "path"}
    path = _VARIABLE.sub(lambda found: _path_text(parameters[found[1]], values.get(found[1], "")), operation.path)
    decoded = path
    for _ in range(4):
        decoded = unquote(decoded)
    steps = {step.strip() for step in re.split(r"[/\\;]", decoded)}  # some servers drop blanks, and what follows a ;
    if parameters and (re.search(r"[\x00-\x1f\x7f]", decoded) or steps & {".", ".."}):
        names = ", ".join(each.argument for each in parameters.values())
        raise _Refused(f"{names}: must hold no control characters and no . or .. as a part of the path")
    return quote(path, safe=_IN_PATHS)


def _path_text(parameter: Parameter, value: Any) -> str:
    if not any(_flat(value)):
        raise _Refused(f"{parameter.argument}: must not be empty, because it is a part of the path")
    return _expand(parameter.name, value, parameter.style, parameter.explode)


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
        case "json":
            return msgspec.json.encode(value), body.content_type
        case "form" if isinstance(value, dict):
            fields = [_field(name, each, body.parts.get(name, Part())) for name, each in value.items()]
            return "&".join(filter(None, fields)).encode(), body.content_type
        case "multipart" if isinstance(value, dict):
            return _multipart(body, value)
        case "binary":
            return _bytes(body.argument, value), body.content_type
    return _text(value).encode(), body.content_type


def _field(name: str, value: Any, part: Part) -> str:
    if value is None:
        return ""
    is_json = JSON_TYPE.match(part.content_type or "") or (part.style is None and isinstance(value, dict))
    return _form(name, _json(value) if is_json else value, part)


def _multipart(body: Body, value: Mapping[str, Any]) -> tuple[bytes, str]:
    pieces: list[bytes] = []
    for name, each in value.items():
        part = body.parts.get(name, Part())
        items = each if isinstance(each, list) and not JSON_TYPE.match(part.content_type or "") else [each]
        pieces += [_piece(name, item, part) for item in items if item is not None]
    boundary = hashlib.sha256(b"".join(pieces)).hexdigest()  # no text can hold its own hash
    delimiter = b"--" + boundary.encode()
    content = b"".join(b"%b\r\n%b\r\n" % (delimiter, piece) for piece in pieces)
    return content + delimiter + b"--\r\n", f"{body.content_type}; boundary={boundary}"


def _piece(name: str, value: Any, part: Part) -> bytes:
    """One part: its headers, an empty line, its content."""
    shown = re.sub(r'["\r\n]', lambda found: encode(found[0]), name)
    head, kind = f'Content-Disposition: form-data; name="{shown}"', part.content_type
    if part.is_binary:
        head, kind, content = f'{head}; filename="{shown}"', kind or OCTETS, _bytes(name, value)
    elif JSON_TYPE.match(kind or "") or isinstance(value, (dict, list)):
        kind, content = kind or JSON, msgspec.json.encode(value)
    else:
        content = _text(value).encode()
    if kind:
        head += f"\r\nContent-Type: {kind}"
    return f"{head}\r\n\r\n".encode() + content


def _bytes(name: str, value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        raise _Refused(f"{name}: must be base64, because its bytes are sent") from None
