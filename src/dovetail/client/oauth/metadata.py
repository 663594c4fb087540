"""OAuth servers: their documents fetched with bounds, discovery (RFC 9728, RFC 8414) and registration (RFC 7591).

The MCP server, which may be anybody's, says which servers are asked. So a server in the internet can't send us into the
network that we are in, no answer may be large or take long, and secrets go only over https, or to this machine if that
is where the MCP server is. A server of 2025-03-26 says nothing of itself: there its own origin is asked, and if that
says nothing either, the endpoints have the names that this revision gave them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

import msgspec

from dovetail.auth.fetch import (
    Fetch,
    Fetched,
    FetchFailed,
    FetchRequest,
    is_loopback_host,
    is_loopback_url,
    make_fetch,
    plain,
    shown,
)
from dovetail.auth.jose import read_object
from dovetail.auth.jwt import metadata_urls
from dovetail.auth.principal import Confidential
from dovetail.client.oauth.storage import RegisteredClient
from dovetail.client.transports.base import ServerUrl
from dovetail.errors import NotSignedIn, SetupError
from dovetail.protocol.revisions import LATEST_HANDSHAKE
from dovetail.protocol.scopes import read_scopes

Texts = tuple[str, ...] | None

OFFLINE_ACCESS = "offline_access"
# Ways to prove who a program is.
BASIC, POST, SIGNED, PUBLIC = "client_secret_basic", "client_secret_post", "private_key_jwt", "none"


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


class Told(NamedTuple):
    """What matters in the challenges of a refusal."""

    error: str | None = None
    scopes: frozenset[str] = frozenset()
    resource_metadata: str | None = None


def read_challenges(headers: Iterable[str]) -> list[tuple[str, dict[str, str]]]:
    """Scheme and parameters, in small letters. One header may hold several (RFC 9110, 11.6.1); others are skipped."""
    found: list[tuple[str, dict[str, str]]] = []
    for header in headers:
        for part in _PART.finditer(header):
            name, quoted, plain = part.groups()
            value = _ESCAPED.sub(r"\1", quoted) if quoted is not None else plain
            if value is None:
                found.append((name.lower(), {}))
            elif found:
                found[-1][1].setdefault(name.lower(), value)
    return found[:20]


def read_told(headers: Iterable[str], schemes: Sequence[str]) -> Told:
    """By the challenges of these schemes; where several say something, the first scheme counts."""
    challenges = read_challenges(headers)
    known = [parameters for scheme in schemes for each, parameters in challenges if each == scheme]

    def first(name: str) -> str | None:
        return next((parameters[name] for parameters in known if name in parameters), None)

    return Told(first("error"), read_scopes(first("scope")), first("resource_metadata"))


T = TypeVar("T")


class OAuthWeb:
    """For one MCP server. `inside`: those who are asked may be in a private network.

    That is for what the user has written down, and for what a server says that is in such a network itself.
    """

    def __init__(self, server_url: str, *, inside: bool = False) -> None:
        parts = urlsplit(server_url)
        self.is_local = is_loopback_url(server_url)  # so that http to this machine is as good as the server itself
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

    async def post_form(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> Fetched:
        typed = {**headers, "Content-Type": "application/x-www-form-urlencoded"}
        return await self._ask(FetchRequest(url=url, method="POST", headers=typed, body=urlencode(form).encode()))

    async def post_json(self, url: str, body: Mapping[str, Any]) -> Fetched:
        typed = {"Content-Type": "application/json"}
        return await self._ask(FetchRequest(url=url, method="POST", headers=typed, body=msgspec.json.encode(body)))

    async def _ask(self, request: FetchRequest) -> Fetched:
        if self._fetch is None:
            self._fetch = make_fetch(
                allow_loopback=self.is_local, allow_private=self._is_inside, max_bytes=256 * 1024, timeout=10.0
            )
        try:
            return await self._fetch(request)
        except FetchFailed as failed:
            raise NotSignedIn(str(failed)) from None


def read_as(body: bytes, kind: type[T]) -> T | None:
    """None for what is no JSON object of this shape."""
    try:
        return msgspec.convert(read_object(body), kind)
    except msgspec.ValidationError:
        return None


def problem_in(answer: Fetched) -> tuple[str, str]:
    """Why a request was refused: OAuth's word for it, and all that may be shown."""
    said = read_as(answer.body, OAuthProblem)
    if said is None:
        return "", f"it answered {answer.status}"
    error = plain(said.error)
    return error, ": ".join(filter(None, (error, plain(said.error_description or ""))))


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


