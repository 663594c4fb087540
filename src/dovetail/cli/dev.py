"""`dovetail dev`: serve a program over HTTP with the console, and restart it after every change.

The command holds the listening socket and serves by a child process, so clients that connect during a restart wait and
are not refused. Sessions outlive the restart: they are in a SQLite file that ends with the command.

`python -m dovetail.cli.dev` is that child. The first line of its stdin says what to serve; the end of its stdin is the
end, also where the command was killed.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from socket import socket as Socket
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import msgspec

import dovetail
from dovetail import cli
from dovetail.cli.output import CommandExit, ended_by_signals, finish, in_line, plain, tell
from dovetail.cli.target import load_target, split_target, traceback_of, what_is_missing
from dovetail.engine.subscriptions import LIST_KINDS, Change
from dovetail.errors import SetupError
from dovetail.state.base import StateBackend
from dovetail.state.urls import open_state
from dovetail.transports.options import KINDS, HttpOptions
from dovetail.transports.serve import serve_http
from dovetail.transports.sockets import ANY_IPV4, ANY_IPV6, bind, port_of, url_of

if TYPE_CHECKING:
    from dovetail.server import Server

DRAIN_SECONDS = 3.0  # for calls in flight
END_SECONDS = 8.0  # for the end of a child, besides those
ENDINGS = (".py", ".toml")
IGNORED = {"__pycache__", "node_modules", "venv", "site-packages", "build", "dist"}  # and hidden ones
MAX_FILES = 20_000
POLL_SECONDS = 0.4
CONSOLE = "/console/"
CANT_START = 1

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
        function = cli.run.option(name, KINDS[name])(function)
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

    Sessions outlive the restart.
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
        raise CommandExit(str(failure)) from None
    with ExitStack() as stack:
        state = options.state or _state_in(stack.enter_context(_folder()))
        reloader = Reloader(target, options, sockets, str(state), watch)
        stack.callback(reloader.end)
        with ended_by_signals(), suppress(KeyboardInterrupt):
            reloader.run(lambda: _announce(reloader, options, opens))


def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="dovetail-dev-", ignore_cleanup_errors=True)


def _state_in(folder: str) -> str:
    """The prefix is fixed, for the program may change the name of its server."""
    return f"sqlite:///{Path(folder).as_posix().lstrip('/')}/state.db?prefix=dev"


def _check_state(url: object) -> None:
    """What can't be mended by editing the program ends the command. A Redis that is away may come back."""
    if url is not None:
        backend = open_state(str(url), "dev")
        if str(url).lower().startswith("sqlite:"):
            finish(_checked(backend))


async def _checked(backend: StateBackend) -> None:
    try:
        await backend.check()
    finally:
        await backend.close()


def _announce(reloader: "Reloader", options: HttpOptions, opens: bool | None) -> None:
    base = url_of("localhost" if options.host in (ANY_IPV4, ANY_IPV6) else options.host, reloader.port)
    tell(f"MCP      {base}{options.path}", bold=True)
    tell(f"Console  {base}{CONSOLE}", bold=True)
    tell(f"Changes in {in_line(str(reloader.folder), 200)} restart it; Ctrl-C ends it.", dim=True)
    if opens or (opens is None and _has_screen()):
        import webbrowser  # late: often nothing is opened

        webbrowser.open(f"{base}{CONSOLE}")


def _has_screen() -> bool:
    """Whether a browser would open in front of the person who typed this."""
    if not sys.stderr.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    shown = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in shown)


# ── the parent ──


class ServingPlan(msgspec.Struct, frozen=True):
    """What the child is to serve."""

    target: str
    options: dict[str, Any]  # of `Server.run`
    sockets: list[int]  # descriptors; none where they can't be inherited
    began: float  # as a Unix time
    is_restart: bool


