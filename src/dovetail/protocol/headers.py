"""HTTP headers, and those of 2026-07-28 that mirror the body: `Mcp-Method`, `Mcp-Name`, `Mcp-Param-*`.

The body is the truth. A proxy may have routed by the headers, so a request whose headers differ is refused.
"""

import re
from base64 import b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dovetail.errors import HEADER_MISMATCH, ProtocolError, SetupError
from dovetail.protocol.methods import REQUESTS, Method
from dovetail.protocol.revisions import Revision

# By method: the field of its params that `Mcp-Name` mirrors
MCP_NAME_FIELDS = {row.name: row.name_field for row in REQUESTS if row.name_field is not None}
MCP_NAME_FIELDS |= dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")
PARAMETER_TYPES = frozenset({"string", "integer", "boolean"})
LARGEST_INTEGER = 2**53 - 1  # beyond it JavaScript clients lose digits

_MAX_SHOWN = 100  # characters of a value that an error repeats
_PREFIX, _SUFFIX = "=?base64?", "?="
_is_plain = re.compile(r"(?!=\?)[!-~]+").fullmatch  # needs no Base64 as a header value
_ILLEGAL = re.compile(r"[^\t\x20-\x7e]")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_INTEGER = re.compile(r"(-?[0-9]{1,16})(?:\.0{1,16})?")


class HeaderError(ProtocolError):
    """A header is missing, malformed, or differs from the body."""

    code = HEADER_MISMATCH

    def __init__(self, message: str) -> None:
        super().__init__(f"Header mismatch: {message}", http_status=400)


class Headers(Mapping[str, str]):
    """Names in lower case, values as latin-1 text without surrounding blanks, decoded when they are read.

    Of a repeated header this has the last value. `raw` spares decoding for what every request compares.
    """

    __slots__ = ("_pairs", "has_repeats", "raw")

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self._pairs = pairs
        self.raw: dict[bytes, bytes] = dict(pairs)
        self.has_repeats = len(self.raw) != len(pairs)

    def __getitem__(self, name: str) -> str:
        return _text(self.raw[name.encode("latin-1")])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.encode("latin-1", "replace") in self.raw

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self.raw)

    def __len__(self) -> int:
        return len(self.raw)

    def get(self, name: str, default: Any = None) -> Any:
        value = self.raw.get(name.encode("latin-1", "replace"))
        return default if value is None else _text(value)

    def all(self, name: str) -> list[str]:
        """Every value of a header that may be repeated; none if it was taken out of `raw`."""
        wanted = name.encode("latin-1", "replace")
        return [_text(value) for key, value in self._pairs if key == wanted] if wanted in self.raw else []

    @property
    def repeated(self) -> frozenset[str]:
        seen: set[bytes] = set()
        twice = {name for name, _ in self._pairs if name in seen or seen.add(name)}  # type: ignore[func-returns-value]
        return frozenset(name.decode("latin-1") for name in twice)


def _text(value: bytes) -> str:
    return value.strip(b" \t").decode("latin-1")


def decode_value(raw: str, header: str = "a header") -> str:
    """The header value, trimmed and decoded if it is in the Base64 form. Raises HeaderError."""
    text = _trim(raw, header)
    if not (text.startswith(_PREFIX) and text.endswith(_SUFFIX) and len(text) >= len(_PREFIX + _SUFFIX)):
        return text
    payload = text[len(_PREFIX) : -len(_SUFFIX)].encode()
    try:
        decoded = a2b_base64(payload)
        if b64encode(decoded) == payload:  # else it had other characters, or wrong padding
            return decoded.decode()
    except (Base64Error, UnicodeDecodeError):
        pass
    raise HeaderError(f"{header} is not Base64 of UTF-8 text between =?base64? and ?=")


def _trim(raw: str, header: str) -> str:
    text = raw.strip(" \t")
    if _ILLEGAL.search(text):
        raise HeaderError(f"{header} has characters that are not allowed in it")
    return text


def encode_value(text: str) -> str:
    """The text as a header value: as it is if that is possible, else as Base64."""
    plain = not _ILLEGAL.search(text) and text == text.strip(" \t")
    if plain and not (text.startswith(_PREFIX) and text.endswith(_SUFFIX)):
        return text
    return _PREFIX + b64encode(text.encode()).decode() + _SUFFIX


