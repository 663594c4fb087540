"""Challenges, metadata URLs and the options of `auth=`: what is read, and how."""

import subprocess
import sys
from typing import Any

import pytest

from dovetail import Client, Server
from dovetail.client.address import ServerAddress
from dovetail.client.credentials import Challenged, credentials_for
from dovetail.client.oauth import ClientCredentials, JwtBearer, OAuth
from dovetail.client.oauth.discovery import fits, metadata_urls
from dovetail.client.oauth.www_authenticate import Told, read_challenges, read_told
from dovetail.errors import NotSignedIn, SetupError

CHALLENGES: dict[str, tuple[list[str], Told]] = {
    "nothing": ([], Told()),
    "the scheme alone": (["Bearer"], Told()),
    "usual": (
        ['Bearer resource_metadata="https://a/.well-known/x", scope="a b", error="invalid_token"'],
        Told("invalid_token", frozenset({"a", "b"}), "https://a/.well-known/x"),
    ),
    "without quotes": (["bearer error=invalid_token, scope=a"], Told("invalid_token", frozenset({"a"}))),
    "other spaces": (['BEARER   Scope = "a" ,error\t=\t"x"'], Told("x", frozenset({"a"}))),
    "escaped": ([r'Bearer error="say \"no\""'], Told('say "no"')),
    "several in one": (['Basic realm="x, y", Bearer scope="a", Digest error="d"'], Told(None, frozenset({"a"}))),
    "several headers": (
        ['Basic realm="x"', 'DPoP algs="ES256", error="e"', 'Bearer scope="a"'],
        Told("e", frozenset("a")),
    ),
    "another kind of text": (["Negotiate abc==", 'Bearer scope="a"'], Told(None, frozenset({"a"}))),
    "no ending": (['Bearer scope="a'], Told()),
    "noise": (['=,=",,,\\"', "Bearer \x00\xff=1"], Told()),
    "a comma in a text": (['Bearer error_description="a, scope=b", scope="c"'], Told(None, frozenset({"c"}))),
}


@pytest.mark.parametrize("case", CHALLENGES)
def test_challenges(case: str) -> None:
    headers, told = CHALLENGES[case]
    assert read_told(headers, ("bearer", "dpop")) == told


def test_many_challenges_are_read_quickly() -> None:
    assert len(read_challenges(["a " * 4000] * 10)) == 20
    assert read_challenges(['a="' + "\\" * 8000]) != []


