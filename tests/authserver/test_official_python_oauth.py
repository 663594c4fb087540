"""The official Python client finds its own way to a token, renews it, and comes back with more scopes, in both eras."""

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx2
import pytest
from mcp import ClientSession, MCPError
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from oauth_program import ACCESS_SECONDS, MAY_READ, MAY_USE, MAY_WRITE, USER
from oauth_stage import METADATA, Protected, protected_server

from authserver_stage import say_yes
from sdk import only_text
from sdk_http import HttpTalk

pytestmark = pytest.mark.slow

PRM, METADATA_PATH = "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"
OPEN_TOOLS = ["calculate", "roll_dice", "tell_fortune"]
REFUSED, FORBIDDEN, ANSWERED = (("POST", "/mcp", status) for status in (401, 403, 200))
GRANTED, REGISTERED = ("POST", "/token", 200), ("POST", "/register", 201)
DISCOVERY = [("GET", PRM, 200), ("GET", METADATA_PATH, 200)]
ASKED_FOR = [{MAY_USE}, {MAY_USE, MAY_READ}, {MAY_USE, MAY_READ, MAY_WRITE}]
SUM = {"operation": "add", "a": 2, "b": 3}


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


class ProtectedTalk(HttpTalk):
    """The SDK's session over HTTP, with the SDK's own OAuth, a user who allows everything, and a store."""

    def __init__(self, served: Protected, storage: Storage | None = None, document: str | None = None, **more: Any):
        super().__init__(served.origin)
        self.storage = storage or Storage()
        self.visited: list[dict[str, str]] = []  # the parameters of each authorization request
        self.challenges: dict[int, list[str]] = {}  # by status
        self.forms: list[dict[str, str]] = []  # what was sent to the token endpoint
        self._back: dict[str, str] = {}
        metadata = OAuthClientMetadata.model_validate({**METADATA, **more})
        self._provider = OAuthClientProvider(
            f"{self.root}/mcp", metadata, self.storage, self._visit, self._returned, client_metadata_url=document
        )

    async def _visit(self, url: str) -> None:
        self.visited.append(dict(parse_qsl(urlsplit(url).query)))
        self._back = dict(parse_qsl(urlsplit(await say_yes(url)).query))

    async def _returned(self) -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=self._back["code"], state=self._back["state"], iss=self._back["iss"])

    def _http(self, **options: Any) -> httpx2.AsyncClient:
        return super()._http(**{**options, "auth": self._provider})

    async def _note(self, response: httpx2.Response) -> None:
        await super()._note(response)
        if "www-authenticate" in response.headers:
            self.challenges.setdefault(response.status_code, []).append(response.headers["www-authenticate"])
        if response.request.url.path == "/token":
            form = parse_qs(response.request.content.decode())
            self.forms.append({name: value for name, (value,) in form.items()})

    def steps(self) -> list[tuple[str, str, int]]:
        """The way so far, without the stream that an older client opens beside it."""
        return [(asked.method, asked.path, asked.status) for asked in self.asked if asked[:2] != ("GET", "/mcp")]

    async def part(self, session: ClientSession, tool: str = "calculate", **arguments: Any) -> tuple[str, list[Any]]:
        """One call, and what it took."""
        before = len(self.steps())
        text = only_text(await session.call_tool(tool, arguments or (SUM if tool == "calculate" else {})))
        return text, self.steps()[before:]


