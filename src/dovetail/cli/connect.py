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
import msgspec

import dovetail.client
from dovetail.cli.arguments import mapping
from dovetail.cli.ask import Respondent, confirm
from dovetail.cli.options import USUAL_LEVEL, InteractionOptions, ServerTarget
from dovetail.cli.output import (
    LEVEL_COLOURS,
    UNREACHED,
    WRONG_USE,
    CommandExit,
    ProgressLine,
    as_json,
    can_ask,
    in_line,
    plain,
    tell,
)
from dovetail.cli.target import CANT_LOAD, NOT_FOUND, stdio_command
from dovetail.client import Client, LogMessage
from dovetail.client.config import ListedServer, all_servers
from dovetail.client.transports.base import Receiver, Transport
from dovetail.client.transports.stdio import LEAVE_SECONDS, NotStarted, ProcessGroup, see_out, within
from dovetail.client.transports.url import ServerUrl, page_url
from dovetail.errors import METHOD_NOT_FOUND, BadAnswer, ConnectionLost, NotSignedIn, ServerError, SetupError
from dovetail.protocol import revisions
from dovetail.protocol.features import passes_level
from dovetail.protocol.types import PromptDefinition, ToolDefinition

if TYPE_CHECKING:
    from dovetail.client.oauth import TokenSet
    from dovetail.client.oauth.provider import TokenRequest

GIVE_TOKEN = "give a token with --token, or set DOVETAIL_CLIENT_TOKEN"
MAX_NAMED = 20  # tools, prompts or servers that an error lists
FEATURES = ("tools", "resources", "prompts", "completions")
REPORTED_BY_CHILD = {NOT_FOUND: WRONG_USE, CANT_LOAD: UNREACHED}  # exit codes of a process that has said why
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
            if not _is_no_mcp(refusal):
                raise
            raise BadAnswer(f"{server.shown} does not answer as an MCP server does: {refusal}") from refusal
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


def _is_no_mcp(refusal: ServerError) -> bool:
    """Whether the first request is refused as by a server that does not know MCP; one that does may want a token."""
    return refusal.code == METHOD_NOT_FOUND or (refusal.code > 0 and refusal.code not in (403, 429))


@contextmanager
def _in_words_of_the_command_line(server: ServerTarget) -> Iterator[None]:
    """Inside, no failure speaks of parameters in Python, nor repeats what a file says."""
    try:
        yield
    except (BadAnswer, ConnectionLost, NotSignedIn, SetupError) as failure:
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
    shown = ServerUrl.of(server.address).shown if server.is_listed else server.shown
    return str(failure).replace(shown, server.shown)


def terminal_sign_in() -> Any:
    """`OAuth` that opens the browser after a yes only. Its tokens are kept in the user's token file."""

    class TerminalSignIn(dovetail.client.OAuth):  # its module is loaded when it is needed
        async def obtain(self, errand: "TokenRequest") -> "TokenSet":
            provider = errand.endpoint.provider
            if provider.is_guessed:
                words = "The server needs a token, and names no authorization server to sign in at"
                raise NotSignedIn(f"{words}; {GIVE_TOKEN}")
            page = page_url(provider.metadata.authorization_endpoint or "")
            if page is None:  # what is shown has to be what is opened
                raise NotSignedIn(f"The server names no page to sign in at that can be shown; {GIVE_TOKEN}")
            host = in_line(urlsplit(page).netloc, 300)
            if not can_ask():
                advice = f"run the command in a terminal to sign in, or {GIVE_TOKEN}"
                raise NotSignedIn(f"The server wants somebody to sign in at {host}; {advice}")
            if not await confirm(f"The server wants you to sign in at {host}. Open the browser?", default=True):
                raise NotSignedIn("Not signed in")
            return await super().obtain(errand)

    tokens = dovetail.client.TokenFile()
    return TerminalSignIn(client_name="Dovetail command line", tokens=tokens, open_browser=_open_browser)


