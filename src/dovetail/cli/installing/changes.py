"""An entry as it was and as it will be comes in; the lines that a person reads before saying yes go out.

They are an outline of the file: this entry as far as it may be shown, and around it the names of its neighbours.
Nothing that belongs to another server, or to nobody, is in it.
"""

import difflib
import json
from collections.abc import Sequence
from typing import Any

from dovetail.cli.installing.edits import Outline
from dovetail.cli.installing.veil import veiled
from dovetail.cli.terminal import ELLIPSIS, in_line

LONGEST_LINE = 300
LONGEST_NAME = 100


def difference(path: str, section: str, before: Outline, name: str, old: Any, new: Any | None) -> list[str]:
    """As `diff -u` has it; nothing if only hidden values differ. `new` is None if the entry goes."""
    known = before.names or []
    was = _own(name, old) if name in known else []
    will_be = [] if new is None else _own(name, new)
    left, right = _neighbours(known, name)
    more = [f"  {ELLIPSIS}"] if before.has_more else []
    opening, closing = ["{", *more, f"  {_quoted(section)}: {{", *left], [*right, "  }", "}"]
    lines = [*opening, *was, *closing] if before.names is not None else ["{", *more, "}"]
    changed = difflib.unified_diff(
        [] if before.is_empty else lines, [*opening, *will_be, *closing], path, path, lineterm="", n=len(lines)
    )
    return [_short(line) for line in changed if not line.startswith("@@")]


def _neighbours(names: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    """Those before and behind: who adds one sees that the others are still there."""
    place = list(names).index(name) if name in names else len(names)
    left, right = names[:place], names[place + 1 :]
    further = [f"    {ELLIPSIS}"]
    return (
        [*(further if len(left) > 1 else []), *map(_neighbour, left[-1:])],
        [*map(_neighbour, right[:1]), *(further if len(right) > 1 else [])],
    )


def _neighbour(name: str) -> str:
    return f"    {_quoted(name)}: {ELLIPSIS}"


def _own(name: str, entry: Any) -> list[str]:
    lines = json.dumps(veiled(entry), indent=2, ensure_ascii=False).split("\n")
    return [f"    {line}" for line in (f"{_quoted(name)}: {lines[0]}", *lines[1:])]


def _quoted(name: str) -> str:
    return json.dumps(in_line(name, LONGEST_NAME), ensure_ascii=False)


def _short(line: str) -> str:
    kept = line[:LONGEST_LINE]
    mark, rest = kept[:1], kept[1:]
    space = rest[: len(rest) - len(rest.lstrip())]
    return (mark + space + in_line(rest, LONGEST_LINE) + (ELLIPSIS if len(line) > LONGEST_LINE else "")).rstrip()


def snippet(section: str, name: str, entry: Any) -> str:
    """What a person can paste, with all hidden that may be secret."""
    return json.dumps({section: {name: veiled(entry)}}, indent=2, ensure_ascii=False)
