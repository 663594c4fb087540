"""`WWW-Authenticate`: the headers of a refusal come in, and what they tell a client that wants a token goes out."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dovetail.protocol.scopes import read_scopes

MAX_CHALLENGES = 20
_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_PART = re.compile(rf'({_TOKEN})(?:[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}(?=[ \t,]|$))))?')
_ESCAPED = re.compile(r"\\(.)")


class Challenge(NamedTuple):
    """One of them: its scheme, and its parameters under names in small letters."""

    scheme: str
    parameters: dict[str, str]


class Told(NamedTuple):
    """What matters in all of them."""

    error: str | None = None
    scopes: frozenset[str] = frozenset()
    resource_metadata: str | None = None


def read_challenges(headers: Iterable[str]) -> list[Challenge]:
    """RFC 9110, 11.6.1: one header may hold several. What can't be read is passed over."""
    found: list[Challenge] = []
    for header in headers:
        for part in _PART.finditer(header):
            name, quoted, plain = part.groups()
            value = _ESCAPED.sub(r"\1", quoted) if quoted is not None else plain
            if value is None:
                found.append(Challenge(name.lower(), {}))
            elif found:
                found[-1].parameters.setdefault(name.lower(), value)
    return found[:MAX_CHALLENGES]


def read_told(headers: Iterable[str], schemes: Sequence[str]) -> Told:
    """By the challenges of these schemes; where several say something, the first scheme counts."""
    known = [challenge for scheme in schemes for challenge in read_challenges(headers) if challenge.scheme == scheme]

    def first(name: str) -> str | None:
        return next((each.parameters[name] for each in known if name in each.parameters), None)

    return Told(first("error"), read_scopes(first("scope")), first("resource_metadata"))
