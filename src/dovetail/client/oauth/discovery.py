"""Discovery of the authorization server of an MCP server (RFC 9728, RFC 8414), and registration (RFC 7591).

A server of 2025-03-26 says nothing of itself: there its own origin is asked, and if that says nothing either, the
endpoints have the names that this revision gave them.
"""

from urllib.parse import urlsplit

from dovetail.auth.fetch import is_loopback_host
from dovetail.client.oauth.metadata import (
    BASIC,
    POST,
    PUBLIC,
    IssuerMetadata,
    OAuthWeb,
    Provider,
    RegistrationAnswer,
    ResourceMetadata,
    plain,
    problem_in,
    read_as,
    shown,
)
from dovetail.client.oauth.storage import RegisteredClient
from dovetail.client.transports.url import ServerUrl
from dovetail.errors import NotSignedIn, SetupError

RESOURCE = "/.well-known/oauth-protected-resource"
OAUTH = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"
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
    metadata = await _issuer(issuer_web or web, issuer, metadata_urls(issuer), {issuer})
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


def metadata_urls(issuer: str) -> list[str]:
    """In the order in which they have to be tried."""
    try:
        parts = urlsplit(issuer)
    except ValueError:
        raise NotSignedIn(f"{plain(issuer)!r} can't be an issuer: it is no URL") from None
    if parts.query or parts.fragment:
        raise NotSignedIn(f"{shown(issuer)} can't be an issuer: it has a query or a fragment")
    origin, path = _origin_and_path(issuer)
    if not path:
        return [origin + OAUTH, origin + OPENID]
    return [f"{origin}{OAUTH}{path}", f"{origin}{OPENID}{path}", f"{origin}{path}{OPENID}"]


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
        problem = problem_in(answer)
        words = ": ".join(filter(None, (problem.error, problem.error_description)))
        raise NotSignedIn(f"{shown(url)} did not register this program: {words}; {FIX}")
    method = made.token_endpoint_auth_method or wanted
    if method not in METHODS or (method != PUBLIC and not made.client_secret):
        raise NotSignedIn(f"{shown(url)} registered this program in a way that it can't use")
    if method == PUBLIC:
        return RegisteredClient(made.client_id, None, method, redirect_uri)
    until = made.client_secret_expires_at or None  # 0 is for ever
    return RegisteredClient(made.client_id, made.client_secret, method, redirect_uri, until)
