"""Challenges, metadata, the redirect listener, the token file."""

import asyncio
import logging
import os
import pprint
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from dovetail import Client, Server
from dovetail.client.auth import AuthChallenge, BearerToken
from dovetail.client.oauth import ClientCredentials, JwtBearer, MemoryTokens, OAuth, TokenFile, TokenSet
from dovetail.client.oauth.authorization_code import RedirectListener, show_and_open
from dovetail.client.oauth.metadata import (
    ChallengeParams,
    RegistrationResponse,
    TokenResponse,
    read_challenge_params,
    resource_matches,
)
from dovetail.client.oauth.storage import RegisteredClient
from dovetail.errors import NotSignedIn, SetupError

pytestmark = pytest.mark.usefixtures("tidy")

CHALLENGES: dict[str, tuple[list[str], ChallengeParams]] = {
    "nothing": ([], ChallengeParams()),
    "the scheme alone": (["Bearer"], ChallengeParams()),
    "usual": (
        ['Bearer resource_metadata="https://a/.well-known/x", scope="a b", error="invalid_token"'],
        ChallengeParams("invalid_token", frozenset({"a", "b"}), "https://a/.well-known/x"),
    ),
    "without quotes": (["bearer error=invalid_token, scope=a"], ChallengeParams("invalid_token", frozenset({"a"}))),
    "other spaces": (['BEARER   Scope = "a" ,error\t=\t"x"'], ChallengeParams("x", frozenset({"a"}))),
    "escaped": ([r'Bearer error="say \"no\""'], ChallengeParams('say "no"')),
    "several in one": (
        ['Basic realm="x, y", Bearer scope="a", Digest error="d"'],
        ChallengeParams(None, frozenset({"a"})),
    ),
    "several headers": (
        ['Basic realm="x"', 'DPoP algs="ES256", error="e"', 'Bearer scope="a"'],
        ChallengeParams("e", frozenset("a")),
    ),
    "another kind of text": (["Negotiate abc==", 'Bearer scope="a"'], ChallengeParams(None, frozenset({"a"}))),
    "no ending": (['Bearer scope="a'], ChallengeParams()),
    "noise": (['=,=",,,\\"', "Bearer \x00\xff=1"], ChallengeParams()),
    "a comma in a text": (
        ['Bearer error_description="a, scope=b", scope="c"'],
        ChallengeParams(None, frozenset({"c"})),
    ),
}


@pytest.mark.parametrize("case", CHALLENGES)
def test_challenges(case: str) -> None:
    headers, expected = CHALLENGES[case]
    assert read_challenge_params(headers, ("bearer", "dpop")) == expected


OURS = [
    "https://a.example/team/mcp", "HTTPS://A.example:443/team/mcp/", "https://a.example/team", "https://a.example",
    "https://a.example/",
]  # fmt: skip
NOT_OURS = [
    "http://a.example/team/mcp", "https://a.example:8443/team/mcp", "https://b.example/team/mcp",
    "https://a.example/tea", "https://a.example/team/mcp/x", "https://a.example/team/mcp#x",
    "https://user@a.example/team/mcp", "urn:mcp", "",
]  # fmt: skip


@pytest.mark.parametrize("resource", [*OURS, *NOT_OURS])
def test_whether_a_resource_is_the_server(resource: str) -> None:
    assert resource_matches(resource, OURS[0]) is (resource in OURS)


