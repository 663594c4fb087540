"""Connection of a command to its server: a `Client` with handlers for logs, progress and questions."""

import asyncio
import difflib
import re
import shlex
import webbrowser
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

import dovetail.client
from dovetail.cli import output as terminal
from dovetail.cli.ask import TerminalHandlers, confirm
from dovetail.cli.shared_options import DEFAULT_LOG_LEVEL, InteractionOptions, ServerTarget
from dovetail.cli.target import LOAD_FAILED, NOT_FOUND, stdio_command
from dovetail.client import Client, LogMessage
from dovetail.client.config import ListedServer, all_servers
from dovetail.client.transports.base import OutgoingMessage, Receiver, ServerUrl, Transport, page_url
from dovetail.client.transports.stdio import STOP_TIMEOUT, NotStarted, ProcessGroup, stop_process_group, wait_until
from dovetail.errors import BadResponse, ConnectionLost, NotSignedIn, ServerError, SetupError
from dovetail.protocol import revisions
from dovetail.protocol.capabilities import passes_level
from dovetail.protocol.types import PromptDefinition, ToolDefinition

if TYPE_CHECKING:
    from dovetail.client.oauth import TokenSet
    from dovetail.client.oauth.provider import TokenRequest

GIVE_TOKEN = "give a token with --token, or set DOVETAIL_CLIENT_TOKEN"
MCP_STATUSES = (403, 429)  # an MCP server may refuse the first request with these
MAX_NAMED = 20  # tools, prompts or servers that an error lists
CHILD_EXIT_CODES = {NOT_FOUND: terminal.USAGE_ERROR, LOAD_FAILED: terminal.NO_CONNECTION}  # the child wrote the error
OPTION_NAMES = (  # parameters in errors of `Client`, and the options of the command line; the first match counts
    (r"^Client: protocol_version=", "--revision "),
    (r"^Client: headers=\{(.+?): …\}", r"--header \1"),
    (r"^Client: auth=", "--token"),
    (r"^Client: roots=", "--root "),
    (r"^Client: (.*); leave transport= out$", r"\1; leave --transport out"),
    (r"^Client: ", ""),
    (r"give the client auth=OAuth\(\), or a token as auth=", "give it with --token, or set DOVETAIL_CLIENT_TOKEN"),
)

N = TypeVar("N", ToolDefinition, PromptDefinition)


@asynccontextmanager
async def connected(server: ServerTarget, **handlers: Any) -> AsyncIterator[Client]:
    """Connect; `handlers` are further options of `Client`. The program shares the stderr of the command."""
    with _translated_errors(server):
        try:
            client = client_for(server, handlers)
        except SetupError:
            await _kill(server.process)
            raise
        try:
            await client.open()
        except ConnectionLost as lost:
            raise _connection_error(server, lost) from None
        except ServerError as refusal:
            if refusal.code <= 0 or refusal.code in MCP_STATUSES:
                raise
            raise BadResponse(f"{server.shown} does not answer as an MCP server does: {refusal}") from None
        try:
            yield client
        finally:
            await client.close()


def client_for(server: ServerTarget, handlers: dict[str, Any]) -> Client:
    options = {**server.options, **handlers}
    if server.is_url and server.signs_in and options.get("auth") is None:
        options["auth"] = terminal_sign_in()
    if server.process is None:
        return dovetail.Client(server.address, **options)
    return dovetail.Client(StartedProcess(server.process, server.shown), **{**options, "env": None, "cwd": None})


def _connection_error(server: ServerTarget, lost: ConnectionLost) -> Exception:
    exited = re.search(r" exited with code (\d+)", str(lost))
    code = int(exited[1]) if exited else None
    if code in CHILD_EXIT_CODES and server.address == stdio_command(server.shown):
        return click.exceptions.Exit(CHILD_EXIT_CODES[code])
    if server.is_url:
        lost.add_note(f"start the server, or correct {'its' if server.is_from_file else 'the'} URL")
    return lost


