"""Credentials on stdio: a token in the environment, verified once when the server starts."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROMPTLY = 30.0
TOKEN = "ann-secret-token"
PROGRAM = """
import os, time
from dovetail import Context, Server
from dovetail.auth import Auth, Principal, VerifierTrouble

async def verify(token):
    if token == "trouble-token":
        raise VerifierTrouble("the issuer is away")
    if token == "broken-token":
        raise ValueError(token)
    scopes = {"ann-secret-token": {"base", "write"}, "low-token": {"write"}, "short-token": {"base", "write"}}
    expires_at = time.time() + 1 if token == "short-token" else None
    if token not in scopes:
        return None
    return Principal(subject="ann", scopes=frozenset(scopes[token]), expires_at=expires_at)

server = Server("piped", version="1.0.0", auth=AUTH)

@server.tool
async def whoami(ctx: Context) -> str:
    return "nobody" if ctx.principal is None else ctx.principal.name

@server.tool(scopes=["write"])
async def write() -> str:
    return "written"

@server.tool
async def wait() -> str:
    import asyncio
    await asyncio.sleep(1.3)
    return "waited"

@server.resource("notes://all", scopes=["write"])
async def everything() -> str:
    return "all of it"

@server.tool
async def touch(ctx: Context) -> str:
    server.notify_resource_updated("notes://all")
    return "touched"

@server.tool
async def inherited() -> str:
    return repr(sorted(name for name in os.environ if name == "DOVETAIL_TOKEN"))

if __name__ == "__main__":
    server.run()