@pytest.mark.parametrize(
    ("issuer", "paths"),
    [
        ("https://a.example", ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"]),
        ("https://a.example/", ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"]),
        (
            "https://a.example/t/1",
            [
                "/.well-known/oauth-authorization-server/t/1",
                "/.well-known/openid-configuration/t/1",
                "/t/1/.well-known/openid-configuration",
            ],
        ),
    ],
)
def test_where_metadata_are(issuer: str, paths: list[str]) -> None:
    assert metadata_urls(issuer) == [f"https://a.example{path}" for path in paths]


@pytest.mark.parametrize("issuer", ["https://a.example/?a=b", "https://a.example/#c"])
def test_what_no_issuer_is(issuer: str) -> None:
    with pytest.raises(NotSignedIn, match="can't be an issuer"):
        metadata_urls(issuer)


@pytest.mark.parametrize(
    ("resource", "fit"),
    [
        ("https://a.example/team/mcp", True),
        ("HTTPS://A.example:443/team/mcp/", True),
        ("https://a.example/team", True),
        ("https://a.example", True),
        ("https://a.example/", True),
        ("http://a.example/team/mcp", False),
        ("https://a.example:8443/team/mcp", False),
        ("https://b.example/team/mcp", False),
        ("https://a.example/tea", False),
        ("https://a.example/team/mcp/x", False),
        ("https://a.example/team/mcp#x", False),
        ("https://user@a.example/team/mcp", False),
        ("urn:mcp", False),
        ("", False),
    ],
)
def test_whether_a_resource_is_the_server(resource: str, fit: bool) -> None:
    assert fits(resource, "https://a.example/team/mcp") is fit


# ── options ──

WRONG: dict[str, tuple[Any, str]] = {
    "two words": (lambda: Client("http://a.example/mcp", auth="two words"), "is no token"),
    "a line break": (lambda: Client("http://a.example/mcp", auth="a\nb"), "is no token"),
    "nothing": (lambda: Client("http://a.example/mcp", auth=""), "is no token"),
    "a number": (lambda: Client("http://a.example/mcp", auth=1), "auth=int can't be used; give it a token as text"),  # type: ignore[arg-type]
    "two answers": (
        lambda: Client("http://a.example/mcp", auth="a", headers={"authorization": "b"}),
        "keep one of them",
    ),
    "for a command": (lambda: Client(["python"], auth="a"), "are for a URL"),
    "for a server": (lambda: Client(Server("a"), auth=OAuth()), "a token as text"),
    "a secret of nobody": (lambda: OAuth(client_secret="a"), "belong to a client_id="),
    "a handler without a place": (lambda: OAuth(redirect_handler=str), "needs the redirect_uri="),
    "a place elsewhere": (lambda: OAuth(redirect_uri="https://a.example/back"), "must be on this machine"),
    "an open place": (lambda: OAuth(redirect_uri="http://a.example/", redirect_handler=str), "must be https"),
    "an open document": (lambda: OAuth(client_metadata_url="http://a.example/app"), "must be https"),
    "a bare document": (lambda: OAuth(client_metadata_url="https://a.example/"), "must be https and have a path"),
    "no scope": (lambda: OAuth(scopes=["two words"]), "can't be a scope"),
    "no proof": (lambda: ClientCredentials("a"), "how does it prove who it is"),
    "two proofs": (lambda: ClientCredentials("a", "b", private_key="c"), "keep one of them"),
    "no key": (lambda: ClientCredentials("a", private_key="-----BEGIN NOTHING-----"), "can't be read"),
    "a shared key": (
        lambda: ClientCredentials("a", private_key={"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQ"}),
        "must be a private EC, RSA or Ed25519 key",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options(case: str) -> None:
    make, words = WRONG[case]
    with pytest.raises(SetupError, match=words):
        make()


def test_secrets_are_not_shown() -> None:
    address = ServerAddress.of("https://a.example/mcp")
    things = (
        OAuth(client_id="app", client_secret="s3cret"),
        ClientCredentials("app", "s3cret"),
        JwtBearer("app", "s3cret"),
        credentials_for("s3cret", address, {}),
        Challenged(401, (), None, {"Authorization": "Bearer s3cret"}),
    )
    assert "s3cret" not in repr(things)
    assert "app" in repr(things)


def test_a_client_without_it_does_not_load_it() -> None:
    program = """
import sys, dovetail
dovetail.Client("http://127.0.0.1:9/mcp", auth="token")
assert not any(name.startswith("dovetail.client.oauth") for name in sys.modules)
from dovetail.client import ClientCredentials, MemoryTokens, OAuth, TokenFile
import dovetail.client.oauth
OAuth(), ClientCredentials("a", "b"), MemoryTokens(), TokenFile
assert "joserfc" not in sys.modules and "aiohttp" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("what", ["private_key", "dpop"])
def test_what_has_to_be_installed_for_keys(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joserfc", None)
    with pytest.raises(SetupError, match=rf'{what}=.* needs joserfc: pip install "dovetail-mcp\[client,auth\]"'):
        ClientCredentials(
            "a", **({"private_key": "pem"} if what == "private_key" else {"client_secret": "b", what: True})
        )


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://notes.example.com/mcp?key=s3cret", "http://notes.example.com/mcp is not https"),
        ("https://notes.example.com/mcp", ""),
        ("http://127.0.0.1/mcp", ""),
        ("http://localhost/mcp", ""),
    ],
)
def test_a_token_in_the_open(url: str, words: str, caplog: pytest.LogCaptureFixture) -> None:
    credentials_for("s3cret", ServerAddress.of(url), {})
    assert words in caplog.text
    assert bool(caplog.text) is bool(words)
    assert "s3cret" not in caplog.text