class Reloader:
    """Keeps one child serving, and replaces it when a source has changed."""

    def __init__(
        self, target: str, options: HttpOptions, sockets: list[Socket], state: str, watch: Sequence[Path]
    ) -> None:
        place, _ = split_target(target)
        self.port = port_of(sockets)
        self.folder = Path(place).resolve().parent if place.endswith(".py") else Path.cwd()
        self._sockets = sockets
        self._watched = WatchedFiles([self.folder, *watch])
        self._drain = options.drain_timeout if "DOVETAIL_DRAIN_TIMEOUT" in os.environ else DRAIN_SECONDS
        self._child: subprocess.Popen[bytes] | None = None
        shares = os.name == "posix"
        for each in sockets:
            each.listen(options.backlog) if shares else each.close()  # on Windows each child binds its own
        self._descriptors = [each.fileno() for each in sockets] if shares else []
        served = {"host": options.host, "port": self.port, "path": options.path, "workers": 1, "drain_delay": 0.0}
        self._target = target
        self._options = {**served, "state": state, "drain_timeout": self._drain}

    def run(self, announce: Callable[[], None]) -> None:
        """Until it is interrupted."""
        self._start(is_restart=False)
        announce()
        changed: set[str] = set()
        while True:
            time.sleep(self._watched.pause)
            if self._child is not None and self._child.poll() is not None:
                tell(f"The server has ended, with code {self._child.returncode}; a change starts it again", fg="yellow")
                self._child = None
            if newly := self._watched.changed():
                changed.update(newly)
                if _are_valid(changed):
                    self._restart(sorted(changed))
                    changed.clear()

    def _start(self, *, is_restart: bool) -> None:
        plan = ServingPlan(self._target, self._options, self._descriptors, time.time(), is_restart)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "dovetail.cli.dev"], stdin=subprocess.PIPE, pass_fds=self._descriptors,
            start_new_session=os.name == "posix",  # Ctrl-C is for the parent
        )  # fmt: skip
        assert self._child.stdin is not None
        with suppress(OSError):  # it has ended already
            self._child.stdin.write(msgspec.json.encode(plan) + b"\n")  # not in its words: `state` may hold a password
            self._child.stdin.flush()

    def _restart(self, changed: list[str]) -> None:
        named = ", ".join(in_line(os.path.basename(path), 100) for path in changed[:3])
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        tell(f"{named}{more} changed", dim=True)
        self._end_child()
        self._start(is_restart=True)

    def _end_child(self) -> None:
        """Calls in flight get their seconds; then the child is killed with all that the program has started."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        with suppress(OSError):
            child.stdin.close()
        try:
            with suppress(subprocess.TimeoutExpired):
                child.wait(self._drain + END_SECONDS)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL) if os.name == "posix" else child.kill()
                child.wait()

    def end(self) -> None:
        try:
            self._end_child()
        finally:
            for each in self._sockets:
                each.close()


def _are_valid(changed: Iterable[str]) -> bool:
    """Whether they are Python; what is being typed does not replace the version that serves."""
    for path in changed:
        if path.endswith(".py") and os.path.exists(path):
            try:
                with warnings.catch_warnings(action="ignore"):
                    compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
            except (OSError, SyntaxError, ValueError) as failure:
                tell(plain(traceback_of(failure)), fg="red")
                tell("The version before goes on until this is mended", fg="yellow")
                return False
    return True


class WatchedFiles:
    """Sources below folders, and files that are named. They are looked at, not listened to: that works everywhere."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = places
        self.pause = POLL_SECONDS  # until the next look
        self._last = self._look()

    def changed(self) -> list[str]:
        """The files that are new, gone or different since the last look."""
        before, self._last = self._last, self._look()
        return sorted({path for path, _ in self._last.items() ^ before.items()})

    def _look(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        began = time.perf_counter()
        for path in self._paths():
            with suppress(OSError):  # gone, which is seen by its absence
                about = os.stat(path)
                found[path] = (about.st_mtime_ns, about.st_size)
            if len(found) >= MAX_FILES:
                break
        self.pause = max(POLL_SECONDS, 30 * (time.perf_counter() - began))  # so that it takes 3 % of a processor
        return found

    def _paths(self) -> Iterator[str]:
        for place in self._places:
            if not place.is_dir():
                yield str(place)
                continue
            for folder, inner, files in os.walk(place):
                inner[:] = sorted(name for name in inner if not (name.startswith(".") or name in IGNORED))
                yield from (os.path.join(folder, name) for name in sorted(files) if name.endswith(ENDINGS))


# ── the child ──


def serve_child() -> None:
    stdin = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # stdin is not the program's
    plan = msgspec.json.decode(stdin.readline(), type=ServingPlan)
    threading.Thread(target=_end_with, args=(stdin,), name="dovetail-parent", daemon=True).start()
    try:
        server = load_target(plan.target)
        if server.engine.masks_errors is None:  # the program does not say
            server.engine.masks_errors = False
        options: Any = {**plan.options, "routes": dovetail.Console(server).routes()}
        serve_http(
            server.engine,
            server._http(options, running=True),
            owner=server,
            sockets=[Socket(fileno=each) for each in plan.sockets],
            started=partial(_started, server, plan),
        )
    except (Exception, SystemExit) as failure:
        words = f"Error: {failure}" if isinstance(failure, SetupError) else traceback_of(failure)
        tell(plain(words), fg="red")
        sys.exit(CANT_START)


def _started(server: "Server", plan: ServingPlan) -> None:
    for kind in LIST_KINDS:
        server.engine.publish(Change(kind))  # sessions look at the lists again
    if plan.is_restart:
        tell(f"restarted in {time.time() - plan.began:.1f} s", fg="green")


def _end_with(stdin: BinaryIO) -> None:
    """End this process when the parent closes its end, or is gone."""
    stdin.read()
    if os.name == "posix":
        os.kill(os.getpid(), signal.SIGTERM)  # to the process, so that it wakes its main thread
    else:
        signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    serve_child()
