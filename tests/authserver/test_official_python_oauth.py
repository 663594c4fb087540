"""The official Python client finds its own way to a token, renews it, and comes back with more scopes, in both eras."""

import asyncio
import html
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx2
import pytest
from mcp import MCPError
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from oauth_program import ACCESS_SECONDS, MAY_READ, MAY_USE, MAY_WRITE, PASSWORD, USER
from oauth_stage import METADATA, Protected, protected_server

from sdk import both_eras, only_text
from sdk_http import HttpTalk

pytestmark = pytest.mark.slow

PRM, METADATA_PATH = "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"
OPEN_TOOLS = {"calculate", "roll_dice", "tell_fortune"}
SUM = {"operation": "add", "a": 2, "b": 3}


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protected]:
    with protected_server(tmp_path_factory.mktemp("oauth")) as served:
        yield served


class Storage:
    """What the client keeps; each set of tokens that it ever had."""

    def __init__(self) -> None:
        self.tokens: list[OAuthToken] = []
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens[-1] if self.tokens else None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens.append(tokens)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info

    @property
    def scopes(self) -> set[str]:
        return set((self.tokens[-1].scope or "").split())


class UserAgent:
    """A browser with a user in front of it, who allows everything."""

    def __init__(self) -> None:
        self.visited: list[dict[str, str]] = []  # the parameters of each authorization request
        self.passwords_typed = 0
        self._cookies: dict[str, str] = {}  # by hand: a browser sends Secure ones to its own machine, httpx2 does not
        self._back: dict[str, str] = {}

    async def visit(self, url: str) -> None:
        self.visited.append(dict(parse_qsl(urlsplit(url).query)))
        async with httpx2.AsyncClient(trust_env=False) as http:
            page = self._kept(await http.get(url, headers=self._headers()))
            assert page.status_code == 200, page.text
            action = re.search(r'<form method="post" action="([^"]*)"', page.text)
            assert action is not None
            reply = await http.post(
                httpx2.URL(url).join(html.unescape(action[1])), data=self._filled(page.text), headers=self._headers()
            )
        assert self._kept(reply).status_code == 303, reply.text
        assert reply.headers["location"].startswith(f"{self.visited[-1]['redirect_uri']}?")
        self._back = dict(parse_qsl(urlsplit(reply.headers["location"]).query))

    async def returned(self) -> AuthorizationCodeResult:
        return AuthorizationCodeResult(
            code=self._back["code"], state=self._back.get("state"), iss=self._back.get("iss")
        )

    def _filled(self, page: str) -> dict[str, str]:
        form = dict(re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page))
        form = {name: html.unescape(value) for name, value in form.items()}
        if 'name="password"' in page:
            self.passwords_typed += 1
            form |= {"name": USER, "password": PASSWORD}
        return {**form, "answer": "allow"}

    def _headers(self) -> dict[str, str]:
        return {"cookie": "; ".join(f"{name}={value}" for name, value in self._cookies.items())}

    def _kept(self, response: httpx2.Response) -> httpx2.Response:
        for line in response.headers.get_list("set-cookie"):
            name, _, value = line.partition(";")[0].partition("=")
            self._cookies[name] = value
        return response


class ProtectedTalk(HttpTalk):
    """The SDK's session over HTTP, with the SDK's own OAuth, a browser and a store."""

    def __init__(
        self, served: Protected, storage: Storage | None = None, *, metadata: Any = METADATA, **options: Any
    ) -> None:
        super().__init__(served.origin)
        self.storage = storage or Storage()
        self.browser = UserAgent()
        self.challenges: dict[int, str] = {}  # the latest, by status
        self.bodies: list[tuple[str, dict[str, str]]] = []  # what was sent to the token endpoint, by grant type
        self._provider = OAuthClientProvider(
            served.url,
            OAuthClientMetadata.model_validate(metadata),
            self.storage,
            self.browser.visit,
            self.browser.returned,
            **options,
        )

    def _http(self, **options: Any) -> httpx2.AsyncClient:
        return super()._http(**{**options, "auth": self._provider})

    async def _note(self, response: httpx2.Response) -> None:
        await super()._note(response)
        if "www-authenticate" in response.headers:
            self.challenges[response.status_code] = response.headers["www-authenticate"]
        if response.request.url.path == "/token":
            form = {name: value for name, (value,) in parse_qs(response.request.content.decode()).items()}
            self.bodies.append((form["grant_type"], form))

    @property
    def grants(self) -> list[str]:
        return [grant for grant, _ in self.bodies]

    def steps(self) -> list[tuple[str, str, int]]:
        """The way so far, without the stream that an older client opens beside it."""
        return [(asked.method, asked.path, asked.status) for asked in self.asked if asked[:2] != ("GET", "/mcp")]


