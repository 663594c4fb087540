"""Output of the commands: the result on stdout, messages for the user on stderr, exit codes.

stdout holds the result and nothing else, so that it can be piped. A server's text is sanitized before it reaches a
terminal, because a terminal obeys escape sequences.
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
BROKEN_PIPE = 141  # as a shell reports SIGPIPE: 128 + 13
EXIT_CODES: dict[type[Exception], int] = {
    SetupError: USAGE_ERROR,
    ConnectionLost: NO_CONNECTION,
    BadResponse: NO_CONNECTION,
    TimeoutError: TIMED_OUT,
    NotApproved: DECLINED,
    NotSignedIn: DECLINED,
}
BAR_WIDTH = 30
MAX_LIST = 80  # characters of a list of plain values on one line
ELLIPSIS = "…"
LEVEL_COLOURS = {"warning": "yellow", "error": "red", "critical": "red", "alert": "red", "emergency": "red"}
_CLEAR_LINE = "\r\x1b[K"
# Control characters other than tab and newline, and those that change the direction of writing.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_PLAIN_LIST = re.compile(r"\[\n((?: +[^\[\]{}\s][^\n]*\n)+) *\]")  # in indented JSON

T = TypeVar("T")


def prepare_streams() -> None:
    """Make pipes UTF-8 unless PYTHONIOENCODING is set, escape unencodable text, and replace closed streams by null."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper):
            is_set = stream.isatty() or "PYTHONIOENCODING" in os.environ
            stream.reconfigure(encoding=None if is_set else "utf-8", errors="backslashreplace")


def _discard(stream: TextIO) -> None:
    """Send the buffer of a stream to the null device, so that the flush at exit does not fail."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), stream.fileno())


@contextmanager
def writing_stdout() -> Iterator[None]:
    """End the command silently if the pipe is closed, and with an error if the disk is full."""
    try:
        yield
    except OSError as failure:
        _discard(sys.stdout)
        if isinstance(failure, BrokenPipeError) or (os.name == "nt" and failure.errno == errno.EINVAL):
            raise click.exceptions.Exit(BROKEN_PIPE) from None
        raise click.ClickException(f"the result can't be written: {failure.strerror}") from None


class CommandExit(click.ClickException):
    """Ends the command with a message on stderr and an exit code."""

    def __init__(self, message: str, code: int = FAILED, hint: str | None = None) -> None:
        super().__init__(sanitize(message if hint is None else f"{message}\n{hint}"))  # it may quote a server
        self.exit_code = code  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002
        err(f"Error: {self.message}", fg="red")

    @classmethod
    def from_failure(cls, failure: Exception) -> "CommandExit":
        code = next((code for kind, code in EXIT_CODES.items() if isinstance(failure, kind)), FAILED)
        notes = ["--timeout SECONDS waits longer"] if code == TIMED_OUT else getattr(failure, "__notes__", [])
        return cls(str(failure) or type(failure).__name__, code, "\n".join(notes) or None)


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a command; expected errors become a `CommandExit`, Ctrl-C the exit code 130."""
    import asyncio  # late: `--help` does not need it

    with interrupt_on_signals():
        try:
            return asyncio.run(coroutine)
        except (DovetailError, TimeoutError) as failure:
            raise CommandExit.from_failure(failure) from None
        except UnicodeEncodeError:  # from a surrogate, which replaces a byte that is not UTF-8
            raise CommandExit("a word of the command line is no text in UTF-8", USAGE_ERROR) from None


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, so that a child process is ended first."""
    import signal  # late: `--help` needs neither
    import threading

    received: list[int] = []

    def interrupt(number: int, frame: "FrameType | None") -> None:
        received.append(number)
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # Ctrl-C is ignored, as in a background job
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    names = ("SIGTERM", "SIGHUP") if threading.current_thread() is threading.main_thread() else ()
    numbers = [number for name in names if (number := getattr(signal, name, None)) is not None]
    unhandled = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in unhandled:
        signal.signal(number, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        raise click.exceptions.Exit(128 + received[0] if received else INTERRUPTED) from None
    finally:
        for number in unhandled:
            signal.signal(number, signal.SIG_DFL)


def sanitize(text: str) -> str:
    """Replace control characters: no escape sequences, no bells, nothing that rewrites a line."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str, width: int = 500) -> str:
    """The text sanitized, with line breaks as spaces, and truncated to `width` columns."""
    return truncate(" ".join(sanitize(text[: 4 * width]).split()), width)


def to_json(value: Any, *, indent: bool) -> str:
    """The value as JSON; control characters are written as JSON escapes, which mean the same.

    If `indent`, a short list of plain values stays on one line.
    """
    import msgspec  # late: `--help` does not need it

    encoded = msgspec.json.encode(value)
    text = encoded.decode()
    if indent:
        text = _PLAIN_LIST.sub(_on_one_line, msgspec.json.format(encoded, indent=2).decode())
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _on_one_line(found: re.Match[str]) -> str:
    line = " ".join(value.strip(" ") for value in found[1].rstrip("\n").split("\n"))
    return f"[{line}]" if len(line) <= MAX_LIST else found[0]


def format_milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 1_000 else f"{value / 1_000:.2f} s"


def display_width(text: str) -> int:
    """The columns that a text takes in a terminal, without escape sequences for colours."""
    shown = click.unstyle(text)
    return len(shown) if shown.isascii() else sum(map(_columns, shown))


