"""Options and targets of a client: a `Server`, a command, a URL, and the servers of an `mcp.json`.

An `mcp.json` is the file that Claude, Cursor and VS Code write: names with a command or a URL, under `mcpServers` or
`servers`; comments and trailing commas are allowed. A problem of the file is a SetupError; one of a server is kept in
its `ListedServer`, so that others can be used. No value of the file gets into an error: it may be a secret.
"""

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args

import msgspec

from dovetail.auth.principal import Principal
from dovetail.client.auth import ClientAuth, credentials_for, is_token
from dovetail.client.dispatcher import ProgressHandler, Transcript
from dovetail.client.handlers import HandlerOptions
from dovetail.client.negotiation import pinned_revision
from dovetail.client.results import LogHandler
from dovetail.client.transports.aiohttp import HttpClient, HttpLimits
from dovetail.client.transports.base import ServerUrl, Transport, checked_headers
from dovetail.client.transports.http import HttpTransport
from dovetail.client.transports.legacy_sse import AutoTransport, SseTransport
from dovetail.client.transports.memory import MemoryTransport
from dovetail.client.transports.stdio import StdioTransport
from dovetail.engine.engine import Engine
from dovetail.errors import SetupError
from dovetail.protocol.revisions import Revision
from dovetail.protocol.types import ToolDefinition

Approve = Callable[[ToolDefinition, dict[str, Any]], bool | Awaitable[bool]]
HttpTransportName = Literal["http", "sse"]


class SharedOptions(HandlerOptions, total=False):
    """Options of `Client` that `Clients` passes on to each of its clients."""

    protocol_version: str | None
    client_info: Mapping[str, Any] | None
    approve: Approve | None
    timeout: float | None  # 30 seconds, if not given
    max_timeout: float  # 3600 seconds
    transcript: Transcript | None
    log_handler: LogHandler | None
    progress_handler: ProgressHandler | None
    max_rounds: int  # 32
    cache: bool  # True
    telemetry: bool | None  # spans; None: if the variables of OpenTelemetry ask for them
    auth: ClientAuth | None  # for URLs without an Authorization header of their own


class ClientOptions(SharedOptions, total=False):
    """Options of `Client` that are about one server."""

    env: Mapping[str, str] | None
    cwd: str | Path | None
    headers: Mapping[str, str] | None
    principal: Principal | None
    transport: HttpTransportName | None


class HasEngine(Protocol):
    @property
    def engine(self) -> Engine: ...


ClientTarget = HasEngine | Transport | str | Sequence[str | Path]


def make_transport(target: Any, options: ClientOptions, limits: HttpLimits | None = None) -> Transport:
    """The transport of a target: in process for a `Server`, stdio for a command, HTTP (within `limits`) for a URL."""
    env, cwd, headers = options.get("env"), options.get("cwd"), options.get("headers")
    auth, principal, transport = options.get("auth"), options.get("principal"), options.get("transport")
    pinned = pinned_revision(options.get("protocol_version"))
    is_url = isinstance(target, str) and "://" in target
    engine = getattr(target, "engine", None)
    is_server = isinstance(engine, Engine)
    if principal is not None and not (is_server and auth is None and isinstance(principal, Principal)):
        raise SetupError("Client: principal= is a Principal, instead of auth=, for a Server in this process")
    if not is_url and not (headers is None and transport is None and (auth is None or is_server)):
        raise SetupError('Client: headers=, auth= and transport= are for a URL such as "http://127.0.0.1:8000/mcp"')
    if (env is not None or cwd is not None) and (is_url or is_server):
        place = "a URL is a server that runs elsewhere" if is_url else "a Server runs in this process"
        raise SetupError(f"Client: env= and cwd= are for a command; {place}")
    if is_url:
        server_url, given = ServerUrl.parse(target), checked_headers(headers or {})
        http = HttpClient(server_url, given, credentials_for(auth, server_url, given), limits)
        return _over_http(http, transport, pinned)
    if isinstance(target, Transport):
        return target
    if isinstance(engine, Engine):
        if auth is not None and not (isinstance(auth, str) and is_token(auth)):
            raise SetupError("Client: auth= for a Server is a token as text, not empty, no `Bearer `; or principal=")
        if auth is not None and engine.options.auth is None:
            raise SetupError("Client: auth= is a token, but the Server has no auth= to verify it; give it a principal=")
        return MemoryTransport(engine, target, auth, principal)
    command = target if isinstance(target, Sequence) and not isinstance(target, (str, bytes)) else ()
    if command and all(isinstance(part, (str, Path)) for part in command):
        return StdioTransport([str(part) for part in command], env, cwd)
    shown = repr(target)[:100] if isinstance(target, str) else type(target).__name__  # a command may hold secrets
    example, url = 'a command as a list of strings such as ["python", "server.py"]', '"http://127.0.0.1:8000/mcp"'
    raise SetupError(f"Client: can't connect to {shown}; give it a Server, or {example}, or a URL such as {url}")