"""
AUTH = 'Auth(verify, scopes=["base"])'
UPDATED = "notifications/resources/updated"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}


class Ended:
    """What became of a server: its answers in the order of their ids, and how it ended."""

    def __init__(self, done: "subprocess.CompletedProcess[str]") -> None:
        answers = sorted(map(json.loads, done.stdout.splitlines()), key=lambda answer: answer["id"])
        self.answers = [_shown(answer) for answer in answers]
        self.code = done.returncode
        self.errors = done.stderr


def _shown(answer: dict[str, Any]) -> str:
    return answer["result"]["content"][0]["text"] if "result" in answer else f"error {answer['error']['code']}"


def run(folder: Path, token: str | None, *tools: str, auth: str = AUTH, command: tuple[str, ...] = ()) -> Ended:
    """Serve until these calls are answered."""
    program = folder / "piped.py"
    program.write_text(PROGRAM.replace("AUTH)", f"{auth})"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DOVETAIL_")}
    params = {"arguments": {}, "_meta": META}
    calls = [
        {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {**params, "name": name}}
        for number, name in enumerate(tools)
    ]
    lines = "".join(f"{json.dumps(call)}\n" for call in calls)
    done = subprocess.run(
        [sys.executable, *command, str(program)],
        input=lines,
        capture_output=True,
        text=True,
        timeout=PROMPTLY,
        env=environment if token is None else {**environment, "DOVETAIL_TOKEN": token},
        check=False,
    )
    return Ended(done)


@pytest.mark.rule("AUTH-1")
@pytest.mark.parametrize(
    ("token", "answers"),
    [
        (TOKEN, ["ann", "written"]),
        (None, ["nobody", "error -32600"]),
        ("", ["nobody", "error -32600"]),
    ],
    ids=["known", "nobody", "empty"],
)
def test_the_token_of_the_environment(tmp_path: Path, token: str | None, answers: list[str]) -> None:
    ended = run(tmp_path, token, "whoami", "write", "inherited")
    assert (ended.answers, ended.code) == ([*answers, "[]"], 0)  # nothing that a tool starts inherits it
    assert TOKEN not in ended.errors


COMPLAINTS = {
    "guessed-token": "The token in DOVETAIL_TOKEN is not good",
    "trouble-token": "Nobody can tell at the moment whether the token in DOVETAIL_TOKEN is good",
    "low-token": "The token in DOVETAIL_TOKEN lacks some of the scopes: base; get one that has all of them",
    "broken-token": "The token in DOVETAIL_TOKEN can't be verified: ValueError",
}


@pytest.mark.parametrize("token", COMPLAINTS)
def test_a_bad_token_ends_the_server_with_a_clear_word(tmp_path: Path, token: str) -> None:
    ended = run(tmp_path, token, "whoami", command=("-m", "dovetail.cli", "run"))
    assert (ended.answers, ended.code) == ([], 1)
    assert COMPLAINTS[token] in ended.errors
    assert token not in ended.errors
    assert "Traceback" not in ended.errors


class Short:
    """A server whose token lives for a second, and its client, which reads line by line."""

    def __init__(self, folder: Path) -> None:
        program = folder / "later.py"
        program.write_text(PROGRAM.replace("AUTH)", f"{AUTH})"))
        self.process = subprocess.Popen(
            [sys.executable, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "DOVETAIL_TOKEN": "short-token"},
        )

    def send(self, method: str, params: dict[str, Any], id: str | None = None) -> None:
        assert self.process.stdin is not None
        message = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if id is None else {"id": id})
        self.process.stdin.write(f"{json.dumps(message)}\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def ask(self, name: str, meta: dict[str, Any] = META) -> dict[str, Any]:
        self.send("tools/call", {"name": name, "arguments": {}, "_meta": meta}, name)
        return self.read()

    def end(self) -> str:
        """What it has said on stderr."""
        _, errors = self.process.communicate(timeout=PROMPTLY)
        assert self.process.returncode == 0
        return errors


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Short]:
    started = Short(tmp_path)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate(timeout=PROMPTLY)


def test_a_token_that_expires_is_worth_nothing_any_more(short: Short) -> None:
    """Calls begin in their order, but none waits for the one before: so the last has to come later."""
    assert _shown(short.ask("write")) == "written"
    assert _shown(short.ask("wait")) == "waited"
    refused = short.ask("write")
    assert _shown(refused) == "error -32600"
    assert "or not any more; start the server with a good token in DOVETAIL_TOKEN" in refused["error"]["message"]
    assert _shown(short.ask("whoami")) == "nobody"
    errors = short.end()
    assert "has expired" in errors
    assert "short-token" not in errors


@pytest.mark.rule("AUTH-15")
def test_a_listen_ends_with_the_token(short: Short) -> None:
    short.send(
        "subscriptions/listen", {"notifications": {"resourceSubscriptions": ["notes://all"]}, "_meta": META}, "l"
    )
    assert short.read()["params"]["notifications"] == {"resourceSubscriptions": ["notes://all"]}
    assert {message.get("method") for message in (short.ask("touch"), short.read())} == {UPDATED, None}
    assert "result" in (ended := short.read())
    assert ended["id"] == "l"
    assert _shown(short.ask("touch")) == "touched"
    assert _shown(short.ask("whoami")) == "nobody"  # and nothing came between
    short.end()


@pytest.mark.rule("AUTH-15")
def test_subscriptions_of_a_session_end_with_the_token(short: Short) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    short.send("initialize", hello, "i")
    assert "result" in short.read()
    short.send("notifications/initialized", {})
    short.send("resources/subscribe", {"uri": "notes://all"}, "s")
    assert "result" in short.read()
    assert {message.get("method") for message in (short.ask("touch", {}), short.read())} == {UPDATED, None}
    assert _shown(short.ask("wait", {})) == "waited"
    assert _shown(short.ask("touch", {})) == "touched"
    assert _shown(short.ask("whoami", {})) == "nobody"
    short.end()


def test_without_auth_the_variable_means_nothing(tmp_path: Path) -> None:
    ended = run(tmp_path, TOKEN, "whoami", auth="None")
    assert (ended.answers, ended.code) == (["nobody"], 0)
