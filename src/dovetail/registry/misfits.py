"""What msgspec says about a value that does not fit goes in; paths and plain words come out."""

import re
from typing import Any

import msgspec

_AT = re.compile(r"(?P<text>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]")
_SHOWN = 60  # characters of a string that a message repeats


class Misfit(ValueError):
    """A value that its type refuses; `problems` are pairs of a path (like `.a[0]`) and what is wrong there."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{path}: {text}" for path, text in problems))
        self.problems = problems


def misfits(error: Exception) -> list[tuple[str, str]]:
    """Where a value does not fit, and why."""
    if isinstance(error, Misfit):
        return error.problems
    match = _AT.fullmatch(str(error))
    text, path = (match["text"], (match["path"] or "").replace("[...]", "[…]")) if match else (str(error), "")
    cause = error.__cause__
    if isinstance(cause, Misfit):
        return [(path + inner, words) for inner, words in cause.problems]
    if isinstance(error, msgspec.ValidationError) and cause is None:
        return [(path, _translated(text))]
    return [(path, str(cause or error))]  # raised by the author of a class: their words


_WORDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"Invalid RFC3339 encoded datetime", "expected a date and time like 2024-05-17T09:30:00Z"),
        (r"Invalid RFC3339 encoded date", "expected a date like 2024-05-17"),
        (r"Invalid RFC3339 encoded time", "expected a time like 09:30:00"),
        (r"Expected `\w+` with a timezone component", "expected a time with its zone, such as Z or +02:00"),
        (r"Expected `\w+` with no timezone component", "expected a time without a zone"),
        (r"Invalid ISO8601 duration|.*timedelta|.*[Dd]uration", "expected a duration like PT1H30M"),
        (r"Invalid UUID", "expected a UUID"),
        (r"Invalid decimal string", 'expected a decimal number like "12.50"'),
        (r"Invalid base64 encoded string", "expected base64"),
        (r"Invalid enum value", "expected one of the allowed values"),
        (r"Object missing required field `(.*)`", r"the field \1 is missing"),
        (r"Object contains unknown field `(.*)`", r"there is no field \1"),
        (r"Expected `(?:int|float)` >= (.*)", r"expected at least \1"),
        (r"Expected `(?:int|float)` > (.*)", r"expected more than \1"),
        (r"Expected `(?:int|float)` <= (.*)", r"expected at most \1"),
        (r"Expected `(?:int|float)` < (.*)", r"expected less than \1"),
        (r"Expected `(?:int|float)` that's a multiple of (.*)", r"expected a multiple of \1"),
        (r"Expected `\w+` of length >= (.*)", r"expected a length of at least \1"),
        (r"Expected `\w+` of length <= (.*)", r"expected a length of at most \1"),
        (r"Expected `int`", "expected an integer"),
        (r"Expected `float`", "expected a number"),
        (r"Expected `str`", "expected a string"),
        (r"Expected `bool`", "expected true or false"),
        (r"Expected `null`", "expected null"),
        (r"Expected `array`", "expected an array"),
        (r"Expected `object`", "expected an object"),
    )
)


def _translated(text: str) -> str:
    for pattern, words in _WORDS:
        match = pattern.match(text)
        if match:
            return match.expand(words)
    return "does not fit its type"


def line(path: str, words: str, value: Any, *, root: str = "arguments") -> str:
    """One readable line: where, what was expected, what came."""
    got = f", got {describe(_at(value, path))}" if words.startswith("expected") else ""
    return f"{path.lstrip('.') or root}: {words}{got}"


def _at(value: Any, path: str) -> Any:
    """The part of a value that a path leads to, as far as it can be followed."""
    for step in _STEP.finditer(path):
        try:
            value = value[step["name"]] if step["name"] else value[int(step["index"])]
        except (KeyError, IndexError, TypeError):
            break
    return value


def describe(value: Any) -> str:
    """A JSON value in a few words."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        shown = value if len(value) <= _SHOWN else value[:_SHOWN] + "…"
        return f'the string "{shown}"'
    if isinstance(value, int):
        return f"the integer {value}" if abs(value) < 10**20 else "a very large integer"
    if isinstance(value, float):
        return f"the number {value}"
    return "an array" if isinstance(value, list) else "an object"
