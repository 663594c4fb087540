"""stdin, stdout and stderr come in as a shell left them; streams that take every text go out.

A reader that has left, a full disk or a stream that was closed ends the command as it ends other tools of the system.
"""

import errno
import io
import os
import sys
from contextlib import suppress
from typing import NoReturn, TextIO

import click

READER_LEFT = 141  # as a shell tells of SIGPIPE: 128 and its number
FAILURES = ("EPIPE", "ENOSPC", "EDQUOT", "EFBIG", "EBADF", "EIO")  # of writing; not every system has all of them
TAKES_NO_MORE = {getattr(errno, name) for name in FAILURES if hasattr(errno, name)}
STAND_INS = {  # for streams that are closed: from stdin nothing comes, stdout refuses, and nobody hears stderr
    "stdin": (os.O_RDONLY, "r"),
    "stdout": (os.O_RDONLY if os.name == "posix" else os.O_WRONLY, "w"),
    "stderr": (os.O_WRONLY, "w"),
}


class ResultStream(io.TextIOWrapper):
    """stdout. A reader that has left ends the command as such; click itself would call it a failure."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except BrokenPipeError as failure:
            raise ending_of(failure) from None

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError as failure:
            raise ending_of(failure) from None


class ToldStream(io.TextIOWrapper):
    """stderr. Where nobody hears it, the command still ends as it would have ended."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError:
            abandon(self)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            abandon(self)


def prepare() -> None:
    """Once, before anything is written.

    What is piped is UTF-8, as JSON has to be; a terminal, and whoever sets PYTHONIOENCODING, keeps the encoding. What
    that lacks is written as an escape.
    """
    for name, (flags, mode) in STAND_INS.items():  # in this order they get the numbers that are free: 0, 1 and 2
        if getattr(sys, name) is None:
            number = os.open(os.devnull, flags)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for name, kind in {"stdout": ResultStream, "stderr": ToldStream}.items():
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            keeps = stream.isatty() or "PYTHONIOENCODING" in os.environ
            stream.reconfigure(encoding=None if keeps else "utf-8", errors="backslashreplace")
            if stream is getattr(sys, f"__{name}__"):  # and not what somebody has put in its place
                setattr(sys, name, kind(stream.buffer, stream.encoding, stream.errors, None, stream.line_buffering))


def abandon(stream: TextIO) -> None:
    """What it still holds goes nowhere, so that the end of the process does not stumble over it."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def ending_of(failure: OSError) -> Exception:
    """What a command ends with if its result can't be written: silence if the reader has left, else the reason."""
    abandon(sys.stdout)
    has_left = isinstance(failure, BrokenPipeError) or (os.name == "nt" and failure.errno == errno.EINVAL)
    if has_left:
        return click.exceptions.Exit(READER_LEFT)
    return click.ClickException(f"the result can't be written: {failure.strerror}")


def give_up(failure: OSError) -> NoReturn:
    """End the process: what click itself wanted to say could not be written."""
    abandon(sys.stdout)
    try:
        click.echo(f"Error: {failure.strerror}", err=True)
    except OSError:
        abandon(sys.stderr)
    sys.exit(1)
