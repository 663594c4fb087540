"""However the issuer is spelled, the official Python client finds it, registers and gets tokens; a user says yes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from authserver_stage import SCOPES, USERS, say_yes, served
from dovetail import Server
from dovetail.auth import Auth
from dovetail.authserver import AuthServer

CALLBACK = "http://127.0.0.1:3030/callback"


def protected(ending: str) -> Callable[[str], Any]:
    """A server and its authorization server."""

    def make(root: str) -> Any:
        url = f"{root}/mcp"
        auth_server = AuthServer(root + ending, resource=url, users=USERS, scopes=SCOPES)
        server = Server("notes", auth=Auth(auth_server.verifier(), public_url=url, scopes=["notes:read"]))
        server.add_tool(read)
        server.add_tool(write, scopes=["notes:write"])
        return server.asgi(routes=auth_server.routes())

    return make


def read() -> str:
    """Read a note."""
    return "a note"


def write(text: str) -> str:
    """Write a note."""
    return text


class User:
    """Opens what the client asks for, signs in and says yes. Also keeps what the client wants kept."""

    def __init__(self) -> None:
        self.asked: list[str] = []  # scopes
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        self._answers: asyncio.Queue[AuthorizationCodeResult] = asyncio.Queue()

    async def visit(self, url: str) -> None:
        back = parse_qs(urlsplit(await say_yes(url)).query)
        self.asked += parse_qs(urlsplit(url).query)["scope"]
        self._answers.put_nowait(
            AuthorizationCodeResult(code=back["code"][0], state=back["state"][0], iss=back["iss"][0])
        )

    async def came_back(self) -> AuthorizationCodeResult:
        return await self._answers.get()

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


@asynccontextmanager
async def client_of(root: str, user: User) -> AsyncIterator[Client]:
    url = f"{root}/mcp"
    metadata = OAuthClientMetadata(
        client_name="Official client",
        redirect_uris=[CALLBACK],
        grant_types=["authorization_code", "refresh_token"],
        token_endpoint_auth_method="none",
    )
    auth = OAuthClientProvider(url, metadata, user, user.visit, user.came_back)
    async with (
        httpx2.AsyncClient(auth=auth, timeout=30) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", "/", "/login"])
async def test_the_whole_flow(ending: str) -> None:
    user = User()
    async with served(protected(ending)) as root, client_of(root, user) as client:
        assert (await client.call_tool("read", {})).content[0].text == "a note"
        assert user.asked == ["notes:read"]
        assert (await client.call_tool("write", {"text": "new"})).content[0].text == "new"
        assert len(user.asked) == 2
        assert "notes:write" in user.asked[1].split()
