"""Options of the commands that talk to a server: target, connection and interaction with the user.

A server is given as a URL, as a Python program (`server.py`, `server.py:name`, `package.module:name`), as one of an
`mcp.json` (`mcp.json:name`), or as any command after `--`.
"""

import os
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import reduce, wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from dovetail import cli
from dovetail.cli.output import interrupt_on_signals, run_async
from dovetail.cli.target import split_config_target, stdio_command, target_problem

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from dovetail.cli.given_arguments import GivenArguments

DEFAULT_TIMEOUT = 30.0  # seconds
LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
DEFAULT_LOG_LEVEL = "info"
COMMAND_WORDS = "dovetail.command"  # key in `click.Context.meta`: the words after `--`
AUTHORIZATION = "authorization"
_IN_COMMAND_WORDS = "\0"  # stands for TARGET if the server is given after `--`; a user can't type it

Function = Callable[..., Any]


class ServerCommand(click.Command):
    """A command whose first word is the server, unless a command after `--` starts it. Its function may be async."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            dashes = args.index("--")
            args, ctx.meta[COMMAND_WORDS] = [_IN_COMMAND_WORDS, *args[:dashes]], args[dashes + 1 :]
            if not ctx.meta[COMMAND_WORDS] and not ctx.resilient_parsing:  # shell completion
                raise click.UsageError("after -- comes the command that starts the server", ctx)
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as missing:
            message = f"{missing.format_message().rstrip('.')}; `dovetail list` shows what there is"
            advice = "\nIt goes before --: all words after that are the command that starts the server"
            raise click.UsageError(message + (advice if COMMAND_WORDS in ctx.meta else ""), ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        result = super().invoke(ctx)
        return run_async(result) if isinstance(result, Coroutine) else result


class ServerTarget(NamedTuple):
    """One server, and how to reach it."""

    address: str | list[str]  # a URL, or a command
    shown: str  # as the user wrote it, without what may be secret
    options: Mapping[str, Any] = {}  # of `Client`
    signs_in: bool = False
    is_from_file: bool = False  # its address is a secret of an mcp.json
    process: "Process | None" = None  # its program, if that runs already

    @property
    def is_url(self) -> bool:
        return isinstance(self.address, str)

    @asynccontextmanager
    async def started(self) -> "AsyncIterator[ServerTarget]":
        """Start its program now, so that it loads while this process imports the client."""
        import asyncio  # late: `--help` needs neither
        import signal

        if isinstance(self.address, str) or os.name != "posix":
            yield self
            return
        env, limit = self.options.get("env"), 256 * 1024 * 1024
        try:
            process = await asyncio.create_subprocess_exec(
                *self.address, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=limit,
                env=None if env is None else {**os.environ, **env}, cwd=self.options.get("cwd"), start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError):
            yield self  # the client tries again, and reports the error
            return
        try:
            yield self._replace(process=process)
        finally:
            if process.returncode is None:  # interrupted before the client could end it
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)


def _parse_target(ctx: click.Context, target: str) -> ServerTarget:
    if target == _IN_COMMAND_WORDS:
        command: list[str] = ctx.meta[COMMAND_WORDS]
        return ServerTarget(command, command[0] if len(command) == 1 else f"{command[0]} …")  # arguments may be secret
    if "://" in target:
        return ServerTarget(target, _without_query(ctx, target))
    if (found := split_config_target(target)) is not None:
        server = cli.connect.configured_server(*found)
        return ServerTarget(server.target, target, server.options, is_from_file=True)
    if problem := target_problem(target):
        ways = "a URL with its http://, a Python program, an mcp.json, an OpenAPI document, or a command after --"
        raise click.UsageError(f"{_without_query(ctx, problem)}; give {ways}", ctx)
    return ServerTarget(stdio_command(target), target)


def _without_query(ctx: click.Context, url: str) -> str:
    """The URL without its query, which may be secret. A URL with a password is refused."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        advice = "leave them out, and give --header 'Authorization: Basic …'"
        raise click.UsageError(f"the URL holds a user or a password: {advice}", ctx)
    return re.split("[?#]", url, maxsplit=1)[0]


SERVER_OPTIONS = (  # in the order of the help
    click.argument("target"),
    click.option("--header", "-H", "headers", multiple=True, metavar="NAME:VALUE",
                 help="Send this header with every request to a URL. Repeat for more."),
    click.option("--token", envvar="DOVETAIL_CLIENT_TOKEN", metavar="TEXT",
                 help="Send this bearer token to a URL.  [env: DOVETAIL_CLIENT_TOKEN]"),
    click.option("--no-sign-in", is_flag=True,
                 help="Do not sign in with the browser where a URL asks for it, nor use what is kept of that."),
    click.option("--env", "-e", multiple=True, metavar="NAME=VALUE",
                 help="Set a variable in the environment of a program. Repeat for more."),
    click.option("--timeout", type=float, default=DEFAULT_TIMEOUT, metavar="SECONDS",
                 help=f"How long to wait for an answer, or for news of its progress.  [default: {DEFAULT_TIMEOUT:g}]"),
    click.option("--revision", metavar="DATE", help="Speak this revision of MCP.  [default: the newest possible]"),
    click.option("--transport", type=click.Choice(["http", "sse"]),
                 help="How to speak to a URL.  [default: found out]"),
)  # fmt: skip


