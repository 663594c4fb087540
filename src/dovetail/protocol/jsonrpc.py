"""JSON-RPC messages: decoded and checked; responses, requests and notifications encoded."""

import codecs
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail.errors import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, ProtocolError
from dovetail.protocol.methods import CHOICES, RequestId

NO_PARAMS = Raw(b"{}")
MAX_BATCH = 100  # messages
NO_KIND = "A message needs a method, or an id with exactly one of result and error"


def _as_builtin(value: Any) -> Any:
    """The builtin value of an instance of a subclass, such as a markup string."""
    if isinstance(value, str):
        return str.__str__(value)  # not by a `__str__` of its own
    for builtin in _BUILTINS:
        if isinstance(value, builtin):
            return builtin(value)
    raise TypeError(f"can't encode {type(value).__name__}")


_BUILTINS: tuple[Any, ...] = (int, float, dict, list, tuple)
encode = msgspec.json.Encoder(enc_hook=_as_builtin).encode


class Envelope(msgspec.Struct, frozen=True):
    """One well-formed JSON-RPC message; `params`, `result` and `error` are still bytes."""

    jsonrpc: Literal["2.0"]
    id: RequestId | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw = NO_PARAMS
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET

    @property
    def is_request(self) -> bool:
        return self.method is not UNSET and self.id is not UNSET

    @property
    def is_notification(self) -> bool:
        return self.method is not UNSET and self.id is UNSET


class BadMessage(ProtocolError):
    """A text that is no JSON-RPC message; `id` is the request's if it could be read."""

    def __init__(self, code: int, message: str, id: RequestId | None = None) -> None:
        super().__init__(message, code=code, http_status=400)
        self.id = id


def invalid_params(words: str, *, http_status: int = 200) -> ProtocolError:
    return ProtocolError(f"Invalid params: {words}", code=INVALID_PARAMS, http_status=http_status)


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # what bad bytes raise in a decoder
members = msgspec.json.Decoder(dict[str, Raw]).decode  # the members of an object, each as its own bytes
_decode_message = msgspec.json.Decoder(Envelope).decode
_decode_batch = msgspec.json.Decoder(list[Raw]).decode
_decode_any = msgspec.json.Decoder(float_hook=float).decode  # 1e999 is JSON too
_CHUNK = 1 << 20
TOO_DEEP = "The JSON is nested too deeply"
MAX_DEPTH = 500  # levels of arrays and objects in a message
_SHALLOW = 2 * MAX_DEPTH  # bytes; a shorter message is never too deep: each level needs two
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEPTH_STEPS = tuple({91: 1, 123: 1, 93: -1, 125: -1}.get(byte, 0) for byte in range(256))  # of [ { ] and }
NOT_JSON = "The message is not valid JSON in UTF-8"
# An id among the first members of a message, before any nested one.
_LEADING_ID = (
    rb'\s*\{(?:\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*,)*\s*"id"\s*:\s*(-?[0-9]{1,300}|"[ !#-\[\]-~]{0,300}")\s*,'
)
_MEMBERS = frozenset(Envelope.__struct_fields__)


def decode(data: bytes | bytearray | memoryview) -> Envelope | list[Envelope | BadMessage]:
    """Decodes a message or a batch. Raises BadMessage; a batch holds those of its bad messages instead."""
    try:
        message = _decode_message(data)
        if isinstance(data, memoryview) or not data.isascii():
            _check_encoding(data)
        if len(data) > _SHALLOW:
            check_depth(data)
    except UNREADABLE:
        return _decode_carefully(data)
    if message.method is UNSET or message.result is not UNSET or message.error is not UNSET:
        _check_response(message)
    return message


def _check_encoding(data: bytes | bytearray | memoryview) -> None:
    """Raises UnicodeDecodeError. The decoder does not check the parts that it leaves as `Raw`; later ones need that."""
    reader = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(data), _CHUNK):  # in pieces, so that a large message is not copied as a whole
        reader.decode(data[start : start + _CHUNK])
    reader.decode(b"", True)


