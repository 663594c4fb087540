"""Official clients and the official suite: each finds its own way to a token, renews it, and comes back for more."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import aiohttp
import httpx2
import node_tools
import pytest
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from oauth_program import MAY_READ, MAY_USE, MAY_WRITE, PASSWORD, USER
from server_process import OWN_GROUP, serving

import nodejs
import stores
from authserver_stage import SCOPES, USERS, say_yes, served
from dovetail import Server
from dovetail.authserver import AuthServer, OAuthClient, Passwords
from sdk import HttpTalk, only_text

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "oauth_program.py"
CALLBACK = "http://127.0.0.1:9/callback"  # no server there: the browser of the tests only looks where it is sent
METADATA = {
    "client_name": "The official client",
    "redirect_uris": [CALLBACK],
    "grant_types": ["authorization_code", "refresh_token"],
    "response_types": ["code"],
    "token_endpoint_auth_method": "none",
}


PRM, METADATA_PATH = "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"
OPEN_TOOLS = ["calculate", "roll_dice", "tell_fortune"]
REFUSED, FORBIDDEN, ANSWERED = (("POST", "/mcp", status) for status in (401, 403, 200))
GRANTED, REGISTERED = ("POST", "/token", 200), ("POST", "/register", 201)
DISCOVERY = [("GET", PRM, 200), ("GET", METADATA_PATH, 200)]
ASKED_FOR = [{MAY_USE}, {MAY_USE, MAY_READ}, {MAY_USE, MAY_READ, MAY_WRITE}]
SUM = {"operation": "add", "a": 2, "b": 3}


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The origin of a server in a process of its own, which has nothing to complain about."""
    log = tmp_path_factory.mktemp("oauth") / "server.log"
    with serving([str(PROGRAM)], log) as process:
        yield process.origin
    assert not process.complaints, log.read_text()


def check_requests(visited: list[dict[str, str]], origin: str) -> None:
    assert [set(asked["scope"].split()) for asked in visited] == ASKED_FOR
    for asked in visited:
        assert (asked["code_challenge_method"], asked["resource"]) == ("S256", f"{origin}/mcp")
    assert len({asked["code_challenge"] for asked in visited}) == len(visited)


def check_challenges(challenges: dict[int, list[str]], metadata_url: str) -> None:
    for challenge in challenges[401]:
        assert f'scope="{MAY_USE}"' in challenge
    for challenge, scope in zip(challenges[403], (MAY_READ, MAY_WRITE), strict=True):
        assert 'error="insufficient_scope"' in challenge
        assert f'scope="{scope} {MAY_USE}"' in challenge, "all that the call needs, at once"
    for challenge in (*challenges[401], *challenges[403]):
        assert challenge.startswith("Bearer ")
        assert f'resource_metadata="{metadata_url}"' in challenge


# ── the client in Python ──


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

    def __init__(self, origin: str, **more: Any):
        super().__init__(origin)
        self.storage = Storage()
        self.visited: list[dict[str, str]] = []  # the parameters of each authorization request
        self.challenges: dict[int, list[str]] = {}  # by status
        self.forms: list[dict[str, str]] = []  # what was sent to the token endpoint
        self._back: dict[str, str] = {}
        metadata = OAuthClientMetadata.model_validate({**METADATA, **more})
        self._provider = OAuthClientProvider(f"{self.root}/mcp", metadata, self.storage, self._visit, self._returned)

    async def _visit(self, url: str) -> None:
        self.visited.append(dict(parse_qsl(urlsplit(url).query)))
        self._back = dict(parse_qsl(urlsplit(await say_yes(url)).query))

    async def _returned(self) -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=self._back["code"], state=self._back["state"], iss=self._back["iss"])

    def http(self, **options: Any) -> httpx2.AsyncClient:
        return super().http(**{**options, "auth": self._provider})

    async def _note(self, response: httpx2.Response) -> None:
        await super()._note(response)
        if "www-authenticate" in response.headers:
            self.challenges.setdefault(response.status_code, []).append(response.headers["www-authenticate"])
        if response.request.url.path == "/token":
            form = parse_qs(response.request.content.decode())
            self.forms.append({name: value for name, (value,) in form.items()})

    def let_the_token_end(self) -> None:
        """For the client, which looks at its own clock before it asks."""
        self._provider.context.token_expiry_time = 1.0

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


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.rule("AUTH-1", "AUTH-2", "AUTH-4", "AUTH-5", "AUTH-6", "AUTH-11", "AUTH-12")
async def test_the_whole_way_in_python(protected: str, revision: str) -> None:
    """Finds out, registers, signs in, calls, renews its token, and comes back for more, twice."""
    talk = ProtectedTalk(protected)
    async with talk(revision) as session:
        assert session.protocol_version == revision
        assert talk.steps()[:6] == [REFUSED, *DISCOVERY, REGISTERED, GRANTED, ANSWERED]
        assert '"result":5' in (await talk.part(session))[0]
        assert await tools(session) == OPEN_TOOLS
        talk.let_the_token_end()
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
    check_requests(talk.visited, protected)
    by_code = [form for form in talk.forms if form["grant_type"] == "authorization_code"]
    assert len(by_code) == len(talk.visited)
    for form in by_code:
        assert form["resource"] == f"{protected}/mcp"
        assert form["code_verifier"]
    for kind in ("access_token", "refresh_token"):
        assert len({getattr(each, kind) for each in talk.storage.tokens}) == len(talk.storage.tokens), "each is another"
    check_challenges(talk.challenges, f"{protected}{PRM}")


