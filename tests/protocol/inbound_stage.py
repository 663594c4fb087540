"""Messages and headers for the decision tables, and what a pipe and an HTTP endpoint do with them."""

import json
from typing import Any

import pytest

from dovetail.errors import (
    ProtocolError,
)
from dovetail.protocol import inbound, jsonrpc
from dovetail.protocol.headers import Headers
from dovetail.protocol.inbound import CAPABILITIES_KEY, VERSION_KEY, Request
from dovetail.protocol.jsonrpc import BadMessage, Envelope
from dovetail.protocol.session import Session

MODERN = "2026-07-28"
HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LOG_KEY = "io.modelcontextprotocol/logLevel"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
META = {VERSION_KEY: MODERN, CAPABILITIES_KEY: {}}

Batch = list[Envelope | BadMessage]


def message(method: str, params: Any = ..., *, id: Any = 1) -> bytes:
    body = {"jsonrpc": "2.0", "id": id, "method": method}
    return json.dumps(body if params is ... else {**body, "params": params}).encode()


def meta(**changes: Any) -> dict[str, Any]:
    """Params that hold a good modern `_meta`, changed."""
    keys = {"version": VERSION_KEY, "capabilities": CAPABILITIES_KEY, "log": LOG_KEY, "client": CLIENT_KEY}
    values = {**META, **{keys.get(name, name): value for name, value in changes.items()}}
    return {"_meta": {name: value for name, value in values.items() if value is not ...}}


def session(version: str = "2025-06-18") -> Session:
    return Session(id="s", version=version, client=b'{"name":"c"}', capabilities=b'{"sampling":{}}')


def hello(version: Any = "2025-06-18", **changes: Any) -> dict[str, Any]:
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}, **changes}


def from_pipe(data: bytes, live: Session | None = None) -> Request | Batch:
    """What a pipe does with a line."""
    received = jsonrpc.decode(data)
    if isinstance(received, list):
        inbound.allow_batch(None if live is None else live.revision)
        return received
    opened = inbound.open_request(received)
    return inbound.modern(opened) or inbound.on_pipe(opened, live)


def from_post(
    data: bytes, headers: dict[str, str], live: Session | None = None, stateless: bool = False
) -> Request | Batch:
    """What an HTTP endpoint does with the body of a POST."""
    received, sent = jsonrpc.decode(data), as_sent(headers)
    if isinstance(received, list):
        inbound.allow_batch(inbound.http_batch_revision(sent, live))
        return received
    opened = inbound.open_request(received)
    return inbound.modern(opened, sent) or inbound.on_http(opened, sent, live, stateless=stateless)


def as_sent(headers: dict[str, str]) -> Headers:
    return Headers([(name.encode(), value.encode()) for name, value in headers.items()])


def refusal(*arguments: Any, via: Any = from_pipe, **options: Any) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        via(*arguments, **options)
    assert "`" not in caught.value.message
    json.loads(jsonrpc.error(1, caught.value))
    return caught.value


def rows(*table: tuple[Any, ...]) -> list[Any]:
    """The first cell of a line is its id."""
    return [pytest.param(*line[1:], id=line[0]) for line in table]


def mirrored(method: str, name: str | None = None, version: str | None = MODERN, **more: str) -> dict[str, str]:
    """The headers of a good modern request."""
    headers = {"mcp-method": method}
    if version is not None:
        headers["mcp-protocol-version"] = version
    if name is not None:
        headers["mcp-name"] = name
    return headers | {key.replace("_", "-"): value for key, value in more.items()}


def old(version: str | None = None, session_id: str | None = None) -> dict[str, str]:
    """The headers of a handshake-era request."""
    headers = {} if version is None else {"mcp-protocol-version": version}
    return headers if session_id is None else headers | {"mcp-session-id": session_id}


LIST = message("tools/list", meta())
CALL = message("tools/call", {"name": "add", "arguments": {}, **meta()})
PLAIN = message("tools/list")


def notice(
    data: bytes, headers: dict[str, str], live: Session | None = None, stateless: bool = False
) -> Session | None:
    received = jsonrpc.decode(data)
    assert isinstance(received, Envelope)
    return inbound.notice_on_http(received, as_sent(headers), live, stateless=stateless)


NOTIFICATION = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'
UNKNOWN_NOTIFICATION = b'{"jsonrpc":"2.0","method":"nobody/knows","params":[1]}'
RESPONSE = b'{"jsonrpc":"2.0","id":1,"result":{}}'
ERROR_RESPONSE = b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}'