# ── discovery ──

RESOURCE = "/.well-known/oauth-protected-resource"
OAUTH = "/.well-known/oauth-authorization-server"
S256 = "S256"


async def discover(
    web: OAuthWeb,
    server_url: str,
    metadata_url: str | None,
    *,
    only: str | None = None,
    before: str | None = None,
    issuer_web: OAuthWeb | None = None,
) -> Provider:
    """`metadata_url`: as the challenge says. `before`: the issuer of last time.

    `only`: the issuer that the user names, which is asked by `issuer_web`.
    """
    described = await _resource(web, server_url, metadata_url)
    if described is None:
        return await _of_its_own_origin(web, server_url, only)
    if not fits(described.resource, server_url):
        raise NotSignedIn(
            f"{shown(server_url)} says that it is {shown(described.resource)!r}; a token for that one is not for this"
        )
    offered = described.authorization_servers or ()
    wanted = next((each for each in (only, before) if each is not None and each in offered), None)
    if only is not None and wanted != only:
        raise NotSignedIn(f"{shown(server_url)} does not take tokens of {only}, but of {_listed(offered)}")
    issuer = wanted or next(iter(offered), None)
    if issuer is None:
        raise NotSignedIn(f"{shown(server_url)} does not say where its tokens come from")
    metadata = await _issuer(issuer_web or web, issuer, issuer_urls(issuer), {issuer})
    if metadata is None:
        raise NotSignedIn(f"{shown(issuer)}, where tokens should come from, has no metadata of an authorization server")
    return Provider(metadata, described.resource, described.scopes_supported)


async def _resource(web: OAuthWeb, server_url: str, metadata_url: str | None) -> ResourceMetadata | None:
    """Behind a proxy, a server may not know its own URL: if what it names can't be read, the usual places are asked."""
    origin, path = _origin_and_path(server_url)
    failed = None
    for place in dict.fromkeys(filter(None, (metadata_url, f"{origin}{RESOURCE}{path}", f"{origin}{RESOURCE}"))):
        try:
            if (found := await web.document(place, ResourceMetadata)) is not None:
                return found
        except NotSignedIn as failure:
            if place != metadata_url:
                raise
            failed = failure
    if failed is not None:
        raise failed
    return None


async def _of_its_own_origin(web: OAuthWeb, server_url: str, only: str | None) -> Provider:
    """As in 2025-03-26: the server is its own authorization server."""
    origin, _ = _origin_and_path(server_url)
    metadata = await _issuer(web, origin, [origin + OAUTH], {origin, f"{origin}/"})
    if is_guessed := metadata is None:
        metadata = IssuerMetadata(
            issuer=origin,
            authorization_endpoint=f"{origin}/authorize",
            token_endpoint=f"{origin}/token",
            registration_endpoint=f"{origin}/register",
            code_challenge_methods_supported=(S256,),
        )
    if only is not None and metadata.issuer != only:
        raise NotSignedIn(f"{shown(server_url)} does not say that it takes tokens of {only}")
    return Provider(metadata, server_url.partition("?")[0], None, is_guessed)


async def _issuer(web: OAuthWeb, issuer: str, places: list[str], names: set[str]) -> IssuerMetadata | None:
    """The first document that is there. One that names another issuer is never used."""
    other = None
    for place in places:
        found = await web.document(place, IssuerMetadata)
        if found is not None and found.issuer in names:
            return _checked(found)
        other = found or other
    if other is not None:
        raise NotSignedIn(f"The metadata of {shown(issuer)} are those of another issuer, {shown(other.issuer)!r}")
    return None


