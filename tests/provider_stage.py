"""Each row of providers, at its stand-in on loopback, and users who sign in there."""

import html
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import msgspec
import pytest

from authserver_stage import CALLBACK, ISSUER, Browser, Program, Reply, Stage, payload
from authserver_stage import USERS as PASSWORDS
from dovetail.authserver import Passwords, Provider, SignIn
from dovetail.authserver.providers import DISCORD, GITHUB, GOOGLE
from identity_provider import IdentityProvider, provider
from issuer_stage import Clock
from provider_kinds import CLIENT_ID, CLIENT_SECRET, TENANT, USERS

REDIRECT_URI = f"{ISSUER}/callback"
EITHER_WAY = pytest.mark.parametrize("stage", ["passwords", "provider"], indirect=True)
KEYS = (CLIENT_ID, CLIENT_SECRET)


def moved(row: Provider, hosts: Mapping[str, str]) -> Provider:
    """A row with other hosts; all else of it stays."""

    def move(value: Any) -> Any:
        if isinstance(value, str):
            for old, new in hosts.items():
                if value == old or value.startswith(f"{old}/"):
                    return new + value.removeprefix(old)
        if isinstance(value, tuple):
            return tuple(map(move, value))
        if isinstance(value, dict):
            return {name: move(each) for name, each in value.items()}
        return value

    return msgspec.structs.replace(row, **{name: move(getattr(row, name)) for name in row.__struct_fields__})


def _github(at: IdentityProvider, options: Any) -> SignIn:
    return SignIn(
        moved(GITHUB, {"https://github.com": at.origin, "https://api.github.com": at.elsewhere}), *KEYS, **options
    )


def _google(at: IdentityProvider, options: Any) -> SignIn:
    short = urlsplit(at.origin).netloc
    return SignIn(
        moved(GOOGLE, {"https://accounts.google.com": at.origin, "accounts.google.com": short}), *KEYS, **options
    )


def _cognito(at: IdentityProvider, options: Any) -> SignIn:
    row = SignIn.cognito(*KEYS, region="eu-central-1", pool="eu-central-1_abc").provider.row
    return SignIn(moved(row, {"https://cognito-idp.eu-central-1.amazonaws.com": at.origin}), *KEYS, **options)


SIGN_INS: dict[str, Callable[[IdentityProvider, Any], SignIn]] = {
    "oidc": lambda at, options: SignIn.oidc(at.issuer, *KEYS, name="Example", **options),
    "github": _github,
    "github_app": _github,
    "github enterprise": lambda at, options: SignIn.github(*KEYS, url=at.origin, **options),
    "discord": lambda at, options: SignIn(moved(DISCORD, {"https://discord.com": at.origin}), *KEYS, **options),
    "google": _google,
    "entra": lambda at, options: SignIn.entra(*KEYS, tenant=options.pop("tenant", TENANT), cloud=at.origin, **options),
    "auth0": lambda at, options: SignIn.auth0(*KEYS, domain=at.origin, **options),
    "okta": lambda at, options: SignIn.okta(*KEYS, domain=at.origin, **options),
    "okta_org": lambda at, options: SignIn.okta(*KEYS, domain=at.origin, server=None, **options),
    "keycloak": lambda at, options: SignIn.keycloak(*KEYS, url=at.origin, realm="acme", **options),
    "cognito": _cognito,
    "workos": lambda at, options: SignIn.workos(*KEYS, domain=at.origin, **options),
}


class WayIn(NamedTuple):
    """How the users of a server of this process sign in: with passwords, or at an identity provider."""

    row: str
    at: IdentityProvider | None

    def sign_in(self, issuer: str) -> Passwords | SignIn:
        if self.at is None:
            return Passwords(PASSWORDS)
        self.at.redirect_uri = f"{issuer.rstrip('/')}/callback"
        return SIGN_INS[self.row](self.at, {})