@pytest.mark.parametrize(
    ("wanted", "given"), [(None, "client_secret_basic"), ("client_secret_post", "client_secret_post")]
)
async def test_a_client_with_a_secret(protected: str, wanted: str | None, given: str) -> None:
    talk = ProtectedTalk(protected, token_endpoint_auth_method=wanted)
    async with talk("2026-07-28") as session:
        assert '"result":5' in (await talk.part(session))[0]
    assert talk.storage.client is not None
    assert talk.storage.client.token_endpoint_auth_method == given
    assert ("client_secret" in talk.forms[0]) == (given == "client_secret_post")


# ── the client in TypeScript ──


def noted(*steps: tuple[Any, ...]) -> list[list[Any]]:
    """As the program tells them, with the grant that a token was asked for by."""
    return [[*step, None] for step in steps]


BY_CODE, BY_REFRESH = ([*GRANTED, grant] for grant in ("authorization_code", "refresh_token"))


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.rule("AUTH-1", "AUTH-2", "AUTH-4", "AUTH-5", "AUTH-6", "AUTH-11", "AUTH-12")
def test_the_whole_way_in_typescript(protected: str, revision: str) -> None:
    nodejs.demand()
    given = (revision, USER, PASSWORD, f"{protected}/later", json.dumps(METADATA))
    said = nodejs.run("oauth.mjs", f"{protected}/mcp", *given)
    assert said["negotiated"] == revision
    begun = noted(REFUSED, *DISCOVERY, REGISTERED)
    assert said["first"]["steps"][: len(begun) + 2] == [*begun, BY_CODE, *noted(ANSWERED)]
    assert '"result":5' in said["first"]["text"]
    assert said["first"]["tools"] == OPEN_TOOLS
    assert said["renewed"]["steps"] == [*noted(REFUSED), BY_REFRESH, *noted(ANSWERED)], "the user was not asked again"
    assert '"result":5' in said["renewed"]["text"]
    check_step_up(said)
    assert ['"result":5' in text for text in said["together"]] == [True] * 3, "calls at once renew the same token"
    challenges = {int(status): challenge for status, challenge in said["challenges"].items()}
    check_challenges(challenges, f"{protected}{PRM}")
    without, expired = challenges[401]
    assert ("error=" in without, 'error="invalid_token"' in expired) == (False, True)
    check_requests(said["visited"], protected)


def check_step_up(said: dict[str, Any]) -> None:
    for part, text in (("stepUp", f"the note of {USER}"), ("further", f"{USER} wrote hello")):
        assert said[part]["text"] == text
        assert said[part]["steps"][:3] == [*noted(FORBIDDEN), BY_CODE, *noted(ANSWERED)]
    assert said["stepUp"]["tools"] == [*OPEN_TOOLS, "read_note"]
    given = [set(tokens["scope"].split()) for tokens in said["tokens"]]
    assert given == [ASKED_FOR[0], *ASKED_FOR], "the second came by a refresh, which gives no more"
    assert len({tokens["refresh_token"] for tokens in said["tokens"]}) == len(given)
    assert said["passwords"] == 3, "at a loopback issuer no sign-in is remembered: cookies know no ports"


# ── the suite's scenarios for authorization servers ──

TIMEOUT = 60.0
CLIENT = OAuthClient(id="suite", name="The suite", redirect_uris=["http://127.0.0.1/callback"])


def authorization_server(ending: str) -> Callable[[str], Any]:
    def make(root: str) -> Any:
        resource = f"{root}/mcp"
        auth_server = AuthServer(
            root + ending, resource=resource, sign_in=Passwords(USERS), clients=[CLIENT], scopes=SCOPES
        )
        return Server("notes").asgi(routes=auth_server.routes())

    return make


async def browse(url: str) -> None:
    back = await say_yes(url)
    async with aiohttp.ClientSession() as session, session.get(back) as done:
        assert done.status == 200


async def run_suite(issuer: str, folder: Path) -> tuple[int, str]:
    options = ["--url", issuer, "--client-id", CLIENT.id, "--port", str(stores.free_port()), "-o", str(folder)]
    suite = await asyncio.create_subprocess_exec(
        *node_tools.conformance(), "authorization", *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, process_group=OWN_GROUP,
    )  # fmt: skip
    assert suite.stdout is not None
    written, browsed = "", False
    try:
        async with asyncio.timeout(TIMEOUT):
            while line := (await suite.stdout.readline()).decode():
                written += line
                url = re.search(r"^http://\S+/authorize\?\S+", written, re.MULTILINE)
                if url is not None and "Callback server started" in written and not browsed:
                    await browse(url[0])
                    browsed = True
            return await suite.wait(), written
    finally:
        if suite.returncode is None:
            suite.kill()
            await suite.wait()


def verdicts(folder: Path) -> list[tuple[str, str]]:
    """Of each check, however many bear the same name."""
    checks = [check for path in folder.rglob("checks.json") for check in json.loads(path.read_text())]
    return sorted((check["id"], check["status"]) for check in checks)


@pytest.mark.parametrize("ending", ["", "/login/"])
async def test_both_scenarios_pass_without_a_warning(ending: str, tmp_path: Path) -> None:
    nodejs.demand()
    async with served(authorization_server(ending)) as root:
        status, written = await run_suite(root + ending, tmp_path)
    assert verdicts(tmp_path) == [
        ("authorization-code-grant", "SUCCESS"),
        ("authorization-server-metadata", "SUCCESS"),
        ("authorization-server-metadata-cimd", "SUCCESS"),
    ], written
    assert status == 0, written
