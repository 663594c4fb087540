"""`dovetail run mcp.json` and `dovetail run URL`: what is mounted under which names, what is left out, signing in."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from command_stage import BIN, environment
from server_process import serving

from dovetail import Client, Server
from dovetail.cli.main import main

GUARDED = str(Path(__file__).parent / "guarded_server.py")
SHOP = {"command": sys.executable, "args": ["server.py"]}
NOTES = {"url": "http://127.0.0.1:9/mcp"}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Server, str]]:
    """What would have been served."""
    calls: list[tuple[Server, str]] = []
    monkeypatch.setattr(Server, "run", lambda self, transport, **_: calls.append((self, transport)))
    return calls


def run(folder: Path, servers: dict[str, Any], *words: str, target: str = "", **env: str) -> Result:
    for server in servers.values():
        server.update({"cwd": str(folder)} if "command" in server else {})
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    removed = dict.fromkeys(("DOVETAIL_API_KEYS", "DOVETAIL_CLIENT_TOKEN", "DOVETAIL_HOST", "DOVETAIL_NAME"))
    path = f"{folder / 'mcp.json'}{target}"
    return CliRunner().invoke(main, ["run", path, *words], env={**removed, "XDG_DATA_HOME": str(folder), **env})


async def test_each_server_is_mounted_under_its_name(folder: Path, ran: list) -> None:
    servers = {"my shop": {**SHOP}, "shop.two": {**SHOP}, "off": {**SHOP, "disabled": True}}
    result = run(folder, servers)
    assert (result.exit_code, result.stdout) == (0, ""), result.output
    ((gateway, transport),) = ran
    assert (gateway.name, transport) == (folder.name, "stdio")
    async with Client(gateway) as client:
        names = {tool.name for tool in await client.list_tools()}
        assert {"my_shop_add", "shop.two_add"} <= names
        assert {name.partition("_")[0] for name in names} == {"my", "shop.two"}
        assert (await client.call_tool("my_shop_add", {"a": 2, "b": 3})).data == 5


async def test_one_server_alone_has_its_own_names(folder: Path, ran: list) -> None:
    result = run(folder, {"shop": {**SHOP}, "notes": {**NOTES}}, "--name", "store", target=":shop")
    assert result.exit_code == 0, result.output
    ((gateway, _),) = ran
    assert gateway.name == "store"
    async with Client(gateway) as client:
        assert (await client.call_tool("add", {"a": 2, "b": 3})).data == 5


def test_a_broken_server_is_told_and_left_out(folder: Path, ran: list) -> None:
    servers = {"shop": {**SHOP}, "a b": {**NOTES}, "A_b": {**NOTES}, "torn": {"command": "a", "url": "https://secret"}}
    result = run(folder, servers)
    assert (result.exit_code, result.stdout, len(ran)) == (0, "", 1)
    assert "The server 'torn' can't be used" in result.stderr
    assert "'a b' and 'A_b' would have the same names; rename one of them; 'A_b' is left out" in result.stderr
    assert "secret" not in result.stderr


@pytest.mark.parametrize(
    ("servers", "host", "env"),
    [
        ({"shop": SHOP}, "127.0.0.1", {}),
        ({"notes": NOTES}, "0.0.0.0", {}),
        ({"shop": SHOP}, "0.0.0.0", {"DOVETAIL_API_KEYS": "alice:dovetail_0123456789abcdef0123456789"}),
    ],
)
def test_which_gateways_may_listen_where(folder: Path, ran: list, servers: Any, host: str, env: dict[str, str]) -> None:
    copies = {name: {**server} for name, server in servers.items()}
    result = run(folder, copies, "--transport", "http", "--host", host, **env)
    assert result.exit_code == 0, result.output
    ((gateway, transport),) = ran
    assert transport == "http"
    assert (gateway.engine.options.auth is not None) == bool(env)


# ── bridges ──


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving([GUARDED], tmp_path_factory.mktemp("guarded") / "log.txt") as served:
        yield f"{served.origin}/mcp"


async def name_at(url: str, folder: Path, browser: str) -> str:
    env = environment(HOME=str(folder), XDG_DATA_HOME=str(folder), BROWSER=browser)
    async with Client([BIN / "dovetail", "run", url], env=env) as client:
        return str((await client.call_tool("whoami")).data)


@pytest.mark.long
async def test_a_bridge_signs_in_once_for_all_bridges_of_a_user(tmp_path: Path, url: str) -> None:
    assert await name_at(url, tmp_path, f"{sys.executable} {GUARDED} %s") == "ann"
    assert await name_at(url, tmp_path, "false") == "ann"
