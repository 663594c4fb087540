"""Metadata of OAuth servers, discovery (RFC 9728, RFC 8414) and client registration (RFC 7591).

The MCP server, which is not trusted, names the URLs that are requested. So a public server can't lead the client into a
private network, responses are bounded in size and time, and secrets go only over https, or to this machine if the MCP
server is here. A server of 2025-03-26 may have no metadata: then its own origin is the authorization server, and if
that has no metadata either, the endpoints are at the paths of that revision.
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
from dovetail.client.transports.environment import find_proxy, tls_context
from dovetail.errors import NotSignedIn, SetupError
from dovetail.protocol.revisions import LATEST_HANDSHAKE
from dovetail.protocol.scopes import read_scopes

T = TypeVar("T")
Texts = tuple[str, ...] | None

OFFLINE_ACCESS = "offline_access"
# Methods of client authentication at the token endpoint.
SECRET_BASIC, SECRET_POST = "client_secret_basic", "client_secret_post"
PRIVATE_KEY_JWT, PUBLIC = "private_key_jwt", "none"


class ResourceMetadata(msgspec.Struct, frozen=True):
    resource: str
    authorization_servers: Texts = None
    scopes_supported: Texts = None


class AuthorizationServerMetadata(msgspec.Struct, frozen=True, kw_only=True):
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


class AuthorizationServer(NamedTuple):
    """The authorization server of one MCP server."""

    metadata: AuthorizationServerMetadata
    resource: str  # byte for byte as the MCP server names itself
    scopes: Texts  # that the MCP server names
    is_guessed: bool = False  # without any metadata

    @property
    def issuer(self) -> str:
        return self.metadata.issuer


class RegistrationResponse(Confidential, frozen=True):
    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None


class TokenResponse(Confidential, frozen=True):
    access_token: str
    token_type: str
    expires_in: float | str | None = None  # some servers send numbers as texts
    refresh_token: str | None = None
    scope: str | None = None
    issued_token_type: str | None = None


class ErrorResponse(msgspec.Struct, frozen=True):
    error: str
    error_description: str | None = None


_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_PART = re.compile(rf'({_TOKEN})(?:[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}(?=[ \t,]|$))))?')
_ESCAPED = re.compile(r"\\(.)")


class ChallengeParams(NamedTuple):
    """The parameters of the `WWW-Authenticate` challenges that a client needs."""

    error: str | None = None
    scopes: frozenset[str] = frozenset()
    resource_metadata: str | None = None


def read_challenges(headers: Iterable[str]) -> list[tuple[str, dict[str, str]]]:
    """The challenges as lower-case schemes with parameters; one header may hold several (RFC 9110, 11.6.1)."""
    challenges: list[tuple[str, dict[str, str]]] = []
    for header in headers:
        for part in _PART.finditer(header):
            name, quoted, unquoted = part.groups()
            value = _ESCAPED.sub(r"\1", quoted) if quoted is not None else unquoted
            if value is None:
                challenges.append((name.lower(), {}))
            elif challenges:
                challenges[-1][1].setdefault(name.lower(), value)
    return challenges[:20]


def read_challenge_params(headers: Iterable[str], schemes: Sequence[str]) -> ChallengeParams:
    """The parameters of the challenges with these schemes; the first scheme is preferred."""
    challenges = read_challenges(headers)
    known = [params for scheme in schemes for each, params in challenges if each == scheme]

    def first(name: str) -> str | None:
        return next((params[name] for params in known if name in params), None)

    return ChallengeParams(first("error"), read_scopes(first("scope")), first("resource_metadata"))


class OAuthHttp:
    """HTTP client for the OAuth servers of one MCP server. `allow_private`: they may be in a private network."""

    def __init__(self, server_url: str, *, allow_private: bool = False) -> None:
        self.is_local = is_loopback_url(server_url)
        if urlsplit(server_url).scheme != "https" and not self.is_local:
            raise NotSignedIn(f"{shown(server_url)} is not https: others on the network could read the tokens")
        self._allow_private = allow_private or self.is_local
        self._fetch: Fetch | None = None

    async def document(self, url: str, kind: type[T]) -> T | None:
        """Fetch a document; None if there is none of this shape; an HTML page is none."""
        headers = {"MCP-Protocol-Version": LATEST_HANDSHAKE.name}
        for _ in range(4):
            response = await self._request(FetchRequest(url=url, headers=headers))
            if response.status not in (301, 302, 307, 308):
                break
            url = _redirect_target(url, response.headers.get("location", ""))
        if response.status >= 500:
            raise NotSignedIn(f"{shown(url)} answered {response.status}; try again later")
        return None if response.status != 200 else decode_as(response.body, kind)

    async def post_form(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> Fetched:
        typed = {**headers, "Content-Type": "application/x-www-form-urlencoded"}
        return await self._request(FetchRequest(url=url, method="POST", headers=typed, body=urlencode(form).encode()))

    async def post_json(self, url: str, body: Mapping[str, Any]) -> Fetched:
        typed = {"Content-Type": "application/json"}
        return await self._request(FetchRequest(url=url, method="POST", headers=typed, body=msgspec.json.encode(body)))

    async def _request(self, request: FetchRequest) -> Fetched:
        if self._fetch is None:
            self._fetch = make_fetch(
                allow_loopback=self.is_local,
                allow_private=self._allow_private,
                max_bytes=256 * 1024,
                timeout=10.0,
                environment=_environment,
            )
        try:
            return await self._fetch(request)
        except FetchFailed as failed:
            raise NotSignedIn(str(failed)) from None


def _environment(scheme: str, host: str, port: int) -> Mapping[str, Any]:
    """Options of a request that the environment decides: its proxy, and the certificates that count."""
    proxy = find_proxy((scheme, host, port))
    context = tls_context(f"{scheme}:")
    return {**({} if proxy is None else proxy.options), **({} if context is None else {"ssl": context})}


def decode_as(body: bytes, kind: type[T]) -> T | None:
    """The decoded body; None if it is no JSON object of this shape."""
    try:
        return msgspec.convert(read_object(body), kind)
    except msgspec.ValidationError:
        return None


def read_error(response: Fetched) -> tuple[str, str]:
    """The error code of a refusal, empty if there is none, and a text that is safe to show."""
    refusal = decode_as(response.body, ErrorResponse)
    if refusal is None:
        return "", f"it answered {response.status}"
    error = plain(refusal.error)
    return error, ": ".join(filter(None, (error, plain(refusal.error_description or ""))))


def _redirect_target(url: str, location: str) -> str:
    """The target of a redirect. Raises NotSignedIn if it is of another origin."""
    try:
        target = urljoin(url, location)
        here, there = urlsplit(url), urlsplit(target)
    except ValueError:
        raise NotSignedIn(f"{shown(url)} redirects to something that is no URL") from None
    if (here.scheme, here.netloc.lower()) != (there.scheme, there.netloc.lower()):
        raise NotSignedIn(f"{shown(url)} redirects to another origin, {shown(target)}; that is not followed")
    return target


# ── discovery ──

RESOURCE_WELL_KNOWN = "/.well-known/oauth-protected-resource"
SERVER_WELL_KNOWN = "/.well-known/oauth-authorization-server"
S256 = "S256"


async def discover(
    http: OAuthHttp,
    issuer_http: OAuthHttp,
    server_url: str,
    metadata_url: str | None,
    *,
    required: str | None = None,
    preferred: str | None = None,
) -> AuthorizationServer:
    """The authorization server of an MCP server; `metadata_url` is that of the challenge.

    `required` is the issuer that the user names, `preferred` that of the last time; `issuer_http` fetches its metadata.
    """
    resource = await _resource_metadata(http, server_url, metadata_url)
    if resource is None:
        return await _own_origin(http, server_url, required)
    if not resource_matches(resource.resource, server_url):
        claim = f"{shown(server_url)} says that it is {shown(resource.resource)!r}"
        raise NotSignedIn(f"{claim}; a token for that one is not for this")
    offered = resource.authorization_servers or ()
    wanted = next((each for each in (required, preferred) if each is not None and each in offered), None)
    if required is not None and wanted != required:
        listed = ", ".join(shown(each) for each in offered[:5]) or "none"
        raise NotSignedIn(f"{shown(server_url)} does not take tokens of {required}, but of {listed}")
    issuer = wanted or next(iter(offered), None)
    if issuer is None:
        raise NotSignedIn(f"{shown(server_url)} does not name an authorization server")
    metadata = await _server_metadata(issuer_http, issuer, issuer_urls(issuer), {issuer})
    if metadata is None:
        raise NotSignedIn(f"{shown(issuer)}, where tokens should come from, has no metadata of an authorization server")
    return AuthorizationServer(metadata, resource.resource, resource.scopes_supported)


async def _resource_metadata(http: OAuthHttp, server_url: str, metadata_url: str | None) -> ResourceMetadata | None:
    """The metadata at the URL of the challenge, else at well-known ones: a server may not know its URL (proxies)."""
    origin, path = _origin(server_url), urlsplit(server_url).path.rstrip("/")
    urls = (metadata_url, f"{origin}{RESOURCE_WELL_KNOWN}{path}", f"{origin}{RESOURCE_WELL_KNOWN}")
    failed = None
    for url in dict.fromkeys(filter(None, urls)):
        try:
            if (metadata := await http.document(url, ResourceMetadata)) is not None:
                return metadata
        except NotSignedIn as failure:
            if url != metadata_url:
                raise
            failed = failure
    if failed is not None:
        raise failed
    return None


async def _own_origin(http: OAuthHttp, server_url: str, required: str | None) -> AuthorizationServer:
    """The server as its own authorization server, as in 2025-03-26."""
    origin = _origin(server_url)
    metadata = await _server_metadata(http, origin, [origin + SERVER_WELL_KNOWN], {origin, f"{origin}/"})
    if is_guessed := metadata is None:
        metadata = AuthorizationServerMetadata(
            issuer=origin,
            authorization_endpoint=f"{origin}/authorize",
            token_endpoint=f"{origin}/token",
            registration_endpoint=f"{origin}/register",
            code_challenge_methods_supported=(S256,),
        )
    if required is not None and metadata.issuer != required:
        raise NotSignedIn(f"{shown(server_url)} does not say that it takes tokens of {required}")
    return AuthorizationServer(metadata, server_url.partition("?")[0], None, is_guessed)


async def _server_metadata(
    http: OAuthHttp, issuer: str, urls: list[str], names: set[str]
) -> AuthorizationServerMetadata | None:
    """The first document of the issuer. One that names another issuer is never used."""
    other = None
    for url in urls:
        metadata = await http.document(url, AuthorizationServerMetadata)
        if metadata is not None and metadata.issuer in names:
            return _checked(metadata)
        other = metadata or other
    if other is not None:
        raise NotSignedIn(f"The metadata of {shown(issuer)} are those of another issuer, {shown(other.issuer)!r}")
    return None


def _checked(metadata: AuthorizationServerMetadata) -> AuthorizationServerMetadata:
    """The metadata after a check: endpoints that get secrets must be valid URLs."""
    for url in filter(None, (metadata.token_endpoint, metadata.registration_endpoint)):
        try:
            ServerUrl.parse(url)
        except SetupError:
            raise NotSignedIn(f"{shown(metadata.issuer)} names {plain(url)!r}, which is no URL of the web") from None
    return metadata


def issuer_urls(issuer: str) -> list[str]:
    try:
        parts = urlsplit(issuer)
    except ValueError:
        raise NotSignedIn(f"{plain(issuer)!r} can't be an issuer: it is no URL") from None
    if parts.query or parts.fragment:
        raise NotSignedIn(f"{shown(issuer)} can't be an issuer: it has a query or a fragment")
    return metadata_urls(issuer)


def resource_matches(resource: str, server_url: str) -> bool:
    """Whether a resource is the server, its origin, or a folder above it."""
    try:
        theirs, ours = ServerUrl.parse(resource), ServerUrl.parse(server_url)
    except SetupError:
        return False
    above, path = urlsplit(theirs.url).path.rstrip("/"), urlsplit(ours.url).path.rstrip("/")
    return theirs.origin == ours.origin and (path == above or path.startswith(f"{above}/"))


def authorization_url(auth_server: AuthorizationServer, *, is_local: bool) -> str:
    """The page for the browser, if it is safe to open and the server supports PKCE. Raises NotSignedIn."""
    metadata = auth_server.metadata
    url = metadata.authorization_endpoint
    if url is None:
        raise NotSignedIn(f"{shown(auth_server.issuer)} has no page to sign in at")
    try:
        scheme, host, _ = ServerUrl.parse(url).origin
    except SetupError:
        raise NotSignedIn(f"{shown(auth_server.issuer)} names a page to sign in at that is no URL of the web") from None
    if not url.isascii():
        raise NotSignedIn(f"{shown(url)!r}, the page to sign in at, has odd characters")
    if scheme != "https" and not (is_local and is_loopback_host(host)):
        raise NotSignedIn(f"{shown(url)}, the page to sign in at, is not https")
    if S256 not in (metadata.code_challenge_methods_supported or ()):
        pkce = "does not support PKCE with S256, without which codes can be stolen"
        raise NotSignedIn(f"{shown(auth_server.issuer)} {pkce}")
    return url


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


# ── registration ──

AUTH_METHODS = (PUBLIC, SECRET_BASIC, SECRET_POST)  # in the order of preference
CLIENT_ID_HINT = 'get a client_id from its operator, and give it to OAuth(client_id="…")'


async def register(
    http: OAuthHttp, auth_server: AuthorizationServer, name: str, redirect_uri: str, *, native: bool
) -> RegisteredClient:
    url = auth_server.metadata.registration_endpoint
    if url is None:
        raise NotSignedIn(f"{shown(auth_server.issuer)} does not let programs register themselves; {CLIENT_ID_HINT}")
    supported = auth_server.metadata.token_endpoint_auth_methods_supported
    wanted = next((each for each in AUTH_METHODS if supported is None or each in supported), PUBLIC)
    request = {
        "client_name": name,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": wanted,
        "application_type": "native" if native else "web",
    }
    response = await http.post_json(url, request)
    made = decode_as(response.body, RegistrationResponse) if response.status in (200, 201) else None
    if made is None or not made.client_id:
        raise NotSignedIn(f"{shown(url)} did not register this program: {read_error(response)[1]}; {CLIENT_ID_HINT}")
    method = made.token_endpoint_auth_method or wanted
    if method not in AUTH_METHODS or (method != PUBLIC and not made.client_secret):
        raise NotSignedIn(f"{shown(url)} registered this program in a way that it can't use")
    if method == PUBLIC:
        return RegisteredClient(made.client_id, None, method, redirect_uri)
    expires_at = made.client_secret_expires_at or None  # 0 means never
    return RegisteredClient(made.client_id, made.client_secret, method, redirect_uri, expires_at)
