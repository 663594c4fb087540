"""A server of an `mcp.json` as TARGET: found by its name, reached as the file says, and no secret of it is told."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from command_stage import furnish, typed
from server_process import serving

SECRET = "s3cret-in-the-file"
SHOWS_ENV = """
import os, pathlib
from dovetail import Server

server = Server("env")

@server.tool
def about() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in ("FIRST", "SECOND", "THIRD")} | {"cwd": pathlib.Path.cwd().name}

server.run()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    furnish(tmp_path)
    return tmp_path


def write(folder: Path, servers: dict[str, Any], name: str = "mcp.json", section: str = "mcpServers") -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps({section: servers}))


EXAMPLE = {"command": "python", "args": ["server.py"]}


# ── which one ──


@pytest.mark.parametrize("target", ["mcp.json", "mcp.json:shop"])
def test_one_server_needs_no_name(folder: Path, target: str) -> None:
    write(folder, {"shop": EXAMPLE})
    done = typed(folder, "call", target, "add", "a=2", "b=3")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"5\n", b"")


def test_several_servers_need_one(folder: Path) -> None:
    servers = {"shop": EXAMPLE, "the weather": EXAMPLE, "off": {"disabled": True}}
    write(folder, servers, ".vscode/mcp.json", "servers")
    done = typed(folder, "list", ".vscode/mcp.json")
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == [
        "Error: .vscode/mcp.json has several servers; say which:",
        "  .vscode/mcp.json:shop",
        "  '.vscode/mcp.json:the weather'",
    ]
    assert typed(folder, "call", ".vscode/mcp.json:shop", "add", "a=2", "b=3").stdout == b"5\n"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere.json", "Error: nowhere.json can't be read: No such file or directory"),
        ("notes.json", "Error: notes.json names no servers"),
        ("broken.json", "Error: broken.json is no JSON object"),
        ("empty.json", "Error: empty.json names no servers"),
        ("mcp.json:shops", "Error: mcp.json has no server shops; did you mean mcp.json:shop?"),
        ("mcp.json:zzz", "Error: mcp.json has no server zzz; say which:"),
        ("mcp.json:wrong", "Error: The server 'wrong' can't be read: `args` has the wrong type"),
        ("mcp.json:unset", "the variable NOBODY_HAS_SET_IT is not set"),
        ("mcp.json:steer", "has no server"),
        ("mcp.json:off", "Error: mcp.json:off is switched off"),
        ("mcp.json:nul", "hold what no system takes, such as NUL"),
        ("mcp.json:header", 'its "headers" hold a name that no header has'),
        ("mcp.json:missing", "Error: the command of mcp.json:missing can't be started: there is no such command\n"),
        ("mcp.json:folder", "its working folder can't be used: No such file or directory\n"),
    ],
)
def test_what_can_not_be_used(folder: Path, target: str, said: str) -> None:
    headers = {"Authorization": "${NOBODY_HAS_SET_IT}" + SECRET}
    servers = {
        "shop": EXAMPLE,
        "wrong": {"command": "python", "args": SECRET},
        "unset": {"url": "https://example.com/mcp", "headers": headers},
        "\x1b[2J": EXAMPLE,
        "off": {**EXAMPLE, "disabled": True},
        "nul": {"command": "python", "args": [f"{SECRET}\0"]},
        "header": {"url": "https://example.com/mcp", "headers": {f"Bearer {SECRET}": ""}},
        "missing": {"command": f"/opt/{SECRET}/nothing"},
        "folder": {"command": "python", "cwd": SECRET},
    }
    write(folder, servers)
    (folder / "notes.json").write_text(f'{{"key": "{SECRET}"}}')
    (folder / "broken.json").write_text(f'{{"key": "{SECRET}"')
    (folder / "empty.json").write_text('{"servers": {}}')
    done = typed(folder, "list", target)
    told = done.stderr.decode()
    assert (done.returncode, done.stdout, said in told) == (2, b"", True), told
    assert SECRET not in told
    assert "\x1b" not in told
    assert told.count("Error") == 1


# ── programs ──


def test_a_program_gets_what_the_file_says_and_what_was_typed(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "shows_env.py").write_text(SHOWS_ENV)
    env = {"FIRST": "${env:GIVEN}", "SECOND": "of the file"}
    write(folder, {"shop": {"command": "python", "args": ["shows_env.py"], "cwd": "inner", "env": env}})
    words = ["call", "mcp.json", "about", "--json", "--env", "SECOND=typed", "--env", "THIRD=3"]
    done = typed(folder, *words, GIVEN="given")
    found = {"FIRST": "given", "SECOND": "typed", "THIRD": "3", "cwd": "inner"}
    assert json.loads(done.stdout)["structuredContent"] == found


