"""Where a client connects to: a target comes in, the link that reaches it goes out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from dovetail.auth.principal import Principal
from dovetail.client.address import ServerAddress, checked_headers
from dovetail.client.credentials import ClientAuth, credentials_for, is_token
from dovetail.client.http import HttpLink
from dovetail.client.inprocess import InProcessLink
from dovetail.client.links import Link
from dovetail.client.process import ProcessLink
from dovetail.client.requests import HttpRequests
from dovetail.client.sse import SseLink
from dovetail.client.web import WebLink
from dovetail.engine.core import Engine
from dovetail.errors import SetupError
from dovetail.protocol.revisions import Revision

WebTransport = Literal["http", "sse"]


class HasEngine(Protocol):
    """A `Server`, by the one thing that a client needs of it."""

    @property
    def engine(self) -> Engine: ...


ClientTarget = HasEngine | Link | str | Sequence[str | Path]


def link_to(
    target: Any,
    pinned: Revision | None = None,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    headers: Mapping[str, str] | None = None,
    auth: ClientAuth | None = None,
    principal: Principal | None = None,
    transport: WebTransport | None = None,
) -> Link:
    """A `Server` is reached in process, a command as a child process over stdio, a URL over HTTP; a link as it is."""
    web = isinstance(target, str) and "://" in target
    engine = getattr(target, "engine", None)
    is_server = isinstance(engine, Engine)
    if principal is not None and not (is_server and auth is None and isinstance(principal, Principal)):
        raise SetupError("Client: principal= is a Principal, instead of auth=, for a Server in this process")
    if not web and not (headers is None and transport is None and (auth is None or is_server)):
        raise SetupError('Client: headers=, auth= and transport= are for a URL such as "http://127.0.0.1:8000/mcp"')
    if web:
        if env is not None or cwd is not None:
            raise SetupError("Client: env= and cwd= are for a command; a URL is a server that runs elsewhere")
        address, given = ServerAddress.of(target), checked_headers(headers or {})
        return _web_link(HttpRequests(address, given, credentials_for(auth, address, given)), transport, pinned)
    if isinstance(target, Link):
        return target
    if isinstance(engine, Engine):
        if env is not None or cwd is not None:
            raise SetupError("Client: env= and cwd= are for a command; a Server runs in this process")
        if auth is not None and not (isinstance(auth, str) and is_token(auth)):
            raise SetupError("Client: auth= for a Server is a token as text, not empty, no `Bearer `; or principal=")
        if auth is not None and engine.options.auth is None:
            raise SetupError("Client: auth= is a token, but the Server has no auth= to verify it; give it a principal=")
        return InProcessLink(engine, target, auth, principal)
    if _is_command(target):
        return ProcessLink([str(part) for part in target], env, cwd)
    raise SetupError(
        f"Client: can't connect to {_shown(target)}; give it a Server, or a command as a list of strings "
        'such as ["python", "server.py"], or a URL such as "http://127.0.0.1:8000/mcp"'
    )


def _web_link(requests: HttpRequests, transport: WebTransport | None, pinned: Revision | None) -> Link:
    if transport is not None and transport not in get_args(WebTransport):
        raise SetupError(f'Client: transport={transport!r} is unknown; use "http", "sse" or none')
    if transport == "sse":
        if pinned is not None and not pinned.handshake:
            raise SetupError(f"Client: {pinned.name} does not exist over HTTP+SSE; leave transport= out")
        return SseLink(requests)
    if transport == "http" or (pinned is not None and not pinned.handshake):
        return HttpLink(requests)
    return WebLink(requests)


def _is_command(target: Any) -> bool:
    if isinstance(target, (str, bytes)) or not isinstance(target, Sequence) or not target:
        return False
    return all(isinstance(part, (str, Path)) for part in target)


def _shown(target: Any) -> str:
    text = repr(target)
    return text if len(text) <= 100 else f"{text[:100]}…"
