"""The official suite's scenarios for authorization servers, against ours on a loopback socket, beside an MCP server."""

import asyncio
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import node_tools
import pytest
from server_process import OWN_GROUP

import nodejs
from authserver_stage import SCOPES, USERS, say_yes, served
from dovetail import Server
from dovetail.authserver import AuthServer, OAuthClient

pytestmark = [pytest.mark.slow]
PATIENCE = 60.0
CLIENT = OAuthClient(id="suite", name="The suite", redirect_uris=["http://127.0.0.1/callback"])


def authorization_server(ending: str) -> Callable[[str], Any]:
    def make(root: str) -> Any:
        resource = f"{root}/mcp"
        auth_server = AuthServer(root + ending, resource=resource, users=USERS, clients=[CLIENT], scopes=SCOPES)
        return Server("notes").asgi(routes=auth_server.routes())

    return make


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


async def browse(url: str) -> None:
    back = await say_yes(url)
    async with aiohttp.ClientSession() as session, session.get(back) as done:
        assert done.status == 200


async def run_suite(issuer: str, folder: Path) -> tuple[int, str]:
    options = ["--url", issuer, "--client-id", CLIENT.id, "--port", str(free_port()), "-o", str(folder)]
    suite = await asyncio.create_subprocess_exec(
        *node_tools.conformance(), "authorization", *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, process_group=OWN_GROUP,
    )  # fmt: skip
    assert suite.stdout is not None
    written, browsed = "", False
    try:
        async with asyncio.timeout(PATIENCE):
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


@pytest.mark.parametrize("ending", ["", "/", "/login", "/login/"])
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
