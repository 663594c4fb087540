"""A command that starts a server comes in; the process goes out, and what it writes to stderr steers no terminal.

It is for POSIX, and nothing of the client is loaded for it.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import BinaryIO, cast

from dovetail.cli.overhearing import Overheard, is_overheard


class RunningProgram:
    """A process, and whoever hears what it writes to stderr."""

    def __init__(self, process: "Popen[bytes]") -> None:
        self.process = process
        self._heard = None if process.stderr is None else Overheard(cast(BinaryIO, process.stderr))

    @classmethod
    def start(cls, command: Sequence[str], env: Mapping[str, str] | None, cwd: str | Path | None) -> "RunningProgram":
        """In a session of its own: Ctrl-C is for us, and it is told to cancel."""
        process = Popen(
            command, stdin=PIPE, stdout=PIPE, stderr=PIPE if is_overheard() else None,
            env=None if env is None else {**os.environ, **env}, cwd=cwd, start_new_session=True,
        )  # fmt: skip
        return cls(process)

    def end(self) -> None:
        """If nobody has spoken to it, or its client was not let finish; and all that it has started."""
        if self.process.returncode is None:  # else its client has seen to all of them
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()
        if self._heard is not None:
            self._heard.finish()
