"""Two texts of a configuration file come in; the lines that a person reads before saying yes go out.

Values that may be secrets are shown as ***, those of other servers too: a diff shows what stands around it.
"""

import difflib
import json
import re
import sys
from collections.abc import Iterable
from itertools import takewhile

from dovetail.cli.installing.edits import BOM
from dovetail.cli.installing.jsonc import JsonValue, parse
from dovetail.cli.terminal import in_line

CONTEXT = 2  # lines
HIDDEN = '"***"'
KEEPERS = ("env", "headers")  # of secrets
LONGEST_LINE = 300
_Hidden = tuple[JsonValue, str]  # where, and what is shown there
_PLACES = re.compile(r"(?:(?<=^@@ )|(?<= ))([-+])(\d+)(?=[, ].*@@$)")  # the line numbers of a part of a diff
_SECRET_IN_TEXT = re.compile(  # behind a name and =, and before or behind the address of a URL
    r"(?P<kept>(?:token|secret|passw\w*|api.?key|auth\w*|credentials?|[?&]key)=|//(?=[^/\s\"@]+@)|\bBearer )[^\s&\"@]+",
    re.IGNORECASE,
)
_SECRET = re.compile(r"token|secret|passw|api.?key|authorization|credential|cookie", re.IGNORECASE)


def masked(text: str, start: int = 0, end: int = sys.maxsize) -> str:
    """The text, with the values of `env`, `headers` and whatever sounds like a secret hidden, from start to end."""
    if not text.strip():
        return text
    hidden: list[_Hidden] = []
    _collect(parse(text).root, False, hidden, start, end)
    pieces, place = [], 0
    for value, shown in hidden:
        pieces += [text[place : value.start], shown]
        place = value.end
    return "".join(pieces) + text[place:]


def _collect(value: JsonValue, is_secret: bool, hidden: list[_Hidden], start: int, end: int) -> None:
    """In the order of the text."""
    if value.end < start or value.start > end:
        return
    if value.members is not None:
        for member in value.members:
            is_inner = is_secret or member.name in KEEPERS or _SECRET.search(member.name) is not None
            _collect(member.value, is_inner, hidden, start, end)
    elif value.items is not None:
        was_flag = False  # of a command: what follows `--token` is one
        for item in value.items:
            _collect(item, is_secret or was_flag, hidden, start, end)
            was_flag = item.text.startswith('"-') and "=" not in item.text and _SECRET.search(item.text) is not None
    elif value.text.startswith('"'):
        shown = HIDDEN if is_secret else _SECRET_IN_TEXT.sub(r"\g<kept>***", value.text)
        if shown != value.text:
            hidden.append((value, shown))


def difference(before: str, after: str, name: str) -> list[str]:
    """As `diff -u` has it; nothing if only hidden values differ. Only what is near to the change is looked at."""
    old, new = before.removeprefix(BOM).split("\n"), after.removeprefix(BOM).split("\n")
    first = _common(zip(old, new, strict=False))
    last = min(_common(zip(reversed(old), reversed(new), strict=False)), min(len(old), len(new)) - first)
    begin, end = max(first - CONTEXT, 0), max(last - CONTEXT, 0)
    lines = difflib.unified_diff(_shown(old, begin, end), _shown(new, begin, end), name, name, lineterm="", n=CONTEXT)
    return [_short(_PLACES.sub(lambda place: f"{place[1]}{int(place[2]) + begin}", line)) for line in lines]


def _shown(lines: list[str], begin: int, end: int) -> list[str]:
    """All but so many at the beginning and at the end, with what is secret hidden."""
    kept = len(lines) - end
    start = sum(len(line) + 1 for line in lines[:begin])
    stop = start + sum(len(line) + 1 for line in lines[begin:kept])
    found = masked("\n".join(lines), start, stop).split("\n")[begin:kept]
    return [line.rstrip("\r") for line in (found[:-1] if found[-1:] == [""] else found)]


def _common(pairs: Iterable[tuple[str, str]]) -> int:
    """How many are the same, from the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _short(line: str) -> str:
    kept = line[:LONGEST_LINE]
    mark, rest = kept[:1], kept[1:]
    space = rest[: len(rest) - len(rest.lstrip())]
    return (mark + space + in_line(rest, LONGEST_LINE) + ("…" if len(line) > LONGEST_LINE else "")).rstrip()


def snippet(section: str, name: str, entry: object) -> str:
    """What a person can paste, secrets hidden."""
    return masked(json.dumps({section: {name: entry}}, indent=2, ensure_ascii=False))