def check_depth(data: bytes | bytearray | memoryview) -> None:
    """Raises RecursionError; for valid JSON only. Interpreters have limits too, but different ones."""
    text = bytes(data) if isinstance(data, memoryview) else data
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:  # true of nearly every message
        return
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(text.split(b'"')[::2]).translate(None, _NO_BRACKETS)  # without strings
    if max(accumulate(map(_DEPTH_STEPS.__getitem__, brackets)), default=0) > MAX_DEPTH:
        raise RecursionError


def _check_response(message: Envelope) -> None:
    """Raises unless it is a response; one without an id can only be an error."""
    outcomes = (message.result is not UNSET) + (message.error is not UNSET)
    if message.method is not UNSET:
        raise BadMessage(INVALID_REQUEST, "A request has neither result nor error", _known_id(message.id))
    if outcomes == 0:
        raise BadMessage(INVALID_REQUEST, NO_KIND, _known_id(message.id))
    if outcomes == 2 or (message.id is UNSET and message.error is UNSET):
        raise BadMessage(INVALID_REQUEST, NO_KIND)  # without its id, which would name one of our requests


def _known_id(id: RequestId | UnsetType) -> RequestId | None:
    return None if isinstance(id, UnsetType) else id


def _decode_carefully(data: bytes | bytearray | memoryview) -> Envelope | list[Envelope | BadMessage]:
    """Decode a batch or a malformed message, after the fast decoding has failed."""
    try:
        value = _decode_any(data)
        check_depth(data)
    except RecursionError:
        found = re.match(_LEADING_ID, bytes(data[:4096]))
        raise BadMessage(PARSE_ERROR, TOO_DEEP, _decode_any(found[1]) if found else None) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadMessage(PARSE_ERROR, NOT_JSON, _id_despite_surrogates(data)) from None
    if not isinstance(value, list):
        if _is_nameless_error(value):
            return Envelope("2.0", error=members(data)["error"])
        raise _explain(value)
    if not value:
        raise BadMessage(INVALID_REQUEST, "A batch must hold at least one message")
    if len(value) > MAX_BATCH:
        raise BadMessage(INVALID_REQUEST, f"A batch may hold at most {MAX_BATCH} messages")
    return [_decode_item(raw, item) for raw, item in zip(_decode_batch(data), value, strict=True)]


