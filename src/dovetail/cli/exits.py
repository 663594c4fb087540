"""How a command ends: what went wrong comes in; words for a person and a number for a script go out."""

import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO, Any, TypeVar

import click

from dovetail.cli.terminal import plain, styled, tell
from dovetail.errors import BadAnswer, ConnectionLost, DovetailError, NotApproved, NotSignedIn, SetupError

FAILED = 1
WRONG_USE = 2
UNREACHED = 3
LATE = 4
DECLINED = 5
INTERRUPTED = 130
BY_SIGNAL = 128  # and its number

CODES: dict[type[Exception], int] = {
    SetupError: WRONG_USE,
    ConnectionLost: UNREACHED,
    BadAnswer: UNREACHED,
    TimeoutError: LATE,
    NotApproved: DECLINED,
    NotSignedIn: DECLINED,
}

T = TypeVar("T")


class Ending(click.ClickException):
    """Ends the command with words on stderr and a number that scripts can use."""

    def __init__(self, message: str, code: int = FAILED, hint: str | None = None) -> None:
        super().__init__(plain(message if hint is None else f"{message}\n{hint}"))  # servers have a word in it
        self.exit_code = code  # type: ignore[misc]  # click reads it of the instance

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002
        tell(f"Error: {self.message}", fg="red")  # which does not fail, so that the number arrives

    @classmethod
    def of(cls, failure: Exception) -> "Ending":
        """Something that was foreseen."""
        code = next((code for kind, code in CODES.items() if isinstance(failure, kind)), FAILED)
        notes = ["--timeout SECONDS waits longer"] if code == LATE else getattr(failure, "__notes__", [])
        hint = "\n".join(notes) or None
        return cls(str(failure) or type(failure).__name__, code, hint)


def in_red(words: str) -> str:
    """Of an error that click shows."""
    return words and styled(words, sys.stderr, fg="red")


_signals: list[int] = []  # that have come to end this process, besides Ctrl-C


def finish(task: Coroutine[Any, Any, T]) -> T:
    """Run what waits for something. A failure that was foreseen becomes an `Ending`, Ctrl-C a silent one."""
    import asyncio  # late: what starts a server does so before this is loaded

    with ended_by_signals():
        try:
            return asyncio.run(task)
        except (DovetailError, TimeoutError) as failure:
            raise Ending.of(failure) from None


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside, a signal that would end this process is like Ctrl-C: what was begun is brought to its end first."""
    names = ("SIGTERM", "SIGHUP")
    numbers = [number for name in names if (number := getattr(signal, name, None)) is not None]
    taken = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL and _is_main_thread()]
    for number in taken:
        signal.signal(number, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        raise click.exceptions.Exit(BY_SIGNAL + _signals[0] if _signals else INTERRUPTED) from None
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _signals.append(number)
    interrupt = signal.getsignal(signal.SIGINT)
    if not callable(interrupt):  # Ctrl-C is ignored, as behind an `&`
        raise KeyboardInterrupt
    interrupt(signal.SIGINT, frame)


def _is_main_thread() -> bool:
    """Only there may signals be taken."""
    return threading.current_thread() is threading.main_thread()
