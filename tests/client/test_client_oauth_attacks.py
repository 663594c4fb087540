"""What servers and browsers may try on a client that signs in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp.connector
import pytest
from scripted import DISCOVERED, Scripted, ScriptedRequest
from sign_in_stage import METADATA, PRM, SECRETS, Realm, realm

from dovetail import Client
from dovetail.cli.connect import terminal_sign_in
from dovetail.client.oauth import ClientCredentials, MemoryTokens, OAuth
from dovetail.client.oauth.metadata import ChallengeParams, OAuthHttp, discover
from dovetail.client.transports.aiohttp import HttpClient
from dovetail.client.transports.base import ServerUrl
from dovetail.errors import ConnectionLost, NotSignedIn, ServerError

pytestmark = pytest.mark.usefixtures("tidy")
MODERN = "2026-07-28"


async def connect(made: Realm, auth: Any = None, **options: Any) -> None:
    async with Client(made.url, protocol_version=MODERN, auth=auth or made.oauth(**options)):
        pass


async def refused(made: Realm, words: str, **options: Any) -> str:
    with pytest.raises(NotSignedIn, match=words) as caught:
        await connect(made, **options)
    assert not any(secret in str(caught.value) for secret in SECRETS)
    assert not any("authorization" in headers for headers in made.headers)
    return str(caught.value)


EVIL = "https://evil.example"


def state_of(usual: dict[str, str]) -> dict[str, str]:
    return {"state": usual["state"]}


ANSWERS: dict[str, tuple[Callable[[dict[str, str]], Any], str]] = {
    "another state": (lambda usual: {**usual, "state": "mine"}, "its state is not ours"),
    "no state": (lambda usual: {"code": "the-code"}, "its state is not ours"),
    "two codes": (lambda usual: [*usual.items(), ("code", "other")], "its state is not ours"),
    "another issuer": (lambda usual: {**usual, "iss": EVIL}, f"returned from {EVIL}"),
    "an error of another issuer": (
        lambda usual: {**state_of(usual), "error": "click_here", "iss": EVIL},
        "returned from",
    ),
    "an error": (lambda usual: {**state_of(usual), "error": "access_denied"}, "let you in: access_denied"),
    "no code": (state_of, "without a code"),
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_what_the_browser_brings_back(case: str) -> None:
    async with realm() as made:
        made.answer, words = ANSWERS[case]
        said = await refused(made, words)
        assert "click_here" not in said
        assert not made.forms  # no code went to any token endpoint


@pytest.mark.parametrize("brought", ["nothing", "a slash more"])
async def test_an_issuer_that_names_itself_does_so_always(brought: str) -> None:
    async with realm() as made:
        made.change(METADATA, authorization_response_iss_parameter_supported=True)
        if brought != "nothing":
            made.answer = lambda usual: {**usual, "iss": f"{made.script.origin}/"}
        await refused(made, "without the name of the issuer" if brought == "nothing" else "returned from")
        assert not made.forms
        made.answer = lambda usual: {**usual, "iss": made.script.origin}
        await connect(made)


DOCUMENTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "another resource": (PRM, {"resource": "https://evil.example/mcp"}, "says that it is 'https://evil.example/mcp'"),
    "a neighbour": (PRM, {"resource": "{origin}/mcp2"}, "a token for that one is not for this"),
    "a folder below": (PRM, {"resource": "{origin}/mcp/more"}, "a token for that one is not for this"),
    "nobody": (PRM, {"authorization_servers": []}, "does not name an authorization server"),
    "a private network": (PRM, {"authorization_servers": ["http://10.0.0.1"]}, "is not https"),
    "a file": (PRM, {"authorization_servers": ["file:///etc"]}, "host"),
    "another issuer": (METADATA, {"issuer": "https://evil.example"}, "are those of another issuer"),
    "a slash more": (METADATA, {"issuer": "{origin}/"}, "are those of another issuer"),
    "no PKCE": (METADATA, {"code_challenge_methods_supported": None}, "does not support PKCE"),
    "plain PKCE": (METADATA, {"code_challenge_methods_supported": ["plain"]}, "does not support PKCE"),
    "an open page": (METADATA, {"authorization_endpoint": "http://login.example/"}, "is not https"),
    "a script as a page": (METADATA, {"authorization_endpoint": "javascript:alert(1)"}, "no URL of the web"),
    "a program as a page": (METADATA, {"authorization_endpoint": "file:///bin/sh"}, "no URL of the web"),
    "no page": (METADATA, {"authorization_endpoint": None}, "has no page to sign in at"),
    "no registration": (METADATA, {"registration_endpoint": None}, "get a client_id"),
    "half an issuer": (PRM, {"authorization_servers": ["http://["]}, "is no URL"),
    "an issuer with a query": (PRM, {"authorization_servers": ["{origin}?a"]}, "query or a fragment"),
    "an issuer with a fragment": (PRM, {"authorization_servers": ["{origin}#a"]}, "query or a fragment"),
    "half a token endpoint": (METADATA, {"token_endpoint": "http://["}, "no URL of the web"),
    "half a registration": (METADATA, {"registration_endpoint": "/register"}, "no URL of the web"),
    "a page that reads backwards": (METADATA, {"authorization_endpoint": "https://a.example/\u202e"}, "odd characters"),
    "an open token endpoint": (METADATA, {"token_endpoint": "http://token.example/"}, "is not https"),
}


@pytest.mark.parametrize("case", DOCUMENTS)
async def test_what_servers_say_of_themselves(case: str) -> None:
    async with realm() as made:
        path, changes, words = DOCUMENTS[case]
        at = {"origin": made.script.origin}
        made.change(path, **{name: _filled(value, at) for name, value in changes.items()})
        await refused(made, words)
        assert not made.forms
        if case != "an open token endpoint":
            assert not made.asked  # the browser was not opened


async def test_the_command_asks_only_for_a_page_that_it_can_show(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    async with realm() as made:
        for page in ("https://login.example@evil.example/", "javascript:alert(1)", None):
            made.change(METADATA, authorization_endpoint=page)
            with pytest.raises(NotSignedIn, match="names no page to sign in at that can be shown; give a token"):
                await connect(made, terminal_sign_in())
        made.pages = dict.fromkeys((PRM, METADATA), 404)  # it has keys alone, and no authorization server
        with pytest.raises(NotSignedIn, match="names no authorization server to sign in at; give a token with --token"):
            await connect(made, terminal_sign_in())
        assert not made.forms


def _filled(value: Any, at: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_filled(each, at) for each in value]
    return value.format(**at) if isinstance(value, str) else value


async def test_metadata_are_bounded_and_a_registration_may_be_refused() -> None:
    async with realm() as made:
        made.pages[METADATA] = lambda request: request.answer(200, b" " * 300_000)
        await refused(made, "more than 262144 bytes")
        made.pages = {"/register": lambda request: request.answer(400, {"error": "invalid_redirect_uri"})}
        await refused(made, "did not register this program: invalid_redirect_uri; get a client_id")


async def test_redirects_of_metadata_stay_at_home() -> None:
    async with realm() as made, Scripted(lambda request: request.answer(200, {})) as other:
        made.pages[PRM] = lambda request: request.answer(307, Location=f"{other.origin}/prm")
        made.challenge = ""
        await refused(made, "redirects to another origin")
        assert not other.requests
        document = made.document(PRM)
        made.pages["/elsewhere"] = document
        made.pages[PRM] = lambda request: request.answer(307, Location="/elsewhere")
        await connect(made)
        made.pages[PRM] = lambda request: request.answer(307, Location=PRM)  # for ever
        made.good = set()
        with pytest.raises(NotSignedIn):
            await connect(made)


async def test_a_token_never_follows_a_redirect_to_another_origin() -> None:
    async with realm() as made, Scripted(lambda request: request.result(DISCOVERED)) as other:

        def lead_away(request: ScriptedRequest) -> None:
            if "authorization" in request.headers:
                request.answer(307, Location=other.url)
            else:
                made._mcp(request)

        made.pages["/mcp"] = lead_away
        with pytest.raises(ServerError, match="another origin"):
            await connect(made)
        assert not other.requests


async def test_a_server_in_the_open_gets_no_token() -> None:
    with pytest.raises(NotSignedIn, match="is not https"):
        OAuthHttp("http://mcp.example/mcp")


TOKENS: dict[str, tuple[Any, str]] = {
    "refused": ((400, {"error": "invalid_grant", "error_description": "no\x1b[31m"}), r"invalid_grant: no \[31m"),
    "refused as a page": ((403, b"<html>"), "it answered 403"),
    "broken": ((500, {"error": "x"}), "answered 500; try again later"),
    "not a document": ((200, b"<html>"), "holds no token"),
    "nothing": ((200, {"token_type": "Bearer"}), "holds no token"),
    "another type": ({"access_token": "good-token", "token_type": "mac"}, "not of the type Bearer"),
    "two headers": ({"access_token": "a\r\nX-Y: z", "token_type": "Bearer"}, "no header can carry"),
    "no number": ({"access_token": "t", "token_type": "Bearer", "expires_in": "soon"}, "no number"),
}


@pytest.mark.parametrize("case", TOKENS)
async def test_the_token_endpoint(case: str) -> None:
    async with realm() as made:
        made.token, words = TOKENS[case]
        await refused(made, words)
        assert len(made.asked) == len(made.forms) == 1


async def test_a_good_token_that_is_refused_is_asked_for_once() -> None:
    async with realm() as made:
        made.good = set()
        auth = made.oauth()
        for _ in range(3):
            with pytest.raises(NotSignedIn, match=r"refuses the token that .* has just given for it"):
                await connect(made, auth)
        assert len(made.asked) == 1


async def test_scopes_that_do_not_help_are_asked_for_once() -> None:
    async with realm() as made:

        def never(request: ScriptedRequest) -> None:
            if "authorization" in request.headers:
                challenge = 'Bearer error="insufficient_scope", scope="admin"'
                request.answer(403, {"error": "insufficient_scope"}, WWW_Authenticate=challenge)
            else:
                made._mcp(request)

        made.pages["/mcp"] = never
        auth = made.oauth()
        for _ in range(3):
            with pytest.raises(ServerError, match="403"):
                await connect(made, auth)
        assert [asked.get("scope") for asked in made.asked] == [None, "admin"]


async def test_tokens_of_another_issuer_are_not_refreshed_here() -> None:
    async with realm() as made, realm() as other:
        tokens = MemoryTokens()
        made.token = {**made.token, "refresh_token": "refresh-1"}
        await connect(made, tokens=tokens)
        made.good = {"other-token"}
        other.token = {"access_token": "other-token", "token_type": "Bearer"}
        made.change(PRM, authorization_servers=[other.script.origin])
        await connect(made, tokens=tokens)
        assert [form["grant_type"] for form in other.forms] == ["authorization_code"]
        assert not any("refresh-1" in str(form) for form in other.forms)


async def test_kept_tokens_are_used_only_by_those_they_are_for() -> None:
    async with realm() as made:
        tokens = MemoryTokens()
        await connect(made, tokens=tokens, client_id="app")
        made.change(METADATA, token_endpoint_auth_methods_supported=["client_secret_post"])
        await connect(made, ClientCredentials("app", "app-secret", tokens=tokens))
        assert [form["grant_type"] for form in made.forms] == ["authorization_code", "client_credentials"]
        assert "app-secret" not in str([(stored.client.secret, stored.client.id) for stored in tokens.items().values()])
        made.good = {"another"}
        with pytest.raises(NotSignedIn, match="does not take tokens of"):
            await connect(made, tokens=tokens, client_id="app", issuer="https://pinned.example")
        assert "authorization" not in made.headers[-1]


PUBLIC, PRIVATE = "93.184.216.34", "10.0.0.5"
SERVER = f"https://{PUBLIC}/mcp"
ADMIN = f"https://{PRIVATE}:8443/admin"


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that were to be connected to; no connection is ever made."""
    tried: list[str] = []

    async def start(addr_infos: Any, socket_factory: Any = None, **options: Any) -> Any:
        if socket_factory is not None:
            socket_factory(addr_infos[0]).close()
        tried.append(addr_infos[0][4][0])
        raise OSError(111, "refused")

    monkeypatch.setattr(aiohttp.connector.aiohappyeyeballs, "start_connection", start)
    return tried


