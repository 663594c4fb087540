"""Output of the commands: results on stdout, messages for people on stderr, exit codes.

stdout holds the result and nothing else, so that it can be piped. What a server wrote is sanitized before it reaches
a terminal, because a terminal obeys escape sequences.
"""

import errno
import io
import os
import re
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from typing import IO, TYPE_CHECKING, Any, TextIO, TypeVar

import click

from dovetail.errors import BadResponse, ConnectionLost, DovetailError, NotApproved, NotSignedIn, SetupError

if TYPE_CHECKING:
    from types import FrameType

FAILED, USAGE_ERROR, NO_CONNECTION, TIMED_OUT, DECLINED = 1, 2, 3, 4, 5
INTERRUPTED = 130
BROKEN_PIPE = 141  # as a shell reports SIGPIPE: 128 and its number
EXIT_CODES: dict[type[Exception], int] = {
    SetupError: USAGE_ERROR,
    ConnectionLost: NO_CONNECTION,
    BadResponse: NO_CONNECTION,
    TimeoutError: TIMED_OUT,
    NotApproved: DECLINED,
    NotSignedIn: DECLINED,
}
BAR_WIDTH = 30
ELLIPSIS = "…"
LEVEL_COLOURS = {"warning": "yellow", "error": "red", "critical": "red", "alert": "red", "emergency": "red"}
_CLEAR_LINE = "\r\x1b[K"
# Control characters but for tab and new line, and those that turn the direction of writing.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

T = TypeVar("T")


# ── streams ──


def prepare_streams() -> None:
    """Once, before anything is written. What is piped is UTF-8, unless PYTHONIOENCODING says another.

    What an encoding lacks is written as an escape. A stream that is closed reads and writes nothing.
    """
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper):
            keeps = stream.isatty() or "PYTHONIOENCODING" in os.environ
            stream.reconfigure(encoding=None if keeps else "utf-8", errors="backslashreplace")


def _discard(stream: TextIO) -> None:
    """Send to nowhere what it still holds, so that the end of the process does not fail on it."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextmanager
def writing_stdout() -> Iterator[None]:
    """Inside, stdout is written. A reader that has left ends the command silently, a full disk with an error."""
    try:
        yield
    except OSError as failure:
        _discard(sys.stdout)
        if isinstance(failure, BrokenPipeError) or (os.name == "nt" and failure.errno == errno.EINVAL):
            raise click.exceptions.Exit(BROKEN_PIPE) from None
        raise click.ClickException(f"the result can't be written: {failure.strerror}") from None


# ── exit codes ──


class CommandExit(click.ClickException):
    """Ends the command with a message on stderr and an exit code."""

    def __init__(self, message: str, code: int = FAILED, hint: str | None = None) -> None:
        super().__init__(sanitize(message if hint is None else f"{message}\n{hint}"))  # it may repeat a server's words
        self.exit_code = code  # type: ignore[misc]  # click reads it of the instance

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002
        err(f"Error: {self.message}", fg="red")

    @classmethod
    def from_failure(cls, failure: Exception) -> "CommandExit":
        code = next((code for kind, code in EXIT_CODES.items() if isinstance(failure, kind)), FAILED)
        notes = ["--timeout SECONDS waits longer"] if code == TIMED_OUT else getattr(failure, "__notes__", [])
        return cls(str(failure) or type(failure).__name__, code, "\n".join(notes) or None)


def run_async(task: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. Foreseen failures become a `CommandExit`, Ctrl-C the exit code 130."""
    import asyncio  # late: `--help` does not need it

    with interrupt_on_signals():
        try:
            return asyncio.run(task)
        except (DovetailError, TimeoutError) as failure:
            raise CommandExit.from_failure(failure) from None
        except UnicodeEncodeError:  # so Python keeps bytes that it can't read
            raise CommandExit("a word of the command line is no text in UTF-8", USAGE_ERROR) from None


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP interrupt as Ctrl-C does, so that a program that was started is ended first."""
    import signal  # late: `--help` needs neither
    import threading

    received: list[int] = []

    def interrupt(number: int, frame: "FrameType | None") -> None:
        received.append(number)
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # Ctrl-C is ignored, as behind an `&`
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    names = ("SIGTERM", "SIGHUP") if threading.current_thread() is threading.main_thread() else ()
    numbers = [number for name in names if (number := getattr(signal, name, None)) is not None]
    taken = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        raise click.exceptions.Exit(128 + received[0] if received else INTERRUPTED) from None
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


# ── text ──


def sanitize(text: str) -> str:
    """Text of a server without control characters: no escape sequences, no bells, nothing that rewrites a line."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str, longest: int = 500) -> str:
    """The same as one line, and cut if it takes more columns than that."""
    return truncate(" ".join(sanitize(text[: 4 * longest]).split()), longest)


def to_json(value: Any, *, indent: bool) -> str:
    """One document. Control characters are written as JSON escapes, which mean the same."""
    import msgspec  # late: `--help` does not need it

    encoded = msgspec.json.encode(value)
    text = (msgspec.json.format(encoded, indent=2) if indent else encoded).decode()
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 1_000 else f"{value / 1_000:.2f} s"


def display_width(text: str) -> int:
    """Columns that it takes, without its colours."""
    shown = click.unstyle(text)
    return len(shown) if shown.isascii() else sum(map(_columns, shown))


