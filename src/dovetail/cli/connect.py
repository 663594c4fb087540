"""Connections to a server: a target and options to a connected `Client`, with logs, progress and questions handled."""

import asyncio
import difflib
import re
import shlex
import webbrowser
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import click

import dovetail.client
from dovetail.cli import output as terminal
from dovetail.cli.ask import Respondent, confirm
from dovetail.cli.options import USUAL_LEVEL, InteractionOptions, ServerTarget
from dovetail.cli.target import CANT_LOAD, NOT_FOUND, stdio_command
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
MCP_STATUSES = (403, 429)  # with which a server that knows MCP may refuse the first request
MAX_NAMED = 20  # tools, prompts or servers that an error lists
REPORTED_BY_CHILD = {NOT_FOUND: terminal.WRONG_USE, CANT_LOAD: terminal.UNREACHED}  # by a process that has said why
OPTIONS = (  # what `Client` says, and what was typed; the first that fits
    (r"^Client: protocol_version=", "--revision "),
    (r"^Client: headers=\{(.+?): …\}", r"--header \1"),
    (r"^Client: auth=", "--token"),
    (r"^Client: roots=", "--root "),
    (r"^Client: (.*); leave transport= out$", r"\1; leave --transport out"),
    (r"^Client: ", ""),
    (r"give the client auth=OAuth\(\), or a token as auth=", "give it with --token, or set DOVETAIL_CLIENT_TOKEN"),
)

N = TypeVar("N", ToolDefinition, PromptDefinition)


# ── connecting ──


@asynccontextmanager
async def connected(server: ServerTarget, **handlers: Any) -> AsyncIterator[Client]:
    """`handlers` are further options of `Client`. A program's stderr is that of the command."""
    with _in_words_of_the_command_line(server):
        try:
            client = client_for(server, handlers)
        except SetupError:
            await _end(server.process)
            raise
        try:
            await client.open()
        except ConnectionLost as lost:
            raise _unreached(server, lost) from None
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
    return dovetail.Client(StartedProgram(server.process, server.shown), **{**options, "env": None, "cwd": None})


def _unreached(server: ServerTarget, lost: ConnectionLost) -> Exception:
    exited = re.search(r" exited with code (\d+)", str(lost))
    code = int(exited[1]) if exited else None
    if code in REPORTED_BY_CHILD and server.address == stdio_command(server.shown):
        return click.exceptions.Exit(REPORTED_BY_CHILD[code])
    if server.is_url:
        lost.add_note(f"start the server, or correct {'its' if server.is_listed else 'the'} URL")
    return lost


@contextmanager
def _in_words_of_the_command_line(server: ServerTarget) -> Iterator[None]:
    """Inside, no failure speaks of parameters in Python, nor repeats what a file says."""
    try:
        yield
    except (BadResponse, ConnectionLost, NotSignedIn, SetupError) as failure:
        words = _without_address(failure, server)
        for parameter, option in OPTIONS:
            words, found = re.subn(parameter, option, words, count=1)
            if found:
                break
        failure.args = (words,)
        raise


def _without_address(failure: Exception, server: ServerTarget) -> str:
    """The target as it was typed in the place of a command, or of a URL that a file gives."""
    if isinstance(failure, NotStarted) and server.is_listed:
        return f"the command of {server.shown} can't be started: {failure.why}"
    if not isinstance(server.address, str):
        return str(failure).replace(repr(server.address[0]), server.shown)
    shown = ServerUrl.parse(server.address).shown if server.is_listed else server.shown
    return str(failure).replace(shown, server.shown)


def terminal_sign_in() -> Any:
    """`OAuth` that opens the browser after a yes only. Its tokens are kept in the user's token file."""

    class TerminalSignIn(dovetail.client.OAuth):  # its module is loaded when it is needed
        async def obtain(self, errand: "TokenRequest") -> "TokenSet":
            auth_server = errand.endpoint.auth_server
            if auth_server.is_guessed:
                words = "The server needs a token, and names no authorization server to sign in at"
                raise NotSignedIn(f"{words}; {GIVE_TOKEN}")
            page = page_url(auth_server.metadata.authorization_endpoint or "")
            if page is None:  # what is shown has to be what is opened
                raise NotSignedIn(f"The server names no page to sign in at that can be shown; {GIVE_TOKEN}")
            host = terminal.in_line(urlsplit(page).netloc, 300)
            if not terminal.can_ask():
                advice = f"run the command in a terminal to sign in, or {GIVE_TOKEN}"
                raise NotSignedIn(f"The server wants somebody to sign in at {host}; {advice}")
            if not await confirm(f"The server wants you to sign in at {host}. Open the browser?", default=True):
                raise NotSignedIn("Not signed in")
            return await super().obtain(errand)

    tokens = dovetail.client.TokenFile()
    return TerminalSignIn(client_name="Dovetail command line", tokens=tokens, open_browser=_open_browser)


