"""A docstring in Google, NumPy or Sphinx style goes in; its prose and a description for each parameter come out."""

import re
from collections.abc import Iterator

_ARGUMENTS = frozenset({"args", "arguments", "parameters", "params", "keyword args", "keyword arguments"})
_ARGUMENTS |= frozenset({"other parameters"})
_DROPPED = frozenset({"returns", "return", "yields", "yield", "raises", "raise", "except", "exceptions"})

_GOOGLE_ENTRY = r"\*{0,2}(?P<name>\w+) *(?:\([^)]*\))? *:(?: +|$)(?P<text>.*)"
_NUMPY_ENTRY = r"(?P<names>\*{0,2}\w+(?: *, *\*{0,2}\w+)*) *(?::.*)?$"
_SPHINX_FIELD = r":(?P<kind>\w+)(?: +(?P<about>[^:]+))?:(?: +|$)(?P<text>.*)"
_SPHINX_ARGUMENTS = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})
_SPHINX_DROPPED = frozenset({"type", "return", "returns", "rtype", "raises", "raise", "except", "exception", "yields"})


def split_docstring(text: str) -> tuple[str | None, dict[str, str]]:
    """The prose (None if there is none) and what the docstring says about each parameter."""
    prose: list[str] = []
    descriptions: dict[str, str] = {}
    for title, lines in _sections(text.splitlines()):
        if title in _ARGUMENTS:
            descriptions.update(_described(lines))
        elif title not in _DROPPED:
            prose.extend(_without_sphinx_fields(lines, descriptions))
    summary = re.sub(r"\n{3,}", "\n\n", "\n".join(prose)).strip()
    return summary or None, descriptions


def _sections(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Cut at the headings we know; the text before and between them has the title ""."""
    title, body, numpy, at = "", list[str](), False, 0
    while at < len(lines):
        heading, is_numpy = _heading(lines, at)
        if heading or (title and not numpy and _is_flush(lines[at])) or (title and numpy and _underlined(lines, at)):
            yield title, body
            title, body, numpy = heading, [], is_numpy
            at += 2 if is_numpy else 1
            if not heading:  # ordinary text ends the section
                body.append(lines[at - 1])
            continue
        body.append(lines[at])
        at += 1
    yield title, body


def _heading(lines: list[str], at: int) -> tuple[str, bool]:
    """The known heading that starts on this line, and whether it is underlined; ("", False) if none does."""
    line = lines[at].strip()
    word = line.removesuffix(":").lower()
    if not _is_flush(lines[at]) or word not in _ARGUMENTS | _DROPPED:
        return "", False
    if _underlined(lines, at):
        return word, True
    return (word, False) if line.endswith(":") else ("", False)


def _underlined(lines: list[str], at: int) -> bool:
    rule = lines[at + 1].strip() if at + 1 < len(lines) else ""
    return _is_flush(lines[at]) and len(rule) >= 3 and not rule.strip("-")


def _is_flush(line: str) -> bool:
    return bool(line) and not line[0].isspace()


def _described(lines: list[str]) -> dict[str, str]:
    """The entries of an argument section: `name (type): text`, or `name : type` with the text indented below."""
    filled = [line for line in lines if line.strip()]
    if not filled:
        return {}
    margin = min(len(line) - len(line.lstrip()) for line in filled)
    is_numpy = margin == 0
    texts: dict[str, list[str]] = {}
    current: list[str] = []
    for line in filled:
        if len(line) - len(line.lstrip()) > margin:
            current.append(line.strip())
            continue
        current = []
        match = re.match(_NUMPY_ENTRY if is_numpy else _GOOGLE_ENTRY, line.strip())
        if match is None:
            continue
        if is_numpy:
            names = [name.strip(" *") for name in match["names"].split(",")]
        else:
            names = [match["name"]]
            current.append(match["text"].strip())
        texts.update(dict.fromkeys(names, current))
    return {name: joined for name, parts in texts.items() if (joined := " ".join(parts).strip())}


def _without_sphinx_fields(lines: list[str], descriptions: dict[str, str]) -> Iterator[str]:
    """The lines that are no `:param x:`-like field; those fields fill `descriptions`."""
    inside, name = False, ""
    for line in lines:
        match = re.match(_SPHINX_FIELD, line) if line.startswith(":") else None
        kind = match["kind"] if match else ""
        if match and kind in _SPHINX_ARGUMENTS and match["about"]:
            inside, name = True, match["about"].split()[-1].lstrip("*\\")
            descriptions[name] = match["text"].strip()
        elif match and kind in _SPHINX_DROPPED:
            inside, name = True, ""
        elif inside and line[:1].isspace() and line.strip():
            if name:
                descriptions[name] = f"{descriptions[name]} {line.strip()}".strip()
        else:
            inside = False
            yield line
