"""What a program that a command has started writes to stderr: a pipe comes in, lines that steer no terminal go out.

Its colours are kept. Where stderr is no terminal, nothing is to be steered, and the program has it for itself.
"""

import re
import sys
import threading
from contextlib import suppress
from typing import BinaryIO

from dovetail.cli.terminal import above_bar, has_colours, plain

LONGEST_LINE = 64 * 1024  # bytes
LAST_WORDS_SECONDS = 0.5  # if somebody keeps the pipe who has left the program's family
_RESET = "\x1b[0m"
_COLOUR = re.compile(r"(\x1b\[[0-9;:]{0,40}m)")
# Commands to a terminal, titles and links; what is cut off in the middle is left to `plain`.
_OTHER = re.compile(r"\x1b\[[0-?]*[ -/]*[@-ln-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


def is_overheard() -> bool:
    return sys.stderr.isatty()


class Overheard:
    """Passes on what comes, in a thread of its own."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._thread = threading.Thread(target=self._pass_on, name="dovetail-stderr", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Once the program is gone: wait for its last words."""
        self._thread.join(LAST_WORDS_SECONDS)

    def _pass_on(self) -> None:
        with self._pipe, suppress(OSError, ValueError):  # one of the two ends is gone
            while line := self._pipe.readline(LONGEST_LINE):
                words = tamed(line.decode(errors="replace"), colours=has_colours(sys.stderr))
                with above_bar():
                    sys.stderr.write(words if words.endswith("\n") else f"{words}\n")
                    sys.stderr.flush()


def tamed(line: str, *, colours: bool) -> str:
    """As it would be seen, if all of it were there at once."""
    text, end, _ = line.partition("\n")
    seen = _OTHER.sub("", text.rstrip("\r").rpartition("\r")[2])
    parts = _COLOUR.split(seen)  # every second one is a colour
    shown = "".join((part if colours else "") if index % 2 else plain(part) for index, part in enumerate(parts))
    return shown + (_RESET if colours and len(parts) > 1 else "") + end