@contextmanager
def _translated_errors(server: ServerTarget) -> Iterator[None]:
    """Reword errors of `Client`: name options instead of Python parameters, and repeat no secrets of an mcp.json."""
    try:
        yield
    except (BadResponse, ConnectionLost, NotSignedIn, SetupError) as failure:
        message = _without_address(failure, server)
        for parameter, option in OPTION_NAMES:
            message, count = re.subn(parameter, option, message, count=1)
            if count:
                break
        failure.args = (message,)
        raise


def _without_address(failure: Exception, server: ServerTarget) -> str:
    """The message with the target as the user typed it instead of a command, or a URL of an mcp.json."""
    if isinstance(failure, NotStarted) and server.is_from_file:
        return f"the command of {server.shown} can't be started: {failure.why}"
    if not isinstance(server.address, str):
        return str(failure).replace(repr(server.address[0]), server.shown)
    shown = ServerUrl.parse(server.address).shown if server.is_from_file else server.shown
    return str(failure).replace(shown, server.shown)


def terminal_sign_in() -> Any:
    """An `OAuth` that asks before it opens the browser. Tokens are stored in the user's token file."""

    class TerminalSignIn(dovetail.client.OAuth):  # here, because OAuth is loaded late
        async def obtain(self, request: "TokenRequest") -> "TokenSet":
            auth_server = request.endpoint.auth_server
            if auth_server.is_guessed:
                message = "The server needs a token, and names no authorization server to sign in at"
                raise NotSignedIn(f"{message}; {GIVE_TOKEN}")
            page = page_url(auth_server.metadata.authorization_endpoint or "")
            if page is None:  # the host that is shown must be the one that is opened
                raise NotSignedIn(f"The server names no page to sign in at that can be shown; {GIVE_TOKEN}")
            host = terminal.one_line(urlsplit(page).netloc, 300)
            if not terminal.is_interactive():
                advice = f"run the command in a terminal to sign in, or {GIVE_TOKEN}"
                raise NotSignedIn(f"The server asks for a sign-in at {host}; {advice}")
            if not await confirm(f"The server wants you to sign in at {host}. Open the browser?", default=True):
                raise NotSignedIn("Not signed in")
            return await super().obtain(request)

    tokens = dovetail.client.TokenFile()
    return TerminalSignIn(client_name="Dovetail command line", tokens=tokens, open_browser=_open_browser)


def _open_browser(url: str) -> None:
    terminal.err(f"If the browser does not open by itself, open\n{terminal.one_line(url, 10_000)}", dim=True)
    webbrowser.open(url)