def _checked(found: IssuerMetadata) -> IssuerMetadata:
    """Where secrets are sent has to be a place."""
    for url in filter(None, (found.token_endpoint, found.registration_endpoint)):
        try:
            ServerUrl.of(url)
        except SetupError:
            raise NotSignedIn(f"{shown(found.issuer)} names {plain(url)!r}, which is no URL of the web") from None
    return found


def issuer_urls(issuer: str) -> list[str]:
    """In the order in which they have to be tried."""
    try:
        parts = urlsplit(issuer)
    except ValueError:
        raise NotSignedIn(f"{plain(issuer)!r} can't be an issuer: it is no URL") from None
    if parts.query or parts.fragment:
        raise NotSignedIn(f"{shown(issuer)} can't be an issuer: it has a query or a fragment")
    return metadata_urls(issuer)


def fits(resource: str, server_url: str) -> bool:
    """Whether it is the server, or all of its origin, or a folder above it."""
    try:
        theirs, ours = ServerUrl.of(resource), ServerUrl.of(server_url)
    except SetupError:
        return False
    above, path = urlsplit(theirs.url).path.rstrip("/"), urlsplit(ours.url).path.rstrip("/")
    return theirs.origin == ours.origin and (path == above or path.startswith(f"{above}/"))


def authorization_url(provider: Provider, *, is_local: bool) -> str:
    """Where the browser goes; only to a page that is safe to open, and that knows PKCE. Raises NotSignedIn."""
    metadata = provider.metadata
    url = metadata.authorization_endpoint
    if url is None:
        raise NotSignedIn(f"{shown(provider.issuer)} has no page to sign in at")
    try:
        address = ServerUrl.of(url)
    except SetupError:
        raise NotSignedIn(f"{shown(provider.issuer)} names a page to sign in at that is no URL of the web") from None
    scheme, host, _ = address.origin
    if not url.isascii():
        raise NotSignedIn(f"{shown(url)!r}, the page to sign in at, has odd characters")
    if scheme != "https" and not (is_local and is_loopback_host(host)):
        raise NotSignedIn(f"{shown(url)}, the page to sign in at, is not https")
    if S256 not in (metadata.code_challenge_methods_supported or ()):
        raise NotSignedIn(
            f"{shown(provider.issuer)} does not support PKCE with S256, without which codes can be stolen"
        )
    return url


def _origin_and_path(url: str) -> tuple[str, str]:
    """The path without a slash at its end."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")


def _listed(offered: tuple[str, ...]) -> str:
    return ", ".join(shown(each) for each in offered[:5]) or "nobody"


GRANTS = ("authorization_code", "refresh_token")
METHODS = (PUBLIC, BASIC, POST)  # the first that the authorization server takes
FIX = 'get a client_id from whoever runs it, and give it to OAuth(client_id="…")'


async def register(
    web: OAuthWeb, provider: Provider, name: str, redirect_uri: str, *, native: bool
) -> RegisteredClient:
    """Raises NotSignedIn."""
    url = provider.metadata.registration_endpoint
    if url is None:
        raise NotSignedIn(f"{shown(provider.issuer)} does not let programs register themselves; {FIX}")
    supported = provider.metadata.token_endpoint_auth_methods_supported
    wanted = next((each for each in METHODS if supported is None or each in supported), PUBLIC)
    answer = await web.post_json(
        url,
        {
            "client_name": name,
            "redirect_uris": [redirect_uri],
            "grant_types": GRANTS,
            "response_types": ["code"],
            "token_endpoint_auth_method": wanted,
            "application_type": "native" if native else "web",
        },
    )
    made = read_as(answer.body, RegistrationAnswer) if answer.status in (200, 201) else None
    if made is None or not made.client_id:
        raise NotSignedIn(f"{shown(url)} did not register this program: {problem_in(answer)[1]}; {FIX}")
    method = made.token_endpoint_auth_method or wanted
    if method not in METHODS or (method != PUBLIC and not made.client_secret):
        raise NotSignedIn(f"{shown(url)} registered this program in a way that it can't use")
    if method == PUBLIC:
        return RegisteredClient(made.client_id, None, method, redirect_uri)
    until = made.client_secret_expires_at or None  # 0 is for ever
    return RegisteredClient(made.client_id, made.client_secret, method, redirect_uri, until)
