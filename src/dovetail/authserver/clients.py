"""Clients: configured, registered (RFC 7591) or by URL (CIMD), and their authentication."""

import base64
import hmac
import logging
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote_plus, urlsplit

import msgspec

from dovetail.auth.fetch import Fetch, FetchFailed, FetchRequest, plain
from dovetail.auth.jose import check_public_keys, read_assertion, unverified_subject
from dovetail.auth.principal import Confidential, is_in_lifetime
from dovetail.authserver.auth_store import AttemptLimit, AuthStore
from dovetail.authserver.oauth_http import OAuthError, address_of, digest, json_response, url_problem
from dovetail.authserver.passwords import REGISTERED
from dovetail.errors import SetupError
from dovetail.protocol.scopes import checked_scopes
from dovetail.transports.http.routes import RouteRequest, RouteResponse

CODE = "authorization_code"
REFRESH = "refresh_token"
CREDENTIALS = "client_credentials"
GRANTS = (CODE, REFRESH, CREDENTIALS)
AUTH_METHODS = ("none", "client_secret_basic", "client_secret_post", "private_key_jwt")
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
MIN_SECRET = 16  # characters
MAX_ID = 1000  # characters
MAX_METADATA = 8 * 1024  # bytes
MAX_RECORD = 4 * 1024  # bytes: a day's registrations fit into the memory of a small server
MAX_REDIRECTS = 10
LEEWAY = 60.0  # seconds that clocks may differ
UNUSED_TTL = 86_400.0  # seconds, of a registration until its first use
USED_TTL = 90 * 86_400.0  # seconds, of a registration after its latest use
DOCUMENT_TTL = 300.0  # seconds
REGISTRATION_LIMIT = AttemptLimit("registrations", "registrations", 3600.0, each=30, for_all=200)
FETCH_LIMIT = AttemptLimit("fetches", "new programs", 60.0, each=30, for_all=120)
# Each assertion is stored, and any caller can register and sign.
ASSERTIONS = AttemptLimit("assertions", "signed assertions", 3600.0, each=100, for_all=2000)

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
log = logging.getLogger("dovetail.authserver")


class OAuthClient(Confidential, frozen=True, kw_only=True):
    """A client (program) of the authorization server.

    OAuthClient(id="ci", secret="...", grant_types=["client_credentials"], scopes=["notes:read"])
    """

    public_fields = ("id",)

    id: str
    name: str = ""  # for people; default: the id
    redirect_uris: Sequence[str] = ()
    grant_types: Sequence[str] = (CODE, REFRESH)
    scopes: Collection[str] | None = None  # that it may request; None: all
    secret: str | None = None  # or "sha256:" and the digest of it; only the digest is stored
    jwks: dict[str, Any] | None = None  # its public keys (private_key_jwt)

    def __post_init__(self) -> None:
        for name, kind in (("redirect_uris", tuple), ("grant_types", tuple), ("scopes", frozenset)):
            given = getattr(self, name)
            if isinstance(given, str):
                raise SetupError(f"OAuthClient: {name}={given!r} is not possible; write a list")
            if given is not None:
                msgspec.structs.force_setattr(self, name, kind(given))
        if self.secret is not None and not _DIGEST.fullmatch(self.secret):
            if len(self.secret) < MIN_SECRET:
                raise SetupError(f"OAuthClient: a secret has at least {MIN_SECRET} characters")
            msgspec.structs.force_setattr(self, "secret", f"sha256:{digest(self.secret)}")

    @property
    def is_self_registered(self) -> bool:
        """Whether it registered, or published a document: the operator has not checked its redirect URIs."""
        return is_url(self.id) or self.id.startswith(REGISTERED)


def is_url(id: str) -> bool:
    return id.startswith(("https://", "http://"))


def check_clients(given: Iterable[Any], scopes: Mapping[str, str]) -> dict[str, OAuthClient]:
    """The clients of the option `clients`, by id. Raises SetupError."""
    checked: dict[str, OAuthClient] = {}
    for client in given:
        if not isinstance(client, OAuthClient):
            raise SetupError(f'AuthServer: clients holds {client!r}; write OAuthClient(id="ci", secret="...")')
        problem = "there are two of this id" if client.id in checked else _problem(client, scopes)
        if problem is not None:
            raise SetupError(f"AuthServer: client {client.id!r}: {problem}")
        checked[client.id] = client
    return checked


def _problem(client: OAuthClient, scopes: Mapping[str, str]) -> str | None:
    if not client.id or len(client.id) > MAX_ID or not client.id.isprintable() or is_url(client.id):
        return "an id is a short text, and no URL"
    for grant in client.grant_types:
        if grant not in GRANTS:
            return f"grant type {grant!r} is not known; there are {', '.join(GRANTS)}"
    if CODE in client.grant_types and not client.redirect_uris:
        return f'it needs redirect_uris=["https://..."], or grant_types=["{CREDENTIALS}"]'
    for uri in client.redirect_uris:
        if (problem := url_problem(uri, "a redirect URI")) is not None:
            return f"{uri!r}: {problem}"
    if client.jwks is not None and (problem := check_public_keys(client.jwks)) is not None:
        return problem
    if CREDENTIALS in client.grant_types and client.secret is None and client.jwks is None:
        return "who acts for itself must prove who it is; give it a secret or jwks"
    unknown = checked_scopes(client.scopes or (), f"AuthServer, client {client.id!r}") - scopes.keys()
    return f"the scopes {', '.join(sorted(unknown))} are not among the server's" if unknown else None