async def tools(session: ClientSession) -> list[str]:
    return sorted(tool.name for tool in (await session.list_tools()).tools)


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protected]:
    with protected_server(tmp_path_factory.mktemp("oauth")) as served:
        yield served


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.rule("AUTH-1", "AUTH-2", "AUTH-4", "AUTH-5", "AUTH-6", "AUTH-11", "AUTH-12")
async def test_the_whole_way(protected: Protected, revision: str) -> None:
    """Finds out, registers, signs in, calls, renews its token, and comes back for more, twice."""
    talk = ProtectedTalk(protected)
    async with talk(revision) as session:
        assert session.protocol_version == revision
        assert talk.steps()[:6] == [REFUSED, *DISCOVERY, REGISTERED, GRANTED, ANSWERED]
        assert '"result":5' in (await talk.part(session))[0]
        assert await tools(session) == OPEN_TOOLS
        await asyncio.sleep(ACCESS_SECONDS + 0.5)  # the token ends by the clock of the server
        text, steps = await talk.part(session)
        assert ('"result":5' in text, steps[-1], FORBIDDEN in steps) == (True, ANSWERED, False)
        assert [form["grant_type"] for form in talk.forms] == ["authorization_code", "refresh_token"]
        for tool, arguments, said in (
            ("read_note", {}, f"the note of {USER}"),
            ("write_note", {"text": "hello"}, f"{USER} wrote hello"),
        ):
            text, steps = await talk.part(session, tool, **arguments)
            assert (text, steps[steps.index(FORBIDDEN) :][:3]) == (said, [FORBIDDEN, GRANTED, ANSWERED])
        assert await tools(session) == sorted([*OPEN_TOOLS, "read_note", "write_note"])
    assert talk.storage.client is not None
    check_requests(talk, protected)
    check_challenges(talk.challenges, f"{protected.origin}{PRM}")


def check_requests(talk: ProtectedTalk, served: Protected) -> None:
    assert [set(asked["scope"].split()) for asked in talk.visited] == ASKED_FOR
    for asked in talk.visited:
        assert (asked["code_challenge_method"], asked["resource"]) == ("S256", served.url)
    assert len({asked["code_challenge"] for asked in talk.visited}) == len(talk.visited)
    by_code = [form for form in talk.forms if form["grant_type"] == "authorization_code"]
    assert len(by_code) == len(talk.visited)
    for form in by_code:
        assert form["resource"] == served.url
        assert form["code_verifier"]
    for kind in ("access_token", "refresh_token"):
        assert len({getattr(each, kind) for each in talk.storage.tokens}) == len(talk.storage.tokens), "each is another"


def check_challenges(challenges: dict[int, list[str]], metadata_url: str) -> None:
    for challenge in challenges[401]:
        assert f'scope="{MAY_USE}"' in challenge
    for challenge, scope in zip(challenges[403], (MAY_READ, MAY_WRITE), strict=True):
        assert 'error="insufficient_scope"' in challenge
        assert f'scope="{scope} {MAY_USE}"' in challenge, "all that the call needs, at once"
    for challenge in (*challenges[401], *challenges[403]):
        assert challenge.startswith("Bearer ")
        assert f'resource_metadata="{metadata_url}"' in challenge


@pytest.mark.parametrize(
    ("wanted", "given"),
    [(None, "client_secret_basic"), ("client_secret_post", "client_secret_post"), ("document", None)],
)
async def test_a_client_with_a_secret_or_document(protected: Protected, wanted: str | None, given: str | None) -> None:
    published = protected.document if wanted == "document" else None
    more = {} if published else {"token_endpoint_auth_method": wanted}
    talk = ProtectedTalk(protected, document=published, **more)
    async with talk("2026-07-28") as session:
        assert '"result":5' in (await talk.part(session))[0]
    assert (REGISTERED in talk.steps()) is (published is None)
    if published is None:
        assert talk.storage.client is not None
        assert talk.storage.client.token_endpoint_auth_method == given
        assert ("client_secret" in talk.forms[0]) == (given == "client_secret_post")
    else:
        assert [asked["client_id"] for asked in talk.visited] == [published]


async def test_the_oldest_transport(protected: Protected) -> None:
    """A request is answered in the stream there, so that a client hears which scopes it needs, but as an error."""
    talk = ProtectedTalk(protected)
    async with talk("2024-11-05", "sse") as session:
        assert talk.steps()[0] == ("GET", "/sse", 401)
        assert '"result":5' in (await talk.part(session))[0]
        with pytest.raises(MCPError, match=MAY_READ):
            await session.call_tool("read_note")
    assert len(talk.visited) == 1


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_a_client_that_comes_back_needs_nobody(protected: Protected, revision: str) -> None:
    first = ProtectedTalk(protected)
    async with first(revision) as session:
        await first.part(session, "read_note")
    again = ProtectedTalk(protected, first.storage)
    async with again(revision) as session:
        assert (await again.part(session, "read_note"))[0] == f"the note of {USER}"
    assert again.visited == []
    assert not {401, 403} & {asked.status for asked in again.asked}
