"""The programs of the page on authorization, with callers of every kind: over HTTP, below a path, on a pipe."""

import json
import os
import re
import shlex
import subprocess
import sys
from typing import Any

import aiohttp
import pytest

import authserver_stage
from documented import PROGRAMS, ROOT, SECRETS, load, served
from dovetail import Client, ServerError
from dovetail.auth import ApiKeys, fetch, introspection, jwt
from dovetail.authserver import OAuthClient, Passwords
from dovetail.transports.http.routes import RouteTable
from http_serving import hosted
from http_wire import BOTH, META, MODERN
from issuer_stage import AUDIENCE, ISSUER, Prover, claims, jwks, token

PAGE = (ROOT / "docs" / "authorization.md").read_text()
ALICE, BOB = "dovetail_example_key_of_alice", "dovetail_example_key_of_bob"
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
MOUNTED = "https://example.com/notes/mcp"
DOCUMENT = "/.well-known/oauth-protected-resource"
KEY = Prover()


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


@pytest.fixture(autouse=True)
def _issuer(monkeypatch: pytest.MonkeyPatch) -> None:
    """https://login.example.com without a network: its metadata, its keys, and what it says of a token."""
    pages = {
        f"{ISSUER}/.well-known/oauth-authorization-server": {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys"},
        f"{ISSUER}/keys": jwks(),
    }

    async def ask(request: fetch.FetchRequest) -> fetch.Fetched:
        answer: Any = pages.get(request.url)
        if request.url == f"{ISSUER}/introspect":
            assert request.body is not None
            answer = {"active": True, **claims()} if b"token=opaque&" in request.body else {"active": False}
        return fetch.Fetched(status=404 if answer is None else 200, body=json.dumps(answer).encode())

    for module in (jwt, introspection):
        monkeypatch.setattr(module, "make_fetch", lambda **options: ask)


async def refusal(url: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    async with aiohttp.request("POST", url, json=HELLO, headers=headers) as answer:
        return answer.status, answer.headers.get("WWW-Authenticate", "")


# ── verifiers ──


@pytest.mark.parametrize(
    ("program", "key", "tool", "gives", "bad"),
    [
        ("auth_keys", ALICE, "whoami", "alice", "dovetail_example_key_of_nobody"),
        ("auth_jwt", token(), "whoami", {"user": "alice", "program": "editor"}, token(claims(aud="https://b.example"))),
        ("auth_introspection", "opaque", "whoami", "alice", "unknown"),
        ("auth_several", BOB, "whoami", "backup", ALICE),
        ("auth_several", token(), "whoami", "alice", ALICE),
        ("auth_function", "ticket-of-ada", "count", "ada has 3", "ticket-of-bob"),
    ],
)
async def test_a_good_token_says_who_is_calling_and_a_bad_one_is_refused(
    program: str, key: str, tool: str, gives: Any, bad: str
) -> None:
    async with served(program) as url:
        async with Client(f"{url}/mcp", headers=bearer(key)) as client:
            assert (await client.call_tool(tool)).data == gives
        status, challenge = await refusal(f"{url}/mcp", bearer(bad))
        assert (status, 'error="invalid_token"' in challenge) == (401, True)


async def test_the_challenge_that_is_shown_is_real() -> None:
    async with served("auth_jwt") as url:
        assert "HTTP/1.1 {} Unauthorized\nWWW-Authenticate: {}\n".format(*await refusal(f"{url}/mcp")) in PAGE


def shown(command: str) -> list[str]:
    """The words of the one command of the page that begins like this."""
    (found,) = re.findall(rf"^\$ ({command}(?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
    return shlex.split(found.replace("\\\n", " "))


async def test_the_first_example_can_be_tried_by_hand() -> None:
    _, target, *options = shown("curl http://127.0.0.1:8000/mcp ")
    flags = list(zip(options[::2], options[1::2], strict=True))
    headers = dict(value.split(": ", 1) for flag, value in flags if flag == "-H")
    (body,) = [value for flag, value in flags if flag == "-d"]
    assert headers["Authorization"] == f"Bearer {ALICE}"
    async with served("auth_keys") as url:
        target = target.replace("http://127.0.0.1:8000", url)
        async with aiohttp.request("POST", target, data=body, headers=headers) as answer:
            assert answer.status == 200
            assert (await answer.json())["result"]["serverInfo"]["name"] == "notes"


def test_a_key_and_its_hash_are_made_by_hand() -> None:
    _, *arguments = shown("python -c ")
    made = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=30)
    key, digest = made.stdout.split()
    assert ApiKeys.hash(key) == digest


# ── scopes ──


async def visible(client: Client) -> tuple[list[str], int, int]:
    tools = sorted(tool.name for tool in await client.list_tools())
    return tools, len(await client.list_resource_templates()), len(await client.list_prompts())


async def test_scopes_and_teams_say_who_may_what() -> None:
    async with hosted(load("auth_scopes").server.asgi()) as url:
        mcp = f"{url}/mcp"
        async with Client(mcp, headers=bearer(ALICE)) as alice:
            assert await visible(alice) == (["plan", "wait", "write"], 1, 1)
            assert (await alice.call_tool("write", {"name": "list", "text": "tea"})).data == "alice wrote list."
            assert (await alice.call_tool("plan")).data == "Paint it red."
            (contents,) = await alice.read_resource("notes://list")  # notes:write holds notes:read
            assert contents.text == "tea"
        async with Client(mcp, headers=bearer(BOB)) as bob:
            assert await visible(bob) == (["wait"], 1, 1)
            assert (await bob.get_prompt("tidy")).messages
            with pytest.raises(ServerError, match="Unknown tool: plan"):
                await bob.call_tool("plan")
            with pytest.raises(ServerError, match="This needs the scopes: notes:write"):
                await bob.call_tool("write", {"name": "list", "text": "rum"})


# ── where the server is ──


async def test_the_document_is_at_the_origin_too() -> None:
    program = load("auth_mounted")
    async with hosted(program.app) as url:
        status, challenge = await refusal(f"{url}/notes/mcp")
        assert status == 401
        assert f'resource_metadata="{MOUNTED}' in challenge, challenge
        for path in (DOCUMENT, f"{DOCUMENT}/notes/mcp"):
            async with aiohttp.request("GET", url + path) as answer:
                assert answer.status == 200
                document = await answer.json()
                assert (document["resource"], document["scopes_supported"]) == (MOUNTED, ["notes:read"])
        await program.mcp.drain()


# ── our own authorization server ──


class ShownServer(authserver_stage.Stage):
    """The one of a program, instead of one for tests."""

    def __init__(self, program: Any) -> None:
        self.server = program.auth_server
        self.table = RouteTable(self.server.routes(), ())
        self.base = ""
        self.address = "127.0.0.1"


async def test_a_user_signs_in_and_a_program_calls() -> None:
    program = load("auth_server")
    stage = ShownServer(program)
    registered = (await stage.register(redirect_uris=[authserver_stage.NATIVE], token_endpoint_auth_method="none")).json
    editor = authserver_stage.Program(stage, registered["client_id"], authserver_stage.NATIVE)
    granted = await editor.tokens(resource=program.auth_server.resource)
    app = program.server.asgi()
    async with hosted(app) as url, Client(f"{url}/mcp", headers=bearer(granted["access_token"])) as client:
        assert (await client.call_tool("whoami")).data == "ann"
        status, challenge = await refusal(f"{url}/mcp")
        assert (status, 'scope="notes:read"' in challenge) == (401, True)
        with pytest.raises(ServerError, match="This needs the scopes: notes:write"):
            await client.call_tool("write", {"text": "x"})
    await app.drain()


async def test_a_machine_gets_a_token_by_its_secret() -> None:
    async with served("auth_server") as url, aiohttp.ClientSession(url) as session:
        assert "curl -u nightly:$NIGHTLY_SECRET -d grant_type=client_credentials http://127.0.0.1:8000/token" in PAGE
        known = authserver_stage.basic("nightly", SECRETS["NIGHTLY_SECRET"])
        granted = await session.post("/token", data={"grant_type": "client_credentials"}, headers=known)
        key = (await granted.json())["access_token"]
        async with Client(f"{url}/mcp", headers=bearer(key)) as client:
            assert (await client.call_tool("whoami")).data == "nightly"


async def test_the_files_that_are_shown_are_those_that_are_read() -> None:
    for name in ("auth_users.json", "auth_reports_keys.json"):
        assert f"```json\n{(ROOT / 'docs' / 'programs' / name).read_text()}```" in PAGE
        assert f"`{name}`" in PAGE
    assert f"the password of ann is `{authserver_stage.PASSWORD}`" in PAGE
    assert await Passwords(ROOT / "docs" / "programs" / "auth_users.json").accepts("ann", authserver_stage.PASSWORD)


def test_all_that_is_known_of_a_program_is_shown() -> None:
    table = PAGE.partition("each an `OAuthClient`:")[2].partition("\n\nA program")[0]
    assert re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    names = {name for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert names == set(OAuthClient.__struct_fields__)
    assert "`client_assertion_type` is `urn:ietf:params:oauth:client-assertion-type:jwt-bearer`" in PAGE
    secret = SECRETS["NIGHTLY_SECRET"]
    assert OAuthClient(id="a", secret=ApiKeys.hash(secret)) == OAuthClient(id="a", secret=secret)


# ── keys that tokens are bound to ──


async def proved_call(url: str, **words: Any) -> aiohttp.ClientResponse:
    """What comes of a call with a token that is bound to the key of a client, and a proof for it."""
    bound = token(claims(**KEY.bound))
    params = {"name": "whoami", "arguments": {}, "_meta": META}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    named = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "whoami", "accept": BOTH}
    proof = KEY.headers("POST", AUDIENCE, bound, **words)  # for the URL that clients know, not for this one
    async with aiohttp.request("POST", f"{url}/mcp", json=message, headers={**named, **proof}) as answer:
        await answer.read()
        return answer


async def said(answer: aiohttp.ClientResponse) -> str:
    assert answer.status == 200, await answer.text()
    return str((await answer.json())["result"]["content"][0]["text"])


async def test_a_token_with_its_proof_says_who_is_calling() -> None:
    async with served("auth_dpop") as url:
        assert await said(await proved_call(url)) == "alice"
        answer = await proved_call(url, htu=f"{url}/mcp")
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"].startswith('DPoP error="invalid_dpop_proof"')


async def test_a_client_is_refused_with_the_nonce_its_proof_needs() -> None:
    async with served("auth_dpop_nonces") as url:
        seen = await proved_call(url)
        challenge, nonce = re.escape(seen.headers["WWW-Authenticate"]), seen.headers["DPoP-Nonce"]
        shown = (
            rf"HTTP/1.1 {seen.status} Unauthorized\nWWW-Authenticate: {challenge}\nDPoP-Nonce: [\w-]{{{len(nonce)}}}\n"
        )
        assert re.search(shown, PAGE)
        for _ in range(2):  # it is good for a while
            assert await said(await proved_call(url, nonce=nonce)) == "alice"
        assert (await proved_call(url, nonce="another")).headers["DPoP-Nonce"] == nonce


# ── a pipe ──


def on_a_pipe(key: str | None) -> Client:
    given = {} if key is None else {"DOVETAIL_TOKEN": key}
    return Client([sys.executable, PROGRAMS["auth_scopes"]], env={**os.environ, **given})


@pytest.mark.long
@pytest.mark.parametrize(("key", "tools"), [(ALICE, ["plan", "wait", "write"]), (BOB, ["wait"]), (None, ["wait"])])
async def test_a_host_gives_a_token_in_the_environment(key: str | None, tools: list[str]) -> None:
    async with on_a_pipe(key) as client:
        assert sorted(tool.name for tool in await client.list_tools()) == tools