SHARED_KEY = {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQ"}
WRONG: dict[str, tuple[Any, str]] = {
    "two words": (lambda: Client("http://a.example/mcp", auth="two words"), "is no token"),
    "a line break": (lambda: Client("http://a.example/mcp", auth="a\nb"), "is no token"),
    "nothing": (lambda: Client("http://a.example/mcp", auth=""), "is no token"),
    "a number": (lambda: Client("http://a.example/mcp", auth=1), "auth=int can't be used; give it a token as text"),  # type: ignore[arg-type]
    "two answers": (lambda: Client("http://a.example/", auth="a", headers={"authorization": "b"}), "keep one of them"),
    "for a command": (lambda: Client(["python"], auth="a"), "are for a URL"),
    "for a server": (lambda: Client(Server("a"), auth=OAuth()), "a token as text"),
    "a secret without a client": (lambda: OAuth(client_secret="a"), "belong to a client_id="),
    "a handler without a place": (lambda: OAuth(redirect_handler=str), "needs the redirect_uri="),
    "a place elsewhere": (lambda: OAuth(redirect_uri="https://a.example/back"), "must be on this machine"),
    "an open place": (lambda: OAuth(redirect_uri="http://a.example/", redirect_handler=str), "must be https"),
    "an open document": (lambda: OAuth(client_metadata_url="http://a.example/app"), "must be https"),
    "a bare document": (lambda: OAuth(client_metadata_url="https://a.example/"), "must be https and have a path"),
    "no scope": (lambda: OAuth(scopes=["two words"]), "can't be a scope"),
    "no proof": (lambda: ClientCredentials("a"), "how does it prove who it is"),
    "two proofs": (lambda: ClientCredentials("a", "b", private_key="c"), "keep one of them"),
    "no key": (lambda: ClientCredentials("a", private_key="-----BEGIN NOTHING-----"), "private_key= must be"),
    "a shared key": (lambda: ClientCredentials("a", private_key=SHARED_KEY), "a strong private EC, RSA or Ed25519 key"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options(case: str) -> None:
    make, words = WRONG[case]
    with pytest.raises(SetupError, match=words):
        make()


@pytest.mark.parametrize("what", ["private_key", "dpop"])
def test_what_has_to_be_installed_for_keys(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joserfc", None)
    with pytest.raises(SetupError, match=rf'{what}=.* needs joserfc: pip install "dovetail-mcp\[auth\]"'):
        ClientCredentials(
            "a", **({"private_key": "pem"} if what == "private_key" else {"client_secret": "b", what: True})
        )


@asynccontextmanager
async def waiting(
    redirect_uri: str | None = None, open: Any = lambda url: None
) -> AsyncIterator[tuple[str, "asyncio.Task[str]"]]:
    async with RedirectListener.opened(redirect_uri) as listener:
        task = asyncio.create_task(listener.wait_for_redirect("https://login.example/", "right", open, 5))
        await asyncio.sleep(0.01)
        yield listener.uri, task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def get(url: str, method: str = "GET") -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.request(method, url) as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        return answer.status, await answer.text()


REQUESTS = {
    "?state=wrong&code=1": 400,
    "?code=1": 400,
    "?state=right&state=right&code=1": 400,
    "?" + "&".join(f"a{n}=1" for n in range(60)) + "&state=right": 400,
    "/more?state=right&code=1": 404,
}


@pytest.mark.parametrize("target", REQUESTS, ids=[str(n) for n in range(len(REQUESTS))])
async def test_it_waits_for_the_right_one(target: str) -> None:
    async with waiting() as (uri, coming):
        assert uri.startswith("http://127.0.0.1:")
        status, page = await get(uri + target)
        assert status == REQUESTS[target]
        assert "state" not in page
        assert (await get(uri + "?state=right", "POST"))[0] == 404
        assert not coming.done()
        assert (await get(f"{uri}?state=right&code=2"))[0] == 200
        assert await coming == f"{uri}?state=right&code=2"


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_browser_that_does_not_open(is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    def broken(url: str) -> None:
        raise OSError("no display")

    async def broken_too(url: str) -> None:
        broken(url)

    async with waiting(open=broken_too if is_async else broken) as (_, coming):
        with pytest.raises(NotSignedIn, match="could not be opened"):
            await coming
    assert "no display" in caplog.text


async def test_a_port_that_is_taken() -> None:
    async with waiting() as (uri, _):
        with pytest.raises(NotSignedIn, match="is in use"):
            async with waiting(uri):
                pass


def test_the_url_is_shown_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    show_and_open("https://login.example/?a=1")
    printed = capsys.readouterr()
    assert opened == ["https://login.example/?a=1"]
    assert "https://login.example/?a=1" in printed.err
    assert not printed.out


TOKENS = TokenSet(
    access_token="a-token",
    token_type="DPoP",
    issuer="https://login.example.com",
    client=RegisteredClient("app", "its-secret", "client_secret_basic", "http://127.0.0.1:8123/callback"),
    requested=("a", "b"),
    granted=("a",),
    expires_at=12.5,
    refresh_token="another",
    proof_key={"kty": "EC", "d": "private"},
)

KEY = "https://notes.example.com/mcp app"


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "folder" / "tokens.json")


async def keep(file: TokenFile, key: str = KEY) -> None:
    async with file.exclusive(key):
        await file.save(key, TOKENS)


SECRET = "sikrit"

CONFIDENTIAL: list[Any] = [
    replace(TOKENS, access_token=SECRET, refresh_token=SECRET, proof_key={"d": SECRET}),
    RegisteredClient("app", SECRET),
    RegistrationResponse("app", SECRET),
    TokenResponse(SECRET, "Bearer", refresh_token=SECRET),
    AuthChallenge(401, [], None, {"Authorization": SECRET}),
    MemoryTokens(),
    TokenFile("tokens.json"),
    OAuth(client_id="app", client_secret=SECRET),
    ClientCredentials("app", SECRET),
    JwtBearer("app", SECRET),
    BearerToken(SECRET),
]


@pytest.mark.parametrize("held", CONFIDENTIAL, ids=lambda held: type(held).__name__)
def test_secrets_are_not_shown(held: Any) -> None:
    for show in (repr, str, pprint.pformat):
        assert SECRET not in show([held])
        assert type(held).__name__ in show([held])
    for_rich = getattr(held, "__rich_repr__", list)  # a Struct has its own, which goes past `repr`
    assert SECRET not in str(list(for_rich()))
    assert repr(TOKENS) == "TokenSet(token_type='DPoP', issuer='https://login.example.com')"


def test_a_token_store_that_counts_as_false_is_used() -> None:
    class Empty(MemoryTokens):
        def __len__(self) -> int:
            return 0

    tokens = Empty()
    assert OAuth(tokens=tokens).store is tokens


@pytest.mark.skipif(os.name != "posix", reason="no owners of files here")
async def test_only_its_owner_can_read_it(file: TokenFile, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        await keep(file)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    for mode in (0o640, 0o604, 0o660):
        file.path.chmod(mode)
        with pytest.raises(NotSignedIn, match="others can read the tokens in it; run: chmod 600"):
            await file.load("one")
    file.path.chmod(0o600)
    assert await file.load(KEY) == TOKENS
    link = TokenFile(tmp_path / "link.json")
    link.path.symlink_to(file.path)
    with pytest.raises(NotSignedIn, match="can't be opened"):  # it is not followed
        await link.load("one")


BROKEN = [b"", b'{"tokens":{"one":{"access_', b"[]", b"[" * 100_000, b" " * 200_001]


@pytest.mark.parametrize("content", BROKEN, ids=["empty", "half", "a list", "deep", "huge"])
async def test_a_broken_one_is_replaced(file: TokenFile, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    file = TokenFile(file.path, max_bytes=200_000)
    await keep(file)
    file.path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert await file.load("one") is None
        assert "you will have to sign in again" in caplog.text
        await keep(file, "one")
    assert await file.load("one") is not None
