r"""A `pattern` comes in, as some server wrote it; why no client can read it goes out.

JSON Schema has the regular expressions of ECMAScript, which Python's `re` does not know: it refuses `\p{L}` and
`\k<name>`, and warns of `[[a]`. So only what is certainly wrong is looked for: brackets that do not match, a backslash
at the end, and groups that ECMAScript does not have.
"""

import re

_PIECE = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(\?|[()\[\\]", re.DOTALL)  # whatever opens, closes or hides something
_GROUP = re.compile(r"\(\?(?:[:=!]|<[=!]|<[^<>()]+>|[ims]*(?:-[ims]*)?:)")
_UNKNOWN = re.compile(r"\(\?(?:[a-zA-Z-]+\)|.?)", re.DOTALL)  # as much of a group as says what it was meant to be


def fault_of(pattern: str) -> str:
    """What is wrong with it; nothing if it may be right."""
    depth = 0
    for piece in _PIECE.finditer(pattern):
        match piece[0]:
            case "(?" if not _GROUP.match(pattern, piece.start()):
                unknown = _UNKNOWN.match(pattern, piece.start())
                return f"{unknown[0] if unknown else '(?'} is not for JSON Schema"
            case "(" | "(?":
                depth += 1
            case ")" if depth == 0:
                return "a ) without its ("
            case ")":
                depth -= 1
            case "[":
                return "a [ without its ]"
            case "\\":
                return "a \\ with nothing behind it"
    return "a ( without its )" if depth else ""
