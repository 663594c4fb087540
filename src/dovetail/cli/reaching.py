"""The server that a command talks to: words of the command line come in, a connected `Client` goes out.

A server is given as a URL, as a Python program (`server.py`, `server.py:name`, `package.module:name`), as one of an
`mcp.json` (`mcp.json:name`), or as any command after `--`.
"""

import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

import dovetail
from dovetail import cli
from dovetail.cli.exits import UNREACHED, WRONG_USE, ended_by_signals
from dovetail.cli.running import RunningProgram
from dovetail.cli.whereabouts import CANT_LOAD, NOT_THERE, as_url, in_list, what_is_missing
from dovetail.errors import METHOD_NOT_FOUND, BadAnswer, ConnectionLost, NotSignedIn, ServerError, SetupError

if TYPE_CHECKING:
    from dovetail.client import Client

TIMEOUT = 30.0
LONGEST_TIMEOUT = 1e9
COMMAND_WORDS = "dovetail.command"  # where the words after `--` wait
BEFORE = "It goes before --: all words after that are the command that starts the server"
ADVICE = "start the server, or correct {}"
SAID_WHY = {NOT_THERE: WRONG_USE, CANT_LOAD: UNREACHED}  # our process did, on stderr
AUTHORIZATION = "authorization"
OPTIONS = (  # what `Client` says, and what was typed; the first that fits
    (r"^Client: protocol_version=", "--revision "),
    (r"^Client: headers=\{(.+?): …\}", r"--header \1"),
    (r"^Client: auth=", "--token"),
    (r"^Client: roots=", "--root "),
    (r"^Client: (.*); leave transport= out$", r"\1; leave --transport out"),
    (r"^Client: ", ""),
    (r"give the client auth=OAuth\(\), or a token as auth=", "give it with --token, or set DOVETAIL_CLIENT_TOKEN"),
)
_BEHIND = "\0"  # stands where TARGET would, if the server is given behind `--`; nobody can type it


class ServerCommand(click.Command):
    """A command whose first word is the server, unless all words after `--` are a command that starts it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            args, ctx.meta[COMMAND_WORDS] = [_BEHIND, *args[:cut]], args[cut + 1 :]
            if not ctx.meta[COMMAND_WORDS] and not ctx.resilient_parsing:  # somebody may press Tab
                raise click.UsageError("after -- comes the command that starts the server", ctx)
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as missing:
            raise lacking(ctx, missing.format_message().rstrip(".")) from None


def lacking(ctx: click.Context, words: str) -> click.UsageError:
    """What the command line lacks, and where that goes."""
    is_behind = COMMAND_WORDS in ctx.meta
    return click.UsageError(f"{words}\n{BEFORE}" if is_behind else words, ctx)


class ServerAt:
    """One server, and how to speak to it."""

    def __init__(
        self,
        target: str | list[str],
        shown: str,
        options: dict[str, Any],
        *,
        signs_in: bool = False,
        is_listed: bool = False,
    ) -> None:
        self.target = target  # a URL, or a command
        self.shown = shown  # as the user wrote it
        self.options = options  # of `Client`
        self._signs_in = signs_in
        self._is_listed = is_listed  # in a file, whose values are not to be shown
        self._programs: list[RunningProgram] = []
        self._waiting: RunningProgram | None = None  # for a client to speak to it

    @property
    def is_url(self) -> bool:
        return isinstance(self.target, str)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Inside, a program has been started already, and the first `connect` takes it.

        A command that begins like this loads the client while the server loads itself.
        """
        with ended_by_signals():
            self._waiting = self._start()
            try:
                _ = dovetail.Client  # which loads it
                yield
            finally:
                programs, self._programs, self._waiting = self._programs, [], None
                for program in programs:
                    program.end()

    def _start(self) -> RunningProgram | None:
        if isinstance(self.target, str) or os.name != "posix":
            return None
        with suppress(OSError, ValueError):  # `connect` will say why
            program = RunningProgram.start(self.target, self.options["env"], self.options.get("cwd"))
            self._programs.append(program)
            return program
        return None

    @asynccontextmanager
    async def connect(self, **handlers: Any) -> AsyncIterator["Client"]:
        """`handlers` are further options of `Client`. What the program writes to stderr is seen as it comes."""
        with self._in_words_of_the_command_line():
            client = self._client(handlers)
            try:
                await client.open()
            except ConnectionLost as lost:
                raise self._unreached(lost) from None
            except ServerError as refusal:
                if not _is_of_a_stranger(refusal):
                    raise
                raise BadAnswer(f"{self.shown} does not answer as an MCP server does: {refusal}") from refusal
            try:
                yield client
            finally:
                await client.close()

    def _unreached(self, lost: ConnectionLost) -> Exception:
        code = self._programs[-1].process.returncode if self._programs else None
        if code in SAID_WHY and self._is_ours:
            return click.exceptions.Exit(SAID_WHY[code])
        if self.is_url:
            lost.add_note(ADVICE.format("its URL" if self._is_listed else "the URL"))
        return lost

    @contextmanager
    def _in_words_of_the_command_line(self) -> Iterator[None]:
        """Inside, no failure speaks of parameters in Python, nor repeats what a file says."""
        try:
            yield
        except (BadAnswer, ConnectionLost, NotSignedIn, SetupError) as failure:
            words = str(failure)
            if self._is_listed:
                words = cli.listed.without_values(failure, self.target, self.shown)
            failure.args = (_as_typed(words),)
            raise

    @property
    def _is_ours(self) -> bool:
        """Whether it is a Python program that was given by its name."""
        return self.target == program_command(self.shown)

    def _client(self, handlers: dict[str, Any]) -> "Client":
        options = {**self.options, **handlers}
        if self.is_url and self._signs_in and options.get("auth") is None:
            options["auth"] = cli.signing_in.TerminalSignIn()
        program, self._waiting = self._waiting or self._start(), None
        if program is None:
            return dovetail.Client(self.target, **options)
        return cli.started.client_of(program.process, self.shown, **options)


