"""HTTP with an identity provider: its metadata, the exchange of codes, id tokens, claims, and refresh.

Every failure is an OAuthError whose text is for the user; its cause is logged for the operator, without secrets.
"""

import base64
import hashlib
import hmac
import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import quote_plus, urlencode

import msgspec

from dovetail.auth import jose
from dovetail.auth.fetch import Fetched, FetchFailed, FetchRequest, is_loopback_url, make_fetch, plain, shown
from dovetail.auth.jwt import LEEWAY, RemoteKeys, is_secure_url
from dovetail.auth.principal import Confidential, VerifierUnavailable, is_in_lifetime
from dovetail.authserver.oauth_http import FORM, OAuthError
from dovetail.authserver.providers import Identity, Provider
from dovetail.protocol.pagination import encode_base64url

T = TypeVar("T")
MAX_ANSWER = 256 * 1024  # bytes
METADATA_TTL = 3600.0  # seconds
GRANTED = "granted_scopes"  # our own among the claims: the scopes that the user has granted at the provider
# Errors that say no to a code, a refresh token or its user; all others say that something else is wrong.
NOT_GOOD = {"invalid_grant", "access_denied", "interaction_required", "login_required", "consent_required"}
NOT_GOOD |= {"bad_verification_code", "bad_refresh_token", "unverified_user_email"}  # of GitHub
log = logging.getLogger("dovetail.authserver")


class Metadata(msgspec.Struct, frozen=True):
    """The metadata of a provider (OpenID Connect Discovery), or what its row says instead."""

    authorization_endpoint: str
    token_endpoint: str
    issuer: str = ""
    jwks_uri: str = ""
    userinfo_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ()
    authorization_response_iss_parameter_supported: bool = False


class TokenAnswer(Confidential, frozen=True):
    access_token: str
    token_type: str = "bearer"
    refresh_token: str | None = None
    id_token: str | None = None
    expires_in: int | float | str | None = None
    scope: str | None = None  # what was granted; None: all that was requested

    @property
    def seconds(self) -> float | None:
        """The lifetime of the access token; None if it does not expire, or is unknown."""
        try:
            seconds = float(self.expires_in or 0)
        except (ValueError, OverflowError):
            return None
        return seconds if 0 < seconds < math.inf else None


