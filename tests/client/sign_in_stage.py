"""Authorization servers of a test's own, and browsers that sign in there."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import aiohttp
from scripted import DISCOVERED, Scripted, ScriptedRequest

from authserver_stage import SCOPES, UncachedVerifier, hidden_fields, say_yes, served
from dovetail import Context, Server
from dovetail.auth import Auth
from dovetail.authserver import AuthServer
from dovetail.client.oauth import OAuth, TokenSet
from provider_stage import WayIn, name_of, way_in

CALLBACK = "http://127.0.0.1:9/callback"
PRM = "/.well-known/oauth-protected-resource/mcp"
METADATA = "/.well-known/oauth-authorization-server"
SECRETS = ("good-token", "the-code", "refresh-1", "app-secret")


class Realm:
    """`pages` are answers by path: a document, a status, or a function of the request."""

    def __init__(self) -> None:
        self.good = {"good-token"}  # tokens that the MCP server takes
        self.pages: dict[str, Any] = {}
        self.answer: Callable[[dict[str, str]], dict[str, str]] = lambda usual: usual  # of the browser
        self.token: Any = {"access_token": "good-token", "token_type": "Bearer", "expires_in": 3600}
        self.challenge = 'Bearer resource_metadata="{origin}' + PRM + '"'
        self.forms: list[dict[str, str]] = []  # that the token endpoint got
        self.headers: list[dict[str, str]] = []  # of MCP requests
        self.asked: list[dict[str, str]] = []  # of the browser
        self.registered: list[dict[str, Any]] = []
        self.script = Scripted(self._behave)

    @property
    def url(self) -> str:
        return self.script.url

    def paths(self) -> list[str]:
        return [request.path for request in self.script.requests]

    def document(self, path: str) -> Any:
        origin = self.script.origin
        usual: dict[str, Any] = {
            PRM: {"resource": f"{origin}/mcp", "authorization_servers": [origin]},
            METADATA: {
                "issuer": origin,
                "authorization_endpoint": f"{origin}/authorize",
                "token_endpoint": f"{origin}/token",
                "registration_endpoint": f"{origin}/register",
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none"],
            },
        }
        return usual.get(path)

    def change(self, path: str, **changes: Any) -> None:
        """Of a document; None takes a member away."""
        found = {**self.document(path), **changes}
        self.pages[path] = {name: value for name, value in found.items() if value is not None}

    # ── what it does ──

    def _behave(self, request: ScriptedRequest) -> Any:
        own = {"/mcp": self._mcp, "/token": self._token, "/register": self._register}
        page = self.pages.get(request.path) or own.get(request.path) or self.document(request.path) or 404
        if callable(page):
            return page(request)
        return request.answer(page) if isinstance(page, int) else request.answer(200, page)

    def _mcp(self, request: ScriptedRequest) -> None:
        self.headers.append(request.headers)
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.good:
            challenge = self.challenge.format(origin=self.script.origin)
            request.answer(401, {"error": "invalid_token"}, **({"WWW_Authenticate": challenge} if challenge else {}))
        else:
            request.result({**DISCOVERED, "tools": []})

    def _token(self, request: ScriptedRequest) -> None:
        basic = {name: text for name, text in request.headers.items() if name == "authorization"}
        self.forms.append({**dict(parse_qsl(request.body.decode())), **basic})
        token = self.token(self.forms[-1]) if callable(self.token) else self.token
        status, body = token if isinstance(token, tuple) else (200, token)
        request.answer(status, body)

    def _register(self, request: ScriptedRequest) -> None:
        self.registered.append(json.loads(request.body))
        request.answer(201, {"client_id": f"app-{len(self.registered)}", **self.registered[-1]})

    # ── who signs in ──

    def oauth(self, **options: Any) -> OAuth:
        usual = {"redirect_uri": CALLBACK, "redirect_handler": self.browse}
        return OAuth(**{**usual, **options})

    async def browse(self, url: str) -> str:
        asked = dict(parse_qsl(urlsplit(url).query))
        self.asked.append(asked)
        usual = {"code": "the-code", "state": asked["state"]}
        return f"{asked['redirect_uri']}?{urlencode(self.answer(usual))}"


@asynccontextmanager
async def realm() -> AsyncIterator[Realm]:
    made = Realm()
    async with made.script:
        yield made


class Person:
    """What `open_browser=` is in these tests: opens the page, answers it, and goes where the answer sends them."""

    def __init__(self, *, says_yes: bool = True, thinks: float = 0.0) -> None:
        self.says_yes = says_yes
        self._thinks = thinks
        self.asked: list[dict[str, str]] = []  # what each page was asked for
        self.pages: list[str] = []  # what was shown in the end

    async def open(self, url: str) -> None:
        self.asked.append(dict(parse_qsl(urlsplit(url).query)))
        await asyncio.sleep(self._thinks)
        back = await say_yes(url) if self.says_yes else await _say_no(url)
        async with aiohttp.ClientSession() as session, session.get(back) as page:
            self.pages.append(await page.text())

    @property
    def scopes(self) -> list[list[str]]:
        return [sorted(each.get("scope", "").split()) for each in self.asked]


async def _say_no(url: str) -> str:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        async with session.get(url) as page:
            form, cookie = hidden_fields(await page.text()), page.headers["Set-Cookie"].partition(";")[0]
        parts = urlsplit(url)
        headers = {"Cookie": cookie, "Origin": f"{parts.scheme}://{parts.netloc}"}
        data = {**form, "answer": "deny"}
        async with session.post(url.partition("?")[0], data=data, headers=headers, allow_redirects=False) as answer:
            return answer.headers["Location"]


class Notes:
    """The app, and which paths were asked for."""

    def __init__(self, root: str, way: WayIn, *, is_cached: bool = True, **options: Any) -> None:
        url = f"{root}/mcp"
        self.way = way
        self.auth_server = AuthServer(root, resource=url, sign_in=way.sign_in(root), scopes=SCOPES, **options)
        verifier = self.auth_server
        auth = Auth(verifier if is_cached else UncachedVerifier(verifier), scopes=["notes:read"])
        server = Server("notes", auth=auth)

        @server.tool
        def read() -> str:
            """Read a note."""
            return "a note"

        @server.tool(scopes=["notes:write"])
        def write(text: str) -> str:
            """Write a note."""
            return text

        @server.tool
        async def ask_provider(ctx: Context) -> str:
            """Ask the identity provider for the name of the caller."""
            return "nobody" if way.at is None else await name_of(way.at, await ctx.upstream_token())

        self._app = server.asgi(sse=True, routes=self.auth_server.routes())
        self.paths: list[str] = []
        self.url = url

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope.get("path", ""))
        await self._app(scope, receive, send)

    async def sign_out(self, kept: TokenSet, token: str) -> None:
        """Revoke the tokens of a client; `token` is one of them."""
        form = {"token": token, "client_id": kept.client.id}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.auth_server.issuer}/revoke", data=form) as answer,
        ):
            assert answer.status == 200, await answer.text()

    def __getattr__(self, name: str) -> Any:  # to start it, and to drain it
        return getattr(self._app, name)


@asynccontextmanager
async def notes(row: str = "passwords", **options: Any) -> AsyncIterator[Notes]:
    """`row` says how users sign in, `is_cached` whether a token is good for a while after it was verified."""
    made: list[Notes] = []
    async with way_in(row, options.get("clock", time.time)) as way:

        def make(root: str) -> Notes:
            made.append(Notes(root, way, **options))
            return made[0]

        async with served(make):
            yield made[0]