def _open_browser(url: str) -> None:
    terminal.tell(f"If the browser does not open by itself, open\n{terminal.in_line(url, 10_000)}", dim=True)
    webbrowser.open(url)


class StartedProgram(Transport):
    """One message per line on the stdin and stdout of a program that was started before the client was loaded."""

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
        with suppress(ConnectionError):  # the end of its output will say why
            await self._input.drain()

    async def close(self) -> None:
        """Close its stdin, then ask, then kill; at once if this is cancelled."""
        try:
            self._input.close()
            await stop_process_group(ProcessGroup(self._process.pid), self._exited, STOP_TIMEOUT)
        finally:
            self._reading.cancel()
            await _end(self._process)


async def _end(process: asyncio.subprocess.Process | None) -> None:
    """With all that it has started."""
    if process is not None:
        ProcessGroup(process.pid).kill()
        await process.communicate()


# ── a server of an mcp.json; names alone get into messages, for all else may be secret ──


def listed_server(path: str, name: str) -> ListedServer:
    """The name may be left out where there is one server."""
    try:
        known = all_servers(path)
    except SetupError as failure:
        raise terminal.CommandExit(str(failure), terminal.WRONG_USE) from None
    servers = [each for each, listed in known.items() if not listed.is_disabled]
    if not name and len(servers) == 1:
        (name,) = servers
    if name not in known:
        words = f"has no server {name}" if name else "has several servers" if servers else "names no servers"
        which = [f"  {terminal.in_line(shlex.quote(f'{path}:{each}'), 200)}" for each in servers[:MAX_NAMED]]
        problem = "\n".join([f"{path} {words}{'; say which:' if which else ''}", *which])
    elif known[name].is_disabled:
        problem = f"{path}:{name} is switched off: the file says that it is disabled"
    else:
        problem = known[name].problem
    if problem:
        raise terminal.CommandExit(problem, terminal.WRONG_USE)
    return known[name]


# ── what the server has ──


def require(client: Client, feature: str, server: ServerTarget) -> None:
    """Before a request that could only be refused: does the server have such things at all?"""
    undeclared = feature == "completions" and not revisions.BY_NAME[client.protocol_version].completions_capability
    if feature not in client.capabilities and not undeclared:
        words = f"{server.shown} has no {feature} at all; `dovetail inspect` tells what it has"
        raise terminal.CommandExit(words, terminal.WRONG_USE)


def named(name: str, known: Iterable[N], kind: str) -> N:
    """The definition of that name. If there is none, the error says what could be meant."""
    by_name = {each.name: each for each in known}
    if name in by_name:
        return by_name[name]
    near = difflib.get_close_matches(name, by_name, n=1)
    names = ", ".join(terminal.in_line(each, 60) for each in list(by_name)[:MAX_NAMED])
    others = f"it has {names}" if names else f"it has no {kind}s at all"
    hint = f"did you mean {terminal.in_line(near[0], 60)}?" if near else others
    raise terminal.CommandExit(f"there is no {kind} {name}; {hint}", terminal.WRONG_USE)


# ── interaction ──


class Interaction(NamedTuple):
    """A connected client, and what a person sees meanwhile."""

    client: Client
    line: terminal.ProgressLine


@asynccontextmanager
async def interacting(server: ServerTarget, interaction: InteractionOptions) -> AsyncIterator[Interaction]:
    """Connected, with handlers for logs, progress and questions."""
    line = terminal.ProgressLine(hidden=interaction.is_quiet)
    respondent = Respondent(server.shown, interaction.answers, line)
    least: Any = interaction.log_level or USUAL_LEVEL

    def show_log(message: LogMessage) -> None:
        if passes_level(message.level, least):
            said = message.data if isinstance(message.data, str) else terminal.as_json(message.data, indent=False)
            source = f"{message.level} {message.logger}" if message.logger else message.level
            terminal.tell(
                f"{terminal.in_line(source, 200)}: {terminal.plain(said[:10_000])}",
                fg=terminal.LEVEL_COLOURS.get(message.level),
                dim=True,
            )

    handlers: dict[str, Any] = {
        "elicitation_handler": respondent.elicit,
        "sampling_handler": respondent.sample,
        "log_handler": None if interaction.is_quiet else show_log,
        "roots": list(interaction.roots) or None,
    }
    try:
        async with connected(server, **handlers) as client:
            if interaction.log_level is not None and "logging" in client.capabilities:
                await client.set_log_level(interaction.log_level)  # type: ignore[arg-type]  # click has checked it
            yield Interaction(client, line)
    finally:
        line.clear()