class IdentityProvider:
    """One provider, as a registered client of it."""

    def __init__(self, row: Provider, client_id: str, client_secret: str, scopes: Sequence[str]) -> None:
        self.row = row
        self._client_id, self._client_secret = client_id, client_secret
        self._scopes = scopes
        self._issuers = row.issuers or (row.issuer,)
        # The operator has configured the provider, so it may be in a private network.
        allow_loopback = is_loopback_url(row.issuer or row.token_endpoint)
        self._fetch = make_fetch(allow_loopback=allow_loopback, allow_private=True, max_bytes=MAX_ANSWER)
        self._metadata = msgspec.convert(row, Metadata, from_attributes=True)
        self._read_at = -math.inf
        self._keys: RemoteKeys | None = None  # with the metadata

    # ── for the user's browser ──

    async def authorization_url(self, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """Where to send the browser."""
        endpoint = (await self._endpoints()).authorization_endpoint
        parameters = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self._scopes),
            "state": state,
            "code_challenge": encode_base64url(hashlib.sha256(verifier.encode()).digest()),
            "code_challenge_method": "S256",
            **({"nonce": nonce} if self.row.issuer else {}),
            **self.row.parameters,
        }
        return endpoint + ("&" if "?" in endpoint else "?") + urlencode(parameters)

    async def check_response_issuer(self, issuer: str | None) -> None:
        """Check `iss` of the response (RFC 9207), which some providers send."""
        is_required = (await self._endpoints()).authorization_response_iss_parameter_supported
        has_one_issuer = self.row.issuer and "{" not in self._issuers[0]
        if has_one_issuer and issuer not in (self._issuers if is_required else (None, *self._issuers)):
            raise self._untrusted(f"the response names the issuer {plain(str(issuer))!r}")

    # ── tokens ──

    async def redeem(self, code: str, redirect_uri: str, verifier: str, nonce: str) -> tuple[TokenAnswer, Identity]:
        """The tokens of a code, and its user. Raises OAuthError."""
        answer = await self.token(
            grant_type="authorization_code", code=code, redirect_uri=redirect_uri, code_verifier=verifier
        )
        claims = await self._id_token_claims(answer.id_token, nonce) if self.row.issuer else {}
        if self.row.asks_userinfo:
            profile = await self.profile(answer.access_token)
            if claims and profile and profile.get("sub") != claims["sub"]:
                raise self._untrusted("the profile is of another user than the id token")
            claims = {**profile, **claims}
        for name, (url, scope) in self.row.lists.items():
            if scope in self._scopes:
                claims[name] = await self._list(url, answer.access_token)
        granted = self._scopes if answer.scope is None else answer.scope.replace(",", " ").split()
        identity = self.row.identity({**claims, GRANTED: list(granted)})
        if identity is None:
            raise self._untrusted(f"the claims {', '.join(self.row.subject)} name no user")
        return answer, identity

    async def profile(self, access_token: str) -> dict[str, Any]:
        """The claims of the user of a token. Raises OAuthError; `invalid_grant` if the token is not good any more."""
        if not (url := (await self._endpoints()).userinfo_endpoint):
            return {}
        response = await self._ask(url, {"Authorization": f"Bearer {access_token}"})
        if response.status == 401:
            raise OAuthError("invalid_grant", f"{self.row.name} has ended your sign-in; sign in again")
        return self._object(url, response, dict[str, Any])

    async def _list(self, url: str, access_token: str) -> list[dict[str, Any]]:
        """Objects that a user has; none if the user has not given us the right to know them."""
        response = await self._ask(url, {"Authorization": f"Bearer {access_token}"})
        if response.status in (403, 404):
            log.info("%s: %s answered %s, so the list is empty", self.row.name, shown(url), response.status)
            return []
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            if response.status == 200:
                return msgspec.json.decode(response.body, type=list[dict[str, Any]])
        raise self._unavailable(f"{shown(url)} answered {response.status}, with no list of objects")

    async def token(self, **fields: str) -> TokenAnswer:
        """The answer to a grant, of this client. Raises OAuthError; `invalid_grant` if it is not good any more."""
        metadata, headers = await self._endpoints(), {"Content-Type": FORM}
        if self.row.issuer and "client_secret_post" not in metadata.token_endpoint_auth_methods_supported:
            pair = f"{quote_plus(self._client_id)}:{quote_plus(self._client_secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            fields |= {"client_id": self._client_id, "client_secret": self._client_secret}
        url = metadata.token_endpoint
        response = await self._ask(url, headers, urlencode(fields).encode())
        document = jose.read_object(response.body)
        error = None if document is None else document.get("error")
        if isinstance(error, str) and response.status < 500 and response.status != 429:
            raise self.refusal(error)
        answer = self._object(url, response, TokenAnswer)
        if answer.token_type.lower() != "bearer" or not answer.access_token:
            raise self._untrusted(f"{shown(url)} answered with a token that is empty, or no bearer token")
        return answer

    async def _id_token_claims(self, text: str | None, nonce: str) -> dict[str, Any]:
        """The claims of an id token, verified (OpenID Connect Core, 3.1.3.7)."""
        token = jose.read_token(text or "")
        if token is None:
            raise self._untrusted("there is no id token, or none that can be read")
        claims, algorithm, kid = token.claims, str(token.header.get("alg")), token.header.get("kid")
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        issuers = [each.replace("{tenantid}", str(claims.get("tid"))) for each in self._issuers]
        checks = {
            f"its issuer is {plain(str(claims.get('iss')))!r}": claims.get("iss") in issuers,
            "it is for another client": self._client_id in audiences,
            "its authorized party is another client": claims.get("azp", self._client_id) == self._client_id
            and (len(audiences) == 1 or "azp" in claims),
            "it has expired, or the clocks differ": is_in_lifetime(claims, time.time(), LEEWAY, requires_exp=True),
            "its nonce is another": hmac.compare_digest(str(claims.get("nonce")).encode(), nonce.encode()),
            "it names no user": isinstance(claims.get("sub"), str),
            f"its algorithm is {plain(algorithm)!r}": algorithm in jose.ASYMMETRIC,
        }
        for problem, holds in checks.items():
            if not holds:
                raise self._untrusted(f"the id token is refused: {problem}")
        try:
            keys = await self._keys.find(kid, algorithm) if self._keys else ()
        except VerifierUnavailable as failure:
            raise self._unavailable(str(failure)) from None
        if not any(key.verifies(token, algorithm) for key in keys):
            raise self._untrusted("the id token is refused: no key of the provider has signed it")
        return claims

    # ── metadata ──

    async def _endpoints(self) -> Metadata:
        """The metadata of the row, or of the issuer, read once an hour."""
        now = time.time()
        if self.row.issuer and not 0 <= now - self._read_at < METADATA_TTL:
            before, self._metadata, self._read_at = self._metadata, await self._discover(), now
            if before.jwks_uri != self._metadata.jwks_uri:
                self._keys = RemoteKeys(self._fetch, self.row.issuer, self._metadata.jwks_uri, jose.ASYMMETRIC)
        return self._metadata

    async def _discover(self) -> Metadata:
        url = f"{self.row.issuer.rstrip('/')}/.well-known/openid-configuration"
        metadata = self._object(url, await self._ask(url), Metadata)
        if metadata.issuer not in self._issuers:
            raise self._untrusted(f"{shown(url)} is of another issuer: {plain(metadata.issuer)!r}")
        endpoints = (metadata.authorization_endpoint, metadata.token_endpoint, metadata.jwks_uri)
        for each in (*endpoints, metadata.userinfo_endpoint or metadata.jwks_uri):
            if not is_secure_url(each, self.row.issuer):
                raise self._untrusted(f"{shown(url)} names an endpoint that is not https: {shown(each)}")
        return metadata

    # ── requests and failures ──

    async def _ask(self, url: str, headers: Mapping[str, str] | None = None, body: bytes | None = None) -> Fetched:
        request = FetchRequest(url=url, method="POST" if body else "GET", headers=headers or {}, body=body)
        try:
            return await self._fetch(request)
        except FetchFailed as failure:
            raise self._unavailable(str(failure)) from None

    def _object(self, url: str, response: Fetched, kind: type[T]) -> T:
        found = jose.read_object(response.body) if response.status == 200 else None
        if found is None:
            raise self._unavailable(f"{shown(url)} answered {response.status}, with no JSON object")
        try:
            return msgspec.convert(found, kind)
        except msgspec.ValidationError as problem:
            raise self._untrusted(f"{shown(url)} is not as it should be: {problem}") from None

    def _unavailable(self, cause: str) -> OAuthError:
        log.warning("%s: %s", self.row.name, cause)
        text = f"{self.row.name} does not answer as it should at the moment. Try again in a minute."
        return OAuthError("temporarily_unavailable", text, status=503)

    def _untrusted(self, cause: str) -> OAuthError:
        log.error("%s can't be trusted, so nobody is signed in: %s", self.row.name, cause)
        text = f"The answer of {self.row.name} can't be trusted, so you are not signed in. Tell who runs this server."
        return OAuthError("server_error", text, status=502)

    def refusal(self, error: str) -> OAuthError:
        """The OAuthError for an error code of the provider."""
        name = self.row.name
        if error in NOT_GOOD:
            log.info("%s refuses a user or a code with %r", name, error)
            return OAuthError("invalid_grant", f"{name} did not accept this sign-in, or not any more. Begin again.")
        if error in ("temporarily_unavailable", "server_error"):
            return self._unavailable(f"it says {error}")
        log.error("%s refuses this server with %r: check client id, secret, redirect URI, scopes", name, plain(error))
        text = f"{name} refuses this server, which is not set up as it should be. Tell who runs it."
        return OAuthError("server_error", text, status=502)