def encode_argument(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return encode_value(value)
    if abs(value) > LARGEST_INTEGER:
        raise ValueError(f"an integer in a header must lie within ±{LARGEST_INTEGER}")
    return str(value)


def matches(raw: str, value: object, *, header: str = "a header") -> bool:
    """Whether a header value equals an argument; numbers are compared as numbers."""
    text = decode_value(raw, header)
    if isinstance(value, bool):
        return text == encode_argument(value)
    if isinstance(value, str):
        return text == value
    if isinstance(value, int | float):
        number = _INTEGER.fullmatch(text)
        return number is not None and int(number[1]) == value and abs(value) <= LARGEST_INTEGER
    return False


def agree(raw: Mapping[bytes, bytes], revision: Revision, row: Method, params: object) -> bool:
    """Whether the headers equal the body byte for byte; if not, `check_version` and `check_standard` decide."""
    if raw.get(b"mcp-protocol-version") != revision.header or raw.get(b"mcp-method") != row.header:
        return False
    if row.name_field is None:
        return True
    name = getattr(params, row.name_field, "")
    return raw.get(b"mcp-name") == name.encode() and _is_plain(name) is not None


def check_version(headers: Mapping[str, str], version: str) -> None:
    """Raises unless `MCP-Protocol-Version` equals the version in the body's `_meta`."""
    _check(headers, "MCP-Protocol-Version", version, _trim)


def check_standard(headers: Mapping[str, str], *, method: str, name: str | None) -> None:
    """Raises unless `Mcp-Method` and, where the body has a name, `Mcp-Name` equal the body."""
    _check(headers, "Mcp-Method", method, _trim)
    if name is not None:
        _check(headers, "Mcp-Name", name, decode_value)


def _check(headers: Mapping[str, str], header: str, expected: str, read: Callable[[str, str], str]) -> None:
    raw = headers.get(header.lower())
    if raw is None:
        raise HeaderError(f"{header} is missing")
    value = read(raw, header)
    if value != expected:
        raise HeaderError(f"{header} is {value[:_MAX_SHOWN]!r}, but the body says {expected[:_MAX_SHOWN]!r}")


class HeaderParameter(msgspec.Struct, frozen=True):
    """A tool's argument that is mirrored in a header."""

    path: tuple[str, ...]  # the names of the properties that lead to it
    header: str
    type: str
    key: str  # the header in lower case


def header_parameters(schema: Mapping[str, object], *, secrets: bool = False) -> tuple[HeaderParameter, ...]:
    """The arguments with `x-mcp-header` in an input schema. Raises SetupError: clients drop a tool with a wrong one.

    `secrets` allows them on secrets: a server should not do that, but a client has to follow one that does.
    """
    found: dict[str, HeaderParameter] = {}
    for path, part in _subschemas(schema):
        if "x-mcp-header" not in part:
            continue
        header = f"Mcp-Param-{part['x-mcp-header']}"
        problem = _problem(path, part, secrets)
        if problem is None and header.lower() in found:
            problem = f"{'.'.join(found[header.lower()].path)!r} has the same header; use another name"
        if problem is not None:
            where = repr(".".join(path)) if path else "a part of the schema"
            raise SetupError(f"x-mcp-header on {where} can't work: {problem}.")
        found[header.lower()] = HeaderParameter(path or (), header, str(part["type"]), header.lower())
    return tuple(found.values())


def check_parameters(
    headers: Mapping[str, str], parameters: Sequence[HeaderParameter], arguments: Mapping[str, object]
) -> None:
    """Raises unless the `Mcp-Param-*` headers of a tool equal the arguments of a call; others are ignored."""
    for parameter in parameters:
        value = _value_at(arguments, parameter.path)
        header = headers.get(parameter.key)
        if header is None:
            if isinstance(value, str | int) or (isinstance(value, float) and value.is_integer()):
                raise HeaderError(f"{parameter.header} is missing, but the body has {'.'.join(parameter.path)!r}")
            # null needs no header; a list can't have one, and is an argument error later
        elif value is None:
            raise HeaderError(f"{parameter.header} is there, but the body has no {'.'.join(parameter.path)!r}")
        elif not matches(header, value, header=parameter.header):
            raise HeaderError(f"{parameter.header} is not what the body says in {'.'.join(parameter.path)!r}")


def argument_headers(parameters: Sequence[HeaderParameter], arguments: Mapping[str, object]) -> dict[str, str]:
    """The `Mcp-Param-*` headers for the arguments of a call."""
    headers: dict[str, str] = {}
    for parameter in parameters:
        value = _value_at(arguments, parameter.path)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 42.0 is an integer in JSON Schema
        if isinstance(value, str) or (isinstance(value, int) and abs(value) <= LARGEST_INTEGER):
            headers[parameter.header] = encode_argument(value)
    return headers


def _value_at(arguments: Mapping[str, object], path: tuple[str, ...]) -> object:
    value: object = arguments
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _problem(path: tuple[str, ...] | None, part: Mapping[str, object], secrets: bool) -> str | None:
    name, kind = part["x-mcp-header"], part.get("type")
    if not path:
        return "only a property that is reached through `properties` alone can have it; move it there"
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        return f"{name!r} is not a header name; use letters, digits and dashes"
    if not isinstance(kind, str) or kind not in PARAMETER_TYPES:
        hint = ", with a default that is not None" if "anyOf" in part else ""
        return f"the property's type is {kind!r}; it must be 'string', 'integer' or 'boolean' alone{hint}"
    if not secrets and (part.get("writeOnly") is True or part.get("format") == "password"):
        return "the property holds a secret, and proxies log headers; drop the mark"
    return None


_ONE_SCHEMA = (
    *("items", "additionalItems", "prefixItems", "contains", "unevaluatedItems", "contentSchema"),
    *("additionalProperties", "propertyNames", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "not"),
    *("if", "then", "else"),
)  # each holds a schema, or a list of them
_NAMED_SCHEMAS = ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")

_Place = tuple[tuple[str, ...] | None, Mapping[str, object]]


def _subschemas(schema: Mapping[str, object]) -> Iterator[_Place]:
    """Every schema inside a schema, with its path of properties; None if other keywords lead there too."""
    stack: list[_Place] = [((), schema)]
    while stack:
        path, part = stack.pop()
        yield path, part
        stack.extend(reversed([*_children(path, part)]))


def _children(path: tuple[str, ...] | None, part: Mapping[str, object]) -> Iterator[_Place]:
    for keyword, argument in part.items():
        if keyword in _NAMED_SCHEMAS and isinstance(argument, Mapping):
            for name, inner in argument.items():
                if isinstance(inner, Mapping):
                    yield (*path, name) if keyword == "properties" and path is not None else None, inner
        elif keyword in _ONE_SCHEMA:
            items = argument if isinstance(argument, list | tuple) else [argument]
            yield from ((None, item) for item in items if isinstance(item, Mapping))
