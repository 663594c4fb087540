"""How one URI template reads what another one stands for: two templates come in, the texts that both have go out.

`n://item/{id}/{part}` reads the texts of `n://item/7.0/{name}` with `7.0` for `id` and anything for `part`. So whoever
asks it for `n://item/7/x` asks for what the other one would be asked for as `n://item/7.0/x`, if `id` is a number.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from urllib.parse import unquote

from dovetail.errors import SetupError
from dovetail.protocol.uri import UriTemplate, Value

KEPT = 4_096  # forms of templates; to make one takes longer than to use it
ANYTHING = "0any7thing0"  # stands for whatever a variable holds

_EXPRESSION = re.compile(r"(\{[^{}]*\})")
_SLASH = re.compile(r"/(?![^{}]*\})")  # that is not in an expression
_ONE_VARIABLE = re.compile(r"\{(\w+)\}(?:\{[?;#].*)?")
_MERE_TEXT = re.compile(r"([^{}]+)(?:\{[?;#].*)?")

Texts = dict[str, Value | None]  # None: there is none in the URI


def fixed_texts(reader: UriTemplate, other: UriTemplate) -> Texts | None:
    """The texts that the reader finds in all URIs that both have, for those of its variables that have one there."""
    anything = _anything(other)
    for known in ({}, dict(_facing(reader.text, other.text))):
        texts = reader.match(other.expand({**anything, **known}))
        if texts is not None:
            return {name: texts.get(name) for name in reader.variables if not _is_anything(texts.get(name))}
    return None


def _facing(reader: str, other: str) -> Iterator[tuple[str, str]]:
    """The variables of the other one that are a whole segment, where the reader has mere text for it."""
    for mine, theirs in zip(_SLASH.split(reader), _SLASH.split(other), strict=False):
        variable, text = _ONE_VARIABLE.fullmatch(theirs), _MERE_TEXT.fullmatch(mine)
        if variable is not None and text is not None:
            yield variable[1], unquote(text[1])


def _anything(template: UriTemplate) -> dict[str, Value]:
    return {name: [ANYTHING] if name in template.exploded else ANYTHING for name in template.variables}


def _is_anything(value: Value | None) -> bool:
    if isinstance(value, dict):
        return ANYTHING in "".join([*value, *value.values()])
    return value is not None and ANYTHING in "".join(value)


@lru_cache(KEPT)
def respelled(text: str, spell: Callable[[str], str]) -> UriTemplate | None:
    """The template with another spelling of what is mere text in it; None if that is the same, or could not match."""
    parts = _EXPRESSION.split(text)
    spelled = "".join(part if place % 2 else spell(part) for place, part in enumerate(parts))
    if spelled == text:
        return None
    template = UriTemplate(spelled)
    try:
        template.check_matchable()
    except SetupError:
        return None
    return template


def together(texts: Mapping[str, Value], fixed: Texts) -> dict[str, Value]:
    """The texts of a URI that has the fixed ones."""
    return {name: text for name, text in {**texts, **fixed}.items() if text is not None}
