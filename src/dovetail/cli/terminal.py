"""What a person at a terminal sees, and a script does not: colours, a bar, lines that are told as they come.

Results go to stdout and nothing else does, so that they can be piped; all that is told meanwhile goes to stderr.
"""

import os
import re
import sys
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any, TextIO

import click

BAR_WIDTH = 30
USUAL_WIDTH = 80
REDRAW_SECONDS = 0.1
_CLEAR = "\r\x1b[K"
# Control characters but for tab and new line, and those that turn the direction of writing.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

ELLIPSIS = "…"
LEVEL_COLOURS = {"warning": "yellow", "error": "red", "critical": "red", "alert": "red", "emergency": "red"}


def has_colours(stream: TextIO) -> bool:
    """As https://no-color.org and its counterpart say, and else on a terminal that can."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def styled(text: str, stream: TextIO | None = None, **style: Any) -> str:
    """The text in a colour, where that can be seen; `stream` is stdout if not given."""
    is_wanted = any(style.values()) and has_colours(stream or sys.stdout)
    return click.style(text, **style) if is_wanted else text


def plain(text: str) -> str:
    """What a server says, without what would steer the terminal: no escapes, no bells, nothing that rewrites a line."""
    return _STEERING.sub("\N{REPLACEMENT CHARACTER}", text)


def in_line(text: str, longest: int = 500) -> str:
    """The same as one line, and cut if it is long."""
    shown = " ".join(plain(text[: 4 * longest]).split())
    return shown if len(shown) <= longest else shown[: longest - 1] + ELLIPSIS


def out(text: str = "") -> None:
    """A line of the result."""
    click.echo(text, color=has_colours(sys.stdout))


def out_text(text: str) -> None:
    """Text of a server's: to a terminal without what would steer it, to anything else just as it came."""
    shown = plain(text) if sys.stdout.isatty() else text
    click.echo(shown, nl=sys.stdout.isatty() and not shown.endswith("\n"), color=True)


def as_json(value: Any, *, indent: bool) -> str:
    """One document; what would steer a terminal is written as an escape, which changes nothing of what it says."""
    import msgspec  # late: what starts a server does so before this is loaded

    encoded = msgspec.json.encode(value)
    text = (msgspec.json.format(encoded, indent=2) if indent else encoded).decode()
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def out_json(value: Any) -> None:
    """The result for a machine: one line, or several where a person reads it."""
    out(as_json(value, indent=sys.stdout.isatty()))


def width_of(text: str) -> int:
    """Columns that it takes, without its colours."""
    return sum(_columns(sign) for sign in click.unstyle(text))


def _columns(sign: str) -> int:
    if unicodedata.combining(sign):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def aligned(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """A line for each row, its cells below those of the others."""
    widths = [max(map(width_of, column), default=0) for column in zip(*rows, strict=True)]
    kept = [index for index, width in enumerate(widths) if width]  # a column without anything in it takes no room
    return [gap.join(_padded(row[index], widths[index]) for index in kept).rstrip() for row in rows]


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - width_of(cell))


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL_WIDTH
    except OSError:
        return USUAL_WIDTH


def columns(stream: TextIO | None = None) -> int | None:
    """How wide the terminal is; None if nothing has to be cut."""
    return _width(stream or sys.stdout) if (stream or sys.stdout).isatty() else None


def tell(text: str, **style: Any) -> None:
    """A line for people, on stderr."""
    click.echo(styled(text, sys.stderr, **style), err=True, color=has_colours(sys.stderr))


def can_ask() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class ProgressLine:
    """The last line of a terminal, drawn anew with every step; on anything else nothing is drawn."""

    def __init__(self) -> None:
        self._is_drawn = False
        self._is_wanted = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._last = 0.0

    def hide(self) -> None:
        """Draw nothing at all."""
        self._is_wanted = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, somebody is asked something, and nothing is drawn over it."""
        self.clear()
        wanted, self._is_wanted = self._is_wanted, False
        try:
            yield
        finally:
            self._is_wanted = wanted

    def show(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """A `progress_handler`."""
        now = time.monotonic()
        is_over = total is not None and progress >= total
        if not self._is_wanted or (now - self._last < REDRAW_SECONDS and not is_over):
            return
        self._last = now
        width = _width(sys.stderr) - 1
        sys.stderr.write(_CLEAR + styled(bar(progress, total, message)[:width], sys.stderr, fg="cyan"))
        sys.stderr.flush()
        self._is_drawn = True

    def clear(self) -> None:
        """Before anything else is written."""
        if self._is_drawn:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._is_drawn = False


def bar(progress: float, total: float | None, message: str | None) -> str:
    """One line: how far it has come, and what it says to that."""
    words = "" if not message else " " + " ".join(plain(message).split())
    if total is None or total <= 0 or not (isfinite(progress) and isfinite(total)):
        return f"… {progress:g}{words}"
    part = min(max(progress / total, 0.0), 1.0)
    filled = round(part * BAR_WIDTH)
    return f"[{'#' * filled}{'-' * (BAR_WIDTH - filled)}] {part:4.0%}{words}"
