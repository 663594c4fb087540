"""`dovetail dev`: serve a program over HTTP with the console, and restart it after every change.

The command holds the listening socket and serves by a child process, so clients that connect during a restart wait and
are not refused. Sessions outlive the restart: they are in a SQLite file that ends with the command.

`python -m dovetail.cli.dev` is that child. The end of its stdin is its end, also where the command was killed.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from socket import socket as Socket
from typing import Any, BinaryIO

import click

import dovetail
from dovetail import cli
from dovetail.cli.output import CommandExit, ended_by_signals, in_line, plain, tell
from dovetail.cli.target import load_target, split_target, traceback_of, what_is_missing
from dovetail.engine.subscriptions import LIST_KINDS, Change
from dovetail.errors import SetupError
from dovetail.state.base import open_state
from dovetail.transports.http.options import KINDS, HttpOptions
from dovetail.transports.serve import ANY_IPV4, ANY_IPV6, bind, port_of, serve_http, url_of

DRAIN_SECONDS = 3.0  # for calls in flight
END_SECONDS = 8.0  # for the end of a child, besides those
ENDINGS = (".py", ".toml")
IGNORED = {"__pycache__", "node_modules", "venv", "site-packages", "build", "dist"}  # and hidden ones
POLL_SECONDS = 0.4
PASSED = tuple(
    f"DOVETAIL_{name}" for name in ("HOST", "PORT", "PATH", "STATE", "WORKERS", "DRAIN_DELAY", "DRAIN_TIMEOUT")
)  # the options that a child has in its environment
CONSOLE = "/console/"

EXAMPLES = """
\b
Examples:
  dovetail dev server.py
  dovetail dev server.py --open --port 9000
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
@click.option("--open/--no-open", "opens", default=False, help="Open the console in the browser.  [default: no]")
@click.option(
    "--watch", multiple=True, type=click.Path(exists=True, path_type=Path), metavar="PATH",
    help="Also restart if this file changes, or the sources in this folder. Repeat for more.",
)  # fmt: skip
def command(target: str, opens: bool, watch: tuple[Path, ...], **given: Any) -> None:
    """Serve TARGET over HTTP with the console, and anew after every change: file.py, file.py:name or module:name.

    Sessions outlive the restart.
    """
    if missing := what_is_missing(target):
        raise click.UsageError(missing)
    chosen: Any = {name: value for name, value in given.items() if value is not None}
    try:
        options = HttpOptions.from_keywords(chosen, running=True)
        open_state(given["state"] or os.environ.get("DOVETAIL_STATE"), "dev")  # what no change of the program mends
    except SetupError as failure:
        raise click.UsageError(str(failure)) from None
    try:
        sockets = bind(options.host, options.port)
    except SetupError as failure:
        raise CommandExit(str(failure)) from None
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dovetail-dev-", ignore_cleanup_errors=True))
        # The prefix is fixed, for the program may change the name of its server.
        own_state = f"sqlite:///{Path(folder).as_posix().lstrip('/')}/state.db?prefix=dev"
        reloader = Reloader(target, options, sockets, options.state or own_state, watch)
        stack.callback(reloader.end)
        with ended_by_signals(), suppress(KeyboardInterrupt):
            reloader.run(lambda: _announce(reloader, options, opens))


def _announce(reloader: "Reloader", options: HttpOptions, opens: bool) -> None:
    base = url_of("localhost" if options.host in (ANY_IPV4, ANY_IPV6) else options.host, reloader.port)
    tell(f"MCP      {base}{options.path}", bold=True)
    tell(f"Console  {base}{CONSOLE}", bold=True)
    tell(f"Changes in {in_line(str(reloader.folder), 200)} restart it; Ctrl-C ends it.", dim=True)
    if opens:
        webbrowser.open(f"{base}{CONSOLE}")


# ── the parent ──