class ConnectOptions(NamedTuple):
    """The values of SERVER_OPTIONS, without the target."""

    headers: tuple[str, ...]
    token: str | None
    no_sign_in: bool
    env: tuple[str, ...]
    timeout: float
    revision: str | None
    transport: str | None

    def server(self, ctx: click.Context, target: str) -> ServerTarget:
        if not 0 < self.timeout <= 1e9:
            raise click.UsageError(f"--timeout {self.timeout:g}: give a number of seconds above 0", ctx)
        found = _parse_target(ctx, target)
        self._check_kind(ctx, found)
        headers = self._headers(ctx, found.options.get("headers") or {})
        has_credentials = AUTHORIZATION in map(str.lower, headers)
        options = {
            "headers": headers or None,
            "auth": self.token if found.is_url and self.token and not has_credentials else None,
            "env": {**found.options.get("env", {}), **parse_pairs(self.env, "=", "--env")} or None,
            "cwd": found.options.get("cwd"),
            "timeout": self.timeout,
            "protocol_version": self.revision,
            "transport": self.transport or found.options.get("transport"),
        }
        return found._replace(options=options, signs_in=not self.no_sign_in and not has_credentials)

    def _check_kind(self, ctx: click.Context, server: ServerTarget) -> None:
        """Refuse options for URLs with a program, and vice versa. An environment variable may be for other servers."""
        for_urls = {"headers": "--header", "token": "--token", "transport": "--transport"}
        wrong = {"env": "--env"} if server.is_url else for_urls
        if found := [flag for name, flag in wrong.items() if _is_typed(ctx, name)]:
            wanted, kind = ("a program", "a URL") if server.is_url else ("a URL", "a program")
            raise click.UsageError(f"{', '.join(found)}: only for {wanted}, and {server.shown} is {kind}", ctx)

    def _headers(self, ctx: click.Context, file_headers: Mapping[str, str]) -> dict[str, str]:
        """The headers; those of the command line replace those of a file, and --token an Authorization header there."""
        given = parse_pairs(self.headers, ":", "--header")
        replaced = {name.lower() for name in given}
        if _is_typed(ctx, "token"):
            if AUTHORIZATION in replaced:
                raise click.UsageError("--token and an Authorization header say the same: keep one of them", ctx)
            replaced.add(AUTHORIZATION)
        return {name: value for name, value in file_headers.items() if name.lower() not in replaced} | given


def parse_pairs(given: Iterable[str], sign: str, option: str) -> dict[str, str]:
    found = {}
    for pair in given:
        name, divided, value = pair.partition(sign)
        if not divided or not name.strip():
            raise click.UsageError(f"{option}: write it as NAME{sign}VALUE")  # the value may be secret
        found[name.strip()] = value.strip()
    return found


def _is_typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def server_options(command: Function) -> Function:
    """Add TARGET and SERVER_OPTIONS to a `ServerCommand`, as the parameter `server`."""

    @click.pass_context
    @wraps(command)
    def with_server(ctx: click.Context, /, target: str, **given: Any) -> Any:
        options = ConnectOptions(**{name: given.pop(name) for name in ConnectOptions._fields})
        return command(server=options.server(ctx, target), **given)

    return _with_options(with_server, SERVER_OPTIONS)


def _with_options(command: Function, options: Sequence[Function]) -> Function:
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


class InteractionOptions(NamedTuple):
    """Which logs and progress are shown, and answers that are given beforehand."""

    answers: "GivenArguments | None"
    log_level: str | None
    is_quiet: bool
    roots: tuple[str, ...]


INTERACTION_OPTIONS = (
    click.option("--answer", "-a", multiple=True, metavar="KEY=VALUE",
                 help="Answer this field of a form that the server asks for. Repeat for more."),
    click.option("--answers", metavar="JSON", help="Several of them, as JSON or @file."),
    click.option("--root", "roots", multiple=True, metavar="FOLDER",
                 help="Tell the server of this folder, if it asks."),
    click.option("--log-level", type=click.Choice(LOG_LEVELS),
                 help=f"Lowest level of the server's log to show.  [default: {DEFAULT_LOG_LEVEL}]"),
    click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor logs."),
)  # fmt: skip


def interaction_options(command: Function) -> Function:
    """Add INTERACTION_OPTIONS to a command, as the parameter `interaction`."""

    @wraps(command)
    def with_interaction(
        answer: tuple[str, ...], answers: str | None, log_level: str | None, quiet: bool, roots: Any, **given: Any
    ) -> Any:
        found = read_arguments(answer, answers, "--answers") if answer or answers is not None else None
        return command(interaction=InteractionOptions(found, log_level, quiet, roots), **given)

    return _with_options(with_interaction, INTERACTION_OPTIONS)


def call_arguments(command: Function) -> Function:
    """Add the words of `arguments` and `--args` to a command, as the parameter `given`."""

    @wraps(command)
    def with_arguments(arguments: tuple[str, ...] = (), document: str | None = None, **given: Any) -> Any:
        return command(given=read_arguments(arguments, document), **given)

    return with_arguments


def read_arguments(words: Iterable[str], document: str | None = None, option: str = "--args") -> "GivenArguments":
    """Read the arguments, before an event loop runs: while a loop waits for stdin, signals are not handled."""
    with interrupt_on_signals():
        return cli.given_arguments.GivenArguments.from_words(words, document, option)
