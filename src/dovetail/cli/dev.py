"""`dovetail dev`: a program comes in; it is served over HTTP with the console, and again after every change of it."""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from socket import socket as Socket
from typing import Any

import click

from dovetail.cli.developing.keeper import Keeper
from dovetail.cli.developing.private_state import private_state
from dovetail.cli.developing.serving_child import ServingChild
from dovetail.cli.developing.sources import Sources, place_of
from dovetail.cli.exits import Ending, ended_by_signals, finish
from dovetail.cli.run import _option
from dovetail.cli.terminal import in_line, tell
from dovetail.cli.whereabouts import what_is_missing
from dovetail.errors import SetupError
from dovetail.state.base import StateBackend
from dovetail.state.urls import open_state
from dovetail.transports.options import KINDS, HttpOptions
from dovetail.transports.sockets import ANY_IPV4, ANY_IPV6, bind, port_of, url_of

DRAIN_SECONDS = 10.0  # for calls in flight, while the new version serves already
ALONE_SECONDS = 3.0  # the same where it can't yet
CONSOLE = "/console/"

EXAMPLES = """
\b
Examples:
  dovetail dev server.py
  dovetail dev server.py --no-open --port 9000
  dovetail dev package.module:server --watch notes.txt

All options of `dovetail run` can be set by environment variables, as DOVETAIL_ALLOWED_HOSTS. Ctrl-C ends it, with the
exit code 0.
"""


def _some_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for name in ("state", "path", "port", "host"):
        function = _option(name, KINDS[name])(function)
    return function


@click.command("dev", epilog=EXAMPLES)
@click.argument("target")
@_some_options
@click.option(
    "--open/--no-open", "opens", default=None, help="Open the console in the browser. [default: if you see it]"
)
@click.option(
    "--watch", multiple=True, type=click.Path(exists=True, path_type=Path), metavar="PATH",
    help="Also restart if this file changes, or the sources in this folder. Repeat for more.",
)  # fmt: skip
def command(target: str, opens: bool | None, watch: tuple[Path, ...], **given: Any) -> None:
    """Serve TARGET over HTTP with the console, and anew after every change: file.py, file.py:name or module:name.

    Sessions outlive the restart. A program that can't be loaded is told of, and the version before goes on.
    """
    if missing := what_is_missing(target):
        raise click.UsageError(missing)
    chosen: Any = {name: value for name, value in given.items() if value is not None}
    try:
        options = HttpOptions.of(chosen, running=True)
        _check_state(options.state)
    except SetupError as failure:
        raise click.UsageError(str(failure)) from None
    try:
        sockets = bind(options.host, options.port)
    except SetupError as failure:
        raise Ending(str(failure)) from None
    with ExitStack() as stack:
        for each in sockets:
            stack.callback(each.close)
        state = options.state or stack.enter_context(private_state())
        with ended_by_signals():  # the first is the keeper's; the second comes here
            _keep(target, options, sockets, str(state), opens, watch)


def _check_state(url: object) -> None:
    """What can't be mended by editing the program ends the command. A Redis that is away may come back."""
    if url is None:
        return
    backend = open_state(str(url), "dev")
    if str(url).lower().startswith("sqlite:"):
        finish(_opened(backend))


async def _opened(backend: StateBackend) -> None:
    try:
        await backend.check()
    finally:
        await backend.close()


def _keep(
    target: str, options: HttpOptions, sockets: list[Socket], state: str, opens: bool | None, watch: tuple[Path, ...]
) -> None:
    port, folder = port_of(sockets), place_of(target)
    shares = os.name == "posix"
    usual = DRAIN_SECONDS if shares else ALONE_SECONDS
    drain = options.drain_timeout if "DOVETAIL_DRAIN_TIMEOUT" in os.environ else usual
    served = {"host": options.host, "port": port, "path": options.path, "workers": 1, "drain_delay": 0.0}
    for each in sockets:
        if shares:
            each.listen(options.backlog)  # who comes while nothing serves yet waits, and is not refused
        else:
            each.close()  # each process binds its own
    descriptors = [each.fileno() for each in sockets] if shares else []
    plan: dict[str, object] = {
        "target": target,
        "options": {**served, "state": state, "drain_timeout": drain},
        "sockets": descriptors,
    }

    announce = partial(_announce, _base(options.host, port), options.path, folder, opens)
    start = partial(ServingChild, plan, descriptors)
    Keeper(start, Sources([folder, *watch]), announce, drain=drain, alone=not shares).run()


def _base(host: str, port: int) -> str:
    return url_of("localhost" if host in (ANY_IPV4, ANY_IPV6) else host, port)


def _announce(base: str, path: str, folder: Path, opens: bool | None) -> None:
    tell(f"MCP      {base}{path}", bold=True)
    tell(f"Console  {base}{CONSOLE}", bold=True)
    tell(f"Changes in {in_line(str(folder), 200)} restart it; Ctrl-C ends it.", dim=True)
    if opens or (opens is None and _is_seen()):
        import webbrowser  # late: often nothing is opened

        webbrowser.open(f"{base}{CONSOLE}")


def _is_seen() -> bool:
    """Whether a browser would open before the eyes of whoever typed this."""
    if not sys.stderr.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    shown = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in shown)
