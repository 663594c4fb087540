"""What a server needs of the machine: a port, the name localhost, a place for files, and its state."""

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from dovetail.cli.examining.notes import OK, PROBLEM, WARNING, HealthNote
from dovetail.cli.terminal import in_line
from dovetail.errors import DovetailError, SetupError
from dovetail.state.urls import open_state
from dovetail.transports.sockets import bind

LOOPBACK = "127.0.0.1"
LISTENS = "0A"  # in the tables of the kernel
LITTLE_ROOM = 100 * 1024 * 1024  # bytes
STATE_SECONDS = 5.0


def port(number: int) -> Iterator[HealthNote]:
    subject = f"Port {number}"
    try:
        sockets = bind(LOOPBACK, number)
    except SetupError:
        holder = _holder(number)
        words = f"in use by {holder}" if holder else "in use, or not allowed"
        yield HealthNote(WARNING, subject, words, "end that program, or choose another with --port; 0 is any")
        return
    for each in sockets:
        each.close()
    yield HealthNote(OK, subject, "free")


def _holder(number: int) -> str | None:
    """The program that listens there, where Linux tells us; its name alone, for its words may hold a secret."""
    sockets = {f"socket:[{inode}]" for inode in _listening(number)}
    for folder in Path("/proc").glob("[0-9]*/fd") if sockets else ():
        with suppress(OSError):
            for descriptor in folder.iterdir():
                with suppress(OSError):
                    if os.readlink(descriptor) in sockets:
                        name = (folder.parent / "comm").read_text().strip()
                        return f"{in_line(name, 50)} (process {folder.parent.name})"
    return None


def _listening(number: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENS and int(fields[1].rpartition(":")[2], 16) == number:
                    yield fields[9]


def localhost() -> Iterator[HealthNote]:
    try:
        found = sorted({str(each[4][0]) for each in socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)})
    except OSError:
        yield HealthNote(PROBLEM, "localhost", "not known", f"add the line `{LOOPBACK} localhost` to the hosts file")
        return
    words = ", ".join(found)
    if any(not (each == "::1" or each.startswith("127.")) for each in found):
        yield HealthNote(PROBLEM, "localhost", f"means {words}", f"it has to mean {LOOPBACK} in the hosts file")
    elif LOOPBACK not in found:
        yield HealthNote(WARNING, "localhost", f"means {words}", f"give clients {LOOPBACK}, where servers listen")
    else:
        yield HealthNote(OK, "localhost", words)


def temporary_files() -> Iterator[HealthNote]:
    """Where several workers share their sessions."""
    try:
        folder = tempfile.gettempdir()
        with tempfile.TemporaryFile(prefix="dovetail-") as file:
            file.write(b"x")
        free = shutil.disk_usage(folder).free
    except OSError as failure:
        fix = "set TMPDIR to a folder that you can write to"
        yield HealthNote(PROBLEM, "Temporary files", f"can't be written: {failure.strerror}", fix)
        return
    if free < LITTLE_ROOM:
        yield HealthNote(WARNING, "Temporary files", f"only {free // 2**20} MiB are free in {folder}", "make room")
    else:
        yield HealthNote(OK, "Temporary files", folder)


def state(url: str | None) -> Iterator[HealthNote]:
    if not url:
        yield HealthNote(OK, "State", "in the process, or shared by its workers; none is set")
        return
    scheme = in_line(url.partition(":")[0], 20)
    try:
        missing = _missing_folder(url)
        if missing is None:
            asyncio.run(_check(url))
    except TimeoutError:
        yield HealthNote(PROBLEM, "State", f"{scheme}: no answer within {STATE_SECONDS:g} s", _advice(scheme))
    except SetupError as failure:
        yield HealthNote(PROBLEM, "State", in_line(str(failure)), "correct --state or DOVETAIL_STATE")
    except (DovetailError, OSError) as failure:
        yield HealthNote(PROBLEM, "State", f"{scheme}: {in_line(str(failure))}", _advice(scheme))
    else:
        if missing:
            yield HealthNote(PROBLEM, "State", f"there is no folder {in_line(missing)}", "make it, or name another")
        else:
            yield HealthNote(OK, "State", f"{scheme}: answers, and takes what is written")


async def _check(url: str) -> None:
    backend = open_state(url, "doctor")
    try:
        async with asyncio.timeout(STATE_SECONDS):
            await backend.check()
    finally:
        with suppress(DovetailError, OSError):
            await backend.close()


def _missing_folder(url: str) -> str | None:
    if not url.lower().startswith("sqlite:"):
        return None
    path = unquote(url.partition(":")[2].partition("?")[0])
    folder = Path("/" + path.lstrip("/") if path.startswith("//") else path).parent
    return None if folder.is_dir() else str(folder)


def _advice(scheme: str) -> str:
    if scheme.startswith("sqlite"):
        return "see that the file and its folder can be written"
    return "see that the store runs, that the host and the password are right, and that it has room (INFO memory)"