class Reloader:
    """Keeps one child serving, and replaces it when a source has changed."""

    def __init__(
        self, target: str, options: HttpOptions, sockets: list[Socket], state: Any, watch: Sequence[Path]
    ) -> None:
        place, _ = split_target(target)
        self.port = port_of(sockets)
        self.folder = Path(place).resolve().parent if place.endswith(".py") else Path.cwd()
        self._target = target
        self._sockets = sockets
        self._watched = WatchedFiles([self.folder, *watch])
        self._drain = options.drain_timeout if "DOVETAIL_DRAIN_TIMEOUT" in os.environ else DRAIN_SECONDS
        self._child: subprocess.Popen[bytes] | None = None
        shares = os.name == "posix"
        for each in sockets:
            each.listen(options.backlog) if shares else each.close()  # on Windows each child binds its own
        self._descriptors = [each.fileno() for each in sockets] if shares else []
        served = (options.host, self.port, options.path, state, 1, 0.0, self._drain)
        self._variables = dict(zip(PASSED, map(str, served), strict=True))

    def run(self, announce: Callable[[], None]) -> None:
        """Until it is interrupted."""
        self._start(is_restart=False)
        announce()
        while True:
            time.sleep(self._watched.pause)
            if self._child is not None and self._child.poll() is not None:
                tell(f"The server has ended, with code {self._child.returncode}; a change starts it again", fg="yellow")
                self._child = None
            if changed := self._watched.changed():
                named = ", ".join(in_line(os.path.basename(path), 100) for path in changed[:3])
                tell(f"{named}{' and more' if len(changed) > 3 else ''} changed", dim=True)
                self._end_child()
                self._start(is_restart=True)

    def _start(self, *, is_restart: bool) -> None:
        """The options go by the environment and not by its words: `state` may hold a password."""
        began = str(time.time()) if is_restart else ""
        words = [self._target, began, *map(str, self._descriptors)]
        self._child = subprocess.Popen(
            [sys.executable, "-m", "dovetail.cli.dev", *words], stdin=subprocess.PIPE, pass_fds=self._descriptors,
            env={**os.environ, **self._variables}, start_new_session=os.name == "posix",  # Ctrl-C is for the parent
        )  # fmt: skip

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
        self.pause = max(POLL_SECONDS, 30 * (time.perf_counter() - began))  # so that it takes 3 % of a processor
        return found

    def _paths(self) -> Iterator[str]:
        for place in self._places:
            if not place.is_dir():
                yield str(place)
                continue
            for folder, inner, files in os.walk(place):
                inner[:] = [name for name in inner if not (name.startswith(".") or name in IGNORED)]
                yield from (os.path.join(folder, name) for name in files if name.endswith(ENDINGS))


# ── the child ──


def serve_child(target: str, began: str, *descriptors: str) -> None:
    """`began` is when a restart did, as a Unix time; the options are in the environment."""
    parent = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # stdin is not the program's
    threading.Thread(target=_end_with, args=(parent,), name="dovetail-parent", daemon=True).start()
    try:
        server = load_target(target)
        engine = server.engine
        if engine.masks_errors is None:  # the program does not say
            engine.masks_errors = False

        def started() -> None:
            for kind in LIST_KINDS:
                engine.publish(Change(kind))  # sessions look at the lists again
            if began:
                tell(f"restarted in {time.time() - float(began):.1f} s", fg="green")

        options = server.http_options({"routes": dovetail.Console(server).routes()}, running=True)
        for each in PASSED:
            os.environ.pop(each, None)  # what the program starts has no use for them
        sockets = [Socket(fileno=int(each)) for each in descriptors]
        serve_http(engine, options, owner=server, sockets=sockets, started=started)
    except (Exception, SystemExit) as failure:
        words = f"Error: {failure}" if isinstance(failure, SetupError) else traceback_of(failure)
        tell(plain(words), fg="red")
        sys.exit(1)


def _end_with(parent: BinaryIO) -> None:
    """End this process when the parent closes its end, or is gone."""
    parent.read()
    if os.name == "posix":
        os.kill(os.getpid(), signal.SIGTERM)  # to the process, so that it wakes its main thread
    else:
        signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    serve_child(*sys.argv[1:])
