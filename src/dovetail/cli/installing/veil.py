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

from dovetail.cli.installing.servers import SUBCOMMANDS, is_launcher

HIDDEN = "***"
LONGEST_WORD = 200
SHORTEST_RANDOM = 16
LETTERS_PER_TURN = 5  # fewer are random: between two changes of letters to digits, or of small letters to capitals
NAME, VALUE, SECRET = "name", "value", "secret"
FOLLOWED_BY = {  # options of the usual launchers, before the name of what is launched, and what comes behind them
    **dict.fromkeys(("-y", "--yes", "-q", "-i", "-t", "-it", "--rm", "-m"), NAME),
    **dict.fromkeys(("--from", "--with", "--package", "--directory"), VALUE),
    **dict.fromkeys(("-e", "--env"), SECRET),
}

_REFERENCE = re.compile(r"\$\{(?:[a-z]+:)?[A-Za-z_][\w-]*\}")  # to what stands elsewhere
_OPTION = re.compile(r"(?P<name>--[A-Za-z][\w.-]*|-[A-Za-z]{1,2}(?=$|=))(?P<value>=.*)?", re.DOTALL)
_NAMED = re.compile(  # `name=…`, `name;…`, `name: …`, and `token:…`, but not `image:tag`
    r"(?P<name>[^=;:@\s{\[]+)(?P<sign>[=;]|:\s"
    + "".join(rf"|(?<={word}):" for word in ("token", "tokens", "secret", "key", "password", "passwd", "pwd", "bearer"))
    + ").*",
    re.DOTALL | re.IGNORECASE,
)
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]*://")
_OPAQUE = re.compile(r"[\s{\[=;]|[^/]:[^/]*@")  # several words, a document, or somebody and their password
_MARKED = re.compile(  # nobody has chosen these letters to be read
    r"(?:\b|(?<=_))(?:sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abps]-|hf_|npm_|pat_|AKIA|AIza|eyJ)."
    r"|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,}|[A-Za-z]{40,}"
)
_TURN = re.compile(r"(?<=[a-z])[A-Z]|(?<=[A-Za-z])[0-9]|(?<=[0-9])[A-Za-z]")
_CLASSES = tuple(map(re.compile, ("[a-z]", "[A-Z]", "[0-9]")))


def veiled(entry: Any) -> Any:
    """The entry with all hidden that may be secret. If nothing was, it equals what came in."""
    if not isinstance(entry, Mapping):
        return _value(entry)
    shown = {key: _SHOWN.get(key, _names)(value) for key, value in entry.items()}
    if isinstance(entry.get("args"), list):
        shown["args"] = _words(entry["args"], entry.get("command"))
    return shown


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


def _words(words: list[Any], command: Any) -> list[Any]:
    """What comes behind an option is hidden, but for the launcher's own, which end where the name of a program is."""
    shown, follows, is_launching = [], NAME, isinstance(command, str) and is_launcher(command)
    for word in words:
        if isinstance(word, str) and word.startswith("-") and word != "--":
            shown.append(_option(word))
            is_whole = "=" in word
            is_launching = is_launching and (is_whole or word in FOLLOWED_BY)
            follows = NAME if is_whole else FOLLOWED_BY[word] if is_launching else SECRET
        else:
            shown.append(_value(word) if follows == SECRET else _word(word))
            is_launching = is_launching and (follows != NAME or word in SUBCOMMANDS)
            follows = NAME
    return shown


def _option(word: str) -> str:
    found = _OPTION.fullmatch(word)
    if found is None:
        return HIDDEN
    return _without_random(found["name"]) + (f"={HIDDEN}" if found["value"] else "")


def _word(word: Any) -> Any:
    if not isinstance(word, str) or _value(word) == word:
        return _value(word)
    return _address(word) if _ADDRESS.match(word) else _text(word)


def _text(text: str) -> str:
    if found := _NAMED.fullmatch(text):
        return f"{_without_random(found['name'])}{found['sign']}{HIDDEN}"
    if (text.startswith("-") and text != "--") or len(text) > LONGEST_WORD or _OPAQUE.search(_REFERENCE.sub("", text)):
        return HIDDEN
    return _without_random(text)


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    known, at, place = parts.netloc.rpartition("@")
    asked = "&".join(f"{name}={HIDDEN}" if is_set else HIDDEN for name, is_set, _ in _questions(parts.query))
    shown = (
        f"{parts.scheme}://{HIDDEN + at if known else ''}{place}{parts.path[:1]}{_text(parts.path[1:])}"
        f"{'?' + asked if asked else ''}{'#' + HIDDEN if parts.fragment else ''}"
    )
    return shown if HIDDEN in shown else url


def _questions(query: str) -> list[tuple[str, str, str]]:
    return [each.partition("=") for each in query.split("&")] if query else []


def _without_random(text: str) -> str:
    """Each part of a path is shown as a whole, or not at all."""
    return re.sub(r"[^/\\]+", lambda part: HIDDEN if _is_random(part[0]) else part[0], text)


def _is_random(part: str) -> bool:
    bare = _REFERENCE.sub("", part)
    return bool(_MARKED.search(bare)) or any(map(_is_mixed, re.split(r"[.:@+~,]", bare)))


def _is_mixed(text: str) -> bool:
    """Long, and of all kinds of letters, or with more changes between them than a name has."""
    if len(text) < SHORTEST_RANDOM:
        return False
    turns = len(_TURN.findall(text))
    return all(kind.search(text) for kind in _CLASSES) or turns * LETTERS_PER_TURN >= len(text)


_SHOWN = {"type": _word, "command": _word, "url": _word, "httpUrl": _word}
