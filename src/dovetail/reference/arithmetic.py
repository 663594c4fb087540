"""Arithmetic and dice as the reference tools do them: doubles, written the way JavaScript writes them."""

import math
import operator
import re
import secrets
from decimal import Decimal

OPERATIONS = {
    "add": ("+", operator.add),
    "subtract": ("-", operator.sub),
    "multiply": ("*", operator.mul),
    "divide": ("/", operator.truediv),
}
SIDES = (4, 6, 8, 10, 12, 20, 100)
MAX_DICE = 100
_NOTATION = re.compile(r"([0-9]{1,3})?d([0-9]{1,3})([+-][0-9]{1,15})?")


def number_text(value: float) -> str:
    """A double as JavaScript prints it: 5 and not 5.0, 0.00001 and not 1e-05, 1e+21 from there on."""
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    shortest = Decimal(repr(abs(value))).normalize().as_tuple()
    digits = "".join(map(str, shortest.digits))
    place = len(digits) - 1 + int(shortest.exponent)  # the power of ten of the first digit
    if place >= 21 or place < -6:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}e{'+' if place > 0 else '-'}{abs(place)}"
    if place < 0:
        return f"{sign}0.{'0' * (-place - 1)}{digits}"
    whole, rest = digits[: place + 1].ljust(place + 1, "0"), digits[place + 1 :]
    return f"{sign}{whole}.{rest}" if rest else f"{sign}{whole}"


def plain_number(value: float) -> int | float:
    """An integral double as an integer, so that JSON shows 5 and not 5.0."""
    return int(value) if value.is_integer() and abs(value) < 2**63 else value


def compute(operation: str, a: float, b: float) -> float:
    """Raises ValueError with a sentence for the caller."""
    if operation == "divide" and b == 0:
        raise ValueError("Division by zero is not allowed")
    try:
        result = float(OPERATIONS[operation][1](a, b))
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise ValueError("The result is too large")
    return result


def parse_dice(notation: str) -> tuple[int, int, int]:
    """Count, sides and modifier of `2d6+3`. Raises ValueError with a sentence for the caller."""
    trimmed = notation.strip().lower()
    if not trimmed:
        raise ValueError("Notation is required")
    found = _NOTATION.fullmatch(trimmed)
    count = int(found[1] or 1) if found else 0
    if found is None or not 1 <= count <= MAX_DICE or int(found[2]) not in SIDES:
        shown = notation if len(notation) <= 40 else notation[:40] + "…"
        raise ValueError(
            f'Invalid dice notation "{shown}". Use [count]d[sides][+/-modifier] with a count from 1 to {MAX_DICE}, '
            f"{', '.join(map(str, SIDES))} sides and a modifier of at most 15 digits, "
            "for example d20, 2d6, 3d8+5 or 1d100-10"
        )
    return count, int(found[2]), int(found[3] or 0)


def dice_text(count: int, sides: int, modifier: int) -> str:
    return f"{count}d{sides}{modifier:+d}" if modifier else f"{count}d{sides}"


def roll(count: int, sides: int) -> list[int]:
    return [secrets.randbelow(sides) + 1 for _ in range(count)]
