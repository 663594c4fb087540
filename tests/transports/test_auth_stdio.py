"""Credentials on stdio: a token in the environment, verified once when the server starts."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
    expires_at = time.time() + 2 if token == "short-token" else None
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


class Piped:
    """A server with a token, and its client, which reads line by line."""

    def __init__(self, program: Path, token: str | None, command: tuple[str, ...] = ()) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DOVETAIL_")}
        self.process = subprocess.Popen(
            [sys.executable, *command, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment if token is None else {**environment, "DOVETAIL_TOKEN": token},
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

    def end(self, code: int = 0) -> str:
        """What it has said on stderr."""
        _, errors = self.process.communicate(timeout=PROMPTLY)
        assert self.process.returncode == code
        return errors


def shown(answer: dict[str, Any]) -> str:
    return answer["result"]["content"][0]["text"] if "result" in answer else f"error {answer['error']['code']}"


@contextmanager
def piped(folder: Path, token: str | None, *command: str, auth: str = AUTH) -> Iterator[Piped]:
    program = folder / "piped.py"
    program.write_text(PROGRAM.replace("AUTH)", f"{auth})"))
    started = Piped(program, token, command)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate(timeout=PROMPTLY)


@pytest.mark.rule("AUTH-1")
@pytest.mark.parametrize(
    ("token", "auth", "answers"),
    [
        (TOKEN, AUTH, ["ann", "written", "[]"]),  # nothing that a tool starts inherits it
        (None, AUTH, ["nobody", "error -32600", "[]"]),
        (TOKEN, "None", ["nobody", "error -32600", "[]"]),  # without auth the variable means nothing
    ],
    ids=["known", "nobody", "no auth"],
)
def test_the_token_of_the_environment(tmp_path: Path, token: str | None, auth: str, answers: list[str]) -> None:
    with piped(tmp_path, token, auth=auth) as server:
        assert [shown(server.ask(name)) for name in ("whoami", "write", "inherited")] == answers
        assert TOKEN not in server.end()


COMPLAINTS = {
    "guessed-token": "is not good",
    "trouble-token": "at the moment",
    "low-token": "lacks some of the scopes: base",
    "broken-token": "can't be verified: ValueError",
}


@pytest.mark.parametrize("token", COMPLAINTS)
def test_a_bad_token_ends_the_server_with_a_clear_word(tmp_path: Path, token: str) -> None:
    with piped(tmp_path, token, "-m", "dovetail.cli", "run") as server:
        errors = server.end(1)
    assert "DOVETAIL_TOKEN" in errors
    assert COMPLAINTS[token] in errors
    assert token not in errors
    assert "Traceback" not in errors


@pytest.mark.rule("AUTH-15")
def test_a_token_that_expires_is_worth_nothing_any_more(tmp_path: Path) -> None:
    """Nor do the listens and subscriptions go on that were made with it."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    wanted = {"notifications": {"resourceSubscriptions": ["notes://all"]}, "_meta": META}
    with piped(tmp_path, "short-token") as server:
        server.send("initialize", hello, "i")
        assert "result" in server.read()
        server.send("notifications/initialized", {})
        server.send("resources/subscribe", {"uri": "notes://all"}, "s")
        assert "result" in server.read()
        server.send("subscriptions/listen", wanted, "l")
        assert server.read()["params"]["notifications"] == wanted["notifications"]
        told = [server.ask("touch", {}), server.read(), server.read()]
        assert sorted(str(message.get("method")) for message in told) == ["None", UPDATED, UPDATED]
        ended = server.read()
        assert (ended["id"], "result" in ended) == ("l", True)
        assert shown(server.ask("touch", {})) == "touched"
        assert shown(server.ask("whoami", {})) == "nobody"  # and nothing came between
        refused = server.ask("write")
        assert shown(refused) == "error -32600"
        assert "start the server with a good token in DOVETAIL_TOKEN" in refused["error"]["message"]
        errors = server.end()
        assert "has expired" in errors
        assert "short-token" not in errors
