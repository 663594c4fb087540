"""The token endpoint of an authorization server: a form comes in, tokens go out, or TokenRefused, or NotSignedIn."""

import base64
import time
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote_plus

from dovetail.client.credentials import is_token
from dovetail.client.oauth.documents import Provider, TokenAnswer
from dovetail.client.oauth.keys import ClientKey
from dovetail.client.oauth.proving import Proving
from dovetail.client.oauth.tokens import RegisteredClient, TokenSet
from dovetail.client.oauth.web import OAuthAnswer, OAuthWeb, plain, problem_in, read_as, shown
from dovetail.errors import NotSignedIn
from dovetail.protocol.scopes import read_scopes

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
BASIC, POST, SIGNED, PUBLIC = "client_secret_basic", "client_secret_post", "private_key_jwt", "none"
BUSY = frozenset({408, 425, 429})  # says nothing about the request
LATER = frozenset({"", "server_error", "temporarily_unavailable"})  # nor does this; without a word it was a gateway
MARGIN_SECONDS = 30.0  # before the end of a token, after which it is not used any more
LONGEST = 366 * 86_400.0


class TokenRefused(NotSignedIn):
    """The endpoint itself said no; `error` is the word that OAuth has for it."""

    def __init__(self, message: str, error: str) -> None:
        super().__init__(message)
        self.error = error


class TokenDoor(NamedTuple):
    """All that is needed to ask one authorization server for tokens for one MCP server."""

    web: OAuthWeb
    provider: Provider
    key: ClientKey | None = None
    proving: Proving | None = None

    async def ask(
        self, client: RegisteredClient, form: Mapping[str, str], scopes: tuple[str, ...], url: str | None = None
    ) -> TokenSet:
        """`scopes`: what they were asked for, whether the form says so or not."""
        answer = await self.answer(client, {**form, "resource": self.provider.resource}, url)
        return self._tokens(answer, client, scopes)

    async def answer(self, client: RegisteredClient, form: Mapping[str, str], url: str | None = None) -> TokenAnswer:
        url = url or self.provider.metadata.token_endpoint
        proof, more = self._identified(client)
        for _ in range(2):
            proven = {} if self.proving is None else self.proving.header("POST", url)
            answer = await self.web.post_form(url, {**form, **more}, {**proof, **proven})
            fresh = self.proving is not None and self.proving.learn(url, answer.headers.get("dpop-nonce"), proven)
            if answer.status < 400 or not fresh or problem_in(answer).error != "use_dpop_nonce":
                break
        return _read(answer, url)

    def _identified(self, client: RegisteredClient) -> tuple[dict[str, str], dict[str, str]]:
        """Headers and fields that say who is asking, and prove it."""
        if client.method == BASIC:
            pair = f"{quote_plus(client.id)}:{quote_plus(client.secret or '')}"
            return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}, {}
        if client.method == POST:
            return {}, {"client_id": client.id, "client_secret": client.secret or ""}
        if client.method == SIGNED and self.key is not None:
            supported = self.provider.metadata.token_endpoint_auth_signing_alg_values_supported
            assertion = self.key.assertion(client.id, self.provider.issuer, supported)
            signed = {"client_assertion_type": ASSERTION_TYPE, "client_assertion": assertion}
            return {}, {"client_id": client.id, **signed}
        return {}, {"client_id": client.id}

    def _tokens(self, answer: TokenAnswer, client: RegisteredClient, scopes: tuple[str, ...]) -> TokenSet:
        wanted = "Bearer" if self.proving is None else "DPoP"
        if answer.token_type.lower() != wanted.lower():
            raise NotSignedIn(f"{shown(self.provider.issuer)} gave a token that is not of the type {wanted}")
        if not is_token(answer.access_token):
            raise NotSignedIn(f"{shown(self.provider.issuer)} gave a token that no header can carry")
        return TokenSet(
            access_token=answer.access_token,
            token_type=wanted,
            issuer=self.provider.issuer,
            client=client,
            requested=scopes,
            granted=scopes if answer.scope is None else tuple(sorted(read_scopes(answer.scope))),
            expires_at=_end(answer.expires_in),
            refresh_token=answer.refresh_token or None,
            proof_key=None if self.proving is None else self.proving.key.jwk,
        )


def method_for(provider: Provider, *, secret: bool, key: bool) -> str:
    """How a program with these proves who it is, as far as the authorization server takes it."""
    if key:
        return SIGNED
    if not secret:
        return PUBLIC
    supported = provider.metadata.token_endpoint_auth_methods_supported or (BASIC,)
    return next((each for each in (BASIC, POST) if each in supported), BASIC)


def _read(answer: OAuthAnswer, url: str) -> TokenAnswer:
    if answer.status >= 500 or answer.status in BUSY:
        raise NotSignedIn(f"{shown(url)} answered {answer.status}; try again later")
    if answer.status != 200 or "error" in (answer.body or {}):  # some servers refuse with 200
        problem = problem_in(answer)
        words = ": ".join(filter(None, (problem.error, problem.error_description)))
        if problem.error in LATER:
            raise NotSignedIn(f"{shown(url)} gave no token: {words}; try again later")
        raise TokenRefused(f"{shown(url)} gave no token: {words}", problem.error)
    found = read_as(answer.body, TokenAnswer)
    if found is None:
        raise NotSignedIn(f"{shown(url)} answered with something that holds no token")
    return found


def _end(seconds: float | str | None) -> float | None:
    try:
        lasts = min(float(seconds or 0), LONGEST)
    except ValueError:
        raise NotSignedIn(f"The token ends after {plain(str(seconds))!r} seconds, which is no number") from None
    if not lasts > 0:
        return None
    return time.time() + lasts - min(MARGIN_SECONDS, lasts / 10)
