"""`dovetail dev`: serves a program over HTTP with the console, and restarts it after every change.

The command holds the listening socket and serves in a child process, so clients that connect during a restart wait and
are not refused. Sessions outlive the restart: they are in a SQLite file that is deleted with the command's end.

`python -m dovetail.cli.dev` is that child. It ends when its stdin is closed, also if the command was killed.
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
from dovetail.cli.output import CommandExit, err, interrupt_on_signals, one_line, sanitize
from dovetail.cli.target import load_target, split_target, target_problem, traceback_of
from dovetail.engine.subscriptions import LIST_KINDS, Change
from dovetail.errors import SetupError
from dovetail.state.base import open_state
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.serve import ANY_IPV4, ANY_IPV6, bind, port_of, serve_http, url_of

DRAIN_TIMEOUT = 3.0  # seconds, for calls in flight
EXIT_TIMEOUT = 8.0  # seconds, for the child to exit after the drain
SUFFIXES = (".py", ".toml")
IGNORED_FOLDERS = {"__pycache__", "node_modules", "venv", "site-packages", "build", "dist"}  # and hidden ones
POLL_INTERVAL = 0.4  # seconds
MAX_POLL_SHARE = 1 / 30  # of the time, so that polling many files takes 3 % of a processor
CHILD_VARIABLES = tuple(
    f"DOVETAIL_{name}" for name in ("HOST", "PORT", "PATH", "STATE", "WORKERS", "DRAIN_DELAY", "DRAIN_TIMEOUT")
)  # options for the child; not in its arguments, because `state` may hold a password
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


@click.command("dev", epilog=EXAMPLES)
@click.argument("target")
@cli.run.http_options("host", "port", "path", "state")
@cli.run.log_format_option
@click.option("--open/--no-open", "opens", default=False, help="Open the console in the browser.  [default: no]")
@click.option(
    "--watch", multiple=True, type=click.Path(exists=True, path_type=Path), metavar="PATH",
    help="Also restart if this file changes, or the sources in this folder. Repeat for more.",
)  # fmt: skip
def command(target: str, opens: bool, watch: tuple[Path, ...], **given: Any) -> None:
    """Serve TARGET over HTTP with the console, and anew after every change: file.py, file.py:name or module:name.

    Sessions outlive the restart.
    """
    if problem := target_problem(target):
        raise click.UsageError(problem)
    chosen: Any = {name: value for name, value in given.items() if value is not None}
    try:
        options = HttpOptions.from_keywords(chosen, running=True)
        open_state(given["state"] or os.environ.get("DOVETAIL_STATE"), "dev")  # no change of the program would mend it
    except SetupError as failure:
        raise click.UsageError(str(failure)) from None
    try:
        sockets = bind(options.host, options.port)
    except SetupError as failure:
        raise CommandExit(str(failure)) from None
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dovetail-dev-", ignore_cleanup_errors=True))
        # The prefix is fixed, because the program may change the name of its server.
        own_state = f"sqlite:///{Path(folder).as_posix().lstrip('/')}/state.db?prefix=dev"
        reloader = Reloader(target, options, sockets, options.state or own_state, watch)
        stack.callback(reloader.close)
        with interrupt_on_signals(), suppress(KeyboardInterrupt):
            reloader.run(lambda: _announce(reloader, options, opens))


def _announce(reloader: "Reloader", options: HttpOptions, opens: bool) -> None:
    base = url_of("localhost" if options.host in (ANY_IPV4, ANY_IPV6) else options.host, reloader.port)
    err(f"MCP      {base}{options.path}", bold=True)
    err(f"Console  {base}{CONSOLE}", bold=True)
    err(f"Changes in {one_line(str(reloader.folder), 200)} restart it; Ctrl-C ends it.", dim=True)
    if opens:
        webbrowser.open(f"{base}{CONSOLE}")


class Reloader:
    """Runs the server in a child process, and replaces the child when a source has changed."""

    def __init__(
        self, target: str, options: HttpOptions, sockets: list[Socket], state: Any, watch: Sequence[Path]
    ) -> None:
        source, _ = split_target(target)
        self.port = port_of(sockets)
        self.folder = Path(source).resolve().parent if source.endswith(".py") else Path.cwd()
        self._target = target
        self._sockets = sockets
        self._watched = WatchedFiles([self.folder, *watch])
        self._drain_timeout = options.drain_timeout if "DOVETAIL_DRAIN_TIMEOUT" in os.environ else DRAIN_TIMEOUT
        self._child: subprocess.Popen[bytes] | None = None
        can_pass = os.name == "posix"  # on Windows each child binds its own
        for each in sockets:
            each.listen(options.backlog) if can_pass else each.close()
        self._descriptors = [each.fileno() for each in sockets] if can_pass else []
        values = (options.host, self.port, options.path or "/", state, 1, 0.0, self._drain_timeout)
        self._variables = dict(zip(CHILD_VARIABLES, map(str, values), strict=True))

    def run(self, announce: Callable[[], None]) -> None:
        self._start(is_restart=False)
        announce()
        while True:
            time.sleep(self._watched.poll_interval)
            if self._child is not None and self._child.poll() is not None:
                err(f"The server has ended, with code {self._child.returncode}; a change starts it again", fg="yellow")
                self._child = None
            if changed := self._watched.changed():
                named = ", ".join(one_line(os.path.basename(path), 100) for path in changed[:3])
                err(f"{named}{' and more' if len(changed) > 3 else ''} changed", dim=True)
                self._stop()
                self._start(is_restart=True)

    def _start(self, *, is_restart: bool) -> None:
        restarted_at = str(time.time()) if is_restart else ""
        arguments = [self._target, restarted_at, *map(str, self._descriptors)]
        self._child = subprocess.Popen(
            [sys.executable, "-m", "dovetail.cli.dev", *arguments], stdin=subprocess.PIPE, pass_fds=self._descriptors,
            env={**os.environ, **self._variables}, start_new_session=os.name == "posix",  # Ctrl-C is for the parent
        )  # fmt: skip

    def _stop(self) -> None:
        """Drain calls in flight; then kill the child and its process group."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        with suppress(OSError):
            child.stdin.close()
        try:
            with suppress(subprocess.TimeoutExpired):
                child.wait(self._drain_timeout + EXIT_TIMEOUT)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL) if os.name == "posix" else child.kill()
                child.wait()

    def close(self) -> None:
        try:
            self._stop()
        finally:
            for each in self._sockets:
                each.close()


