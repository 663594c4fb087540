"""Where a browser may be sent: a redirect URI comes in, and whether it is one that may be registered, or was."""

import re
from collections.abc import Iterable
from urllib.parse import unquote, urlencode, urlsplit

MAX_REDIRECT = 2000  # characters
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

_ALLOWED = re.compile(r"[!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]+")  # no blanks, quotes, backslashes, angle brackets
_NATIVE = re.compile(r"(http://(?:127\.0\.0\.1|localhost|\[::1\]))(?::[0-9]{1,5})?((?:[/?].*)?)")


def why_not_registrable(uri: object) -> str | None:
    """What is wrong with a redirect URI, in words; None if it may be registered."""
    if not isinstance(uri, str) or not 0 < len(uri) <= MAX_REDIRECT:
        return f"a redirect URI is a text of at most {MAX_REDIRECT} characters"
    return why_not_a_url(uri, "a redirect URI")


def why_not_a_url(uri: str, noun: str) -> str | None:
    """HTTPS, or HTTP to this machine; nothing in it that one program reads like this and another like that."""
    if not _ALLOWED.fullmatch(uri) or "#" in uri:
        return f"{noun} has no fragment, blanks or other odd characters"
    try:
        parts = urlsplit(uri)
        name, _ = parts.hostname, parts.port
    except ValueError:
        return f"{noun} must be a whole URL"
    if not name:
        return f"{noun} must be a whole URL, https://… or, on the user's own machine, http://127.0.0.1/…"
    if "@" in parts.netloc or "*" in parts.netloc:
        return f"{noun} names a host, without a user or wildcards"
    if parts.scheme != "https" and not _NATIVE.fullmatch(uri):
        return f"{noun} must be https, or http to 127.0.0.1, localhost or [::1]"
    if {".", ".."} & set(unquote(parts.path).replace("\\", "/").split("/")):
        return f"{noun} has no . or .. in its path"
    return None


def is_registered(uri: str, registered: Iterable[str]) -> bool:
    """Exactly, letter by letter; but programs on the user's own machine take any port (RFC 8252, 7.3)."""
    native = _without_port(uri)
    return any(uri == each or (native is not None and native == _without_port(each)) for each in registered)


def is_loopback(uri: str) -> bool:
    return name_of(uri) in LOOPBACK


def host_of(uri: str) -> str:
    return urlsplit(uri).netloc


def name_of(uri: str) -> str | None:
    """The host without its port."""
    return urlsplit(uri).hostname


def with_parameters(uri: str, **parameters: str | None) -> str:
    joint = "&" if "?" in uri else "?"
    return uri + joint + urlencode({name: value for name, value in parameters.items() if value is not None})


def _without_port(uri: str) -> tuple[str, str] | None:
    """Nothing but the port may differ, so what stands around it is compared as it is."""
    found = _NATIVE.fullmatch(uri)
    return None if found is None else (found[1], found[2])