def _over_http(http: HttpClient, transport: HttpTransportName | None, pinned: Revision | None) -> Transport:
    if transport is not None and transport not in get_args(HttpTransportName):
        raise SetupError(f'Client: transport={transport!r} is unknown; use "http", "sse" or none')
    if transport == "sse":
        if pinned is not None and not pinned.handshake:
            raise SetupError(f"Client: {pinned.name} does not exist over HTTP+SSE; leave transport= out")
        return SseTransport(http)
    if transport == "http" or (pinned is not None and not pinned.handshake):
        return HttpTransport(http)
    return AutoTransport(http)


# ── mcp.json ──

MAX_FILE_BYTES = 1024 * 1024
TRANSPORTS = {None: None, "http": "http", "streamable-http": "http", "streamableHttp": "http", "sse": "sse"}
_REFERENCE = re.compile(r"\$\{((?:\$?\{[^{}]*\}|[^{}])*+)\}")  # may be nested
_VARIABLE = re.compile(r"(?:env:)?([A-Za-z_]\w*)(?::-(.*))?", re.DOTALL)
_STRING = rb'"(?:[^"\\]|\\.?)*+(?:"|\Z)'
_COMMENT = re.compile(_STRING + rb"|(//[^\r\n]*|/\*.*?\*/)|/\*.*", re.DOTALL)  # an unterminated one stays
_TRAILING_COMMA = re.compile(_STRING + rb"|(,)(?=\s*[}\]])", re.DOTALL)
_NOT_A_LINE_END = re.compile(rb"[^\r\n]")
_BAD_HEADERS = (
    'its "headers" hold a name that no header has, a value that is not one line of plain ASCII text, '
    "or a header that the client sets itself"
)
_BAD_URL = (
    'its "url" must begin with http:// or https://, name a host, and hold no spaces, line breaks or #, and no '
    'user or password, which belong in an "Authorization" under "headers"'
)


class ListedServer(NamedTuple):
    """A server of an `mcp.json`: the arguments of its `Client`, or the problem with it."""

    target: Any
    options: Mapping[str, Any]
    problem: str = ""
    is_disabled: bool = False

    @property
    def needs_auth(self) -> bool:
        """Whether it is a URL without an `Authorization` header."""
        headers = self.options.get("headers")
        return headers is not None and not any(name.lower() == "authorization" for name in headers)


class _Entry(msgspec.Struct, frozen=True, rename="camel"):
    type: str | None = None
    command: str | None = None
    args: list[str] = []
    env: dict[str, str | int | float | bool | None] = {}
    env_file: str | None = None
    cwd: str | None = None
    url: str | None = None
    http_url: str | None = None  # of Gemini CLI
    headers: dict[str, str] = {}
    disabled: bool = False


def read_servers(source: str | Path | Mapping[str, Any]) -> dict[str, ListedServer]:
    return {name: listed for name, listed in all_servers(source).items() if not listed.is_disabled}


def all_servers(source: str | Path | Mapping[str, Any]) -> dict[str, ListedServer]:
    if isinstance(source, Mapping):
        shown, config, folder = "the configuration", dict(source), Path.cwd()
    else:
        path = Path(source)
        shown, config, folder = str(path), read_file(path), path.absolute().parent
        if folder.name in (".vscode", ".cursor", ".gemini"):
            folder = folder.parent  # that of the project
    servers = config.get("mcpServers", config.get("servers"))
    if not isinstance(servers, Mapping):
        raise SetupError(f'{shown} names no servers: it needs "mcpServers" (or "servers") with a name for each')
    if len(servers) > 100:
        raise SetupError(f"{shown} names {len(servers)} servers; no more than 100 are opened at once")
    return {str(name): _read_entry(str(name), entry, folder) for name, entry in servers.items()}


