"""A message on its way to an HTTP server: bytes come in; what kind of message it is, and the headers that repeat it, go
out. The headers are read from the very bytes that are sent, so they can't say anything else.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Raw

from dovetail.client.requests import EVENTS, JSON
from dovetail.protocol import jsonrpc
from dovetail.protocol.headers import MCP_NAME_FIELDS, HeaderParameter, argument_headers, encode_value
from dovetail.protocol.jsonrpc import NO_PARAMS, UNREADABLE, BadMessage, members
from dovetail.protocol.methods import NO_META, Params, RequestId

POST_HEADERS = {"Accept": f"{JSON}, {EVENTS}", "Content-Type": JSON}
INITIALIZE, INITIALIZED, CANCELLED = "initialize", "notifications/initialized", "notifications/cancelled"
LISTEN = "subscriptions/listen"
_params = msgspec.json.Decoder(Params).decode
_text = msgspec.json.Decoder(str).decode
_arguments = msgspec.json.Decoder(dict[str, object]).decode


class Outgoing(NamedTuple):
    """`id` is that of a request, `method` that of a request or a notification; `version` the one in its `_meta`."""

    body: bytes
    id: RequestId | None = None
    method: str | None = None
    params: Raw = NO_PARAMS
    version: str | None = None
    is_answer: bool = False

    @classmethod
    def of(cls, message: bytes) -> "Outgoing":
        """Of anything at all: what is no message, or a batch, is only bytes."""
        try:
            envelope = jsonrpc.decode(message)
        except BadMessage:
            return cls(message)
        if isinstance(envelope, list):
            return cls(message)
        method = envelope.method if isinstance(envelope.method, str) else None
        if method is None:
            return cls(message, is_answer=True)
        id = None if envelope.id is UNSET else envelope.id
        assert not isinstance(id, msgspec.UnsetType)
        return cls(message, id, method, envelope.params, _version(envelope.params))

    @property
    def is_attended(self) -> bool:
        """Somebody waits for the answer; what is heard by listening may come at night."""
        return self.id is not None and self.method != LISTEN

    @property
    def is_told(self) -> bool:
        """Whether it is a notification or an answer: the server has nothing to say to it."""
        return self.is_answer or (self.method is not None and self.id is None)

    @property
    def subject(self) -> str:
        """What an error begins with."""
        return self.method or "a message"

    def mirror(self, parameters: Mapping[str, Sequence[HeaderParameter]]) -> dict[str, str]:
        """The headers that repeat a part of the body, since 2026-07-28."""
        if self.method is None:
            return {}
        headers = {"Mcp-Method": encode_value(self.method)}
        try:
            fields = members(self.params)
            field = MCP_NAME_FIELDS.get(self.method)
            if field in fields:
                name = _text(fields[field])
                headers["Mcp-Name"] = encode_value(name)
                if self.method == "tools/call" and name in parameters and "arguments" in fields:
                    headers |= argument_headers(parameters[name], _arguments(fields["arguments"]))
        except UNREADABLE:
            pass  # the server will say what is wrong with it
        return headers


def _version(params: Raw) -> str | None:
    try:
        meta = _params(params).meta
    except UNREADABLE:
        meta = NO_META
    return meta.version if isinstance(meta.version, str) else None
