"""The standard descriptors of a process whose stdin and stdout carry the protocol.

In: a process as its parent started it. Out: private copies of its stdin and stdout, for us alone. What everyone else
finds, be it `print`, `input`, a C library or a child process, is the null device as 0 and stderr as 1.
"""

import contextlib
import os
import sys

STDIN, STDOUT, STDERR = range(3)


class PrivateStreams:
    """The real stdin and stdout, which no child process inherits."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self._open = True
        if sys.platform != "win32":
            os.register_at_fork(after_in_child=self.close)  # a child that was forked but runs no other program

    def close(self) -> None:
        """Let go of both: whoever is at the other end sees that nothing more comes."""
        if self._open:
            self._open = False
            os.close(self.stdin)
            os.close(self.stdout)


def take_standard_streams() -> PrivateStreams:
    """Take stdin and stdout away from everyone else."""
    _fill_gaps()
    streams = PrivateStreams(os.dup(STDIN), os.dup(STDOUT))
    _read_and_write_bytes(streams)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, STDIN)
    os.close(null)
    os.dup2(STDERR, STDOUT)
    _show_what_was_printed()
    return streams


def _fill_gaps() -> None:
    """Put the null device where the parent left a standard descriptor closed.

    Otherwise the next file to be opened would get its number, and with it what is meant for stderr or stdout.
    """
    for number in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened == number:
                os.set_inheritable(opened, True)
            else:
                os.dup2(opened, number)
                os.close(opened)


def _read_and_write_bytes(streams: PrivateStreams) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(streams.stdin, os.O_BINARY)
        msvcrt.setmode(streams.stdout, os.O_BINARY)


def _show_what_was_printed() -> None:
    """What waits in `sys.stdout` goes to stderr now, and what follows goes there line by line."""
    with contextlib.suppress(Exception):  # sys.stdout may be None, closed, or anything that the user has put there
        sys.stdout.flush()
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
