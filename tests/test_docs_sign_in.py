"""The page on identity providers: its programs with users who sign in, its lines of Python, its tables."""

import ast
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp
import msgspec
import pytest
from aiohttp import web

import authserver_stage
import dovetail.authserver
from authserver_stage import hidden_fields
from documented import PROGRAMS, ROOT, load, served
from dovetail import Client, Server, ToolError
from dovetail.authserver import AuthServer, Provider, SignIn
from dovetail.authserver.authorize import CONSENT_TIMEOUT
from dovetail.authserver.callback import BEGIN_LIMIT
from dovetail.authserver.identity_provider import MAX_ANSWER
from dovetail.client import OAuth
from http_serving import hosted
from identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider, provider, visit
from provider_kinds import KINDS, User

PAGE = (ROOT / "docs" / "sign-in.md").read_text()
BACK = "http://127.0.0.1:9/back"


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


class Browser:
    """Follows redirects up to the client, and says yes on the way."""

    def __init__(self) -> None:
        self.pages: list[str] = []

    async def visit(self, url: str) -> str:
        cookies = aiohttp.CookieJar(unsafe=True, treat_as_secure_origin=_origin(url))  # as browsers on the loopback
        async with aiohttp.ClientSession(cookie_jar=cookies) as session:
            form: dict[str, str] | None = None
            while not url.startswith(BACK):
                headers = {} if form is None else {"Origin": _origin(url)}
                verb = "GET" if form is None else "POST"
                async with session.request(verb, url, data=form, headers=headers, allow_redirects=False) as answer:
                    if answer.status in (302, 303):
                        url, form = urljoin(url, answer.headers["Location"]), None
                        continue
                    self.pages.append(await answer.text())
                    assert answer.status == 200, self.pages[-1]
                    url, form = url.partition("?")[0], {**hidden_fields(self.pages[-1]), "answer": "allow"}
        return url


def _origin(url: str) -> str:
    return "/".join(url.split("/")[:3])


# ── the repositories of a user ──


class GitHub(IdentityProvider):
    """GitHub with repositories: user, page and number of each request."""

    repositories = 250
    status = 200
    listed: list[tuple[str, int]]

    def app(self) -> web.Application:
        self.listed = []
        app = super().app()
        app.router.add_get("/api/v3/user/repos", self._repositories)
        return app

    async def _repositories(self, request: web.Request) -> web.Response:
        token = request.headers["Authorization"].removeprefix("Bearer ")
        page, size = int(request.query["page"]), int(request.query["per_page"])
        self.listed.append((self.user, page))
        if self.status != 200 or not self.is_good(token):
            return web.json_response({"message": "no"}, status=401 if self.status == 200 else self.status)
        numbers = range(self.repositories)[(page - 1) * size : page * size]
        more = {"id": 1, "owner": {"login": "ann"}, "description": None}  # and much else that nobody reads
        return web.json_response(
            [
                {"full_name": f"ann/{n}", "html_url": f"https://github.com/ann/{n}", "private": n == 0, **more}
                for n in numbers
            ]
        )


