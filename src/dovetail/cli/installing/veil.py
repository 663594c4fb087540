"""The entry of a server comes in; what may be shown of it on a terminal goes out.

Not what sounds like a secret is hidden, but all that is not known to be none: of variables, headers and unknown keys
only the names are shown; of a command its words, but not what follows an option; of an address neither who calls nor
what is asked for.
"""

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

HIDDEN = "***"
LONGEST_WORD = 200
# What follows these options of the usual launchers is a name, of a package or of a folder.
NAMING = {"-y", "--yes", "-q", "-i", "-t", "-it", "--rm", "-m", "--from", "--with", "--package", "--directory"}

_REFERENCE = re.compile(r"\$\{(?:[a-z]+:)?[A-Za-z_][\w-]*\}")  # to what stands elsewhere
_OPTION = re.compile(r"(?P<name>--[A-Za-z][\w.-]*|-[A-Za-z]{1,2}(?=$|=))(?P<value>=.*)?", re.DOTALL)
_SETTING = re.compile(r"(?P<name>[\w.-]+)=.*", re.DOTALL)
_HEADER = re.compile(r"(?P<name>[A-Za-z-]+):\s.*", re.DOTALL)
_OPAQUE = re.compile(r"[\s{\[]|[^/]:[^/]*@")  # several words, a document, or somebody and their password
_RANDOM = re.compile(  # nobody has chosen these letters to be read
    r"(?:\b|(?<=_))(?:sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abps]-|hf_|npm_|pat_|AKIA|AIza|eyJ)[^/\s]+"
    r"|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,}|[A-Za-z]{40,}"
)


def veiled(entry: Any) -> Any:
    """The entry with all hidden that may be secret. If nothing was, it equals what came in."""
    if not isinstance(entry, Mapping):
        return _value(entry)
    return {key: _SHOWN.get(key, _names)(value) for key, value in entry.items()}


def _names(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _value(inner) for name, inner in value.items()}
    return [_value(inner) for inner in value] if isinstance(value, list) else _value(value)


def _value(value: Any) -> Any:
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return value
    is_open = isinstance(value, str) and (_REFERENCE.fullmatch(value) or _are_places(value))
    return value if is_open else HIDDEN


def _are_places(value: str) -> bool:
    """A path of folders, such as a PYTHONPATH."""
    return all(os.path.isabs(part) and _exists(part) for part in value.split(os.pathsep))


def _exists(place: str) -> bool:
    """On this machine; the name of a server in a program counts as a part of it."""
    try:
        return os.path.exists(place) or os.path.exists(re.sub(r"(?<=\.py):[\w.]+$", "", place))
    except ValueError:
        return False


def _words(words: Any) -> Any:
    if not isinstance(words, list):
        return _names(words)
    shown, was_option = [], False
    for word in words:
        option = _OPTION.fullmatch(word) if isinstance(word, str) else None
        if option is not None:
            shown.append(_without_random(option["name"]) + (f"={HIDDEN}" if option["value"] else ""))
        else:
            shown.append(_value(word) if was_option else _word(word))
        was_option = option is not None and not option["value"] and word not in NAMING
    return shown


def _word(word: Any) -> Any:
    if not isinstance(word, str) or _value(word) == word:
        return _value(word)
    if "://" in word:
        return _url(word)
    for named, sign in ((_SETTING, "="), (_HEADER, ": ")):
        if found := named.fullmatch(word):
            return f"{found['name']}{sign}{HIDDEN}"
    if word.startswith("-") or _OPAQUE.search(word) or len(word) > LONGEST_WORD:
        return HIDDEN
    return _without_random(word)


def _url(url: Any) -> Any:
    if not isinstance(url, str):
        return _value(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    known, at, place = parts.netloc.rpartition("@")
    asked = "&".join(f"{name}={HIDDEN}" if is_set else HIDDEN for name, is_set, _ in _questions(parts.query))
    return (
        f"{parts.scheme}://{HIDDEN + at if known else ''}{place}{_without_random(parts.path)}"
        f"{'?' + asked if asked else ''}{'#' + HIDDEN if parts.fragment else ''}"
    )


def _questions(query: str) -> list[tuple[str, str, str]]:
    return [each.partition("=") for each in query.split("&")] if query else []


def _without_random(text: str) -> str:
    return _RANDOM.sub(HIDDEN, text)


_SHOWN = {"type": _word, "command": _word, "args": _words, "url": _url, "httpUrl": _url}
