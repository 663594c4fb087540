"""The way to authorization servers: URLs come in, and bounded JSON documents go out, or NotSignedIn.

Whom to ask is said by the MCP server, which may be anybody. So a server in the internet can't send us into the network
that we are in, no answer may be large or take long, and secrets go only over https, or to this machine if that is
where the MCP server is.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

import msgspec

from dovetail.auth import fetch
from dovetail.auth.fetch import Fetch, Fetched, FetchFailed, FetchRequest, make_fetch, names_this_machine
from dovetail.auth.jose import read_object
from dovetail.client.oauth.documents import OAuthProblem
from dovetail.errors import NotSignedIn
from dovetail.protocol.revisions import LATEST_HANDSHAKE

T = TypeVar("T")

SECONDS = 10.0  # for one answer
MAX_BYTES = 256 * 1024
MAX_REDIRECTS = 3
MAX_WORDS = 200  # characters of a stranger's that an error repeats
FORM = "application/x-www-form-urlencoded"


class OAuthAnswer(NamedTuple):
    """What a POST came to; the body as JSON, if it is some."""

    status: int
    headers: Mapping[str, str]
    body: dict[str, Any] | None

    def __repr__(self) -> str:
        return f"OAuthAnswer({self.status})"


class OAuthWeb:
    """For one MCP server. `inside`: those who are asked may be in a private network.

    That is for what the user has written down, and for what a server says that is in such a network itself.
    """

    def __init__(self, server_url: str, *, inside: bool = False) -> None:
        parts = urlsplit(server_url)
        self.is_local = names_this_machine(server_url)  # so that http to this machine is as good as the server itself
        if parts.scheme != "https" and not self.is_local:
            raise NotSignedIn(f"{shown(server_url)} is not https: whoever is on the way there could read the tokens")
        self._is_inside = inside or self.is_local
        self._fetch: Fetch | None = None

    async def document(self, url: str, kind: type[T]) -> T | None:
        """None if there is none; a page for people, or anything else of another shape, is none."""
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._ask(FetchRequest(url=url, headers={"MCP-Protocol-Version": LATEST_HANDSHAKE.name}))
            if answer.status not in (301, 302, 307, 308):
                break
            url = _followed(url, answer.headers.get("location", ""))
        if answer.status >= 500:
            raise NotSignedIn(f"{shown(url)} answered {answer.status}; try again later")
        return None if answer.status != 200 else read_as(answer.body, kind)

    async def post_form(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> OAuthAnswer:
        return await self._post(url, urlencode(form).encode(), {**headers, "Content-Type": FORM})

    async def post_json(self, url: str, body: Mapping[str, Any]) -> OAuthAnswer:
        return await self._post(url, msgspec.json.encode(body), {"Content-Type": "application/json"})

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> OAuthAnswer:
        answer = await self._ask(FetchRequest(url=url, method="POST", headers=headers, body=body))
        return OAuthAnswer(answer.status, answer.headers, read_object(answer.body))

    async def _ask(self, request: FetchRequest) -> Fetched:
        if self._fetch is None:
            self._fetch = make_fetch(
                allow_loopback=self.is_local, allow_private=self._is_inside, max_bytes=MAX_BYTES, timeout=SECONDS
            )
        try:
            return await self._fetch(request)
        except FetchFailed as failed:
            raise NotSignedIn(str(failed)) from None


def read_as(body: bytes | dict[str, Any] | None, kind: type[T]) -> T | None:
    found = read_object(body) if isinstance(body, bytes) else body
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError:
        return None


def problem_in(answer: OAuthAnswer) -> OAuthProblem:
    """Why a request was refused, in words that may be shown."""
    said = read_as(answer.body, OAuthProblem)
    if said is None:
        return OAuthProblem("", f"it answered {answer.status}")
    return OAuthProblem(plain(said.error), plain(said.error_description or ""))


def shown(url: str) -> str:
    """A URL of a stranger's as a message may show it."""
    return plain(fetch.shown(url))


def plain(text: str) -> str:
    """A stranger's words on one short line."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:MAX_WORDS]).strip()


def _followed(url: str, location: str) -> str:
    """Raises NotSignedIn for a redirect to another origin."""
    try:
        target = urljoin(url, location)
        here, there = urlsplit(url), urlsplit(target)
    except ValueError:
        raise NotSignedIn(f"{shown(url)} redirects to something that is no URL") from None
    if (here.scheme, here.netloc.lower()) != (there.scheme, there.netloc.lower()):
        raise NotSignedIn(f"{shown(url)} redirects to another origin, {shown(target)}; that is not followed")
    return target
