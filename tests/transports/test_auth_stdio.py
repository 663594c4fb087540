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

from http_wire import META, hello

pytestmark = pytest.mark.long

PROMPTLY = 30.0
TOKEN = "ann-secret-token"
PROGRAM = """
import os, time
from dovetail import Context, Server
from dovetail.auth import Auth, Principal, VerifierUnavailable

people = {
    "ann-secret-token": Principal(subject="ann", scopes=frozenset({"base", "write"})),
    "low-token": Principal(subject="ann", scopes=frozenset({"write"})),
    "short-token": Principal(subject="ann", scopes=frozenset({"base", "write"}), expires_at=time.time() + 2),
}

async def verify(token):
    if token == "trouble-token":
        raise VerifierUnavailable("the issuer is away")
    if token == "broken-token":
        raise ValueError(token)
    return people.get(token)

server = Server("piped", version="1.0.0", auth=AUTH)
server.add_tool(lambda: "written", name="write", scopes=["write"])
server.add_tool(lambda: repr("DOVETAIL_TOKEN" in os.environ), name="inherited")
server.add_resource("notes://all", lambda: "all of it", name="all", scopes=["write"])

@server.tool
async def whoami(ctx: Context) -> str:
    return "nobody" if ctx.principal is None else ctx.principal.name

@server.tool
async def touch() -> str:
    server.notify_resource_updated("notes://all")
    return "touched"

if __name__ == "__main__":
    server.run()
"""
AUTH = 'Auth(verify, scopes=["base"])'
UPDATED = "notifications/resources/updated"


@contextmanager
def piped(folder: Path, token: str | None, *command: str, auth: str = AUTH) -> Iterator["subprocess.Popen[str]"]:
    program = folder / "piped.py"
    program.write_text(PROGRAM.replace("AUTH)", f"{auth})"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DOVETAIL_")}
    environment |= {} if token is None else {"DOVETAIL_TOKEN": token}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, *command, program], text=True, env=environment, **pipes) as server:
        try:
            yield server
        finally:
            server.kill()


def read(server: Any) -> Any:
    return json.loads(server.stdout.readline())


def ask(server: Any, method: str, params: dict[str, Any]) -> Any:
    """The next message that comes."""
    server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params}) + "\n")
    server.stdin.flush()
    return read(server)


def call(server: Any, name: str, meta: dict[str, Any] = META) -> str:
    answer = ask(server, "tools/call", {"name": name, "arguments": {}, "_meta": meta})
    return answer["result"]["content"][0]["text"] if "result" in answer else f"error {answer['error']['code']}"


def end(server: Any, code: int = 0) -> str:
    """What it has said on stderr."""
    _, errors = server.communicate(timeout=PROMPTLY)
    assert server.returncode == code
    return errors


@pytest.mark.rule("AUTH-1")
@pytest.mark.parametrize(
    ("token", "auth", "answers"),
    [
        (TOKEN, AUTH, ["ann", "written", "False"]),  # nothing that a tool starts inherits it
        (None, AUTH, ["nobody", "error -32600", "False"]),
        (TOKEN, "None", ["nobody", "error -32600", "False"]),  # without auth the variable means nothing
    ],
    ids=["known", "nobody", "no auth"],
)
def test_the_token_of_the_environment(tmp_path: Path, token: str | None, auth: str, answers: list[str]) -> None:
    with piped(tmp_path, token, auth=auth) as server:
        assert [call(server, name) for name in ("whoami", "write", "inherited")] == answers
        assert TOKEN not in end(server)


COMPLAINTS = {
    "guessed-token": "is not good",
    "trouble-token": "at the moment",
    "low-token": "lacks some of the scopes: base",
    "broken-token": "can't be verified: ValueError",
}


@pytest.mark.parametrize("token", COMPLAINTS)
def test_a_bad_token_ends_the_server_with_a_clear_word(tmp_path: Path, token: str) -> None:
    with piped(tmp_path, token, "-m", "dovetail.cli", "run") as server:
        errors = end(server, 1)
    assert [word in errors for word in ("DOVETAIL_TOKEN", COMPLAINTS[token], token, "Traceback")] == [1, 1, 0, 0]


@pytest.mark.rule("AUTH-15")
def test_a_token_that_expires_is_worth_nothing_any_more(tmp_path: Path) -> None:
    """Nor do the listens and subscriptions go on that were made with it."""
    wanted = {"notifications": {"resourceSubscriptions": ["notes://all"]}, "_meta": META}
    with piped(tmp_path, "short-token") as server:
        assert "result" in ask(server, "initialize", hello("2025-11-25")["params"])
        server.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        assert "result" in ask(server, "resources/subscribe", {"uri": "notes://all"})
        assert ask(server, "subscriptions/listen", wanted)["params"]["notifications"] == wanted["notifications"]
        messages = [ask(server, "tools/call", {"name": "touch"}), read(server), read(server)]
        assert sorted(str(message.get("method")) for message in messages) == ["None", UPDATED, UPDATED]
        ended = read(server)
        assert (ended["id"], "result" in ended) == ("subscriptions/listen", True)
        assert call(server, "touch", {}) == "touched"
        assert call(server, "whoami", {}) == "nobody"  # and nothing came between
        refused = ask(server, "tools/call", {"name": "write", "_meta": META})["error"]
        assert (refused["code"], "DOVETAIL_TOKEN" in refused["message"]) == (-32600, True)
        errors = end(server)
        assert ("has expired" in errors, "short-token" in errors) == (True, False)
