"""Arithmetic, dice and seventy-five fortunes: the functions behind the reference server's tools."""

import math
import operator
import re
import secrets
from decimal import Decimal
from typing import Literal

Category = Literal["love", "career", "health", "wealth", "general"]
Mood = Literal["optimistic", "mysterious", "cautious"]

FORTUNES: dict[str, dict[str, tuple[str, ...]]] = {
    "love": {
        "optimistic": (
            "Someone smiles when your name comes up. Find out who.",
            "A kind word you say this week comes back to you twofold.",
            "The next long walk will be better in company.",
            "An old affection is about to bloom again.",
            "Your heart already knows the answer, and it is yes.",
        ),
        "mysterious": (
            "A letter that was never sent is still on its way to you.",
            "Two shadows meet at a door that you have walked past many times.",
            "The one you think of at dusk has a secret shaped like yours.",
            "What the left hand hides, the right hand is about to offer.",
            "Listen for a familiar song in an unfamiliar street.",
        ),
        "cautious": (
            "Read the message again tomorrow before you answer it.",
            "Not every silence is a promise; ask before you hope.",
            "Give your trust in small coins first.",
            "A quick yes may cost you a slow year.",
            "Look at what they do when they feel unwatched.",
        ),
    },
    "career": {
        "optimistic": (
            "The work you did quietly is about to be noticed aloud.",
            "A door that looked locked only needs a push.",
            "Your next idea is worth more than the last ten.",
            "Someone is looking for exactly what you can do.",
            "The promotion begins with the task that no one wants.",
        ),
        "mysterious": (
            "An empty chair at a long table has your name under it.",
            "A number you have seen three times this week is an address.",
            "The person who says least in the meeting decides it.",
            "What you delete today will be asked for in spring.",
            "The map is wrong, but the road is real.",
        ),
        "cautious": (
            "Put it in writing before you shake hands.",
            "Count the hours, not only the honours.",
            "Do not leave the boat before you have seen the harbour.",
            "A rival's praise is a question in disguise.",
            "Ask who pays when the plan does not work.",
        ),
    },
    "health": {
        "optimistic": (
            "Strength returns with the early light.",
            "Your body forgives faster than you do; let it.",
            "A small habit begun this week will outlive the year.",
            "Laughter is already on its way to your ribs.",
            "The long tiredness is nearly over.",
        ),
        "mysterious": (
            "Water remembers the road you forgot.",
            "A dream of stairs is asking you to climb them.",
            "The herb you step on is the one you need.",
            "Your breath counts something that you do not.",
            "There is a bench in the sun that knows your step.",
        ),
        "cautious": (
            "Sleep before you decide that you do not need to.",
            "The ache that whispers now may shout later; listen.",
            "Even good medicine comes in a measured spoon.",
            "Rest is not what remains when all is done.",
            "Do not race a younger version of yourself.",
        ),
    },
    "wealth": {
        "optimistic": (
            "Financial opportunities are heading your way.",
            "A small sum put aside today has grand plans.",
            "What you lent will find its way home.",
            "Your patience is about to pay interest.",
            "The bargain you hesitate over is a good one.",
        ),
        "mysterious": (
            "A coin you lost has been travelling towards you all along.",
            "The vault has two doors, and you stand between them.",
            "Gold sleeps where the paper is thinnest.",
            "Someone counts in the dark and arrives at your number.",
            "The third offer is the first one, dressed differently.",
        ),
        "cautious": (
            "Read the small print by daylight.",
            "A fast gain keeps slow company with loss.",
            "Leave one purse at home.",
            "What everyone buys today someone will have to sell.",
            "Keep a winter's worth before you plan a summer.",
        ),
    },
    "general": {
        "optimistic": (
            "Good news is closer than the postman thinks.",
            "The wind turns in your favour before the week does.",
            "You will soon be glad of a detour.",
            "A stranger brings the missing piece.",
            "What began badly is about to end well.",
        ),
        "mysterious": (
            "Three birds, two windows, one answer.",
            "The clock that stopped is right about you.",
            "Something you own is waiting to be found by you.",
            "The question changes when you say it aloud.",
            "Follow the colour that you keep noticing.",
        ),
        "cautious": (
            "Knock twice before you enter and once before you leave.",
            "Not every open gate leads to a garden.",
            "Keep a copy of what you cannot replace.",
            "The shortest way has the sharpest corner.",
            "Let the dust settle before you call it snow.",
        ),
    },
}


# ── arithmetic and dice ──

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
    exponent = len(digits) - 1 + int(shortest.exponent)  # the power of ten of the first digit
    if exponent >= 21 or exponent < -6:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}e{'+' if exponent > 0 else '-'}{abs(exponent)}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    integer, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return f"{sign}{integer}.{fraction}" if fraction else f"{sign}{integer}"


def plain_number(value: float) -> int | float:
    """An integral double as an integer, so that JSON shows 5 and not 5.0."""
    return int(value) if value.is_integer() and abs(value) < 2**63 else value


def compute(operation: str, a: float, b: float) -> float:
    """Raises ValueError with a message for the client."""
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
    """Count, sides and modifier of `2d6+3`. Raises ValueError with a message for the client."""
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