@asynccontextmanager
async def listing(monkeypatch: pytest.MonkeyPatch, browser: Browser) -> AsyncIterator[tuple[GitHub, Client]]:
    """The program with a GitHub Enterprise Server, and a client that signs in."""
    github = GitHub("github")
    runner = web.AppRunner(github.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    github.origin = f"http://127.0.0.1:{runner.addresses[0][1]}"

    def make(root: str) -> Any:
        github.redirect_uri = f"{root}/callback"
        for name, value in {
            "ORIGIN": root, "GITHUB_URL": github.origin,
            "GITHUB_CLIENT_ID": CLIENT_ID, "GITHUB_CLIENT_SECRET": CLIENT_SECRET,
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        return load("sign_in_github").server.asgi()

    try:
        async with authserver_stage.served(make) as root:
            auth = OAuth(redirect_uri=BACK, redirect_handler=browser.visit, client_name="Editor")
            async with Client(f"{root}/mcp", auth=auth) as client:
                yield github, client
    finally:
        await runner.cleanup()


async def test_a_user_signs_in_and_lists_repositories(monkeypatch: pytest.MonkeyPatch) -> None:
    browser = Browser()
    async with listing(monkeypatch, browser) as (github, client):
        found = (await client.call_tool("list_repositories")).data
        assert len(found["found"]) == 250
        assert found["complete"] is True
        assert found["found"][0] == {"full_name": "ann/0", "html_url": "https://github.com/ann/0", "private": True}
        assert [page for _, page in github.listed] == [1, 2, 3]
        github.repositories = 800
        found = (await client.call_tool("list_repositories")).data
        assert (len(found["found"]), found["complete"]) == (500, False)
    (page,) = browser.pages  # the consent
    assert "Allow Editor to act for you?" in page
    assert "List your repositories" in page
    assert all(secret not in page for secret in github.secrets)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (401, "GitHub does not take your sign-in any more. Connect to this server anew."),
        (403, "GitHub lets you make no more requests for now. Try again in an hour."),
        (302, "GitHub does not answer as it should. Try again in a minute."),
        (503, "GitHub does not answer as it should. Try again in a minute."),
    ],
)
async def test_what_github_refuses_is_an_error_for_the_user(
    status: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listing(monkeypatch, Browser()) as (github, client):
        github.status = status
        with pytest.raises(ToolError, match=re.escape(says)) as failure:
            await client.call_tool("list_repositories")
        assert not any(secret in str(failure.value) for secret in github.secrets)


# ── the other programs ──


async def test_the_first_program_tells_clients_where_to_sign_in() -> None:
    assert len(PROGRAMS["sign_in"].read_text().splitlines()) <= 20
    async with served("sign_in") as url, aiohttp.ClientSession(url) as session:
        async with session.get("/.well-known/oauth-protected-resource/mcp") as answer:
            assert (await answer.json())["authorization_servers"] == ["http://127.0.0.1:8000"]
        async with session.get("/.well-known/oauth-authorization-server") as answer:
            assert (await answer.json())["authorization_endpoint"] == "http://127.0.0.1:8000/authorize"
        async with session.get("/callback", params={"code": "a", "state": "b"}) as answer:
            assert answer.status == 403
            assert "This page is too old, was answered before, or belongs to another browser" in await answer.text()


def test_two_groups_come_in_and_one_of_them_may_write() -> None:
    program = load("sign_in_groups")
    assert program.scopes_for({"groups": [program.STAFF]}) == ["notes:read"]
    assert program.scopes_for({"groups": [program.STAFF, program.EDITORS]}) == ["notes:read", "notes:write"]
    assert program.sign_in.provider.row.issuer == f"https://login.microsoftonline.com/{program.TENANT}/v2.0"


def _forge(user: User) -> dict[str, Any]:
    kind = "staff" if "acme" in user.organizations else "guest"
    more = {"email": user.email, "email_confirmed": user.is_verified, "kind": kind}
    return {"account_id": user.number, "login": user.name.lower(), "name": user.name, **more}


@pytest.fixture
def _forge_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {"authorize": "/oauth/authorize", "token": "/oauth/token", "userinfo": "/api/me"}
    monkeypatch.setitem(KINDS, "forge", KINDS["discord"]._replace(claims=_forge, scopes="profile", **paths))


@pytest.mark.usefixtures("_forge_kind")
@pytest.mark.parametrize(("user", "status"), [("ann", 303), ("bob", 403)])
async def test_a_row_of_your_own_lets_staff_in_and_tells_others_why_not(user: str, status: int) -> None:
    program = load("sign_in_own_row")
    async with provider("forge", f"{authserver_stage.ISSUER}/callback") as forge:
        forge.user = user
        endpoints = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint")
        moved = {
            each: getattr(program.FORGE, each).replace("https://forge.example.com", forge.origin) for each in endpoints
        }
        row = msgspec.structs.replace(program.FORGE, **moved)
        stage = authserver_stage.Stage(sign_in=SignIn(row, CLIENT_ID, CLIENT_SECRET, allow=program.only_staff))
        browser, editor = authserver_stage.Browser(stage), authserver_stage.Program(stage)
        sent = await browser.answer(await browser.open(editor.url()))
        reply = await browser.open("callback?" + urlsplit(await visit(sent.headers["location"])).query)
        assert reply.status == status, reply.text
        if status == 403:
            assert "Only people who work here may read the notes." in reply.text
            return
        granted = (await editor.redeem(reply.sent_to["code"])).json
        _, claims = authserver_stage.payload(granted["access_token"])
        assert claims["sub"] == "forge:583231"
        assert (claims["preferred_username"], claims["email"]) == ("ann arbor", "ann@example.com")


@pytest.mark.slow
def test_the_program_with_a_test_passes_it() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(PROGRAMS["sign_in_tests"]),
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


async def test_below_a_path_everything_is_where_the_page_says() -> None:
    base = "https://example.com/notes"
    auth_server = AuthServer(base, resource=f"{base}/mcp", sign_in=SignIn.github("id", "secret"))
    app = Server("notes", version="1.0.0", auth=auth_server).asgi(path="/notes/mcp")
    (lines,) = re.findall(r"```nginx\n(.*?)```", section("Behind a proxy"), re.DOTALL)
    exact, below = (
        re.findall(r"^location = (\S+)", lines, re.MULTILINE),
        re.findall(r"(\w+)[,\n]", lines.partition("#")[2]),
    )
    async with hosted(app) as url, aiohttp.ClientSession(url, headers={"Host": "example.com"}) as session:
        found = {}
        for path in [*exact, *(f"/notes/{name}" for name in below)]:
            async with session.get(path) as answer:
                found[path] = answer.status
    assert len(found) == 9
    assert 404 not in found.values(), found
    assert f"the redirect URI is `{base}/callback`" in PAGE


# ── the page ──

LINES = re.findall(r"`(SignIn\.\w+\((?:ID|\"https).*?\))`", PAGE)


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_python_can_be_written_like_this(line: str) -> None:
    made = eval(line, {"SignIn": SignIn, "ID": "id", "SECRET": "secret"})
    assert isinstance(made, SignIn)


def test_every_provider_has_its_line() -> None:
    methods = {name for name, value in vars(SignIn).items() if isinstance(value, classmethod)}
    assert methods == {re.findall(r"SignIn\.(\w+)", line)[0] for line in LINES}


def test_all_that_a_row_says_is_in_the_table() -> None:
    rows = re.findall(r"^\| (.*?) \|", section("A provider of your own").partition("| field of")[2], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(Provider.__struct_fields__)


def texts_of_the_source() -> Iterator[str]:
    """All texts in the modules, with … in the place of what is filled in."""
    for path in Path(dovetail.authserver.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (each.value if isinstance(each, ast.Constant) else "…" for each in node.values)
                yield "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_the_table_of_errors_quotes_what_is_said() -> None:
    rows = section("Errors")
    logged = [
        text for cell in re.findall(r"^\| (.*?) \|", rows, re.MULTILINE) for text in re.findall(r"`(.*? .*?)`", cell)
    ]
    quoted = [*re.findall(r"“(.*?)”", rows), *(re.sub("'[^']*'", "…", text) for text in logged)]
    texts = list(texts_of_the_source())
    assert len(quoted) >= 15
    for each in quoted:
        named = re.sub("some (organizations|groups|domains)", "some …", each)
        parts = [part.strip(" .") for part in named.split("…")]
        assert any(all(part in text for part in parts) for text in texts), each


def test_the_bounds_are_those_of_the_code() -> None:
    bounds, remembered = section("Bounds"), section("What is remembered")
    assert f"{MAX_ANSWER // 1024} KiB" in bounds
    assert (
        f"{BEGIN_LIMIT.each} from one address in {BEGIN_LIMIT.seconds / 60:.0f} minutes, {BEGIN_LIMIT.for_all:,}"
        in bounds
    )
    assert f"{CONSENT_TIMEOUT / 60:.0f} minutes" in remembered