def _is_of_a_stranger(refusal: ServerError) -> bool:
    """Whether somebody who does not know MCP refuses its first words; servers that do may want a token, or wait."""
    return refusal.code == METHOD_NOT_FOUND or (refusal.code > 0 and refusal.code not in (403, 429))


def _as_typed(words: str) -> str:
    """With the options of the command line for the parameters of `Client`."""
    for parameter, option in OPTIONS:
        words, found = re.subn(parameter, option, words, count=1)
        if found:
            break
    return words


def program_command(target: str) -> list[str]:
    """What serves a Python program over stdio."""
    return [sys.executable, "-m", "dovetail.cli.child", target]


class Destination(NamedTuple):
    """Where a server is."""

    target: str | list[str]  # a URL, or a command
    shown: str  # as the user wrote it, but for what may be secret
    options: Mapping[str, Any] = {}  # of `Client`, which a file gives
    is_listed: bool = False  # in that file


def _destination(ctx: click.Context, words: str) -> Destination:
    if words == _BEHIND:
        command: list[str] = ctx.meta[COMMAND_WORDS]
        return Destination(command, command[0] if len(command) == 1 else f"{command[0]} …")  # the others may be secret
    if "://" in words:
        return Destination(words, _public(ctx, words))
    if (found := in_list(words)) is not None:
        listed = cli.listed.listed_server(*found)
        return Destination(listed.target, words, listed.options, is_listed=True)
    if missing := what_is_missing(words):
        if (url := as_url(words)) is not None:
            raise click.UsageError(f"that is no program; for a URL write {url}", ctx)
        raise click.UsageError(f"{missing}; give a URL, a Python program, an mcp.json, or a command after --", ctx)
    return Destination(program_command(words), words)


