"""Credentials on stdio: a token in the environment, verified once when the server starts."""

import json
import os
import subprocess
import sys
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

@server.tool
async def inherited() -> str:
    return repr(sorted(name for name in os.environ if name == "DOVETAIL_TOKEN"))

if __name__ == "__main__":
    server.run()
"""
AUTH = 'Auth(verify, scopes=["base"])'
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
    lines = "".join(
        json.dumps(
            {
                "jsonrpc": "2.0",
                "id": number,
                "method": "tools/call",
                "params": {"name": name, "arguments": {}, "_meta": META},
            }
        )
        + "\n"
        for number, name in enumerate(tools)
    )
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
    "low-token": "The token in DOVETAIL_TOKEN lacks some of the scopes: base",
    "broken-token": "The token in DOVETAIL_TOKEN can't be verified: ValueError",
}


@pytest.mark.parametrize("token", COMPLAINTS)
@pytest.mark.parametrize("command", [(), ("-m", "dovetail.cli", "run")], ids=["program", "command"])
def test_a_bad_token_ends_the_server_with_a_clear_word(tmp_path: Path, token: str, command: tuple[str, ...]) -> None:
    ended = run(tmp_path, token, "whoami", command=command)
    assert (ended.answers, ended.code) == ([], 1)
    assert COMPLAINTS[token] in ended.errors
    assert token not in ended.errors
    if command:
        assert "Traceback" not in ended.errors


def test_a_token_that_expires_is_worth_nothing_any_more(tmp_path: Path) -> None:
    """Calls begin in their order, but none waits for the one before: so the last has to come later."""
    program = tmp_path / "later.py"
    program.write_text(PROGRAM.replace("AUTH)", f"{AUTH})"))
    process = subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DOVETAIL_TOKEN": "short-token"},
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(name: str) -> str:
            params = {"name": name, "arguments": {}, "_meta": META}
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": params}))
            process.stdin.write("\n")
            process.stdin.flush()
            return _shown(json.loads(process.stdout.readline()))

        assert ask("write") == "written"
        assert ask("wait") == "waited"
        assert ask("write") == "error -32600"
        assert ask("whoami") == "nobody"
        process.stdin.close()
        assert process.wait(PROMPTLY) == 0
        errors = process.stderr.read() if process.stderr else ""
    assert "has expired" in errors
    assert "short-token" not in errors


def test_without_auth_the_variable_means_nothing(tmp_path: Path) -> None:
    ended = run(tmp_path, TOKEN, "whoami", auth="None")
    assert (ended.answers, ended.code) == (["nobody"], 0)