def _columns(character: str) -> int:
    import unicodedata  # late: most text is ASCII

    if unicodedata.category(character) in ("Mn", "Me", "Cf"):  # accents and joiners take no column
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def truncate(text: str, width: int) -> str:
    """At most `width` columns of the text, with an ellipsis if it is longer."""
    if display_width(text) <= width:
        return text
    end, remaining = 0, width - 1
    while (remaining := remaining - _columns(text[end])) >= 0:
        end += 1
    return text[:end] + ELLIPSIS


def align(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """A line for each row, in columns. Empty columns are left out."""
    widths = [max(map(display_width, column), default=0) for column in zip(*rows, strict=True)]
    used = [index for index, width in enumerate(widths) if width]
    padded = ([row[index] + " " * (widths[index] - display_width(row[index])) for index in used] for row in rows)
    return [gap.join(cells).rstrip() for cells in padded]


def has_colours(stream: TextIO) -> bool:
    """Whether to colour: by NO_COLOR and FORCE_COLOR (https://no-color.org), else on a terminal that is not dumb."""
    if os.environ.get("NO_COLOR") or os.environ.get("FORCE_COLOR"):
        return not os.environ.get("NO_COLOR")
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def styled(text: str, stream: TextIO | None = None, **style: Any) -> str:
    """The text in a colour if `stream` shows colours; stdout by default."""
    is_wanted = any(style.values()) and has_colours(stream or sys.stdout)
    return click.style(text, **style) if is_wanted else text


def terminal_width() -> int | None:
    """The width of the terminal; None if stdout is none, so that nothing has to be truncated."""
    return _width(sys.stdout) if sys.stdout.isatty() else None


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80


def out(text: str = "") -> None:
    """Write a line of the result to stdout."""
    with writing_stdout():
        click.echo(text, color=has_colours(sys.stdout))


def out_text(text: str) -> None:
    """Write text of a server: sanitized on a terminal, else unchanged."""
    is_terminal = sys.stdout.isatty()
    shown = sanitize(text) if is_terminal else text
    with writing_stdout():
        click.echo(shown, nl=not (is_terminal and shown.endswith("\n")), color=True)


def out_bytes(content: bytes) -> None:
    with writing_stdout():
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def out_json(value: Any) -> None:
    """Write JSON to stdout: one line, but indented on a terminal."""
    out(to_json(value, indent=sys.stdout.isatty()))


def err(text: str, **style: Any) -> None:
    """Write a line to stderr, above the progress bar or the pending question."""
    lines = list(_last_line)
    for line in lines:
        line.wipe()
    write_err(f"{styled(text, sys.stderr, **style)}\n")
    for line in lines:
        line.draw()


def write_err(text: str) -> None:
    """Write without a line end. If stderr can't be written, the command goes on."""
    try:
        click.echo(text, nl=False, err=True, color=sys.stderr.isatty() or has_colours(sys.stderr))
    except OSError:
        _discard(sys.stderr)


def is_interactive() -> bool:
    """Whether a user can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class PromptLine:
    """A question in the last line of a terminal, while the user types the answer."""

    def __init__(self, question: str) -> None:
        self._text = question

    def draw(self) -> None:
        write_err(styled(self._text, sys.stderr, bold=True))
        _last_line[:] = [self]

    def wipe(self) -> None:
        write_err("\n" if os.environ.get("TERM") == "dumb" else _CLEAR_LINE)
        _last_line.clear()

    def close(self, *, is_answered: bool) -> None:
        """Close the prompt. After an answer the cursor is on the next line already: the user typed Enter."""
        _last_line.clear()
        if not is_answered:
            write_err("\n")


class ProgressBar:
    """A progress bar as the last line of a terminal; elsewhere nothing is drawn."""

    def __init__(self, *, hidden: bool = False) -> None:
        self._is_shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not hidden
        self._text = ""  # the newest state, drawn or not
        self._drawn_at = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Draw nothing while the user is asked."""
        self.wipe()
        shown, self._is_shown = self._is_shown, False
        try:
            yield
        finally:
            self._is_shown = shown
            self.draw()

    def show(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Draw progress, ten times a second at most; the `progress_handler`."""
        self._text = bar(progress, total, message)
        if (total is not None and progress >= total) or time.monotonic() - self._drawn_at >= 0.1:
            self.draw()

    def say(self, message: str) -> None:
        """Draw a message alone, without a bar."""
        self._text = f"{ELLIPSIS} {' '.join(sanitize(message).split())}"
        self.draw()

    def draw(self) -> None:
        if self._is_shown and self._text:
            self._drawn_at = time.monotonic()
            write_err(_CLEAR_LINE + styled(truncate(self._text, _width(sys.stderr) - 1), sys.stderr, fg="cyan"))
            _last_line[:] = [self]

    def wipe(self) -> None:
        if self in _last_line:
            write_err(_CLEAR_LINE)
            _last_line.clear()

    def clear(self) -> None:
        self.wipe()
        self._text = ""


_last_line: list[PromptLine | ProgressBar] = []  # what is drawn there now; one at most


def bar(progress: float, total: float | None, message: str | None) -> str:
    text = "" if not message else " " + " ".join(sanitize(message).split())
    if total is None or total <= 0 or not (isfinite(progress) and isfinite(total)):
        return f"{ELLIPSIS} {progress:g}{text}"
    part = min(max(progress / total, 0.0), 1.0)
    filled = round(part * BAR_WIDTH)
    return f"[{'#' * filled}{'-' * (BAR_WIDTH - filled)}] {part:4.0%}{text}"
