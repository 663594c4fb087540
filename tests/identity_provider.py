"""Identity providers for tests: each row of providers as a real server on loopback, with its documented quirks.

    async with provider("github", redirect_uri="https://login.example.com/callback") as github:
        github.user = "bob"
        callback = await visit(url)  # the browser of bob, who is signed in there and says yes

`github.lies` and `github.failures` make it lie or fail. As a process of its own it is ruled by `/_set`, and tells
`/_seen`:  python identity_provider.py --kind github --port 8001 --redirect-uri http://127.0.0.1:8000/callback
"""

import argparse
import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import aiohttp
from aiohttp import web

from issuer_stage import OTHER_RSA, RSA, craft, encode, signer
from provider_kinds import BY_SCOPE, CLIENT_ID, CLIENT_SECRET, CONSUMERS, ELSEWHERE, KINDS, OTHER_TENANT, TENANT, USERS

__all__ = ["CLIENT_ID", "CLIENT_SECRET", "CONSUMERS", "OTHER_TENANT", "TENANT", "IdentityProvider", "provider", "visit"]


class Grant:
    """What a user has granted to the client, with all that was made of it."""

    def __init__(self, user: str, asked: Mapping[str, str], tenant: str) -> None:
        self.user, self.asked, self.tenant = user, asked, tenant
        self.scopes = asked.get("scope", "").split()
        self.is_revoked = False
        self.is_used = False  # its code
        self.session = secrets.token_hex(8)


# ── lies and failures ──

FOREIGN = "https://evil.example"
CLAIM_LIES: dict[str, Callable[[dict[str, Any]], object]] = {  # of an id token
    "iss": lambda claims: claims.update(iss=FOREIGN),
    "odd iss": lambda claims: claims.update(iss=["a", "list"]),
    "short iss": lambda claims: claims.update(iss=urlsplit(claims["iss"]).netloc),  # as Google's old ones
    "aud": lambda claims: claims.update(aud="another-client"),
    "no aud": lambda claims: claims.pop("aud"),
    "two aud": lambda claims: claims.update(aud=[CLIENT_ID, "another-client"], azp="another-client"),
    "two aud, no azp": lambda claims: (claims.update(aud=[CLIENT_ID, "another-client"]), claims.pop("azp", None)),
    "two aud, azp": lambda claims: claims.update(aud=[CLIENT_ID, "account"], azp=CLIENT_ID),  # that one is right
    "azp": lambda claims: claims.update(azp="another-client"),
    "nonce": lambda claims: claims.update(nonce="of-another-sign-in"),
    "no nonce": lambda claims: claims.pop("nonce", None),
    "expired": lambda claims: claims.update(iat=claims["iat"] - 9000, exp=claims["iat"] - 4000),
    "no exp": lambda claims: claims.pop("exp"),
    "no sub": lambda claims: claims.pop("sub"),
    "odd sub": lambda claims: claims.update(sub={"not": "a text"}),
    "tid": lambda claims: claims.update(tid=OTHER_TENANT),
    "no tid": lambda claims: claims.pop("tid"),
}
METADATA_LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "metadata of another": lambda document: document.update(issuer=FOREIGN),
    "http endpoints": lambda document: document.update(token_endpoint="http://login.example.com/token"),
    "http authorize": lambda document: document.update(authorization_endpoint="http://login.example.com/authorize"),
    "no endpoints": lambda document: [document.pop(name) for name in ("token_endpoint", "authorization_endpoint")],
}
TOKEN_LIES: dict[str, Callable[[dict[str, Any]], object]] = {  # of a response of the token endpoint
    "no access_token": lambda answer: answer.pop("access_token"),
    "odd access_token": lambda answer: answer.update(access_token=["a", "list"]),
    "token_type": lambda answer: answer.update(token_type="mac"),
    "huge expires_in": lambda answer: answer.update(expires_in=10**400),
    "no id_token": lambda answer: answer.pop("id_token", None),
    "odd id_token": lambda answer: answer.update(id_token="a.b.c"),
}
USERINFO_LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "other sub": lambda claims: claims.update(sub="somebody-else"),
    "no id": lambda claims: [claims.pop(name, None) for name in ("id", "sub")],
    "odd id": lambda claims: claims.update(id={"not": "a number"}, sub=["a", "list"]),
}
SIGNATURE_LIES = ("none", "HS256", "unknown key", "same kid", "broken signature")
HTML = "<!doctype html><h1>Service unavailable</h1>"
FAILURES: dict[str, tuple[int, str, bytes]] = {
    "html 200": (200, "text/html", HTML.encode()),
    "html 500": (500, "text/html", HTML.encode()),
    "json 500": (500, "application/json", b'{"error": "server_error"}'),
    "busy": (429, "application/json", b'{"error": "too_many_requests"}'),
    "rate limit": (403, "application/json", b'{"message": "API rate limit exceeded for user ID 1."}'),
    "no json": (200, "application/json", b'{"access_token": "a'),
    "no object": (200, "application/json", b'["a", "list"]'),
    "nothing": (200, "application/json", b""),
    "deep json": (200, "application/json", b'{"a":' + b"[" * 100_000),
    "huge": (200, "application/json", b'{"a": "' + b"x" * 2_000_000 + b'"}'),
    "redirect": (302, "text/plain", b""),
}
# and `slow` until the event `go`, `down` (the connection is closed), `endless`


