"""A server of our own that wants tokens, its authorization server, and a person who signs in with a browser."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import aiohttp

from authserver_stage import SCOPES, USERS, hidden_fields, say_yes, served
from dovetail import Server
from dovetail.auth import Auth
from dovetail.authserver import AuthServer


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

    def __init__(self, root: str, **options: Any) -> None:
        url = f"{root}/mcp"
        self.auth_server = AuthServer(root, resource=url, users=USERS, scopes=SCOPES, **options)
        server = Server("notes", auth=Auth(self.auth_server.verifier(), public_url=url, scopes=["notes:read"]))

        @server.tool
        def read() -> str:
            """Read a note."""
            return "a note"

        @server.tool(scopes=["notes:write"])
        def write(text: str) -> str:
            """Write a note."""
            return text

        self._app = server.asgi(routes=self.auth_server.routes(), sse=True)
        self.paths: list[str] = []
        self.url = url

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope.get("path", ""))
        await self._app(scope, receive, send)

    async def start(self) -> None:
        await self._app.start()

    async def drain(self, seconds: float) -> None:
        await self._app.drain(seconds)


@asynccontextmanager
async def notes(**options: Any) -> AsyncIterator[Notes]:
    made: list[Notes] = []

    def make(root: str) -> Notes:
        made.append(Notes(root, **options))
        return made[0]

    async with served(make):
        yield made[0]
