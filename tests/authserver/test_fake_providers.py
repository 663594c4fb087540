"""The identity providers of the tests: they check what real ones check, else the tests with them would prove little."""

import base64
import hashlib
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlencode, urlsplit

import aiohttp
import pytest

from authserver_stage import basic
from identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider, provider, visit
from provider_kinds import KINDS

REDIRECT_URI = "https://login.example.com/callback"
VERIFIER = "v" * 43
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()


def url_of(served: IdentityProvider, **changed: str) -> str:
    asked = {
        "response_type": "code", "client_id": CLIENT_ID, "redirect_uri": REDIRECT_URI, "state": "s", "nonce": "n",
        "scope": served.kind.scopes, "code_challenge": CHALLENGE, "code_challenge_method": "S256",
        "access_type": "offline", "prompt": "consent", **changed,
    }  # fmt: skip
    return f"{served.url('authorize')}?{urlencode(asked)}"


async def ask(url: str, form: dict[str, str] | None = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    headers = {"accept": "application/json", **(headers or {})}
    async with (
        aiohttp.ClientSession() as session,
        session.request("GET" if form is None else "POST", url, data=form, headers=headers) as answer,
    ):
        return answer.status, await answer.json()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def exchange(served: IdentityProvider, **form: str) -> tuple[int, Any]:
    client = {"client_id": CLIENT_ID, "client_secret": form.pop("client_secret", CLIENT_SECRET)}
    given = {"grant_type": "authorization_code", "redirect_uri": REDIRECT_URI, "code_verifier": VERIFIER, **form}
    if "client_secret_post" in served.kind.client_auth:
        return await ask(served.url("token"), given | client)
    return await ask(served.url("token"), given, basic(*map(quote_plus, client.values())))


async def code_of(served: IdentityProvider, **changed: str) -> str:
    return dict(parse_qsl(urlsplit(await visit(url_of(served, **changed))).query))["code"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_provider_gives_tokens_for_a_code_and_checks_what_it_gets(kind: str) -> None:
    async with provider(kind, REDIRECT_URI) as served:
        for wrong in ({"code": "x"}, {"redirect_uri": REDIRECT_URI + "/"}, {"code_verifier": "w"}):
            status, refusal = await exchange(served, **{"code": await code_of(served)} | wrong)
            assert (status, refusal["error"]) == (served.kind.status, served.kind.bad_code[0])
        code = await code_of(served)
        assert "error" in (await exchange(served, code=code, client_secret="wrong"))[1]
        status, tokens = await exchange(served, code=code)
        assert status == 200, tokens
        assert ("refresh_token" in tokens) == (served.kind.offline != "never")
        assert ("id_token" in tokens) == served.kind.has_id_tokens
        assert (await ask(served.url("userinfo"), headers=bearer(tokens["access_token"])))[0] == 200
        assert (await ask(served.url("userinfo"), headers=bearer("another")))[0] == 401
        assert "error" in (await exchange(served, code=code))[1]
        assert (await ask(served.url("userinfo"), headers=bearer(tokens["access_token"])))[0] == 401, (
            "used twice: all is revoked"
        )


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.offline != "never"])
async def test_a_refresh_token_is_used_as_documented(kind: str) -> None:
    async with provider(kind, REDIRECT_URI) as served:
        _, first = await exchange(served, code=await code_of(served))
        form = {"grant_type": "refresh_token", "refresh_token": first["refresh_token"]}
        _, second = await exchange(served, **form)
        assert second["access_token"] != first["access_token"]
        assert ("refresh_token" in second) == (served.kind.refresh != "none")
        assert (second.get("refresh_token") == first["refresh_token"]) == (served.kind.refresh == "same")
        status, third = await exchange(served, **form)
        assert ("error" in third) == (served.kind.refresh in ("rotated", "family"))
        assert status == (served.kind.status if "error" in third else 200)
        assert served.is_good(second["access_token"]) == (served.kind.refresh != "family")
        served.revoke("ann")
        assert not served.is_good(second["access_token"])
        last = {"refresh_token": second.get("refresh_token", first["refresh_token"])}
        assert "error" in (await exchange(served, **form | last))[1]
        assert served.refreshes == 3


@pytest.mark.parametrize("changed", [{"client_id": "x"}, {"redirect_uri": REDIRECT_URI + "?"}])
async def test_a_request_of_another_client_or_to_elsewhere_gets_a_page(changed: dict[str, str]) -> None:
    async with provider("oidc", REDIRECT_URI) as served:
        with pytest.raises(AssertionError, match="not registered"):
            await visit(url_of(served, **changed))


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"scope": "openid admin"}, "invalid_scope"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
    ],
)
async def test_a_wrong_request_is_refused_at_the_redirect_uri(changed: dict[str, str], error: str) -> None:
    async with provider("oidc", REDIRECT_URI) as served:
        assert f"error={error}" in await visit(url_of(served, **changed))