def _id_despite_surrogates(data: bytes | bytearray | memoryview) -> RequestId | None:
    """The id of a request that is JSON except for an escape like `\\ud800`, which programs make by cutting an emoji."""
    import json  # late: such messages are rare

    try:
        value = json.loads(str(data, "utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    id = value.get("id") if isinstance(value, dict) and "method" in value else None
    if isinstance(id, str):
        return id if sendable(id) == id else None
    return id if isinstance(id, int) and not isinstance(id, bool) else None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _decode_item(raw: Raw, value: Any) -> Envelope | BadMessage:
    if isinstance(value, list):
        return BadMessage(INVALID_REQUEST, "A batch can't hold a batch")
    try:
        item = decode(bytes(raw))
    except BadMessage as bad:
        return bad
    assert isinstance(item, Envelope)
    return item


def parse(data: bytes | bytearray | memoryview) -> Any:
    """Any JSON value. Raises BadMessage(-32700)."""
    try:
        return _decode_any(data)
    except RecursionError:
        raise BadMessage(PARSE_ERROR, TOO_DEEP) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadMessage(PARSE_ERROR, NOT_JSON) from None


def _is_nameless_error(value: Any) -> bool:
    """Whether it is an error with a null id: the peer could not read our message. A refusal might cause a loop."""
    if not isinstance(value, dict) or value.keys() & _MEMBERS != {"jsonrpc", "id", "error"}:
        return False
    return value["jsonrpc"] == "2.0" and value["id"] is None


def _explain(value: Any) -> BadMessage:
    if not isinstance(value, dict):
        return BadMessage(INVALID_REQUEST, "A message must be a JSON object")
    id = value.get("id")
    readable = id if isinstance(id, (int, str)) and not isinstance(id, bool) else None
    if "method" not in value and ("result" in value or "error" in value):
        # A response: its id names one of our requests, so our error must not carry it.
        return BadMessage(INVALID_REQUEST, "The message is not a JSON-RPC response")
    if value.get("jsonrpc") != "2.0":
        return BadMessage(INVALID_REQUEST, 'jsonrpc must be "2.0"', readable)
    if "id" in value and readable is None:
        return BadMessage(INVALID_REQUEST, "id must be a string or an integer")
    if not isinstance(value.get("method"), str):
        return BadMessage(INVALID_REQUEST, "method must be a string", readable)
    return BadMessage(INVALID_REQUEST, "The message is not a JSON-RPC request", readable)


def result(id: RequestId, body: bytes) -> bytes:
    """A response; `body` is the encoded result."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (encode(id), body)


def error(id: RequestId | None, failure: ProtocolError, *, id_optional: bool = True) -> bytes:
    """An error response. Without an id the member is omitted, or null where the revision demands one."""
    head = b'"id":%b,' % encode(id) if id is not None else b"" if id_optional else b'"id":null,'
    body: dict[str, Any] = {"code": failure.code, "message": sendable(failure.message)}
    if failure.data is not None:
        body["data"] = failure.data
    try:
        encoded = encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError):  # the data can't be sent, but the error must
        encoded = encode({"code": failure.code, "message": body["message"]})
    return b'{"jsonrpc":"2.0",%b"error":%b}' % (head, encoded)


def sendable(text: str) -> str:
    """Text that UTF-8 can carry: lone surrogates, as in undecodable file names, become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def notification(method: str, params: bytes | None = None) -> bytes:
    """A notification; `params` is the encoded object."""
    tail = b"" if params is None else b',"params":%b' % params
    return b'{"jsonrpc":"2.0","method":"%b"%b}' % (method.encode(), tail)


def request(id: RequestId, method: str, params: bytes | None = None) -> bytes:
    tail = b"" if params is None else b',"params":%b' % params
    return b'{"jsonrpc":"2.0","id":%b,"method":%b%b}' % (encode(id), encode(method), tail)


def batch(items: Sequence[bytes]) -> bytes:
    return b"[%b]" % b",".join(items)


_KINDS = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "an array",
    "null": "null",
}
_EXPECTED = r"Expected `([^`]*)`, got `([^`]*)`(?: - at `([^`]*)`)?\Z"
_MISSING = r"Object missing required field `([^`]*)`(?: - at `([^`]*)`)?\Z"
_PLACE = r" - at `([^`]*)`\Z"  # at the end: the text before it may quote the caller


def describe_decode_error(failure: Exception) -> str:
    """The reason why params could not be decoded, in words for the client instead of msgspec's."""
    text = str(failure)
    if found := re.match(_MISSING, text):
        return f"{_path(found[2], found[1])} is missing"
    if found := re.match(_EXPECTED, text):
        expected = " or ".join(_KINDS.get(kind.strip(), kind.strip()) for kind in found[1].split("|"))
        return f"{_path(found[3])} must be {expected}, not {_KINDS.get(found[2], found[2])}"
    if found := re.search(_PLACE, text):
        path = _path(found[1])
        choices = CHOICES.get(path.rpartition("/")[2])
        return f"{path} must be one of {', '.join(choices)}" if choices else f"{path} has a value that is not allowed"
    return "the params do not fit the method"


def _path(place: str | None, field: str = "") -> str:
    path = (place or "$").removeprefix("$").removeprefix(".")
    return ".".join(part for part in (path, field) if part) or "params"