class ClientMetadata(Confidential, frozen=True):
    """The fields of RFC 7591 that are used here; all others are ignored."""

    public_fields = ("client_id", "client_name", "redirect_uris")

    client_id: str | None = None
    client_name: str | None = None
    redirect_uris: tuple[str, ...] = ()
    grant_types: tuple[str, ...] = (CODE,)
    response_types: tuple[str, ...] = ("code",)
    token_endpoint_auth_method: str | None = None
    jwks: dict[str, object] | None = None
    client_secret: str | None = None

    @classmethod
    def read(cls, raw: bytes) -> "ClientMetadata":
        """Read the metadata of a client. Raises OAuthError."""
        try:
            return msgspec.json.decode(raw, type=cls)
        except msgspec.ValidationError as problem:
            raise _bad_metadata(f"The metadata do not fit: {problem}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _bad_metadata("The metadata must be a JSON object") from None

    def as_client(self, id: str, method: str) -> OAuthClient:
        """The record of a client with the grant type `authorization_code`. Raises OAuthError."""
        if not 0 < len(self.redirect_uris) <= MAX_REDIRECTS:
            raise OAuthError("invalid_redirect_uri", f"There must be 1 to {MAX_REDIRECTS} redirect_uris")
        for uri in self.redirect_uris:
            if (problem := url_problem(uri, "a redirect URI")) is not None:
                raise OAuthError("invalid_redirect_uri", f"redirect_uris: {problem}")
        if CODE not in self.grant_types or "code" not in self.response_types:
            raise _bad_metadata("Only authorization_code, with or without refresh_token, can be registered")
        if method not in AUTH_METHODS:
            raise _bad_metadata(f"token_endpoint_auth_method must be one of {', '.join(AUTH_METHODS)}")
        jwks = self.jwks if method == "private_key_jwt" else None
        if method == "private_key_jwt" and (problem := check_public_keys(jwks)) is not None:
            raise _bad_metadata(problem)
        return OAuthClient(
            id=id,
            name=plain(self.client_name or ""),
            redirect_uris=self.redirect_uris,
            grant_types=tuple(grant for grant in (CODE, REFRESH) if grant in self.grant_types),
            jwks=jwks,
        )


def _client_from_document(raw: bytes, url: str) -> OAuthClient:
    metadata = ClientMetadata.read(raw)
    if metadata.client_id != url:
        raise _bad_metadata("The document at the client_id names another client_id")
    method = metadata.token_endpoint_auth_method or "none"
    if metadata.client_secret is not None or method.startswith("client_secret"):
        raise _bad_metadata("A document that everybody can read holds no secret")
    return metadata.as_client(url, method)


def _bad_metadata(description: str) -> OAuthError:
    return OAuthError("invalid_client_metadata", description)


class ClientDirectory(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Clients by their id: configured ones, registered ones, and documents at a URL (CIMD)."""

    store: AuthStore
    configured: Mapping[str, OAuthClient]
    audiences: Collection[str]  # of assertions
    registration: bool
    fetch: Fetch | None  # for documents at URLs; None if those are not allowed
    clock: Callable[[], float]

    async def find(self, id: str, address: str) -> OAuthClient | None:
        """The client of an id. Raises OAuthError if its document is invalid."""
        if len(id) > MAX_ID:
            return None
        if id in self.configured:
            return self.configured[id]
        if is_url(id):
            return None if self.fetch is None else await self._find_by_url(self.fetch, id, address)
        raw = await self.store.get("client", id) if self.registration else None
        try:
            return None if raw is None else msgspec.msgpack.decode(raw, type=OAuthClient)
        except msgspec.MsgspecError:  # written by a worker of another version
            return None

    async def register(self, request: RouteRequest) -> RouteResponse:
        """The endpoint `/register` (RFC 7591)."""
        body = await request.body()
        if len(body) > MAX_METADATA:
            text = f"The metadata have more than {MAX_METADATA} bytes"
            raise OAuthError("invalid_client_metadata", text, status=413)
        metadata = ClientMetadata.read(body)
        method = metadata.token_endpoint_auth_method or "client_secret_basic"
        client = metadata.as_client(REGISTERED + secrets.token_urlsafe(18), method)
        await REGISTRATION_LIMIT.take(self.store, address_of(request))
        secret = secrets.token_urlsafe(32) if method.startswith("client_secret") else None
        client = msgspec.structs.replace(client, secret=secret)  # it holds the digest
        record = msgspec.msgpack.encode(client)
        if len(record) > MAX_RECORD:
            raise _bad_metadata(f"What is stored of the metadata has more than {MAX_RECORD} bytes")
        await self.store.put("client", client.id, record, UNUSED_TTL)
        response: dict[str, object] = {
            "client_id": client.id,
            "client_id_issued_at": int(self.clock()),
            "redirect_uris": list(client.redirect_uris),
            "grant_types": list(client.grant_types),
            "response_types": ["code"],
            "token_endpoint_auth_method": method,
            **({"client_name": client.name} if client.name else {}),
            **({} if client.jwks is None else {"jwks": client.jwks}),
            **({} if secret is None else {"client_secret": secret, "client_secret_expires_at": 0}),
        }
        return json_response(response, 201)

    async def extend_ttl(self, client: OAuthClient) -> None:
        """Extend the registration of a client that a user has allowed; one without use expires sooner."""
        if client.id not in self.configured and not is_url(client.id):
            await self.store.touch("client", client.id, USED_TTL)

    async def _find_by_url(self, fetch: Fetch, url: str, address: str) -> OAuthClient:
        """Find a client by URL. Any caller can cause this fetch, so URLs must be public, and fetches are limited."""
        problem = url_problem(url, "a client_id")
        if problem is None and urlsplit(url).path in ("", "/"):
            problem = "a client_id that is a URL has a path"
        if problem is not None:
            raise OAuthError("invalid_client", f"client_id: {problem}")
        raw = await self.store.get("document", url)
        if raw is not None:
            return _client_from_document(raw, url)
        await FETCH_LIMIT.take(self.store, address)
        raw = await _fetch_document(fetch, url)
        client = _client_from_document(raw, url)
        await self.store.put("document", url, raw, DOCUMENT_TTL)
        return client

    # ── client authentication ──

    async def authenticate(self, request: RouteRequest, form: Mapping[str, str]) -> OAuthClient:
        """The client of a request, by its secret or assertion if it has one. Raises OAuthError."""
        basic = _basic_credentials(request)
        assertion = form.get("client_assertion")
        if sum(each is not None for each in (basic, assertion, form.get("client_secret"))) > 1:
            raise OAuthError("invalid_request", "Prove who you are in one way, not in several")
        id, secret = basic or (form.get("client_id"), form.get("client_secret"))
        if assertion is not None:
            id = unverified_subject(assertion)
        if form.get("client_id", id) != id:
            raise OAuthError("invalid_request", "There are two different client_id")
        address = address_of(request)
        client = None if not id else await self.find(id, address)
        if client is None:
            raise _invalid_client(request)
        if client.jwks is not None:
            is_valid = await self._verify_assertion(client, form, address)
        elif client.secret is not None:
            is_valid = secret is not None and hmac.compare_digest(client.secret, f"sha256:{digest(secret)}")
        else:
            is_valid = secret is None and assertion is None
        if not is_valid:
            raise _invalid_client(request)
        return client

    async def _verify_assertion(self, client: OAuthClient, form: Mapping[str, str], address: str) -> bool:
        """Verify an assertion (RFC 7523, 3)."""
        assertion = form.get("client_assertion")
        if assertion is None or client.jwks is None or form.get("client_assertion_type") != ASSERTION_TYPE:
            return False
        claims = read_assertion(assertion, client.jwks)
        if claims is None or claims.get("iss") != client.id or claims.get("sub") != client.id:
            return False
        audience, id, now = claims.get("aud"), claims.get("jti"), self.clock()
        named = audience if isinstance(audience, list) else [audience]  # only one: another could replay it here
        if len(named) != 1 or not isinstance(named[0], str) or named[0] not in self.audiences:
            return False
        if not is_in_lifetime(claims, now, LEEWAY, requires_exp=True) or claims["exp"] > now + 3600:
            return False
        if not isinstance(id, str) or not 0 < len(id) <= 256:
            return False
        if client.id not in self.configured:
            await ASSERTIONS.take(self.store, address)
        return await self.store.claim("assertion", f"{client.id} {id}", claims["exp"] - now + 2 * LEEWAY)


async def _fetch_document(fetch: Fetch, url: str) -> bytes:
    """Fetch a document. The reason of a failure is only logged: it would show callers the network around us."""
    try:
        response = await fetch(FetchRequest(url=url, headers={"Accept": "application/json"}))
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status == 200 and media_type in ("application/json", "application/cimd+json"):
            return response.body
    except FetchFailed as failure:
        log.info("no document of a client: %s", failure)
    raise OAuthError("invalid_client", "client_id: no JSON document could be fetched from this URL")


def _basic_credentials(request: RouteRequest) -> tuple[str, str] | None:
    """Id and secret of a Basic header; both are form-encoded before they are joined (RFC 6749, 2.3.1)."""
    header = request.headers.get("authorization")
    if header is None:
        return None
    scheme, _, text = header.partition(" ")
    try:
        raw = base64.b64decode(text.strip(), validate=True).decode() if len(text) <= 4096 else ""
    except ValueError:
        raw = ""
    id, colon, secret = raw.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise _invalid_client(request)
    return unquote_plus(id), unquote_plus(secret)


def _invalid_client(request: RouteRequest) -> OAuthError:
    headers = {"www-authenticate": 'Basic realm="token"'} if "authorization" in request.headers else None
    text = "The client is not known, or did not prove who it is"
    return OAuthError("invalid_client", text, status=401, headers=headers)
