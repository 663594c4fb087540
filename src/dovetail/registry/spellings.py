"""The spellings of a URI: one comes in, those that mean the same go out.

`%73` is an `s` and `%2B` may be a plus, a scheme may have capitals, and `.` and `..` lead where they lead.
"""

import posixpath
import re
from urllib.parse import quote, unquote

_RAW = ":/?#[]@!$&'()*+,;="  # as they are where they stand; unreserved characters are never escaped
_PLAIN = re.compile(rf"[a-z0-9+.-]*(?::[A-Za-z0-9._~{re.escape(_RAW)}-]*)?")
_PARTING = re.compile(r"(%(?:2F|3F|23))", re.IGNORECASE)  # a slash, a question mark, a hash
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PATH = re.compile(r"([^:/?#]*:(?://)?/?)([^?#]*)(.*)", re.DOTALL)


def plainest(uri: str) -> str:
    """The spelling with the fewest escapes. Different things may share it, but no thing has two."""
    return uri if _PLAIN.fullmatch(uri) else _with_small_scheme(few_escapes(uri))


def plain_in_parts(uri: str) -> str:
    """The same, but for the escapes without which it would fall apart differently, as `%2F` and `%3F`."""
    return uri if _PLAIN.fullmatch(uri) else _with_small_scheme(few_escapes_in_parts(uri))


def _with_small_scheme(uri: str) -> str:
    scheme = _SCHEME.match(uri)
    return uri if scheme is None else scheme[0].lower() + uri[scheme.end() :]


def few_escapes(text: str) -> str:
    try:
        return quote(unquote(text, errors="strict"), safe=_RAW)
    except UnicodeError:  # no text at all: it is no spelling of anything else
        return text


def few_escapes_in_parts(text: str) -> str:
    return "".join(part if place % 2 else few_escapes(part) for place, part in enumerate(_PARTING.split(text)))


def spelled_plainly(uri: str) -> list[str]:
    """The ways to spell it that a template with a rule may be able to read, which reads its own escapes."""
    found = [uri] if _PLAIN.fullmatch(uri) else [plainest(uri), plain_in_parts(uri), uri]
    return [*found, *map(without_detours, found)]


def without_detours(uri: str) -> str:
    """As a file system reads it: `.` and `..` lead where they lead, and a second slash adds nothing."""
    found = _PATH.fullmatch(uri)
    if found is None:
        return uri
    begin, path, end = found.groups()
    if "//" not in path and "/." not in path and not path.startswith((".", "/")):
        return uri
    slash = "/" if path.endswith("/") else ""
    return begin + posixpath.normpath("/" + path.lstrip("/")).removeprefix("/") + slash + end
