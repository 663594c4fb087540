"""`Elicit` and `ElicitUrl`: requests for the user's input, and how the client's result is read."""

import functools
import ipaddress
import logging
import secrets
from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar, overload
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw

from dovetail.errors import QuestionFailed, SetupError
from dovetail.protocol.elicitation import ServerRequest, render_form, restore_content
from dovetail.protocol.jsonrpc import UNREADABLE
from dovetail.protocol.revisions import Revision
from dovetail.protocol.uri_template import valid_uri
from dovetail.registry.elicitation_form import compile_form, compile_raw_form

T = TypeVar("T")
Action = Literal["accept", "decline", "cancel"]
Titles = Mapping[str, str] | Mapping[str, Mapping[str, str]]

_METHOD = "elicitation/create"
log = logging.getLogger("dovetail")


class Elicited(msgspec.Struct, Generic[T], frozen=True):
    """The user's action, and the data they filled in if they accepted."""

    action: Action
    data: T | None = None

    @property
    def accepted(self) -> bool:
        return self.action == "accept"


class Elicit(Generic[T]):
    """A form for the user: by a Python type, by a list of choices, or by a raw `schema`."""

    @overload
    def __init__(self: "Elicit[None]", message: str, response_type: None = None) -> None: ...
    @overload
    def __init__(self: "Elicit[T]", message: str, response_type: type[T]) -> None: ...
    @overload
    def __init__(self: "Elicit[T]", message: str, *, schema: type[T]) -> None: ...
    @overload
    def __init__(self: "Elicit[str]", message: str, response_type: list[str] | Titles) -> None: ...
    @overload
    def __init__(
        self: "Elicit[Any]", message: str, response_type: Any = None, *, schema: Mapping[str, Any] | None = None
    ) -> None: ...
    def __init__(self, message: str, response_type: Any = None, *, schema: Any = None) -> None:
        if schema is not None and response_type is not None:
            raise SetupError("ctx.elicit: response_type and schema say the same thing; keep one of them")
        if isinstance(schema, type):
            response_type, schema = schema, None
        self._form = compile_form(response_type) if schema is None else compile_raw_form(schema)
        params = {"mode": "form", "message": _checked_text(message), "requestedSchema": self._form.schema}
        self.server_request = ServerRequest(method=_METHOD, params=params, requires=("elicitation.form",))

    def params(self, revision: Revision) -> dict[str, Any]:
        params = self.server_request.params | {"requestedSchema": render_form(self._form.schema, revision)}
        if not revision.url_elicitation:
            del params["mode"]  # older revisions have only forms, and no such member
        return params

    def read(self, result: bytes | Raw, revision: Revision) -> Elicited[T]:
        decoded = _decode_result(result)
        if decoded.action != "accept":
            return Elicited(decoded.action)
        is_empty = not self._form.fields and bytes(decoded.content) == b"null"
        try:
            content = {} if is_empty else _decode_content(decoded.content)
        except UNREADABLE:
            raise QuestionFailed(
                "The client accepted, but its answer has no content that can be read; it must be an object"
            ) from None
        return Elicited("accept", self._form.decode(restore_content(self._form.schema, content, revision)))


class ElicitUrl:
    """A page that the user should open, for data that must not pass through the client: sign-in, payment, secrets."""

    def __init__(self, message: str, url: str, *, elicitation_id: str | None = None) -> None:
        _check_url(url)
        params = {"mode": "url", "message": _checked_text(message), "url": url}
        self.server_request = ServerRequest(method=_METHOD, params=params, requires=("elicitation.url",))
        chosen_id = secrets.token_urlsafe(16) if elicitation_id is None else elicitation_id
        self.elicitation_id = _checked_text(chosen_id, "elicitation_id", 256)

    def params(self, revision: Revision) -> dict[str, Any]:
        return self.server_request.params | ({"elicitationId": self.elicitation_id} if revision.elicitation_ids else {})

    def read(self, result: bytes | Raw, revision: Revision) -> Elicited[None]:  # noqa: ARG002
        return Elicited(_decode_result(result).action)


def _checked_text(text: str, name: str = "message", longest: int = 64 * 1024) -> str:
    if not isinstance(text, str):
        raise TypeError(f"an elicitation's {name} must be a string, not {type(text).__name__}")
    if not text.strip() or len(text) > longest:
        raise SetupError(f"an elicitation's {name} must have 1 to {longest} characters, not {len(text)}")
    if not text.isascii() and text.encode("utf-8", "replace").decode() != text:
        raise SetupError(f"an elicitation's {name} holds half a surrogate pair, which is not a character")
    return text


def _check_url(url: str) -> None:
    """Raises TypeError or SetupError for a URL that no client should open."""
    if not isinstance(url, str):
        raise TypeError(f"the url of an elicitation must be a string, not {type(url).__name__}")
    if not url.startswith(("https://", "http://")) or not url.isascii() or not valid_uri(url):
        fix = "such as https://example.com/sign-in, below 8 KiB, with spaces and other scripts percent-encoded"
        raise SetupError(f"{url[:80]!r} must be a whole URL, {fix}")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None:
        raise SetupError(f"{url[:80]!r} must be a whole https:// URL with a host")
    if "@" in parts.netloc:
        raise SetupError("the url of an elicitation must not carry a user or a password before its host; remove them")
    if parts.scheme == "http" and not _is_loopback(host):
        _warn_of_plain_http(host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost" or host.endswith(".localhost")


@functools.lru_cache(maxsize=1024)
def _warn_of_plain_http(host: str) -> None:
    """Warn of a URL without TLS, once for each host, thanks to the cache."""
    log.warning("users are sent to http://%s, where others can read and change the traffic; use https", host)


class _Result(msgspec.Struct):
    action: Action
    content: Raw = Raw(b"null")  # decoded only if the user accepted


_result_decoder = msgspec.json.Decoder(_Result)
_decode_content = msgspec.json.Decoder(dict[str, Any]).decode


def _decode_result(result: bytes | Raw) -> _Result:
    try:
        return _result_decoder.decode(result)
    except UNREADABLE:
        raise QuestionFailed(
            'The client\'s answer can\'t be read: it must be an object whose action is "accept", "decline" or "cancel"'
        ) from None