def _open_browser(url: str) -> None:
    tell(f"If the browser does not open by itself, open\n{in_line(url, 10_000)}", dim=True)
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
        self._tasks = [asyncio.ensure_future(self._read(receiver)), asyncio.ensure_future(self._wait())]

    async def _wait(self) -> None:
        await self._process.wait()
        self._exited.set()

    async def _read(self, receiver: Receiver) -> None:
        try:
            while line := await self._output.readline():
                receiver.receive(line.rstrip(b"\r\n"))
        except ValueError:
            receiver.lost(f"{self._shown} sent a message that is too long")
            return
        await within(self._exited, LEAVE_SECONDS)
        code = self._process.returncode
        ended = f"exited with code {code}" if (code or 0) >= 0 else f"was ended by signal {-(code or 0)}"
        receiver.lost(f"{self._shown} closed its output" if code is None else f"{self._shown} {ended}")

    def write(self, message: bytes) -> None:
        self._input.write(message + b"\n")

    async def drain(self) -> None:
        with suppress(ConnectionError):  # the end of its output will say why
            await self._input.drain()

    async def close(self) -> None:
        """Close its stdin, then ask, then kill; at once if this is cancelled."""
        family = ProcessGroup(self._process.pid)
        try:
            self._input.close()
            await see_out(family, self._exited, LEAVE_SECONDS)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
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
        raise CommandExit(str(failure), WRONG_USE) from None
    servers = {each: listed for each, listed in known.items() if not listed.is_off}
    if not name and not servers:
        raise CommandExit(f"{path} names no servers, or none that is switched on", WRONG_USE)
    if not name and len(servers) == 1:
        name = next(iter(servers))
    if name in known and name not in servers:
        raise CommandExit(f"{path}:{name} is switched off: the file says that it is disabled", WRONG_USE)
    if name not in servers:
        raise CommandExit(_which(path, name, servers), WRONG_USE)
    if servers[name].problem:
        raise CommandExit(servers[name].problem, WRONG_USE)
    return servers[name]


def _which(path: str, name: str, known: Iterable[str]) -> str:
    words = [in_line(shlex.quote(f"{path}:{each}"), 200) for each in known]
    if name and (near := difflib.get_close_matches(f"{path}:{name}", words, n=1, cutoff=0.8)):
        return f"{path} has no server {name}; did you mean {near[0]}?"
    head = f"{path} has no server {name}" if name else f"{path} has several servers"
    more = ["  …"] if len(words) > MAX_NAMED else []
    return "\n".join([f"{head}; say which:", *(f"  {word}" for word in words[:MAX_NAMED]), *more])


# ── what the server has ──


def require(client: Client, feature: str, server: ServerTarget) -> None:
    """Before a request that could only be refused: does the server have such things at all?"""
    undeclared = feature == "completions" and not revisions.BY_NAME[client.protocol_version].completions_capability
    if feature not in client.capabilities and not undeclared:
        others = " and ".join(name for name in FEATURES if name in client.capabilities)
        words = f"{server.shown} has no {feature} at all; it has {others or 'nothing that could be asked for'}"
        raise CommandExit(words, WRONG_USE)


def named(name: str, known: Iterable[N], kind: str) -> N:
    """The definition of that name. If there is none, the error says what could be meant."""
    by_name = {each.name: each for each in known}
    if name in by_name:
        return by_name[name]
    near = difflib.get_close_matches(name, by_name, n=1)
    names = ", ".join(in_line(each, 60) for each in list(by_name)[:MAX_NAMED])
    others = f"it has {names}" if names else f"it has no {kind}s at all"
    hint = f"did you mean {in_line(near[0], 60)}?" if near else others
    raise CommandExit(f"there is no {kind} {name}; {hint}", WRONG_USE)


# ── interaction ──


class Interaction(NamedTuple):
    """A connected client, and what a person sees meanwhile."""

    client: Client
    line: ProgressLine
    respondent: Respondent


@asynccontextmanager
async def interacting(
    server: ServerTarget, interaction: InteractionOptions, **options: Any
) -> AsyncIterator[Interaction]:
    """Connected, with handlers for logs, progress and questions; `options` are further ones of the client."""
    line = ProgressLine(hidden=interaction.is_quiet)
    respondent = Respondent(server.shown, interaction.answers, line)
    least: Any = interaction.log_level or USUAL_LEVEL

    def show_log(message: LogMessage) -> None:
        if passes_level(message.level, least):
            said = message.data if isinstance(message.data, str) else as_json(message.data, indent=False)
            source = f"{message.level} {message.logger}" if message.logger else message.level
            tell(f"{in_line(source, 200)}: {plain(said[:10_000])}", fg=LEVEL_COLOURS.get(message.level), dim=True)

    handlers: dict[str, Any] = {
        "elicitation_handler": respondent.elicit,
        "sampling_handler": respondent.sample,
        "log_handler": None if interaction.is_quiet else show_log,
        "roots": list(interaction.roots) or None,
    }
    try:
        async with connected(server, **handlers, **options) as client:
            if interaction.log_level is not None and "logging" in client.capabilities:
                await client.set_log_level(interaction.log_level)  # type: ignore[arg-type]  # click has checked it
            yield Interaction(client, line, respondent)
    finally:
        line.clear()


class LastResult:
    """The last result as it came over the wire; the client's own types have no place for its `_meta`."""

    def __init__(self) -> None:
        self._result = b"{}"

    def hear(self, direction: str, message: bytes) -> None:
        """A `transcript`."""
        if direction == "received":
            with suppress(msgspec.DecodeError):
                self._result = bytes(msgspec.json.decode(message, type=_Response).result) or self._result

    @property
    def meta(self) -> dict[str, Any]:
        """For a document: `_meta`, if there is any."""
        found = mapping(msgspec.json.decode(self._result)).get("_meta")
        return {"_meta": found} if found else {}


class _Response(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw()