class StartedProcess(Transport):
    """stdio transport for a program that was started before the client was loaded."""

    def __init__(self, process: asyncio.subprocess.Process, shown: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._input, self._output = process, process.stdin, process.stdout
        self._shown = shown
        self._exited = asyncio.Event()

    async def open(self, receiver: Receiver) -> None:
        self._ended = asyncio.ensure_future(self._process.wait())
        self._ended.add_done_callback(lambda _: self._exited.set())
        self._reading = asyncio.ensure_future(self._read(receiver))

    async def _read(self, receiver: Receiver) -> None:
        try:
            while line := await self._output.readline():
                receiver.receive(line.rstrip(b"\r\n"))
        except ValueError:
            receiver.connection_lost(f"{self._shown} sent a message that is too long")
        await wait_until(self._exited, STOP_TIMEOUT)
        code = self._process.returncode
        ended = f"exited with code {code}" if (code or 0) >= 0 else f"was ended by signal {-(code or 0)}"
        receiver.connection_lost(f"{self._shown} closed its output" if code is None else f"{self._shown} {ended}")

    def write(self, message: OutgoingMessage) -> None:
        self._input.write(message.body + b"\n")

    async def drain(self) -> None:
        with suppress(ConnectionError):  # `_read` reports why
            await self._input.drain()

    async def close(self) -> None:
        """Close stdin, then send SIGTERM, then SIGKILL; SIGKILL at once if this is cancelled."""
        try:
            self._input.close()
            await stop_process_group(ProcessGroup(self._process.pid), self._exited, STOP_TIMEOUT)
        finally:
            self._reading.cancel()
            await _kill(self._process)


async def _kill(process: asyncio.subprocess.Process | None) -> None:
    if process is not None:
        ProcessGroup(process.pid).kill()
        await process.communicate()


def configured_server(path: str, name: str) -> ListedServer:
    """A server of an mcp.json; the only one if no name is given. Errors show names only: the rest may be secret."""
    try:
        known = all_servers(path)
    except SetupError as failure:
        raise terminal.CommandExit(str(failure), terminal.USAGE_ERROR) from None
    servers = [each for each, listed in known.items() if not listed.is_disabled]
    if not name and len(servers) == 1:
        (name,) = servers
    if name not in known:
        what = f"has no server {name}" if name else "has several servers" if servers else "names no servers"
        which = [f"  {terminal.one_line(shlex.quote(f'{path}:{each}'), 200)}" for each in servers[:MAX_NAMED]]
        problem = "\n".join([f"{path} {what}{'; say which:' if which else ''}", *which])
    elif known[name].is_disabled:
        problem = f"{path}:{name} is switched off: the file says that it is disabled"
    else:
        problem = known[name].problem
    if problem:
        raise terminal.CommandExit(problem, terminal.USAGE_ERROR)
    return known[name]


def require_capability(client: Client, feature: str, server: ServerTarget) -> None:
    undeclared = feature == "completions" and not revisions.BY_NAME[client.protocol_version].completions_capability
    if feature not in client.capabilities and not undeclared:
        message = f"{server.shown} has no {feature} at all; `dovetail inspect` tells what it has"
        raise terminal.CommandExit(message, terminal.USAGE_ERROR)


def find_by_name(name: str, known: Iterable[N], kind: str) -> N:
    """The item with this name; the error for an unknown name suggests a similar one."""
    by_name = {each.name: each for each in known}
    if name in by_name:
        return by_name[name]
    near = difflib.get_close_matches(name, by_name, n=1)
    names = ", ".join(terminal.one_line(each, 60) for each in list(by_name)[:MAX_NAMED])
    others = f"it has {names}" if names else f"it has no {kind}s at all"
    hint = f"did you mean {terminal.one_line(near[0], 60)}?" if near else others
    raise terminal.CommandExit(f"there is no {kind} {name}; {hint}", terminal.USAGE_ERROR)


def read_found_tools(found: Any) -> list[ToolDefinition]:
    """The tools in a result of `search_tools`; none if another server calls something else by this name."""
    try:
        return msgspec.convert(found["tools"], list[ToolDefinition])
    except (msgspec.ValidationError, LookupError, TypeError):
        return []


@asynccontextmanager
async def interactive_client(
    server: ServerTarget, interaction: InteractionOptions
) -> AsyncIterator[tuple[Client, terminal.ProgressBar]]:
    """A connected client that shows logs, and asks the user for input that the server requires."""
    progress = terminal.ProgressBar(hidden=interaction.is_quiet)
    terminal_handlers = TerminalHandlers(server.shown, interaction.answers, progress)
    least: Any = interaction.log_level or DEFAULT_LOG_LEVEL

    def show_log(message: LogMessage) -> None:
        if passes_level(message.level, least):
            text = message.data if isinstance(message.data, str) else terminal.to_json(message.data, indent=False)
            source = terminal.one_line(f"{message.level} {message.logger or ''}", 200)
            colour = terminal.LEVEL_COLOURS.get(message.level)
            terminal.err(f"{source}: {terminal.sanitize(text[:10_000])}", fg=colour, dim=True)

    handlers: dict[str, Any] = {
        "elicitation_handler": terminal_handlers.elicit,
        "sampling_handler": terminal_handlers.sample,
        "log_handler": None if interaction.is_quiet else show_log,
        "roots": list(interaction.roots) or None,
        "tasks": True,
    }
    try:
        async with connected(server, **handlers) as client:
            if interaction.log_level is not None and "logging" in client.capabilities:
                await client.set_log_level(interaction.log_level)  # type: ignore[arg-type]  # click has checked it
            yield client, progress
    finally:
        progress.clear()
