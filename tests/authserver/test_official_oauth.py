"""Official clients and the official suite: each finds its own way to a token, renews it, comes back for more, and goes.

Users have passwords, or sign in at an identity provider, which says yes at once.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, parse_qsl, urlsplit

import aiohttp
import httpx2
import node_tools
import pytest
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from oauth_program import MAY_READ, MAY_USE, MAY_WRITE, PASSWORD, USER
from server_process import OWN_GROUP, Serving, serving

import nodejs
import stores
from authserver_stage import SCOPES, payload, say_yes, served
from dovetail import Server
from dovetail.authserver import AuthServer, OAuthClient
from provider_stage import WayIn, way_in
from sdk import HttpTalk, only_text

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "oauth_program.py"
IDENTITY_PROVIDER = PROGRAM.parent.parent / "identity_provider.py"
CALLBACK = "http://127.0.0.1:9/callback"  # no server there: the browser of the tests only looks where it is sent
METADATA = {
    "client_name": "The official client",
    "redirect_uris": [CALLBACK],
    "grant_types": ["authorization_code", "refresh_token"],
    "response_types": ["code"],
    "token_endpoint_auth_method": "none",
}
# How users sign in, and who ann is then
SUBJECTS = {
    "passwords": USER,
    "github": "github:583231",
    "keycloak": "keycloak:00000000-0000-4000-8000-000000583231",
}
EACH_WAY = pytest.mark.parametrize("protected", SUBJECTS, indirect=True)
BOTH_ERAS = pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
PRM, METADATA_PATH = "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"
OPEN_TOOLS = ["calculate", "roll_dice", "tell_fortune", "ask_provider"]
REFUSED, FORBIDDEN, ANSWERED = (("POST", "/mcp", status) for status in (401, 403, 200))
GRANTED, GRANT_OVER, REGISTERED = ("POST", "/token", 200), ("POST", "/token", 400), ("POST", "/register", 201)
DISCOVERY = [("GET", PRM, 200), ("GET", METADATA_PATH, 200)]
ASKED_FOR = [{MAY_USE}, {MAY_USE, MAY_READ}, {MAY_USE, MAY_READ, MAY_WRITE}]
SUM = {"operation": "add", "a": 2, "b": 3}


class Protected(NamedTuple):
    """A server behind its own authorization server."""

    origin: str
    row: str
    provider: str  # the origin of the identity provider; empty if users have passwords

    @property
    def subject(self) -> str:
        return SUBJECTS[self.row]

    @property
    def name(self) -> str:
        """Whom tools meet that act for the user at the provider."""
        return "Ann Arbor" if self.provider else "nobody"

    def let_tokens_end(self) -> None:
        assert _post(f"{self.origin}/later").status_code == 200

    def sign_out(self, client_id: str, tokens: OAuthToken) -> None:
        """Revoke the tokens of a client, for which official clients have no call; after that they are not good."""
        assert tokens.refresh_token is not None
        assert _post(f"{self.origin}/revoke", token=tokens.refresh_token, client_id=client_id).status_code == 200
        authorization = {"Authorization": f"Bearer {tokens.access_token}"}
        call = httpx2.post(f"{self.origin}/mcp", headers=authorization, json={}, trust_env=False)
        assert (call.status_code, 'error="invalid_token"' in call.headers["www-authenticate"]) == (401, True)
        form = {"grant_type": "refresh_token", "refresh_token": tokens.refresh_token, "client_id": client_id}
        refused = _post(f"{self.origin}/token", **form)
        assert (refused.status_code, refused.json()["error"]) == (400, "invalid_grant")

    def seen(self) -> Counter[str]:
        """What the identity provider was asked for so far."""
        return Counter(self._seen()["asked"]) if self.provider else Counter()

    def check_visits(self, before: Counter[str], *, visits: int, refreshes: int) -> None:
        """Check how often the user was at the provider since then, and how often its tokens were refreshed."""
        if self.provider:
            found = self.seen() - before
            refreshes = 0 if self.row == "github" else refreshes  # tokens of OAuth apps never expire
            assert (found["authorize"], found["token"], found["refresh"]) == (visits, visits, refreshes)

    def check_secrets(self, access_tokens: Iterable[str]) -> None:
        """Check that none of the tokens that clients got is one of the provider, or holds one."""
        if self.provider:
            held = str([(token, payload(token)) for token in access_tokens])
            assert not any(token in held for token in self._seen()["access_tokens"])

    def _seen(self) -> dict[str, Any]:
        return httpx2.get(f"{self.provider}/_seen", trust_env=False).json()  # type: ignore[no-any-return]


def _post(url: str, **form: str) -> httpx2.Response:
    return httpx2.post(url, data=form, trust_env=False)


@pytest.fixture(scope="module")
def protected(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protected]:
    """A server and an identity provider, each in a process of its own, which have nothing to complain about."""
    row, folder = request.param, tmp_path_factory.mktemp("oauth")
    with ExitStack() as stack:
        processes: list[Serving] = []
        if row != "passwords":
            program = [str(IDENTITY_PROVIDER), "--kind", row]
            processes.append(stack.enter_context(serving(program, folder / "provider.log")))
        provider = "".join(process.origin for process in processes)
        program = [str(PROGRAM), *(["--row", row, "--provider", provider] if provider else [])]
        processes.append(stack.enter_context(serving(program, folder / "server.log")))
        origin = processes[-1].origin
        if provider:
            httpx2.post(f"{provider}/_set", json={"redirect_uri": f"{origin}/callback"}, trust_env=False)
        yield Protected(origin, row, provider)
    for process in processes:
        assert not process.complaints, (folder / "server.log").read_text()


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


@EACH_WAY
@BOTH_ERAS
@pytest.mark.rule("AUTH-1", "AUTH-2", "AUTH-4", "AUTH-5", "AUTH-6", "AUTH-11", "AUTH-12")
async def test_the_whole_way_in_python(protected: Protected, revision: str) -> None:
    """Finds out, registers, signs in, calls, renews its token, comes back for more, twice, and signs out."""
    talk, seen = ProtectedTalk(protected.origin), protected.seen()
    async with talk(revision) as session:
        assert session.protocol_version == revision
        assert talk.steps()[:6] == [REFUSED, *DISCOVERY, REGISTERED, GRANTED, ANSWERED]
        assert '"result":5' in (await talk.part(session))[0]
        assert await tools(session) == sorted(OPEN_TOOLS)
        protected.let_tokens_end()
        talk.let_the_token_end()
        text, steps = await talk.part(session)
        assert ('"result":5' in text, steps[-1], FORBIDDEN in steps) == (True, ANSWERED, False)
        assert [form["grant_type"] for form in talk.forms] == ["authorization_code", "refresh_token"]
        for tool, arguments, said in (
            ("read_note", {}, f"the note of {protected.subject}"),
            ("write_note", {"text": "hello"}, f"{protected.subject} wrote hello"),
        ):
            text, steps = await talk.part(session, tool, **arguments)
            assert (text, steps[steps.index(FORBIDDEN) :][:3]) == (said, [FORBIDDEN, GRANTED, ANSWERED])
        assert await tools(session) == sorted([*OPEN_TOOLS, "read_note", "write_note"])
        check_requests(talk.visited, protected.origin)
        check_challenges(talk.challenges, f"{protected.origin}{PRM}")
        protected.let_tokens_end()
        talk.let_the_token_end()
        text, steps = await talk.part(session, "write_note", text="more")
        assert (text, FORBIDDEN in steps) == (f"{protected.subject} wrote more", False)
        assert set((talk.storage.tokens[-1].scope or "").split()) == ASKED_FOR[-1], "all that it had before"
        assert (await talk.part(session, "ask_provider"))[0] == protected.name
        assert talk.storage.client is not None
        protected.sign_out(talk.storage.client.client_id, talk.storage.tokens[-1])
        noted = len(talk.asked)
        assert '"result":5' in (await talk.part(session))[0]
        after = [(*asked[:2], asked.status) for asked in talk.asked[noted:]]
        assert after[0][1:] == ("/mcp", 401), "of the call, or of the stream that an older client opens again"
        assert [step for step in after if step[1] != "/mcp"] == [*DISCOVERY, GRANTED], "as the same client"
        assert set(talk.visited[-1]["scope"].split()) == ASKED_FOR[0], "a new consent, which begins with little"
    protected.check_visits(seen, visits=4, refreshes=2)
    protected.check_secrets(each.access_token for each in talk.storage.tokens)
    by_code = [form for form in talk.forms if form["grant_type"] == "authorization_code"]
    assert len(by_code) == len(talk.visited)
    for form in by_code:
        assert form["resource"] == f"{protected.origin}/mcp"
        assert form["code_verifier"]
    for kind in ("access_token", "refresh_token"):
        assert len({getattr(each, kind) for each in talk.storage.tokens}) == len(talk.storage.tokens), "each is another"


@EACH_WAY
@pytest.mark.parametrize(
    ("wanted", "given"), [(None, "client_secret_basic"), ("client_secret_post", "client_secret_post")]
)
async def test_a_client_with_a_secret(protected: Protected, wanted: str | None, given: str) -> None:
    talk = ProtectedTalk(protected.origin, token_endpoint_auth_method=wanted)
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


@EACH_WAY
@BOTH_ERAS
@pytest.mark.rule("AUTH-1", "AUTH-2", "AUTH-4", "AUTH-5", "AUTH-6", "AUTH-11", "AUTH-12")
def test_the_whole_way_in_typescript(protected: Protected, revision: str) -> None:
    nodejs.demand()
    seen = protected.seen()
    given = (revision, USER, PASSWORD, f"{protected.origin}/later", json.dumps(METADATA))
    said = nodejs.run("oauth.mjs", f"{protected.origin}/mcp", *given)
    assert said["negotiated"] == revision
    begun = noted(REFUSED, *DISCOVERY, REGISTERED)
    assert said["first"]["steps"][: len(begun) + 2] == [*begun, BY_CODE, *noted(ANSWERED)]
    assert '"result":5' in said["first"]["text"]
    assert said["first"]["tools"] == OPEN_TOOLS
    assert said["renewed"]["steps"] == [*noted(REFUSED), BY_REFRESH, *noted(ANSWERED)], "the user was not asked again"
    assert '"result":5' in said["renewed"]["text"]
    check_step_up(said, protected.subject)
    assert ['"result":5' in text for text in said["together"]] == [True] * 3, "calls at once renew the same token"
    challenges = {int(status): challenge for status, challenge in said["challenges"].items()}
    check_challenges(challenges, f"{protected.origin}{PRM}")
    without, expired = challenges[401]
    assert ("error=" in without, 'error="invalid_token"' in expired) == (False, True)
    assert said["upstream"] == protected.name
    *visited, last = said["visited"]
    check_requests(visited, protected.origin)
    assert said["again"]["steps"] == [*noted(REFUSED), [*GRANT_OVER, "refresh_token"], BY_CODE, *noted(ANSWERED)]
    assert '"result":5' in said["again"]["text"]
    assert set(last["scope"].split()) == ASKED_FOR[0], "a new consent, which begins with little"
    assert len(said["warnings"]) == 1, "the client says that it has to begin again"
    assert said["passwords"] == (0 if protected.provider else 4), (
        "at a loopback issuer no sign-in is remembered: cookies know no ports"
    )
    protected.check_visits(seen, visits=4, refreshes=2)
    protected.check_secrets(each["access_token"] for each in said["tokens"])


def check_step_up(said: dict[str, Any], user: str) -> None:
    for part, text in (("stepUp", f"the note of {user}"), ("further", f"{user} wrote hello")):
        assert said[part]["text"] == text
        assert said[part]["steps"][:3] == [*noted(FORBIDDEN), BY_CODE, *noted(ANSWERED)]
    assert said["stepUp"]["tools"] == [*OPEN_TOOLS, "read_note"]
    given = [set(tokens["scope"].split()) for tokens in said["tokens"]]
    assert given[:4] == [ASKED_FOR[0], *ASKED_FOR], "the second came by a refresh, which gives no more"
    assert all(scopes == ASKED_FOR[-1] for scopes in given[4:-1]), "so did these, which give no less"
    assert len({tokens["refresh_token"] for tokens in said["tokens"]}) == len(given)


# ── the suite's scenarios for authorization servers ──

TIMEOUT = 60.0
CLIENT = OAuthClient(id="suite", name="The suite", redirect_uris=["http://127.0.0.1/callback"])


def authorization_server(ending: str, way: WayIn) -> Callable[[str], Any]:
    def make(root: str) -> Any:
        issuer, resource = root + ending, f"{root}/mcp"
        auth_server = AuthServer(
            issuer, resource=resource, sign_in=way.sign_in(issuer), clients=[CLIENT], scopes=SCOPES
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


@pytest.mark.parametrize("row", SUBJECTS)
@pytest.mark.parametrize("ending", ["", "/login/"])
async def test_both_scenarios_pass_without_a_warning(ending: str, row: str, tmp_path: Path) -> None:
    nodejs.demand()
    async with way_in(row) as way, served(authorization_server(ending, way)) as root:
        status, written = await run_suite(root + ending, tmp_path)
        assert way.at is None or way.at.asked.count("token") == 1, "the suite has gone there"
    assert verdicts(tmp_path) == [
        ("authorization-code-grant", "SUCCESS"),
        ("authorization-server-metadata", "SUCCESS"),
        ("authorization-server-metadata-cimd", "SUCCESS"),
    ], written
    assert status == 0, written