class WatchedFiles:
    """Sources below folders, and named files. They are polled, which works on every file system."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self.poll_interval = POLL_INTERVAL
        self._last = self._stat_all()

    def changed(self) -> list[str]:
        """The files that are new, deleted or different since the last call."""
        before, self._last = self._last, self._stat_all()
        return sorted({path for path, _ in self._last.items() ^ before.items()})

    def _stat_all(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        began = time.perf_counter()
        for path in self._files():
            with suppress(OSError):  # deleted meanwhile
                status = os.stat(path)
                found[path] = (status.st_mtime_ns, status.st_size)
        self.poll_interval = max(POLL_INTERVAL, (time.perf_counter() - began) / MAX_POLL_SHARE)
        return found

    def _files(self) -> Iterator[str]:
        for path in self._paths:
            if not path.is_dir():
                yield str(path)
                continue
            for folder, folders, files in os.walk(path):
                folders[:] = [name for name in folders if not (name.startswith(".") or name in IGNORED_FOLDERS)]
                yield from (os.path.join(folder, name) for name in files if name.endswith(SUFFIXES))


def serve_child(target: str, restarted_at: str, *descriptors: str) -> None:
    """Serve in the child, with the options in the environment. `restarted_at`: Unix time, empty at the first start."""
    parent = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)  # the program must not read the pipe of the parent
    threading.Thread(target=_exit_with_parent, args=(parent,), name="dovetail-parent", daemon=True).start()
    try:
        server = load_target(target)
        engine = server.engine
        if engine.masks_errors is None:  # the program does not say
            engine.masks_errors = False

        def started() -> None:
            for kind in LIST_KINDS:
                engine.publish(Change(kind))  # clients list again
            if restarted_at:
                err(f"restarted in {time.time() - float(restarted_at):.1f} s", fg="green")

        options = server.http_options({"routes": dovetail.Console(server).routes()}, running=True)
        for name in CHILD_VARIABLES:
            os.environ.pop(name, None)  # they are not for processes that the program starts
        sockets = [Socket(fileno=int(each)) for each in descriptors]
        serve_http(engine, options, owner=server, sockets=sockets, started=started)
    except (Exception, SystemExit) as failure:
        message = f"Error: {failure}" if isinstance(failure, SetupError) else traceback_of(failure)
        err(sanitize(message), fg="red")
        sys.exit(1)


def _exit_with_parent(parent: BinaryIO) -> None:
    """End this process when the parent closes the pipe, or has died."""
    parent.read()
    if os.name == "posix":
        os.kill(os.getpid(), signal.SIGTERM)  # to the process: that wakes the main thread
    else:
        signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    serve_child(*sys.argv[1:])
