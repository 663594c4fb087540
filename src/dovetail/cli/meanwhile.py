"""What a command does while a server works: the options for it come in as words, and go out as one value.

Logs and progress are shown, and questions of the server's are answered, by a person or by what was said beforehand.
"""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dovetail import cli
from dovetail.cli.exits import ended_by_signals

if TYPE_CHECKING:
    from dovetail.cli.arguments import GivenArguments

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
USUAL_LEVEL = "info"


class Meanwhile(NamedTuple):
    """How much is shown, and what is answered beforehand."""

    answers: "GivenArguments | None"
    log_level: str | None
    is_quiet: bool
    roots: tuple[str, ...]


def with_meanwhile(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command these options, as the parameter `meanwhile`."""

    @click.option(
        "--answer",
        "-a",
        multiple=True,
        metavar="KEY=VALUE",
        help="Answer this field of a form that the server asks for. Repeat for more.",
    )
    @click.option("--answers", metavar="JSON", help="Several of them, as JSON or @file.")
    @click.option(
        "--root", "roots", multiple=True, metavar="FOLDER", help="Tell the server of this folder, if it asks."
    )
    @click.option(
        "--log-level", type=click.Choice(LEVELS), help=f"What to hear of the server's log.  [default: {USUAL_LEVEL}]"
    )
    @click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor logs.")
    @wraps(command)
    def with_options(
        answer: tuple[str, ...],
        answers: str | None,
        roots: tuple[str, ...],
        log_level: str | None,
        quiet: bool,
        **others: Any,
    ) -> Any:
        given = _answers(answer, answers) if answer or answers is not None else None
        return command(meanwhile=Meanwhile(given, log_level, quiet, roots), **others)

    return with_options


def _answers(words: tuple[str, ...], whole: str | None) -> "GivenArguments":
    with ended_by_signals():
        return cli.arguments.GivenArguments.read(words, whole, "--answers")
