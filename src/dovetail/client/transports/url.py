"""URLs of servers and headers of users, checked; requests go to the origin of the URL and to no other.

A URL with a user and password is refused, because URLs end up in logs: credentials belong in `headers=`. One with a
fragment is refused too, because no server would ever see that part.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

from dovetail.errors import BadAnswer, SetupError

PORTS = {"http": 80, "https": 443}
OUR_OWN_HEADERS = frozenset(
    {"accept", "accept-encoding", "connection", "content-length", "content-type", "last-event-id", "transfer-encoding"}
)
_SHOWN = 200  # characters of a URL that an error repeats
_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f\\]")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")

_Origin = tuple[str, str, int]


class ServerUrl(NamedTuple):
    """A checked URL."""

    url: str
    origin: _Origin

    @classmethod
    def of(cls, url: str) -> "ServerUrl":
        split, problem = _read(url)
        if split is None:
            raise SetupError(f"Client: can't connect to {_public(url)!r}: {problem}")
        if split.username is not None or split.password is not None:
            raise SetupError(
                "Client: the URL holds a user or a password; leave them out and use "
                'headers={"Authorization": "Basic …"} instead'
            )
        if split.fragment:
            raise SetupError("Client: the URL has a part after #, which no server sees; leave it out")
        return cls(url, _origin(split))

    @property
    def shown(self) -> str:
        """Without the query, which may hold secrets."""
        return self.url.partition("?")[0][:_SHOWN]

    def join(self, reference: str, base: str | None = None) -> str:
        """A URL that the server names, relative or not; BadAnswer if it leads to another origin."""
        try:
            url = reference if _NOT_IN_A_URL.search(reference) else urljoin(base or self.url, reference)
        except ValueError:
            url = reference
        split, problem = _read(url)
        if split is None or split.username is not None or split.password is not None:
            raise BadAnswer(f"the server names {_public(reference)!r}, which can't be used: {problem or 'credentials'}")
        if _origin(split) != self.origin:
            raise BadAnswer(
                f"the server names {_public(reference)!r}, which is another origin; use that URL if you trust it"
            )
        return split._replace(fragment="").geturl()


def page_url(url: str) -> str | None:
    """A page as it may be shown to a person and opened, with its host as that is looked up (`xn--…`).

    None if it is no page of the web, or if something stands before its host: `https://bank.example@evil.example`.
    """
    split, _ = _read(url)
    try:
        host = "" if split is None else (split.hostname or "").encode("idna").decode().lower()
    except UnicodeError:
        return None
    if split is None or "@" in split.netloc or not re.fullmatch(r"[a-z0-9._:-]+", host):
        return None
    place = (f"[{host}]" if ":" in host else host) + ("" if split.port is None else f":{split.port}")
    return url if place == split.netloc else split._replace(netloc=place).geturl()


def _public(url: str) -> str:
    """What may be shown of one that can't be used: no query, and nothing of where a password may be."""
    scheme, divided, _ = url.partition("://")
    shown = f"{scheme if divided else ''}{divided}…" if "@" in url else url
    return re.split("[?#]", shown, maxsplit=1)[0][:_SHOWN]


def _read(url: str) -> tuple[SplitResult | None, str]:
    """The parts of a usable URL, or what is wrong with it."""
    if _NOT_IN_A_URL.search(url):
        return None, "it holds spaces, backslashes or control characters"
    try:
        split = urlsplit(url)
        _origin(split)
    except KeyError:
        return None, "a URL has to begin with http:// or https://"
    except ValueError:
        return None, "its host or its port can't be read"
    return (split, "") if split.hostname else (None, "it has no host")


def _origin(split: SplitResult) -> _Origin:
    default = PORTS[split.scheme]
    return split.scheme, (split.hostname or "").lower(), split.port if split.port is not None else default


def checked_headers(headers: Mapping[Any, Any]) -> dict[str, str]:
    """Headers of the user's that go out with every request; SetupError for what can't or must not be one."""
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise SetupError(f"Client: headers={{{name!r}: …}}: that is not the name of a header")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise SetupError(f"Client: headers={{{name!r}: …}}: the value must be one line of plain ASCII text")
        if name.lower() in OUR_OWN_HEADERS or name.lower().startswith("mcp-"):
            raise SetupError(f"Client: headers={{{name!r}: …}}: the client sets that one itself")
    return dict(headers)
