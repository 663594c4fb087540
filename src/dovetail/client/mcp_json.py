"""The servers that other programs are told of: an `mcp.json` comes in, and how to reach each of its servers goes out.

It is the file that Claude, Cursor and VS Code write: names with a command or a URL, under `mcpServers` or `servers`;
comments and trailing commas do no harm.
What is wrong with the file is a SetupError; what is wrong with one server is kept for it, so that others can be used.
No value of the file gets into an error: it may be a secret.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dovetail.client.address import ServerAddress, checked_headers
from dovetail.errors import SetupError

MAX_BYTES = 1024 * 1024
MAX_SERVERS = 100
NEWLINE = b"\n"
TRANSPORTS = {
    None: None,
    "http": "http",
    "streamable-http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}
_REFERENCE = re.compile(r"\$\{((?:\$?\{[^{}]*\}|[^{}])*+)\}")  # another one may be in it
_VARIABLE = re.compile(r"(?:env:)?([A-Za-z_]\w*)(?::-(.*))?", re.DOTALL)
_STRING = rb'"(?:[^"\\]|\\.?)*+(?:"|\Z)'
_COMMENT = re.compile(_STRING + rb"|(//[^\r\n]*|/\*.*?\*/)|/\*.*", re.DOTALL)  # one without an end is none
_TRAILING_COMMA = re.compile(_STRING + rb"|(,)(?=\s*[}\]])", re.DOTALL)
_NOT_A_LINE_END = re.compile(rb"[^\r\n]")


class ListedServer(NamedTuple):
    """What `Client` needs to reach it, or why it can't be reached."""

    target: Any
    options: Mapping[str, Any]
    problem: str = ""
    is_off: bool = False

    @property
    def needs_auth(self) -> bool:
        """Whether it is a URL, and does not bring an `Authorization` of its own."""
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
    http_url: str | None = None  # as Gemini CLI has it
    headers: dict[str, str] = {}
    disabled: bool = False


def read_servers(source: str | Path | Mapping[str, Any]) -> dict[str, ListedServer]:
    """Those that are not switched off, by name."""
    return {name: listed for name, listed in all_servers(source).items() if not listed.is_off}


def all_servers(source: str | Path | Mapping[str, Any]) -> dict[str, ListedServer]:
    if isinstance(source, Mapping):
        shown, config, folder = "the configuration", dict(source), Path.cwd()
    else:
        path = Path(source)
        shown, config, folder = str(path), _read_file(path), _workspace(path)
    servers = config.get("mcpServers", config.get("servers"))
    if not isinstance(servers, Mapping):
        raise SetupError(f'{shown} names no servers: it needs "mcpServers" (or "servers") with a name for each')
    if len(servers) > MAX_SERVERS:
        raise SetupError(f"{shown} names {len(servers)} servers; no more than {MAX_SERVERS} are opened at once")
    return {str(name): _listed(str(name), entry, folder) for name, entry in servers.items()}


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as failure:
        raise SetupError(f"{path} can't be read: {failure.strerror or 'it is no file'}") from None
    if len(content) > MAX_BYTES:
        raise SetupError(f"{path} is longer than {MAX_BYTES} bytes, which no list of servers is")
    try:
        return msgspec.json.decode(_plain_json(content), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as bad:
        byte = re.search(r"byte (\d+)", str(bad))
        line = "" if byte is None else f" near line {content.count(NEWLINE, 0, int(byte[1])) + 1}"
        raise SetupError(f"{path} is no JSON object{line}") from None


def _plain_json(content: bytes) -> bytes:
    """Without comments and trailing commas, which people write; every other byte stays at its place."""

    def blank(found: re.Match[bytes]) -> bytes:
        return found[0] if found[1] is None else _NOT_A_LINE_END.sub(b" ", found[0])

    return _TRAILING_COMMA.sub(blank, _COMMENT.sub(blank, content.removeprefix(b"\xef\xbb\xbf")))


def _workspace(path: Path) -> Path:
    """The folder that a project's file is about: `project/.vscode/mcp.json` is about `project`."""
    folder = path.absolute().parent
    return folder.parent if folder.name in (".vscode", ".cursor", ".gemini") else folder


def _listed(name: str, given: Any, folder: Path) -> ListedServer:
    try:
        entry = msgspec.convert(given, _Entry)
        return ListedServer(None, {}, is_off=True) if entry.disabled else _reached(entry, folder)
    except msgspec.ValidationError as bad:
        return ListedServer(None, {}, f"The server {name!r} can't be read: {_where(bad)}")
    except SetupError as bad:
        return ListedServer(None, {}, f"The server {name!r} can't be used: {bad}")


def _where(bad: msgspec.ValidationError) -> str:
    path = re.search(r"`\$\.?([\w.\[\]]*)", str(bad))
    return f"`{path[1]}` has the wrong type" if path and path[1] else "it is no object"


def _reached(entry: _Entry, folder: Path) -> ListedServer:
    url = entry.http_url or entry.url
    if (entry.command is None) == (url is None):
        raise SetupError('it needs a "command" or a "url", and not both')
    if url is not None:
        transport = TRANSPORTS.get(entry.type, "unknown") if entry.http_url is None else "http"
        if transport == "unknown":
            raise SetupError('its "type" is unknown; use "http" or "sse", or leave it out')
        headers = _checked_headers({name: _expanded(value, folder) for name, value in entry.headers.items()})
        return ListedServer(_checked_url(_expanded(url, folder)), {"headers": headers, "transport": transport})
    if entry.env_file is not None:
        raise SetupError('"envFile" is not read here; write the variables under "env"')
    command = [_expanded(part, folder) for part in (entry.command or "", *entry.args)]
    env = {name: _expanded(_as_text(value), folder) for name, value in entry.env.items() if value is not None}
    cwd = None if entry.cwd is None else _expanded(entry.cwd, folder)
    _check_what_starts_it(command, env, cwd)
    return ListedServer(command, {"env": env, "cwd": None if cwd is None else folder / os.path.expanduser(cwd)})


def _check_what_starts_it(command: list[str], env: Mapping[str, str], cwd: str | None) -> None:
    """No system takes these, and Python fails in ways of its own."""
    words = {"command": command[:1], "args": command[1:], "env": [*env, *env.values()], "cwd": [cwd or ""]}
    for field, texts in words.items():
        if any("\0" in text for text in texts):
            raise SetupError(f'its "{field}" holds a NUL character; take that out')
    if any(not name or "=" in name for name in env):
        raise SetupError('its "env" has a name that is empty or holds a =; give the variable another one')


def _checked_url(url: str) -> str:
    try:
        return ServerAddress.of(url).url
    except SetupError:
        raise SetupError(
            'its "url" must begin with http:// or https://, name a host, and hold no spaces, line breaks or #, and no '
            'user or password, which belong in an "Authorization" under "headers"'
        ) from None


def _checked_headers(headers: dict[str, str]) -> dict[str, str]:
    try:
        return checked_headers(headers)
    except SetupError:
        raise SetupError(
            'its "headers" hold a name that no header has, a value that is not one line of plain ASCII text, '
            "or a header that the client sets itself"
        ) from None


def _as_text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _expanded(text: str, folder: Path) -> str:
    """`${NAME}`, `${env:NAME}` and `${NAME:-default}` stand for variables; what these hold is not looked into."""
    return _REFERENCE.sub(lambda reference: _meaning(reference[1], folder), text)


def _meaning(reference: str, folder: Path) -> str:
    places = {"workspaceFolder": folder, "userHome": Path.home()}
    if reference in places:
        return str(places[reference])
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