def test_what_a_program_is_started_with_is_not_told(folder: Path) -> None:
    shop = {"command": "false", "args": [SECRET], "env": {"KEY": SECRET}}
    write(folder, {"shop": shop, "no": {"command": "no-such-thing"}})
    done = typed(folder, "list", "mcp.json:shop")
    assert (done.returncode, SECRET in done.stderr.decode()) == (3, False)
    assert b"mcp.json:shop exited with code 1" in done.stderr
    done = typed(folder, "list", "mcp.json:no")
    assert (done.returncode, b"there is no such command" in done.stderr) == (2, True)


# ── URLs ──


class Hearing(BaseHTTPRequestHandler):
    """Keeps the headers that came, and answers nothing that anybody could use."""

    def do_POST(self) -> None:
        self.server.heard.append((self.path, {name.lower(): text for name, text in self.headers.items()}))  # type: ignore[attr-defined]
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(404)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *words: object) -> None: ...


@pytest.fixture
def ear() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hearing) as server:
        server.heard = []  # type: ignore[attr-defined]
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
        yield server
        server.shutdown()


OWN = {"Authorization": f"Bearer {SECRET}", "X-Tenant": "file"}


@pytest.mark.parametrize(
    ("headers", "words", "env", "authorization", "tenant"),
    [
        (OWN, [], {}, f"Bearer {SECRET}", "file"),
        (OWN, ["-H", "x-tenant: typed"], {}, f"Bearer {SECRET}", "typed"),
        (OWN, ["--token", "typed"], {}, "Bearer typed", "file"),
        (OWN, ["-H", "authorization: Basic x"], {}, "Basic x", "file"),
        (OWN, [], {"DOVETAIL_CLIENT_TOKEN": "around"}, f"Bearer {SECRET}", "file"),
        ({}, [], {"DOVETAIL_CLIENT_TOKEN": "around"}, "Bearer around", None),
        ({"Authorization": "${TOKEN:-Bearer x}"}, [], {"TOKEN": "Bearer variable"}, "Bearer variable", None),
    ],
)
def test_headers(
    folder: Path,
    ear: Any,
    headers: dict[str, str],
    words: list[str],
    env: dict[str, str],
    authorization: str,
    tenant: str | None,
) -> None:
    url = f"http://127.0.0.1:{ear.server_port}/{SECRET}/mcp?key={SECRET}"
    write(folder, {"far": {"type": "http", "url": url, "headers": headers}, "shop": EXAMPLE})
    done = typed(folder, "list", "mcp.json:far", *words, **env)
    assert done.returncode != 0
    assert SECRET not in done.stderr.decode()
    path, heard = ear.heard[0]
    assert path == f"/{SECRET}/mcp?key={SECRET}"
    assert (heard.get("authorization"), heard.get("x-tenant")) == (authorization, tenant)


@pytest.mark.slow
def test_a_url_that_answers(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    log = tmp_path_factory.mktemp("served") / "log.txt"
    with serving(["-m", "dovetail.cli", "run", str(folder / "server.py"), "--transport", "http"], log) as served:
        write(folder, {"far": {"httpUrl": f"{served.origin}/mcp"}}, "settings.json")
        done = typed(folder, "read", "settings.json", "notes://all", "--revision", "2025-06-18")
        assert (done.returncode, done.stdout) == (0, b"milk, bread"), done.stderr
    write(folder, {"far": {"url": f"{served.origin}/{SECRET}"}}, "settings.json")
    done = typed(folder, "list", "settings.json")
    told = done.stderr.decode()
    assert done.returncode == 3
    assert "settings.json: can't connect: Connection refused" in told
    assert "start the server, or correct its URL" in told
    assert SECRET not in told


# ── options that do not fit ──


@pytest.mark.parametrize(
    ("target", "words", "said"),
    [
        ("mcp.json:shop", ["--token", "x"], "--token: only for a URL, and mcp.json:shop is a program"),
        ("mcp.json:far", ["--env", "A=B"], "--env: only for a program, and mcp.json:far is a URL"),
        ("server.py", ["--transport", "http"], "--transport: only for a URL, and server.py is a program"),
        ("server.py", ["-H", "a:b", "--token", "x"], "--header, --token: only for a URL"),
        ("https://example.com/mcp?key=x", ["-e", "A=B"], "--env: only for a program, and https://example.com/mcp is"),
        ("https://example.com/mcp", ["--token", "x", "-H", "authorization: y"], "--token and an Authorization header"),
    ],
)
def test_options_that_do_not_fit(folder: Path, target: str, words: list[str], said: str) -> None:
    write(folder, {"far": {"url": "https://example.com/mcp"}, "shop": EXAMPLE})
    done = typed(folder, "list", target, *words)
    told = done.stderr.decode()
    assert (done.returncode, said in told) == (2, True), told
    assert "headers=" not in told
