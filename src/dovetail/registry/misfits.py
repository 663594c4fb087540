"""What msgspec says about a value that does not fit goes in; paths and plain words come out."""

import re
from typing import Any

from dovetail.registry.soundness import described, excerpt

_LONGEST = 500  # characters of a message that are looked at; it may repeat what a caller sent
_STEP = r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]"
UNEXPLAINED = "does not fit its type"


class Misfit(ValueError):
    """A value that its type refuses; `problems` are pairs of a path (like `.a[0]`) and what is wrong there."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{path}: {text}" for path, text in problems))
        self.problems = problems


def misfits(error: Exception) -> list[tuple[str, str]]:
    """Where a value does not fit, and why."""
    if isinstance(error, Misfit):
        return error.problems
    text, path = _split(str(error))
    cause = error.__cause__
    if isinstance(cause, Misfit):
        return [(path + inner, words) for inner, words in cause.problems]
    if cause is None:
        return [(path, _translated(text))]
    return [(path, str(cause))]  # raised by the author of a class: their words


def _split(message: str) -> tuple[str, str]:
    """msgspec ends its messages with "- at `$.path`" or "- at `key` in `$.path`"."""
    text, _, place = message.rpartition(" - at `")
    place = place.removeprefix("key` in `")
    if not place.startswith("$"):
        return message[:_LONGEST], ""
    path = place[1:-1].replace("[...]", "[…]")  # it does not say which key of a dict it was
    return text[:_LONGEST], path[:_LONGEST] + "…" * (len(path) > _LONGEST)


_WORDS = (  # expressions are compiled when a value does not fit, and then kept by `re`
    (r"Invalid RFC3339 encoded datetime", "must be a date-time such as 2026-07-28T09:30:00Z"),
    (r"Invalid RFC3339 encoded date", "must be a date such as 2026-07-28"),
    (r"Invalid RFC3339 encoded time", "must be a time such as 09:30:00"),
    (r"Expected `\w+` with a timezone component", "must have a time zone such as Z or +02:00"),
    (r"Expected `\w+` with no timezone component", "must have no time zone"),
    (r"Invalid .*duration|.*timedelta", "must be a duration such as PT1H30M"),
    (r"Invalid UUID", "must be a UUID such as 123e4567-e89b-12d3-a456-426614174000"),
    (r"Invalid decimal string", 'must be a decimal number such as "12.50"'),
    (r"Invalid base64 encoded string", "must be in base64"),
    (r"Invalid enum value", "must be one of the allowed values"),
    (r"Object missing required field `(.*)`", r"\1 is required, but missing"),
    (r"Object contains unknown field `(.*)`", r"\1 is an unknown property"),
    (r"Expected `(?:int|float)` >= (.*)", r"must be at least \1"),
    (r"Expected `(?:int|float)` > (.*)", r"must be more than \1"),
    (r"Expected `(?:int|float)` <= (.*)", r"must be at most \1"),
    (r"Expected `(?:int|float)` < (.*)", r"must be less than \1"),
    (r"Expected `(?:int|float)` that's a multiple of (.*)", r"must be a multiple of \1"),
    (r"Expected `\w+` of length >= (.*)", r"must have a length of at least \1"),
    (r"Expected `\w+` of length <= (.*)", r"must have a length of at most \1"),
    (r"(?:Number|Integer value) out of range", "is too large a number"),
    (r"Expected `int`", "expected an integer"),
    (r"Expected `float`", "expected a number"),
    (r"Expected `str`", "expected a string"),
    (r"Expected `bool`", "expected true or false"),
    (r"Expected `null`", "expected null"),
    (r"Expected `array`", "expected an array"),
    (r"Expected `object`", "expected an object"),
)


def _translated(text: str) -> str:
    for pattern, words in _WORDS:
        match = re.match(pattern, text)
        if match:
            return match.expand(words)
    return UNEXPLAINED


def line(path: str, words: str, value: Any, *, root: str = "arguments") -> str:
    """One readable line: where, what was expected, what came."""
    here = f"{path.lstrip('.') or root}: {words}"
    if path.endswith("…") or not words.startswith(("must", "expected")):  # a path that was cut leads somewhere else
        return here
    return f"{here}, got {(excerpt if words.startswith('must') else described)(_at(value, path))}"


def _at(value: Any, path: str) -> Any:
    """The part of a value that a path leads to, as far as it can be followed."""
    for step in re.finditer(_STEP, path):
        try:
            value = value[step["name"]] if step["name"] else value[int(step["index"])]
        except (KeyError, IndexError, TypeError):
            break
    return value