@asynccontextmanager
async def way_in(row: str, clock: Callable[[], float] = time.time) -> AsyncIterator[WayIn]:
    """`row` is one of SIGN_INS, or "passwords"."""
    if row == "passwords":
        yield WayIn(row, None)
    else:
        async with provider(row.partition(" ")[0], clock=clock) as at:
            yield WayIn(row, at)


def standing_at(row: str, origin: str) -> IdentityProvider:
    """A provider that is served elsewhere, as by a process of its own; here it knows its URLs."""
    at = IdentityProvider(row.partition(" ")[0])
    at.origin = origin
    return at


async def name_of(at: IdentityProvider, access_token: str) -> str:
    """The user of a token of the provider, as its API tells it."""
    headers = {"Authorization": f"Bearer {access_token}"}
    async with aiohttp.ClientSession() as session, session.get(at.url("userinfo"), headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        profile = await answer.json()
        return str(profile.get("name") or profile["global_name"])


class Signing:
    """A program, a browser, an authorization server and an identity provider."""

    def __init__(self, at: IdentityProvider, stage: Stage) -> None:
        self.at, self.stage = at, stage
        self.program = Program(stage)

    async def sign_in(self, user: str = "ann", browser: Browser | None = None) -> Reply:
        """What the browser shows in the end, or where it is sent."""
        self.at.user = user
        browser = browser or Browser(self.stage)
        return await browser.sign_in_elsewhere(await browser.open(self.program.url()))

    async def tokens(self, user: str = "ann") -> dict[str, Any]:
        """Those that the program gets."""
        code = (await self.sign_in(user)).sent_to["code"]
        reply = await self.program.redeem(code)
        assert reply.status == 200, reply.text
        return reply.json  # type: ignore[no-any-return]

    async def claims(self, user: str = "ann") -> dict[str, Any]:
        """Those of the access token of ours."""
        return payload((await self.tokens(user))["access_token"])[1]

    def refused(self, page: Reply, status: int, error: str, words: str) -> None:
        """Check a page that says why it can't go on, and leads back to the program with an OAuth error."""
        assert (page.status, page.headers["content-type"].partition(";")[0]) == (status, "text/html"), page.text
        assert words in html.unescape(page.text)
        assert sent_back(page) == {"error": error, "state": "st&te=1 é", "iss": ISSUER}
        assert "Go back to The App" in page.text
        self.keeps_secrets(page.text)

    def keeps_secrets(self, *texts: str) -> None:
        for secret in self.at.secrets:
            assert not any(secret in text for text in texts)


def sent_back(page: Reply) -> dict[str, str]:
    """The parameters of the link of a page, but for the description, which has to be there."""
    (link,) = re.findall(r'<a href="([^"]*)"', page.text)
    url, _, query = html.unescape(link).partition("?")
    assert url == CALLBACK
    parameters = dict(parse_qsl(query))
    assert parameters.pop("error_description")
    return parameters


@asynccontextmanager
async def signing(row: str = "oidc", stage: Mapping[str, Any] | None = None, **options: Any) -> AsyncIterator[Signing]:
    """`options` are those of SignIn, `stage` those of the authorization server."""
    clock = Clock(1_800_000_000.0)
    async with provider(row.partition(" ")[0], REDIRECT_URI, clock) as at:
        yield Signing(at, Stage(clock=clock, sign_in=SIGN_INS[row](at, dict(options)), **(stage or {})))


def said(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> str:
    """What operators read."""
    return "\n".join(f"{each.levelname} {each.getMessage()}" for each in caplog.records if each.levelno >= level)


__all__ = [
    "EITHER_WAY",
    "KEYS",
    "REDIRECT_URI",
    "SIGN_INS",
    "USERS",
    "Signing",
    "WayIn",
    "moved",
    "name_of",
    "said",
    "sent_back",
    "signing",
    "standing_at",
    "way_in",
]
