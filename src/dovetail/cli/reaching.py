"""The server that a command talks to: words of the command line come in, a connected `Client` goes out.

A server is given as a URL, as a Python program (`server.py`, `server.py:name`, `package.module:name`), or as any
command after `--`.
"""

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import wraps
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import dovetail
from dovetail import cli
from dovetail.cli.exits import INTERRUPTED

if TYPE_CHECKING:
    from dovetail.client import Client

TIMEOUT = 30.0
LONGEST_TIMEOUT = 1e9
COMMAND_WORDS = "dovetail.command"  # where the words after `--` wait
_BEHIND = "\0"  # stands where TARGET would, if the server is given behind `--`; nobody can type it


class ServerCommand(click.Command):
    """A command whose first word is the server, unless all words after `--` are a command that starts it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            args, ctx.meta[COMMAND_WORDS] = [_BEHIND, *args[:cut]], args[cut + 1 :]
            if not ctx.meta[COMMAND_WORDS]:
                raise click.UsageError("after -- comes the command that starts the server", ctx)
        return super().parse_args(ctx, args)


class ServerAt:
    """One server, and how to speak to it."""

    def __init__(self, target: str | list[str], shown: str, options: dict[str, Any], *, signs_in: bool = False) -> None:
        self.target = target  # a URL, or a command
        self.shown = shown  # as the user wrote it
        self.options = options  # of `Client`
        self._signs_in = signs_in
        self._started: Popen[bytes] | None = None

    @property
    def is_url(self) -> bool:
        return isinstance(self.target, str)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Inside, a program has been started already, and the first `connect` takes it.

        A command that begins like this loads the client while the server loads itself.
        """
        if not self.is_url and os.name == "posix":
            self._start()
        try:
            _ = dovetail.Client  # which loads it
            yield
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        finally:
            unused, self._started = self._started, None
            if unused is not None:
                _end(unused)

    def _start(self) -> None:
        """In a session of its own: Ctrl-C is for us, and it is told to cancel."""
        given = self.options["env"]
        env = None if given is None else {**os.environ, **given}
        with suppress(OSError):  # `connect` will say why
            self._started = Popen(self.target, stdin=PIPE, stdout=PIPE, env=env, start_new_session=True)

    @asynccontextmanager
    async def connect(self, **handlers: Any) -> AsyncIterator["Client"]:
        """`handlers` are further options of `Client`. What the program writes to stderr is seen as it comes."""
        async with self._client(handlers) as client:
            yield client

    def _client(self, handlers: dict[str, Any]) -> "Client":
        options = {**self.options, **handlers}
        if self.is_url and self._signs_in and options.get("auth") is None:
            options["auth"] = cli.signing_in.TerminalSignIn()
        if self._started is None or isinstance(self.target, str):
            return dovetail.Client(self.target, **options)
        client = cli.started.client_of(self._started, self.shown, **options)
        self._started = None
        return client


def _end(process: Popen[bytes]) -> None:
    """Of a program that nobody has spoken to."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait()


def program_command(target: str) -> list[str]:
    """What serves a Python program over stdio."""
    return [sys.executable, "-m", "dovetail.cli.child", target]


def _target(ctx: click.Context, words: str) -> tuple[str | list[str], str]:
    if words == _BEHIND:
        command: list[str] = ctx.meta[COMMAND_WORDS]
        return command, command[0] if len(command) == 1 else f"{command[0]} …"  # its other words may be secret
    if "://" in words:
        return words, words.partition("?")[0]  # and so may this
    place = words.rpartition(":")[0] if ".py:" in words else words
    if place.endswith(".py") and not os.path.isfile(place):
        raise click.UsageError(f"there is no file {place}; give a URL, a Python program, or a command after --", ctx)
    return program_command(words), words


def _pairs(given: Iterable[str], sign: str, option: str) -> dict[str, str] | None:
    found = {}
    for each in given:
        name, divided, value = each.partition(sign)
        if not divided or not name.strip():
            raise click.UsageError(f"{option}: write it as NAME{sign}VALUE")  # and not what was written: a secret?
        found[name.strip()] = value.strip()
    return found or None


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
                 help=f"How long to wait for an answer.  [default: {TIMEOUT:g}]"),
    click.option("--revision", metavar="DATE", help="Speak this revision of MCP.  [default: the newest possible]"),
    click.option("--transport", type=click.Choice(["http", "sse"]),
                 help="How to speak to a URL.  [default: found out]"),
)  # fmt: skip


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
        place, shown = _target(ctx, target)
        headers = _pairs(self.headers, ":", "--header")
        options = {
            "headers": headers,
            "auth": self.token or None if isinstance(place, str) else None,
            "env": _pairs(self.env, "=", "--env"),
            "timeout": self.timeout,
            "protocol_version": self.revision,
            "transport": self.transport,
        }
        signs_in = not self.no_sign_in and "authorization" not in {name.lower() for name in headers or ()}
        return ServerAt(place, shown, options, signs_in=signs_in)


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