def _public(ctx: click.Context, url: str) -> str:
    """Without its query, which may be secret."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        advice = "leave them out, and give --header 'Authorization: Basic …'"
        raise click.UsageError(f"the URL holds a user or a password: {advice}", ctx)
    return re.split("[?#]", url, maxsplit=1)[0]


def _pairs(given: Iterable[str], sign: str, option: str) -> dict[str, str]:
    found = {}
    for each in given:
        name, divided, value = each.partition(sign)
        if not divided or not name.strip():
            raise click.UsageError(f"{option}: write it as NAME{sign}VALUE")  # and not what was written: a secret?
        found[name.strip()] = value.strip()
    return found


CONNECTING = (  # what every command that talks to a server takes, in the order of its help
    click.argument("target"),
    click.option("--header", "-H", "headers", multiple=True, metavar="NAME:VALUE",
                 help="Send this header with every request to a URL. Repeat for more."),
    click.option("--token", envvar="DOVETAIL_CLIENT_TOKEN", metavar="TEXT",
                 help="Send this bearer token to a URL.  [env: DOVETAIL_CLIENT_TOKEN]"),
    click.option("--no-sign-in", is_flag=True,
                 help="Do not sign in with the browser where a URL asks for it, nor use what is kept of that."),
    click.option("--env", "-e", multiple=True, metavar="NAME=VALUE",
                 help="Set a variable in the environment of a program. Repeat for more."),
    click.option("--timeout", type=float, default=TIMEOUT, metavar="SECONDS",
                 help=f"How long to wait for an answer, or for news of its progress.  [default: {TIMEOUT:g}]"),
    click.option("--revision", metavar="DATE", help="Speak this revision of MCP.  [default: the newest possible]"),
    click.option("--transport", type=click.Choice(["http", "sse"]),
                 help="How to speak to a URL.  [default: found out]"),
)  # fmt: skip
FOR_URLS = {"headers": "--header", "token": "--token", "transport": "--transport"}
FOR_PROGRAMS = {"env": "--env"}


class Connecting(NamedTuple):
    """What was given for these, but for the target."""

    headers: tuple[str, ...]
    token: str | None
    no_sign_in: bool
    env: tuple[str, ...]
    timeout: float
    revision: str | None
    transport: str | None

    def server(self, ctx: click.Context, target: str) -> ServerAt:
        if not 0 < self.timeout <= LONGEST_TIMEOUT:
            raise click.UsageError(f"--timeout {self.timeout:g}: give a number of seconds above 0", ctx)
        place = _destination(ctx, target)
        is_url = isinstance(place.target, str)
        self._refuse_what_does_not_fit(ctx, place.shown, is_url)
        headers = self._headers(ctx, place.options.get("headers") or {})
        is_known = AUTHORIZATION in map(str.lower, headers)  # who we are
        options = {
            "headers": headers or None,
            "auth": self.token if is_url and self.token and not is_known else None,
            "env": {**place.options.get("env", {}), **_pairs(self.env, "=", "--env")} or None,
            "cwd": place.options.get("cwd"),
            "timeout": self.timeout,
            "protocol_version": self.revision,
            "transport": self.transport or place.options.get("transport"),
        }
        signs_in = not self.no_sign_in and not is_known
        return ServerAt(place.target, place.shown, options, signs_in=signs_in, is_listed=place.is_listed)

    def _refuse_what_does_not_fit(self, ctx: click.Context, shown: str, is_url: bool) -> None:
        """A variable of the environment may well be meant for others."""
        found = [flag for name, flag in (FOR_PROGRAMS if is_url else FOR_URLS).items() if _is_typed(ctx, name)]
        if found:
            words = (
                f"only for a program, and {shown} is a URL" if is_url else f"only for a URL, and {shown} is a program"
            )
            raise click.UsageError(f"{', '.join(found)}: {words}", ctx)

    def _headers(self, ctx: click.Context, known: Mapping[str, str]) -> dict[str, str]:
        """Those of a file, and those that were typed instead or beside; a token that was typed is such a header."""
        given = _pairs(self.headers, ":", "--header")
        replaced = {name.lower() for name in given}
        if _is_typed(ctx, "token"):
            if AUTHORIZATION in replaced:
                raise click.UsageError("--token and an Authorization header say the same: keep one of them", ctx)
            replaced.add(AUTHORIZATION)
        return {name: value for name, value in known.items() if name.lower() not in replaced} | given


def _is_typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def on_server(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command of the class `ServerCommand` its TARGET and the options for it, as the parameter `server`."""

    @click.pass_context
    @wraps(command)
    def with_server(ctx: click.Context, /, target: str, **given: Any) -> Any:
        connecting = Connecting(**{name: given.pop(name) for name in Connecting._fields})
        return command(server=connecting.server(ctx, target), **given)

    decorated: Callable[..., Any] = with_server
    for option in reversed(CONNECTING):
        decorated = option(decorated)
    return decorated
