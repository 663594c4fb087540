"""`import dovetail` stays light: what it loads, and above all what it does not."""

import json
import subprocess
import sys

import pytest

import dovetail

HEAVY = {
    "pydantic", "uvicorn", "starlette", "jsonschema_rs", "cryptography", "click", "redis", "watchfiles", "anyio",
    "joserfc", "aiohttp", "mcp_types", "yaml", "opentelemetry", "dovetail.openapi",
    "dovetail.engine.telemetry", "dovetail.engine.hooks", "dovetail.registry.official",
}  # fmt: skip


def loaded_after(code: str) -> set[str]:
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


PLAIN_SERVER = """
from dovetail import Context, Server
server = Server("plain")

@server.tool
async def add(a: int, b: int, ctx: Context) -> int:
    return a + b
"""


def test_a_plain_server_loads_nothing_heavy() -> None:
    loaded = loaded_after(PLAIN_SERVER)
    assert not loaded & HEAVY
    ours = {name for name in loaded if name.startswith("dovetail")}
    assert len(loaded - ours) <= 200
    assert not any(name.startswith("dovetail.client") for name in ours)


STDIO_SERVER = """
import sys
from dovetail import Server
server = Server("plain")

@server.tool
def loaded(prefix: str = "", limit: int = 1000) -> list[str]:
    return sorted(name for name in sys.modules if name.startswith(prefix))[:limit]

server.run()
"""
OURS_AT_MOST = 68
OTHERS_AT_MOST = 10  # besides what asyncio and msgspec bring


def loaded_while_serving() -> set[str]:
    """What a server on stdio has loaded when it has answered `initialize` and is in its first call."""
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "loaded"}},
    ]
    lines = "".join(json.dumps(message) + "\n" for message in messages)
    command = [sys.executable, "-c", STDIO_SERVER]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, timeout=60)
    answers = {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    return set(answers[2]["result"]["structuredContent"]["result"])


def test_a_server_on_stdio_loads_only_what_every_server_needs() -> None:
    """Each module costs time at the start of every server, on some machines a third of a millisecond."""
    loaded = loaded_while_serving()
    ours = {name for name in loaded if name.split(".")[0] == "dovetail"}
    others = loaded - ours - loaded_after("import asyncio, msgspec")
    assert len(ours) <= OURS_AT_MOST, sorted(ours)
    assert not any(name.startswith("dovetail.state.") for name in ours)
    assert len(others) <= OTHERS_AT_MOST, sorted(others)


def test_every_public_name_is_there() -> None:
    assert set(dovetail.__all__) <= set(dir(dovetail))
    assert [name for name in dovetail.__all__ if getattr(dovetail, name) is None] == []
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        dovetail.Nonsense  # noqa: B018
