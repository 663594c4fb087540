"""The official Python client on the whole way of OAuth, in a process of its own.

`python oauth_client_program.py '{"scenario": "whole", "revision": "2026-07-28", "origin": …, "metadata": …}'` writes
what it saw as JSON: each part of the way with the HTTP requests that it took, and all that was asked, told and granted.
"""

import asyncio
import html
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

sys.path.insert(0, str(Path(__file__).parent.parent))

import httpx2
from mcp import ClientSession, MCPError
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from oauth_program import ACCESS_SECONDS, PASSWORD, USER

from sdk import only_text
from sdk_http import HttpTalk

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

    def __init__(self, task: dict[str, Any], storage: Storage | None = None) -> None:
        super().__init__(task["origin"])
        self.task = task
        self.storage = storage or Storage()
        self.browser = UserAgent()
        self.challenges: dict[int, list[str]] = {}  # by status
        self.forms: list[dict[str, str]] = []  # what was sent to the token endpoint
        self._provider = OAuthClientProvider(
            f"{self.root}/mcp",
            OAuthClientMetadata.model_validate(task["metadata"]),
            self.storage,
            self.browser.visit,
            self.browser.returned,
            client_metadata_url=task.get("document"),
        )

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

    def report(self) -> dict[str, Any]:
        client = self.storage.client
        return {
            "steps": self.steps(),
            "statuses": sorted({asked.status for asked in self.asked}),
            "challenges": self.challenges,
            "forms": self.forms,
            "visited": self.browser.visited,
            "passwords": self.browser.passwords_typed,
            "tokens": [tokens.model_dump(mode="json") for tokens in self.storage.tokens],
            "registered": None if client is None else client.model_dump(mode="json"),
        }


# ── ways to go ──


async def part(talk: ProtectedTalk, session: ClientSession, tool: str, **arguments: Any) -> dict[str, Any]:
    """One call, what it took, and which tools are there after it."""
    before = len(talk.steps())
    text = only_text(await session.call_tool(tool, arguments))
    steps = talk.steps()[before:]
    return {"text": text, "steps": steps, "tools": sorted(tool.name for tool in (await session.list_tools()).tools)}


async def whole(talk: ProtectedTalk) -> dict[str, Any]:
    """Finds out, registers, signs in, calls, renews its token, and comes back for more, twice."""
    async with talk(talk.task["revision"]) as session:
        said: dict[str, Any] = {"negotiated": session.protocol_version, "found": talk.steps()}
        said["first"] = await part(talk, session, "calculate", **SUM)
        await asyncio.sleep(ACCESS_SECONDS + 0.5)
        said["renewed"] = await part(talk, session, "calculate", **SUM)
        said["step_up"] = await part(talk, session, "read_note")
        said["further"] = await part(talk, session, "write_note", text="hello")
    return {**said, **talk.report()}


async def call(talk: ProtectedTalk) -> dict[str, Any]:
    async with talk(talk.task["revision"]) as session:
        first = await part(talk, session, "calculate", **SUM)
    return {"first": first, **talk.report()}


async def oldest(talk: ProtectedTalk) -> dict[str, Any]:
    """HTTP+SSE, where a missing scope is an error, and no way to more."""
    async with talk("2024-11-05", "sse") as session:
        first = await part(talk, session, "calculate", **SUM)
        try:
            await session.call_tool("read_note")
            refusal = None
        except MCPError as error:
            refusal = str(error)
    return {"first": first, "refusal": refusal, **talk.report()}


async def back(talk: ProtectedTalk) -> dict[str, Any]:
    """The same program once more, which has kept what it was given; this is what the second one saw."""
    async with talk(talk.task["revision"]) as session:
        await part(talk, session, "read_note")
    again = ProtectedTalk(talk.task, talk.storage)
    async with again(talk.task["revision"]) as session:
        first = await part(again, session, "read_note")
    return {"first": first, **again.report()}


SCENARIOS: dict[str, Callable[[ProtectedTalk], Awaitable[dict[str, Any]]]] = {
    each.__name__: each for each in (whole, call, oldest, back)
}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    seen = asyncio.run(SCENARIOS[given["scenario"]](ProtectedTalk(given)))
    sys.stdout.write(json.dumps({**seen, "group": os.getpgrp() if os.name == "posix" else None}))
