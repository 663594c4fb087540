"""Rate limits as they are written: `"60/minute per principal"` goes in, a `Rate` comes out; else SetupError."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from dovetail.errors import SetupError

Unit = Literal["second", "minute", "hour", "day"]
Per = Literal["all", "principal", "address"]

SECONDS: dict[Unit, int] = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
WHOSE: dict[Per, str] = {
    "all": "from all callers together",
    "principal": "from each caller",
    "address": "from each address",
}
WRITTEN = re.compile(rf"([1-9][0-9]{{0,8}})/({'|'.join(SECONDS)})(?: per (principal|address))?", re.ASCII)
FIX = (
    'write it as "60/minute": a whole number from 1, a slash, and second, minute, hour or day, '
    'with " per principal" or " per address" behind it if each has a limit of its own'
)


class Rate(msgspec.Struct, frozen=True):
    """So many calls in each second, minute, hour or day, of all callers together or of each."""

    count: int
    unit: Unit
    per: Per = "all"

    @property
    def seconds(self) -> int:
        return SECONDS[self.unit]

    def words(self, noun: str) -> str:
        return f"{self.count} {noun}{'' if self.count == 1 else 's'} per {self.unit} {WHOSE[self.per]}"


def parse_rates(given: str | Sequence[str] | None, where: str) -> tuple[Rate, ...]:
    """One rate, or a list of several that all hold; None is none."""
    if given is None:
        return ()
    if not isinstance(given, (str, list, tuple)):
        raise SetupError(f"{where}: rate_limit={given!r} is not possible; {FIX}, or a list of such strings")
    rates = tuple(_parse(each, where) for each in ([given] if isinstance(given, str) else given))
    if len({(rate.unit, rate.per) for rate in rates}) < len(rates):
        raise SetupError(f"{where}: rate_limit={given!r} limits the same thing twice; keep the lower one")
    return rates


def _parse(text: Any, where: str) -> Rate:
    match = WRITTEN.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise SetupError(f"{where}: rate_limit={text!r} is not possible; {FIX}")
    count, unit, per = match.groups(default="all")
    return msgspec.convert({"count": int(count), "unit": unit, "per": per}, Rate)