@both_eras
@pytest.mark.rule("AUTH-1", "AUTH-2", "AUTH-4", "AUTH-5", "AUTH-6")
async def test_the_whole_way(protected: Protected, revision: str) -> None:
    talk = ProtectedTalk(protected)
    async with talk(revision) as session:
        assert talk.steps()[:6] == [
            ("POST", "/mcp", 401),
            ("GET", PRM, 200),
            ("GET", METADATA_PATH, 200),
            ("POST", "/register", 201),
            ("POST", "/token", 200),
            ("POST", "/mcp", 200),
        ]
        assert {tool.name for tool in (await session.list_tools()).tools} == OPEN_TOOLS
        assert '"result":5' in only_text(await session.call_tool("calculate", SUM))
    assert f'resource_metadata="{protected.origin}{PRM}"' in talk.challenges[401]
    assert f'scope="{MAY_USE}"' in talk.challenges[401]
    assert talk.grants == ["authorization_code"]
    (asked,), (_, redeemed) = talk.browser.visited, talk.bodies[0]
    assert asked["code_challenge_method"] == "S256"
    assert asked["scope"] == MAY_USE
    assert asked["resource"] == redeemed["resource"] == protected.url
    assert "code_verifier" in redeemed
    assert talk.storage.scopes == {MAY_USE}
    assert talk.storage.client is not None
    assert talk.storage.client.issuer == protected.origin


@both_eras
async def test_a_token_that_is_over_is_renewed(protected: Protected, revision: str) -> None:
    talk = ProtectedTalk(protected)
    async with talk(revision) as session:
        await session.call_tool("calculate", SUM)
        await asyncio.sleep(ACCESS_SECONDS + 0.5)
        assert '"result":5' in only_text(await session.call_tool("calculate", SUM))
    first, *_, last = talk.storage.tokens
    assert first.access_token != last.access_token
    assert first.refresh_token != last.refresh_token
    assert set(talk.grants[1:]) == {"refresh_token"}
    assert len(talk.browser.visited) == 1, "nobody was asked again"


@both_eras
@pytest.mark.rule("AUTH-11", "AUTH-12")
async def test_more_scopes_when_a_tool_needs_them(protected: Protected, revision: str) -> None:
    talk = ProtectedTalk(protected)
    async with talk(revision) as session:
        assert only_text(await session.call_tool("read_note")) == f"the note of {USER}"
        way, refused = talk.steps(), ("POST", "/mcp", 403)
        assert way[way.index(refused) :][:3] == [refused, ("POST", "/token", 200), ("POST", "/mcp", 200)]
        assert 'error="insufficient_scope"' in talk.challenges[403]
        assert f'scope="{MAY_READ} {MAY_USE}"' in talk.challenges[403], "all that the call needs, at once"
        assert talk.storage.scopes == {MAY_USE, MAY_READ}
        assert {tool.name for tool in (await session.list_tools()).tools} == OPEN_TOOLS | {"read_note"}
        assert only_text(await session.call_tool("write_note", {"text": "hello"})) == f"{USER} wrote hello"
        assert talk.storage.scopes == {MAY_USE, MAY_READ, MAY_WRITE}
    assert [set(asked["scope"].split()) for asked in talk.browser.visited] == [
        {MAY_USE},
        {MAY_USE, MAY_READ},
        {MAY_USE, MAY_READ, MAY_WRITE},
    ]
    assert talk.browser.passwords_typed == 3, "at a loopback issuer no sign-in is remembered: cookies know no ports"


@both_eras
async def test_a_client_that_publishes_what_it_is(protected: Protected, revision: str) -> None:
    talk = ProtectedTalk(protected, client_metadata_url=protected.document)
    async with talk(revision) as session:
        assert '"result":5' in only_text(await session.call_tool("calculate", SUM))
    assert not any(asked.path == "/register" for asked in talk.asked)
    assert [asked["client_id"] for asked in talk.browser.visited] == [protected.document]


@pytest.mark.parametrize(
    ("wanted", "given"),
    [(None, "client_secret_basic"), *((method,) * 2 for method in ("client_secret_basic", "client_secret_post"))],
)
async def test_a_client_with_a_secret(protected: Protected, wanted: str | None, given: str) -> None:
    talk = ProtectedTalk(protected, metadata={**METADATA, "token_endpoint_auth_method": wanted})
    async with talk("2026-07-28") as session:
        assert '"result":5' in only_text(await session.call_tool("calculate", SUM))
    client = talk.storage.client
    assert client is not None
    assert client.token_endpoint_auth_method == given
    assert client.client_secret is not None
    ((_, form),) = talk.bodies
    assert ("client_secret" in form) == (given == "client_secret_post")


async def test_the_oldest_transport(protected: Protected) -> None:
    """A request is answered in the stream there, so that a client hears which scopes it needs, but as an error."""
    talk = ProtectedTalk(protected)
    async with talk("2024-11-05", "sse") as session:
        assert talk.steps()[0] == ("GET", "/sse", 401)
        assert '"result":5' in only_text(await session.call_tool("calculate", SUM))
        with pytest.raises(MCPError, match=MAY_READ):
            await session.call_tool("read_note")
    assert talk.grants == ["authorization_code"]


async def test_a_client_that_comes_back_needs_nobody(protected: Protected) -> None:
    before = ProtectedTalk(protected)
    async with before("2026-07-28") as session:
        await session.call_tool("read_note")
    after = ProtectedTalk(protected, before.storage)
    async with after("2026-07-28") as session:
        assert only_text(await session.call_tool("read_note")) == f"the note of {USER}"
    assert after.browser.visited == []
    assert {asked.status for asked in after.asked} == {200}