def _columns(character: str) -> int:
    import unicodedata  # late: most text is ASCII

    if unicodedata.category(character) in ("Mn", "Me", "Cf"):  # accents and joiners take no column
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def truncate(text: str, width: int) -> str:
    """As much of it as fits in so many columns, with a mark if that is not all."""
    if display_width(text) <= width:
        return text
    place, room = 0, width - 1
    while (room := room - _columns(text[place])) >= 0:
        place += 1
    return text[:place] + ELLIPSIS


def align(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """A line for each row, in columns. A column without text takes no room."""
    widths = [max(map(display_width, column), default=0) for column in zip(*rows, strict=True)]
    kept = [index for index, width in enumerate(widths) if width]
    padded = ([row[index] + " " * (widths[index] - display_width(row[index])) for index in kept] for row in rows)
    return [gap.join(cells).rstrip() for cells in padded]


# ── colours and widths ──


def has_colours(stream: TextIO) -> bool:
    """By NO_COLOR and FORCE_COLOR (https://no-color.org), else on a terminal that can."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def styled(text: str, stream: TextIO | None = None, **style: Any) -> str:
    """The text in a colour, where that can be seen; `stream` is stdout if not given."""
    is_wanted = any(style.values()) and has_colours(stream or sys.stdout)
    return click.style(text, **style) if is_wanted else text


def terminal_width() -> int | None:
    """How wide the terminal is; None if stdout is none, so that nothing has to be cut."""
    return _width(sys.stdout) if sys.stdout.isatty() else None


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80


# ── results, on stdout ──


def out(text: str = "") -> None:
    """A line of the result."""
    with writing_stdout():
        click.echo(text, color=has_colours(sys.stdout))


def out_text(text: str) -> None:
    """Text of a server and a line end: `sanitize` on a terminal, else just as it came."""
    is_terminal = sys.stdout.isatty()
    shown = sanitize(text) if is_terminal else text
    with writing_stdout():
        click.echo(shown, nl=not (is_terminal and shown.endswith("\n")), color=True)


def out_bytes(content: bytes) -> None:
    """Just these bytes."""
    with writing_stdout():
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def out_json(value: Any) -> None:
    """The result for a program: one line, or several where a person reads it."""
    out(to_json(value, indent=sys.stdout.isatty()))


# ── messages for people, on stderr ──


def err(text: str, **style: Any) -> None:
    """A line above the bar or the open question, if there is one."""
    lines = list(_last_line)
    for line in lines:
        line.wipe()
    write_err(f"{styled(text, sys.stderr, **style)}\n")
    for line in lines:
        line.draw()


def write_err(text: str) -> None:
    """A part of a line. If stderr can't be written, the command goes on."""
    try:
        click.echo(text, nl=False, err=True, color=sys.stderr.isatty() or has_colours(sys.stderr))
    except OSError:
        _discard(sys.stderr)


def is_interactive() -> bool:
    """Whether a person is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class PromptLine:
    """The last line of a terminal while the answer to it is typed."""

    def __init__(self, words: str) -> None:
        self._words = words

    def draw(self) -> None:
        write_err(styled(self._words, sys.stderr, bold=True))
        _last_line[:] = [self]

    def wipe(self) -> None:
        write_err("\n" if os.environ.get("TERM") == "dumb" else _CLEAR_LINE)
        _last_line.clear()

    def close(self, *, is_answered: bool) -> None:
        """After an answer the cursor is on the next line already."""
        _last_line.clear()
        if not is_answered:
            write_err("\n")


class ProgressBar:
    """A progress bar as the last line of a terminal; elsewhere nothing is drawn."""

    def __init__(self, *, hidden: bool = False) -> None:
        self._is_shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not hidden
        self._words = ""  # the newest, whether they are drawn or not
        self._drawn_at = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, a person is asked, and nothing is drawn."""
        self.wipe()
        shown, self._is_shown = self._is_shown, False
        try:
            yield
        finally:
            self._is_shown = shown
            self.draw()

    def show(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """A `progress_handler`; ten times a second are enough."""
        self._words = bar(progress, total, message)
        if (total is not None and progress >= total) or time.monotonic() - self._drawn_at >= 0.1:
            self.draw()

    def draw(self) -> None:
        if self._is_shown and self._words:
            self._drawn_at = time.monotonic()
            write_err(_CLEAR_LINE + styled(truncate(self._words, _width(sys.stderr) - 1), sys.stderr, fg="cyan"))
            _last_line[:] = [self]

    def wipe(self) -> None:
        if self in _last_line:
            write_err(_CLEAR_LINE)
            _last_line.clear()

    def clear(self) -> None:
        """For good, unless `show` is called again."""
        self.wipe()
        self._words = ""


_last_line: list[PromptLine | ProgressBar] = []  # one at most


def bar(progress: float, total: float | None, message: str | None) -> str:
    """One line: how far it has come, and the server's message."""
    words = "" if not message else " " + " ".join(sanitize(message).split())
    if total is None or total <= 0 or not (isfinite(progress) and isfinite(total)):
        return f"{ELLIPSIS} {progress:g}{words}"
    part = min(max(progress / total, 0.0), 1.0)
    filled = round(part * BAR_WIDTH)
    return f"[{'#' * filled}{'-' * (BAR_WIDTH - filled)}] {part:4.0%}{words}"
