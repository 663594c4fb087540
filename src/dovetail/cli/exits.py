"""How a command ends: what went wrong comes in; words for a person and a number for a script go out."""

from collections.abc import Coroutine
from typing import Any, TypeVar

import click

from dovetail.cli.terminal import plain
from dovetail.errors import BadAnswer, ConnectionLost, DovetailError, NotApproved, NotSignedIn, SetupError

FAILED = 1
WRONG_USE = 2
UNREACHED = 3
LATE = 4
DECLINED = 5
INTERRUPTED = 130

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

    @classmethod
    def of(cls, failure: Exception) -> "Ending":
        """Something that was foreseen."""
        code = next((code for kind, code in CODES.items() if isinstance(failure, kind)), FAILED)
        hint = "--timeout SECONDS waits longer" if code == LATE else None
        return cls(str(failure) or type(failure).__name__, code, hint)


def finish(task: Coroutine[Any, Any, T]) -> T:
    """Run what waits for something. A failure that was foreseen becomes an `Ending`, Ctrl-C a silent one."""
    import asyncio  # late: what starts a server does so before this is loaded

    try:
        return asyncio.run(task)
    except (DovetailError, TimeoutError) as failure:
        raise Ending.of(failure) from None
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None