@pytest.mark.parametrize("pinned", [None, "https://192.168.1.1"])
async def test_a_server_in_the_internet_sends_no_client_inside(tried: list[str], pinned: str | None) -> None:
    """Not even if the user names an issuer that is inside: that is one place, and no other."""
    mine: Any = OAuth(issuer=pinned).for_server(SERVER)
    with pytest.raises(NotSignedIn):
        await mine._discover(ChallengeParams(resource_metadata=ADMIN), allow_private=False)
    assert set(tried) == {PUBLIC}  # the usual places, after the one that it names


@pytest.mark.parametrize("inside", [True, False])
async def test_a_server_inside_may_name_others_there(tried: list[str], inside: bool) -> None:
    mine: Any = OAuth().for_server("https://10.0.0.1/mcp")
    with pytest.raises(NotSignedIn):
        await mine._discover(ChallengeParams(resource_metadata=ADMIN), allow_private=inside)
    assert (PRIVATE in tried) is inside


async def test_an_issuer_that_the_user_names_may_be_inside(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Described(OAuthHttp):
        async def document(self, url: str, kind: Any) -> Any:
            if "protected-resource" in url:
                return kind(resource=SERVER, authorization_servers=(f"https://{PRIVATE}",))
            return await super().document(url, kind)

    for required, expected in ((f"https://{PRIVATE}", [PRIVATE]), (None, [])):
        issuer_http = Described(SERVER, allow_private=required is not None)
        tried.clear()
        with pytest.raises(NotSignedIn):
            await discover(Described(SERVER), issuer_http, SERVER, None, required=required)
        assert tried == expected


@pytest.mark.parametrize(
    ("addresses", "inside"),
    [([PRIVATE], True), ([PUBLIC], False), ([PRIVATE, PUBLIC, PRIVATE], False), (["169.254.169.254"], False)],
)
async def test_where_a_server_is_shows_the_connection(tried: list[str], addresses: list[str], inside: bool) -> None:
    """The server's own name may lead elsewhere at the next lookup."""
    requests = HttpClient(ServerUrl.parse(SERVER), {})
    await requests.open()
    try:
        for address in addresses:
            requests.server_url = ServerUrl.parse(f"https://{address}/mcp")
            with pytest.raises(ConnectionLost):
                async with requests.send("POST", {}, b"{}"):
                    pass
        assert tried == addresses
        assert requests._in_private_network is inside
    finally:
        await requests.close()
