"""Documents of OAuth servers: fetched with bounds, read under the names of the standards.

The MCP server, which may be anybody's, says which servers are asked. So a server in the internet can't send us into the
network that we are in, no answer may be large or take long, and secrets go only over https, or to this machine if that
is where the MCP server is. Only the shape of a document is checked here, and unknown members are ignored.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

import msgspec

from dovetail.auth import fetch
from dovetail.auth.fetch import Fetch, Fetched, FetchFailed, FetchRequest, make_fetch, names_this_machine
from dovetail.auth.jose import read_object
from dovetail.auth.principal import Confidential
from dovetail.errors import NotSignedIn
from dovetail.protocol.revisions import LATEST_HANDSHAKE
from dovetail.protocol.scopes import read_scopes

Texts = tuple[str, ...] | None

OFFLINE_ACCESS = "offline_access"
BASIC, POST, SIGNED, PUBLIC = (
    "client_secret_basic",
    "client_secret_post",
    "private_key_jwt",
    "none",
)  # ways to prove who a program is


class ResourceMetadata(msgspec.Struct, frozen=True):
    """Of an MCP server."""

    resource: str
    authorization_servers: Texts = None
    scopes_supported: Texts = None


class IssuerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Of an authorization server."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    scopes_supported: Texts = None
    code_challenge_methods_supported: Texts = None
    token_endpoint_auth_methods_supported: Texts = None
    token_endpoint_auth_signing_alg_values_supported: Texts = None
    authorization_response_iss_parameter_supported: bool | None = None
    client_id_metadata_document_supported: bool | None = None


class Provider(NamedTuple):
    """Where tokens for one MCP server come from."""

    metadata: IssuerMetadata
    resource: str  # byte for byte what the server calls itself
    scopes: Texts  # that the server names, if it names any
    is_guessed: bool = False  # nothing says that there is an authorization server

    @property
    def issuer(self) -> str:
        return self.metadata.issuer


class RegistrationAnswer(Confidential, frozen=True):
    """What comes of a registration."""

    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None


class TokenAnswer(Confidential, frozen=True):
    """What comes of a good request for tokens."""

    access_token: str
    token_type: str
    expires_in: float | str | None = None  # some servers write numbers as texts
    refresh_token: str | None = None
    scope: str | None = None
    issued_token_type: str | None = None


class OAuthProblem(msgspec.Struct, frozen=True):
    """What comes of a bad one."""

    error: str
    error_description: str | None = None


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
    return found[:20]


def read_told(headers: Iterable[str], schemes: Sequence[str]) -> Told:
    """By the challenges of these schemes; where several say something, the first scheme counts."""
    known = [challenge for scheme in schemes for challenge in read_challenges(headers) if challenge.scheme == scheme]

    def first(name: str) -> str | None:
        return next((each.parameters[name] for each in known if name in each.parameters), None)

    return Told(first("error"), read_scopes(first("scope")), first("resource_metadata"))


T = TypeVar("T")

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
        for _ in range(4):
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
                allow_loopback=self.is_local, allow_private=self._is_inside, max_bytes=256 * 1024, timeout=10.0
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
    return "".join(letter if letter.isprintable() else " " for letter in text[:200]).strip()


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