def read_file(path: Path) -> dict[str, Any]:
    """The JSON object in a file, which may have comments and trailing commas."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as failure:
        raise SetupError(f"{path} can't be read: {failure.strerror or 'it is no file'}") from None
    if len(content) > MAX_FILE_BYTES:
        raise SetupError(f"{path} is longer than {MAX_FILE_BYTES} bytes, which no list of servers is")
    try:
        return msgspec.json.decode(_plain_json(content), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as bad:
        byte = re.search(r"byte (\d+)", str(bad))
        line = "" if byte is None else f" near line {content[: int(byte[1])].count(10) + 1}"
        raise SetupError(f"{path} is no JSON object{line}") from None


def _plain_json(content: bytes) -> bytes:
    """The text with blanks for comments and trailing commas, so that error positions stay right."""

    def blank(found: re.Match[bytes]) -> bytes:
        return found[0] if found[1] is None else _NOT_A_LINE_END.sub(b" ", found[0])

    return _TRAILING_COMMA.sub(blank, _COMMENT.sub(blank, content.removeprefix(b"\xef\xbb\xbf")))


def _read_entry(name: str, given: Any, folder: Path) -> ListedServer:
    try:
        entry = msgspec.convert(given, _Entry)
        return ListedServer(None, {}, is_disabled=True) if entry.disabled else _server_from_entry(entry, folder)
    except msgspec.ValidationError as bad:
        path = re.search(r"`\$\.?([\w.\[\]]+)", str(bad))
        problem = f"`{path[1]}` has the wrong type" if path else "it is no object"
        return ListedServer(None, {}, f"The server {name!r} can't be read: {problem}")
    except SetupError as bad:
        return ListedServer(None, {}, f"The server {name!r} can't be used: {bad}")


def _server_from_entry(entry: _Entry, folder: Path) -> ListedServer:
    url = entry.http_url or entry.url
    if (entry.command is None) == (url is None):
        raise SetupError('it needs a "command" or a "url", and not both')
    if url is not None:
        transport = TRANSPORTS.get(entry.type, "unknown") if entry.http_url is None else "http"
        if transport == "unknown":
            raise SetupError('its "type" is unknown; use "http" or "sse", or leave it out')
        headers = {name: _expanded(value, folder) for name, value in entry.headers.items()}
        _check(checked_headers, headers, _BAD_HEADERS)
        _check(ServerUrl.parse, url := _expanded(url, folder), _BAD_URL)
        return ListedServer(url, {"headers": headers, "transport": transport})
    if entry.env_file is not None:
        raise SetupError('"envFile" is not read here; write the variables under "env"')
    command = [_expanded(part, folder) for part in (entry.command or "", *entry.args)]
    env = {name: _expanded(_as_text(value), folder) for name, value in entry.env.items() if value is not None}
    cwd = None if entry.cwd is None else _expanded(entry.cwd, folder)
    return ListedServer(command, {"env": env, "cwd": None if cwd is None else folder / os.path.expanduser(cwd)})


def _check(check: Callable[[Any], object], value: Any, problem: str) -> None:
    """Run a check; its error is replaced, because it would show a value of the file."""
    try:
        check(value)
    except SetupError:
        raise SetupError(problem) from None


def _as_text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _expanded(text: str, folder: Path) -> str:
    """The text with `${NAME}`, `${env:NAME}` and `${NAME:-default}` replaced; the values are not expanded again."""
    return _REFERENCE.sub(lambda reference: _resolve(reference[1], folder), text)


def _resolve(reference: str, folder: Path) -> str:
    folders = {"workspaceFolder": folder, "userHome": Path.home()}
    if reference in folders:
        return str(folders[reference])
    if reference.startswith("input:"):
        raise SetupError(f"${{{reference}}} asks a person; use ${{env:NAME}} and set that variable")
    variable = _VARIABLE.fullmatch(reference)
    if variable is None:
        raise SetupError(f"${{{reference[:100]}}} is not understood; use ${{NAME}} or ${{env:NAME}}")
    value = os.environ.get(variable[1])
    if value is None and variable[2] is not None:
        return _expanded(variable[2], folder)
    if value is None:
        raise SetupError(f"${{{reference}}}: the variable {variable[1]} is not set in the environment")
    return value