class IdentityProvider:
    """One of `KINDS`, with one client."""

    def __init__(self, kind: str, redirect_uri: str = "", clock: Callable[[], float] = time.time) -> None:
        self.kind, self.name, self.redirect_uri, self.clock = KINDS[kind], kind, redirect_uri, clock
        self.origin = ""
        self.user = "ann"
        self.keys = [RSA]  # the first one signs
        self.withheld: set[str] = set()  # scopes that users do not grant
        self.expires_in: Any = self.kind.expires_in
        self.callback: dict[str, str | None] = {}  # other parameters of the redirect, as `error`; None takes one away
        self.lies: set[str] = set()
        self.failures: dict[str, str] = {}  # by endpoint: metadata, jwks, authorize, token, refresh, userinfo
        self.go = asyncio.Event()
        self.asked: list[str] = []  # names of endpoints, and paths of others
        self.paths: list[str] = []
        self.client_secret = CLIENT_SECRET
        self.authorizations: list[dict[str, str]] = []
        self.forms: list[dict[str, str]] = []  # of the token endpoint
        self._codes: dict[str, Grant] = {}
        self._access: dict[str, tuple[Grant, float]] = {}
        self._refresh: dict[str, Grant] = {}
        self._used: dict[str, Grant] = {}  # refresh tokens that were rotated

    # ── for tests ──

    @property
    def refreshes(self) -> int:
        """Requests with a refresh token, also refused ones."""
        return self.asked.count("refresh")

    @property
    def issuer(self) -> str:
        return self.origin + self.kind.issuer.replace("{tenant}", TENANT)

    @property
    def elsewhere(self) -> str:
        """The origin of the endpoints on another host."""
        return self.origin.replace("127.0.0.1", ELSEWHERE)

    def url(self, name: str, tenant: str = TENANT) -> str:
        """The URL of an endpoint."""
        origin = self.elsewhere if name in self.kind.elsewhere else self.origin
        return origin + getattr(self.kind, name).replace("{tenant}", tenant)

    @property
    def secrets(self) -> list[str]:
        """All that may stand in no page and no log."""
        return [CLIENT_SECRET, *self._codes, *self._access, *self._refresh, *self._used]

    @property
    def access_tokens(self) -> list[str]:
        return list(self._access)

    def is_good(self, access_token: str) -> bool:
        grant, until = self._access.get(access_token, (None, 0.0))
        return grant is not None and not grant.is_revoked and self.clock() < until

    def revoke(self, name: str) -> None:
        """All grants of a user, or the one of a token."""
        grants = [*self._codes.values(), *self._refresh.values(), *(grant for grant, _ in self._access.values())]
        of_token = self._refresh.get(name) or self._access.get(name, (None,))[0]
        for grant in grants:
            grant.is_revoked |= grant.user == name or grant is of_token

    # ── HTTP ──

    def app(self) -> web.Application:
        endpoints: dict[str, Any] = {
            "authorize": self._authorize, "token": self._token, "userinfo": self._userinfo, "jwks": self._jwks,
        }  # fmt: skip
        paths = {getattr(self.kind, name): name for name in endpoints if getattr(self.kind, name)}
        if self.kind.has_id_tokens:
            paths[f"{self.kind.issuer.rstrip('/')}/.well-known/openid-configuration"] = "metadata"
            endpoints["metadata"] = self._metadata
        paths |= dict.fromkeys(self.kind.more_pages, "list")
        endpoints["list"] = self._userinfo
        app = web.Application()
        for path, name in paths.items():
            for prefix in ("", "/api/v3") if name in ("userinfo", "list") and "github" in self.name else ("",):
                app.router.add_route("*", prefix + path, self._endpoint(name, endpoints[name]))
        app.router.add_route("*", "/_seen", self._seen)
        app.router.add_post("/_set", self._set)
        app.router.add_route("*", "/{tail:.*}", self._other)
        return app

    def _endpoint(self, name: str, handler: Any) -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            is_elsewhere = urlsplit(f"//{request.host}").hostname == ELSEWHERE
            host = "userinfo" if name == "list" else name
            if is_elsewhere != (host in self.kind.elsewhere and not request.path.startswith("/api/v3")):
                return await self._other(request)
            given = {key: str(value) for key, value in (await request.post()).items()}
            label = "refresh" if given.get("grant_type") == "refresh_token" else name
            self.asked.append(label)
            self.paths.append(request.path)
            how = self.failures.get(label)
            failed = None if how is None else await self._fail(how, request)
            return failed or await handler(request, given)

        return answer

    async def _fail(self, how: str, request: web.Request) -> web.StreamResponse | None:
        if how == "slow":
            await self.go.wait()
            return None
        if how == "down":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if how == "endless":
            endless = web.StreamResponse()
            await endless.prepare(request)
            while True:  # until the other side has enough: then this raises
                await endless.write(b" " * 65_536)
        status, media_type, body = FAILURES[how]
        headers = {"location": f"{self.origin}/trap"} if how == "redirect" else {}
        return web.Response(status=status, body=body, content_type=media_type, headers=headers)

    async def _other(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        return web.Response(status=404, text="nothing here")

    async def _seen(self, _: web.Request) -> web.Response:
        live = {token: grant.user for token, (grant, _) in self._access.items() if self.is_good(token)}
        return web.json_response({"asked": self.asked, "refreshes": self.refreshes, "access_tokens": live})

    async def _set(self, request: web.Request) -> web.Response:
        """`{"user": "bob", "failures": {"token": "slow"}, "go": true, "revoke": "ann"}`, and the like."""
        wanted = await request.json()
        if wanted.pop("go", False):
            self.go.set()
        if (revoked := wanted.pop("revoke", None)) is not None:
            self.revoke(revoked)
        for name in wanted.keys() & {"user", "redirect_uri", "expires_in", "callback", "lies", "failures"}:
            setattr(self, name, set(wanted[name]) if name == "lies" else wanted[name])
        return web.json_response({})

    # ── the endpoints ──

    async def _metadata(self, request: web.Request, _: Any) -> web.Response:
        tenant = request.match_info.get("tenant", "")
        # For all tenants together, Entra names no issuer but a template; personal accounts are of one tenant.
        named = {"organizations": "{tenantid}", "common": "{tenantid}", "consumers": CONSUMERS}.get(tenant, tenant)
        document = {
            "issuer": self.origin + self.kind.issuer.replace("{tenant}", named),
            **{key: self.url(name, tenant) for key, name in {
                "authorization_endpoint": "authorize", "token_endpoint": "token", "userinfo_endpoint": "userinfo",
                "jwks_uri": "jwks"}.items()},
            "response_types_supported": ["code"], "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"], "scopes_supported": self.kind.scopes.split(),
            "token_endpoint_auth_methods_supported": self.kind.client_auth, **self.kind.metadata,
        }  # fmt: skip
        document = {name: value for name, value in document.items() if value is not None}
        self._lie(METADATA_LIES, document)
        return web.json_response(document)

    async def _jwks(self, _: web.Request, __: Any) -> web.Response:
        # Those of Entra name the issuer that they are for.
        issuer = {"issuer": f"{self.origin}/{{tenantid}}/v2.0"} if self.name == "entra" else {}
        return web.json_response({"keys": [{**key.as_dict(private=False), **issuer} for key in self.keys]})

    async def _authorize(self, request: web.Request, _: Any) -> web.Response:
        """The user is signed in, and says yes at once."""
        asked = {key: values[0] for key, values in parse_qs(request.query_string).items() if len(values) == 1}
        self.authorizations.append(asked)
        if asked.get("client_id") != CLIENT_ID or asked.get("redirect_uri") != self.redirect_uri:
            return web.Response(status=400, text=f"client_id or redirect_uri is not registered: {asked}")
        answer: dict[str, str | None] = {"state": asked.get("state"), **self.kind.callback}
        if "iss" in answer:
            answer["iss"] = self.issuer
        if asked.get("response_type") != "code":
            answer["error"] = "unsupported_response_type"
        elif asked.get("code_challenge_method", "S256") != "S256":
            answer["error"] = "invalid_request"
        elif self.kind.scopes and not set(asked.get("scope", "").split()) <= set(self.kind.scopes.split()):
            answer["error"] = "invalid_scope"
        elif "error" not in self.callback:
            code = secrets.token_urlsafe(16)
            self._codes[code] = Grant(self.user, asked, USERS[self.user].tenant)
            answer["code"] = code
        sent = {key: value for key, value in {**answer, **self.callback}.items() if value is not None}
        location = f"{self.redirect_uri}?{urlencode(sent)}"
        return web.Response(status=302, headers={"location": location})

    async def _token(self, request: web.Request, form: dict[str, str]) -> web.Response:
        self.forms.append(form)
        if request.content_type != "application/x-www-form-urlencoded" or request.method != "POST":
            return self._refuse(request, 400, "invalid_request", "no form")
        if self._client_of(request, form) != (CLIENT_ID, self.client_secret):
            return self._refuse(request, *self.kind.bad_client, "The client_id and/or client_secret are incorrect.")
        grant_type = form.get("grant_type", "authorization_code" if "github" in self.name else "")
        if grant_type == "authorization_code":
            grant, refusal, refresh = self._redeem(form), self.kind.bad_code, True
        elif grant_type == "refresh_token" and self.kind.offline != "never":
            grant, refusal, refresh = self._renew(form), self.kind.bad_refresh, self.kind.refresh != "none"
        else:
            return self._refuse(request, 400, "unsupported_grant_type", grant_type)
        if grant is None or grant.is_revoked:
            return self._refuse(request, self.kind.status, *refusal)
        same = form.get("refresh_token") if self.kind.refresh == "same" else None
        answer = self._tokens(grant, refresh, same)
        if self.kind.has_id_tokens and "openid" in grant.scopes:
            nonce = (
                {"nonce": grant.asked["nonce"]} if grant_type == "authorization_code" and "nonce" in grant.asked else {}
            )
            answer["id_token"] = self._id_token(grant, answer["access_token"], nonce)
        self._lie(TOKEN_LIES, answer)
        return self._respond(request, 200, answer)

    def _client_of(self, request: web.Request, form: dict[str, str]) -> tuple[str | None, str | None]:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme != "Basic":
            is_taken = "client_secret_post" in self.kind.client_auth
            return (form.get("client_id"), form.get("client_secret")) if is_taken else (None, None)
        if "client_secret_basic" not in self.kind.client_auth:
            return None, None
        assert "client_secret" not in form, "one way of authentication at a time (RFC 6749, 2.3)"
        id, _, secret = base64.b64decode(given).decode().partition(":")
        return unquote(id), unquote(secret)  # each is encoded as in a form (2.3.1)

    def _redeem(self, form: dict[str, str]) -> Grant | None:
        grant = self._codes.get(form.get("code", ""))
        if grant is None:
            return None
        grant.is_revoked |= grant.is_used  # a second use: one of the two was a thief
        grant.is_used = True
        challenge, verifier = grant.asked.get("code_challenge"), form.get("code_verifier", "")
        is_proved = challenge is None or challenge == encode(hashlib.sha256(verifier.encode()).digest())
        return grant if is_proved and form.get("redirect_uri") == grant.asked["redirect_uri"] else None

    def _renew(self, form: dict[str, str]) -> Grant | None:
        token = form.get("refresh_token", "")
        if token in self._used and self.kind.refresh == "family":
            self._used[token].is_revoked = True
        grant = self._refresh.get(token)
        if grant is not None and self.kind.refresh in ("rotated", "family"):
            self._used[token] = self._refresh.pop(token)
        if self.name == "github_app":
            self._access = {key: each for key, each in self._access.items() if each[0] is not grant}
        return grant

    def _tokens(self, grant: Grant, refresh: bool, same: str | None) -> dict[str, Any]:
        access, expires_in = f"at-{self.name}-{secrets.token_urlsafe(16)}", self.expires_in
        self._access[access] = (
            grant,
            self.clock() + (expires_in if isinstance(expires_in, int) and expires_in else 1e9),
        )
        # GitHub parts scopes by commas.
        granted = [each for each in grant.scopes if each not in self.withheld]
        scope = (" " if self.kind.has_id_tokens or self.name == "discord" else ",").join(granted)
        answer: dict[str, Any] = {"access_token": access, "token_type": "Bearer", "scope": scope}
        if "github" in self.name:
            answer["token_type"] = "bearer"
        if expires_in is not None:
            answer["expires_in"] = expires_in
        if refresh and self._is_offline(grant):
            answer["refresh_token"] = same or f"rt-{self.name}-{secrets.token_urlsafe(16)}"
            self._refresh[answer["refresh_token"]] = grant
        return answer

    def _is_offline(self, grant: Grant) -> bool:
        asked = grant.asked
        return {
            "always": True, "never": False, "scope": "offline_access" in grant.scopes,
            "parameters": asked.get("access_type") == "offline" and asked.get("prompt") == "consent",
        }[self.kind.offline]  # fmt: skip

    def _id_token(self, grant: Grant, access: str, nonce: dict[str, str]) -> str:
        now = int(time.time())
        who = {key: value for key, value in self._claims(grant).items() if key not in self.kind.in_userinfo_only}
        claims = {
            "iss": self.origin + self.kind.issuer.replace("{tenant}", grant.tenant), "aud": CLIENT_ID,
            "iat": now, "exp": now + 3600, "at_hash": encode(hashlib.sha256(access.encode()).digest()[:16]),
            **who, **nonce,
        }  # fmt: skip
        if self.name == "keycloak":  # an audience mapper makes a list
            claims |= {"aud": [CLIENT_ID, "account"], "azp": CLIENT_ID, "sid": grant.session}
        self._lie(CLAIM_LIES, claims)
        return self._sign(claims)

    def _sign(self, claims: dict[str, Any]) -> str:
        lie = next((each for each in SIGNATURE_LIES if each in self.lies), "")
        header = {"alg": "RS256", "typ": "JWT", "kid": self.keys[0].kid}
        pem = RSA.as_pem(private=False)
        lied: dict[str, tuple[dict[str, str], Callable[[bytes], bytes]]] = {
            "none": ({"alg": "none"}, lambda _: b""),
            "HS256": ({"alg": "HS256"}, lambda message: hmac.digest(pem, message, "sha256")),
            "unknown key": ({"kid": OTHER_RSA.kid}, signer("RS256", OTHER_RSA)),
            "same kid": ({}, signer("RS256", OTHER_RSA)),
            "broken signature": ({}, lambda _: b"x" * 256),
            "": ({}, signer("RS256", self.keys[0])),
        }
        changed, sign = lied[lie]
        return craft(header | changed, claims, sign)

    def _claims(self, grant: Grant) -> dict[str, Any]:
        claims = self.kind.claims(USERS[grant.user])
        kept = self.kind.scopes.split()
        gone = {each for scope, names in BY_SCOPE.items() if scope in kept and scope not in grant.scopes
                for each in names}  # fmt: skip
        if self.name == "okta_org" and "groups" not in grant.scopes:
            gone.add("groups")
        return {key: value for key, value in claims.items() if key not in gone}

    async def _userinfo(self, request: web.Request, _: Any) -> web.Response:
        """The profile, and what else the API says of a user."""
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not self.is_good(token):
            challenge = {"www-authenticate": 'Bearer error="invalid_token"'}
            return web.json_response({"message": "Bad credentials"}, status=401, headers=challenge)
        if "github" in self.name and not request.headers.get("user-agent"):
            return web.Response(status=403, text="Request forbidden by administrative rules.")
        grant = self._access[token][0]
        needed, page = self.kind.more_pages.get(request.path.removeprefix("/api/v3"), ("", None))
        if page is not None:
            if self.kind.scopes and needed not in grant.scopes:
                return web.json_response({"message": "Not Found"}, status=404)
            return web.json_response(page(USERS[grant.user]))
        claims = self.kind.userinfo_claims(self._claims(grant))
        self._lie(USERINFO_LIES, claims)
        return web.json_response(claims)

    # ── parts ──

    def _lie(self, table: Mapping[str, Callable[[dict[str, Any]], object]], about: dict[str, Any]) -> None:
        for name in self.lies & table.keys():
            table[name](about)

    def _refuse(self, request: web.Request, status: int, error: str, description: str) -> web.Response:
        return self._respond(request, status, {"error": error, "error_description": description})

    def _respond(self, request: web.Request, status: int, answer: dict[str, Any]) -> web.Response:
        # GitHub answers with a form, unless JSON is asked for.
        if "github" in self.name and "application/json" not in request.headers.get("accept", ""):
            return web.Response(status=status, text=urlencode(answer), content_type="application/x-www-form-urlencoded")
        return web.json_response(answer, status=status, headers={"cache-control": "no-store"})


@asynccontextmanager
async def provider(
    kind: str = "oidc", redirect_uri: str = "", clock: Callable[[], float] = time.time
) -> AsyncIterator[IdentityProvider]:
    served = IdentityProvider(kind, redirect_uri, clock)
    runner = web.AppRunner(served.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    served.origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield served
    finally:
        served.go.set()
        await runner.cleanup()


async def visit(url: str, cookies: Mapping[str, str] | None = None) -> str:
    """What a browser does that is sent to the provider: gives the URL of ours that it is sent back to."""
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), cookies=cookies) as session,
        session.get(url, allow_redirects=False) as answer,
    ):
        assert answer.status in (302, 303), (answer.status, await answer.text())
        return answer.headers["Location"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=KINDS, default="oidc")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--redirect-uri", default="")  # else by `/_set`
    parser.add_argument("--expires-in", type=int)
    given = parser.parse_args()
    served = IdentityProvider(given.kind, given.redirect_uri)
    served.origin = f"http://127.0.0.1:{given.port}"
    served.expires_in = given.expires_in or served.expires_in
    web.run_app(served.app(), host="127.0.0.1", port=given.port, access_log=None, print=None, shutdown_timeout=0.1)


if __name__ == "__main__":
    main()
