"""A value comes in; whether the schema engine can be trusted with it, and a few words about it, go out."""

import itertools
import math
from collections.abc import Iterable
from types import NoneType
from typing import Any

import msgspec

Step = str | int

_NAMES = frozenset({str})
_PLAIN = frozenset({str, bool, NoneType})
_JSON_TYPES = frozenset({*_PLAIN, dict, list, tuple, int, float})
FLOOR, _MOST, _NODE = 10_000, 32 * 1024, 64  # for any value; nodes that earn more; characters
_LARGEST = 14_000  # bits of an integer; beyond 4,300 digits Python and the engine lose count
SHOWN = 20  # lines, and names or values in a line


class Problem(msgspec.Struct, frozen=True):
    """Something wrong at a path; `types` and `values` are what a wrong choice could have been."""

    path: tuple[Step, ...]
    text: str
    types: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


MISFIT = Problem((), "does not fit the schema")
UNSAID = "there may be more that is wrong, but it is too large to be explained any further"


class Budget:
    """What it may cost to read a value again and to say what is wrong with it: three times its nodes, and a floor.

    To look at a value with one part of a schema costs one; to compare it as a whole, all the nodes that are in it.
    """

    class Spent(Exception):
        """It does not reach any further."""

    def __init__(self, value: Any, most: float = _MOST) -> None:
        self.nodes = size(value)  # grows when a text turns out to hold another value
        self._most = most
        self.spent = 0
        self.is_spent = False
        self.is_explained = False  # whether anything is known to be wrong but that it does not fit

    def spend(self, nodes: int = 1) -> None:
        self.is_spent = self.is_spent or self.spent + nodes > FLOOR + 3 * min(self.nodes, self._most)
        if self.is_spent:
            raise self.Spent
        self.spent += nodes


def size(value: Any) -> int:
    """The nodes of a value: JSON values, and 64 characters of a text or of names count as one more."""
    if isinstance(value, dict):
        return 1 + sum(map(len, value)) // _NODE + sum(map(size, value.values()))
    if isinstance(value, (list, tuple)):
        return 1 + sum(map(size, value))
    return 1 + len(value) // _NODE if isinstance(value, str) else 1


def is_sound(value: Any, deepest: int, longest_name: int | None) -> bool:
    """Whether the engine can be trusted with a value: not too deep, no number or name that it can't handle."""
    stack: list[tuple[int, Iterable[Any]]] = [(0, (value,))]
    while stack:
        depth, values = stack.pop()
        for item in values:
            kind = type(item)
            if kind in _PLAIN:
                continue
            if kind is dict or kind is list or isinstance(item, (dict, list, tuple)):
                if depth == deepest or _wrong_name(item, longest_name):
                    return False
                inner = item.values() if isinstance(item, dict) else item
                if not _PLAIN.issuperset(map(type, inner)):
                    stack.append((depth + 1, inner))
            elif isinstance(item, int):
                if item.bit_length() > _LARGEST:
                    return False
            elif not isinstance(item, float) or not math.isfinite(item):
                return False
    return True


def _wrong_name(item: Any, longest: int | None) -> str:
    if not isinstance(item, dict):
        return ""
    if not _NAMES.issuperset(map(type, item)):
        return "has a name that is not a string"
    if longest and max(map(len, item), default=0) > longest:
        return f"has a name of more than {longest} characters"
    return ""


def oddities(value: Any, deepest: int, *, longest_name: int | None = None, largest: float = math.inf) -> list[Problem]:
    """What JSON can't say or the engine can't take; at the first sign of boundless depth or size nothing else."""
    found: list[Problem] = []
    stack: list[tuple[tuple[Step, ...], Any]] = [((), value)]
    while stack and len(found) <= SHOWN:
        path, item = stack.pop()
        reason = _wrong_name(item, longest_name) or _oddity(item)
        largest -= 2 + (len(item) if isinstance(item, str) else 0)
        if reason:
            found.append(Problem(path, reason))
        elif largest < 0:
            return [Problem((), "is too large")]
        elif isinstance(item, (dict, list, tuple)):
            if len(path) == deepest:
                return [Problem((), f"is nested deeper than {deepest} levels")]
            largest -= sum(map(len, item)) if isinstance(item, dict) else 0
            pairs = item.items() if isinstance(item, dict) else enumerate(item)
            stack += [((*path, step), inner) for step, inner in reversed(list(pairs))]
    return found


def _oddity(item: Any) -> str:
    if isinstance(item, float) and not math.isfinite(item):
        return "is not a finite number"
    if isinstance(item, int) and item.bit_length() > _LARGEST:
        return "is too large a number"
    if isinstance(item, str) and not _is_unicode(item):
        return "holds half a surrogate pair, which is not a character"
    if isinstance(item, dict) and not all(map(_is_unicode, item)):
        return "has a name with half a surrogate pair, which is not a character"
    if type(item) not in _JSON_TYPES and not isinstance(item, (dict, list, tuple)):
        return f"is not a JSON value, but a Python object of the type {type(item).__name__}"
    return ""


def _is_unicode(text: str) -> bool:
    return text.isascii() or text.encode("utf-8", "replace").decode() == text


# Words


def readable(path: Iterable[Step], root: str) -> str:
    """`filter.tags[2]`"""
    text = ""
    for step in path:
        if isinstance(step, str) and step.replace("-", "_").isidentifier():
            text += f".{step[:80]}" if text else step[:80]
        else:
            text = (text or root) + f"[{excerpt(step)}]"
    return (text or root) if len(text) <= 300 else "…" + text[-300:]


def described(value: Any) -> str:
    if isinstance(value, (dict, list, tuple)):
        return "an object" if isinstance(value, dict) else "an array"
    kind = {str: "the string ", int: "the integer ", float: "the number "}.get(type(value), "")
    return kind + excerpt(value)


def listed(names: Iterable[str]) -> str:
    shown = [name if len(name) <= 80 else name[:79] + "…" for name in itertools.islice(names, SHOWN + 1)]
    return ", ".join(shown[:SHOWN] + ["…"] * (len(shown) > SHOWN))


def excerpt(value: Any) -> str:
    """A value as JSON, at most 80 characters of it."""
    text = msgspec.json.encode(_cut(value, 3), enc_hook=str).decode()
    return text if len(text) <= 80 else text[:79] + "…"


def _cut(value: Any, depth: int) -> Any:
    """Enough of a value to show, so that a large one costs nothing."""
    if isinstance(value, str):
        return value[:81].encode("utf-8", "replace").decode()
    if isinstance(value, (dict, list, tuple)) and not depth:
        return "…"
    if isinstance(value, dict):
        return {_cut(str(name), 1): _cut(part, depth - 1) for name, part in itertools.islice(value.items(), 20)}
    if isinstance(value, (list, tuple)):
        return [_cut(part, depth - 1) for part in value[:20]]
    return value
