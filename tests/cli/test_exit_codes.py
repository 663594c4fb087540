"""Exit codes of the commands: servers that can't be reached, lists of servers, streams that are closed, signals."""

import json
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import example_server
import pytest
from command_stage import BIN, PROMPTLY, environment, serve_in_process, spawned, typed

from dovetail.cli.output import BROKEN_PIPE, FAILED, USAGE_ERROR
from processes import is_alive, pid_in, shell, wait_until

pytestmark = pytest.mark.long

PLAIN = "from dovetail import Server\nserver = Server('plain')\n"
BROKEN = "raise ValueError('no tea')"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere.py:x"], 2, "there is no file nowhere.py; give a URL"),
        (["broken.py"], 3, "ValueError: no tea"),
        (["127.0.0.1:8314/mcp"], 2, "give a URL with its http://"),
        (["http://127.0.0.1:1/mcp"], 3, "Connection refused\nstart the server, or correct the URL\n"),
        (["http://x y/?key=SECRET#SECRET"], 2, "can't connect to 'http://x y/': it holds spaces"),
        (["http://me:SECRET@127.0.0.1:1/mcp"], 2, "leave them out, and give --header"),
        (["http://127.0.0.1:1/", "-H", "a b: SECRET"], 2, "--header 'a b': that is not the name of a header\n"),
        (["http://127.0.0.1:1/", "--token", "SEC RET"], 2, "--token is no token"),
        (["http://127.0.0.1:1/#x"], 2, "the URL has a part after #"),
        (["http://127.0.0.1:1/", "--transport=sse", "--revision=2026-07-28"], 2, "over HTTP+SSE; leave --transport"),
        (["server.py", "--revision", "2020"], 2, "--revision '2020' is unknown; use one of 2026-07-28,"),
        (["--", "no-such-thing"], 2, "can't start no-such-thing: there is no such command"),
        (["leaving.py"], 3, "leaving.py exited with code 2"),
        (["--", "true"], 3, "true exited with code 0"),
        (["--revision", "2025-06-18", "--", "cat"], 1, "Method not found: initialize"),
        (["server.py", "--timeout", "0"], 2, "--timeout 0: give a number of seconds above 0"),
        (["--timeout", "0.2", "--", "sleep", "600"], 4, "--timeout SECONDS waits longer"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_exit_codes(tmp_path: Path, words: list[str], code: int, message: str) -> None:
    for name, text in (("server.py", PLAIN), ("broken.py", BROKEN), ("leaving.py", "raise SystemExit(2)")):
        (tmp_path / name).write_text(text)
    run = spawned if words[0] == "broken.py" else typed  # it says why on its own stderr
    done = run(tmp_path, "list", *words)
    stderr = done.stderr.decode()
    assert (done.returncode, message in stderr, done.stdout) == (code, True, b""), stderr
    assert sum(line.startswith("Error: ") for line in stderr.splitlines()) == 1
    assert not [words for words in ("SECRET", "Client:", "importlib", str(Path("cli", "target.py"))) if words in stderr]


REFUSED = [
    ("run server.py --port 99999", 2, "--port='99999' is not possible; it must be a port from 0 to 65535"),
    ("run server.py --workers 0", 2, "--workers='0' is not possible; it must be a whole number, 1 or more"),
    ("run server.py --body-timeout soon", 2, "it must be a number of seconds above 0"),
    ("run server.py --transport carrier-pigeon", 2, "'carrier-pigeon' is not one of 'stdio', 'http'"),
    ("run server.py --transport stdio --port 1 --no-sse", 2, "--port, --sse: only with --transport http"),
    ("run server.py --console", 2, "--console: only with --transport http"),
    ("dev nowhere.py", 2, "there is no file nowhere.py"),
    ("dev server.py --state foo://x", 2, "foo: is not known"),
    ("dev server.py --path mcp", 2, "path"),
    ("dev server.py --port TAKEN", 1, "another program listens there"),
    ("new", 2, "Missing argument"),
    ("new 'a b'", 2, "can't be its name"),
    (f"new {'n' * 41}", 2, "can't be its name"),
    ("new it --with magic", 2, "magic"),
    ("new notes.txt", 2, "notes.txt is a file"),
    ("new notes.txt/it", 1, "can't be made"),
    ("install server.py", 2, "--host"),
    ("install --host cursor", 2, "--name"),
    ("install --host cursor --name it", 2, "which server?"),
    ("install --host cursor -- npx x", 2, "--name"),
    ("install nothing.py --host cursor", 2, "there is no file nothing.py"),
    ("install server.py --host cursor --name 'a b'", 2, "use letters"),
    ("install server.py --host cursor --env NO_SUCH_VARIABLE", 2, "NO_SUCH_VARIABLE: there is no such"),
    ("install ftp://example.com --host cursor", 2, "is no URL"),
    ("install server.py --host cursor -H A:b", 2, "--header does not go with a Python program, which takes"),
    ("install https://x.org --host cursor -H 'A: b\nC: d'", 2, "--header: write it as NAME:VALUE, in one line"),
    ("install https://x.org --host cursor -e A=b", 2, "--env does not go with a URL, which takes --header"),
    ("install --host cursor --name x --uv -- npx x", 2, "--uv does not go with a command after --"),
    ("install https://example.com --host claude-desktop", 2, "under Connectors"),
    ("install server.py --host claude-desktop --scope project", 2, "no configuration for a project"),
    ("install server.py --host cursor", 5, "--yes"),
    *(
        (f"install --host cursor --name it --remove {words}", 2, f"{words.split()[0]} does not go with --remove, which")
        for words in ("--env A=b", "--header A:b", "--transport sse", "--uv", "--force")
    ),
    ("install --host cursor --name it --remove -- npx x", 2, "a command after -- does not go with --remove"),
    ("call -- python server.py add", 2, "`dovetail list` shows what there is\nIt goes before --"),
    ("read server.py", 2, "Missing argument 'URI'; `dovetail list` shows what there is\n"),
    ("call server.py addd", 2, "there is no tool addd; did you mean add?"),
    ("call server.py zzz", 2, "there is no tool zzz; it has add, get-sum, search,"),
    ("call server.py add a=1", 2, "add needs b\nIt takes:\n  a  integer  required\n  b  integer  required\n"),
    ("call server.py add a=1 b=2 c=3", 2, "add takes no c"),
    ("call server.py add a=1 b", 2, "write arguments as KEY=VALUE"),
    ("call server.py book --answers []", 2, "--answers: a JSON object is needed"),
    ("call server.py summarise text=@- --args -", 2, "stdin can be read only once"),
    ("call server.py summarise text=@- --answer a=@-", 2, "stdin can be read only once"),
    ("prompt server.py greet", 2, "greet needs name\nIt takes:\n  name      string  required\n  language  string\n"),
    ("prompt server.py greet name=Ada age=5", 2, "greet takes no age"),
    ("prompt server.py great name=Ada", 2, "there is no prompt great; did you mean greet?"),
    ("bench server.py --tool ad", 2, "there is no tool ad; did you mean add?"),
    ("bench server.py --tool forget", 5, "marked destructive; --yes calls it"),
    ("bench server.py --tool add --args [1]", 2, "--args: a JSON object is needed"),
    ("bench server.py --args {}", 2, "only with --tool"),
    ("bench server.py --clients 0", 2, "0 is not in the range"),
    ("bench https://example.com/mcp", 5, "another machine; --yes loads it"),
    ("bench http://127.0.0.1.example.com", 5, "another machine; --yes loads it"),
    ("list mcp.json:shop --token x", 2, "--token: only for a URL, and mcp.json:shop is a program"),
    ("list server.py -H a:b --token x", 2, "--header, --token: only for a URL"),
    ("list 'https://x.org/mcp?key=x' -e A=B", 2, "--env: only for a program, and https://x.org/mcp is"),
    ("list https://x.org --token x -H authorization:y", 2, "--token and an Authorization header"),
]


@pytest.mark.parametrize(("line", "code", "message"), REFUSED, ids=[line for line, *_ in REFUSED])
def test_what_is_refused_changes_nothing(folder: Path, monkeypatch: Any, line: str, code: int, message: str) -> None:
    serve_in_process(example_server.server, monkeypatch)
    before = sorted(folder.rglob("*"))
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words = shlex.split(line.replace("TAKEN", str(taken.getsockname()[1])))
        done = typed(folder, *words, HOME=str(folder), XDG_CONFIG_HOME=str(folder))
    assert (done.returncode, done.stdout, message in done.stderr.decode()) == (code, b"", True), done.stderr
    assert sorted(folder.rglob("*")) == before


# ── a server of an mcp.json: found by its name, reached as the file says, and no secret of it is shown ──


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

EXAMPLE = {"command": "python", "args": ["server.py"]}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.json", "Error: nowhere.json can't be read: No such file or directory"),
        ("notes.json", "Error: notes.json names no servers"),
        ("broken.json", "Error: broken.json is no JSON object"),
        ("mcp.json:zzz", "Error: mcp.json has no server zzz; say which:\n  mcp.json:shop\n"),
        ("mcp.json", "Error: mcp.json has several servers; say which:\n  mcp.json:shop\n  'mcp.json:the weather'\n"),
        ("mcp.json:wrong", "Error: The server 'wrong' can't be read: `args` has the wrong type"),
        ("mcp.json:unset", "the variable NOT_SET_ANYWHERE is not set"),
        ("mcp.json:steer", "has no server"),
        ("mcp.json:off", "Error: mcp.json:off is switched off"),
        ("mcp.json:nul", "hold what no system takes, such as NUL"),
        ("mcp.json:header", 'its "headers" hold a name that no header has'),
        ("mcp.json:missing", "Error: the command of mcp.json:missing can't be started: there is no such command\n"),
        ("mcp.json:folder", "its working folder can't be used: No such file or directory\n"),
    ],
)
def test_what_can_not_be_used(folder: Path, target: str, message: str) -> None:
    headers = {"Authorization": "${NOT_SET_ANYWHERE}" + SECRET}
    servers = {
        "shop": EXAMPLE,
        "the weather": EXAMPLE,
        "wrong": {"command": "python", "args": SECRET},
        "unset": {"url": "https://example.com/mcp", "headers": headers},
        "\x1b[2J": EXAMPLE,
        "off": {**EXAMPLE, "disabled": True},
        "nul": {"command": "python", "args": [f"{SECRET}\0"]},
        "header": {"url": "https://example.com/mcp", "headers": {f"Bearer {SECRET}": ""}},
        "missing": {"command": f"/opt/{SECRET}/nothing"},
        "folder": {"command": "python", "cwd": SECRET},
    }
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    (folder / "notes.json").write_text(f'{{"key": "{SECRET}"}}')
    (folder / "broken.json").write_text(f'{{"key": "{SECRET}"')
    done = typed(folder, "list", target)
    stderr = done.stderr.decode()
    assert (done.returncode, done.stdout, message in stderr, stderr.count("Error")) == (2, b"", True, 1), stderr
    assert not [words for words in (SECRET, "\x1b") if words in stderr]


def test_a_program_gets_what_the_file_says_and_what_was_typed(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "shows_env.py").write_text(SHOWS_ENV)
    env = {"FIRST": "${env:GIVEN}", "SECOND": "of the file"}
    shop = {"command": "python", "args": ["shows_env.py"], "cwd": "inner", "env": env}
    (folder / "mcp.json").write_text(json.dumps({"servers": {"shop": shop}}))
    words = ["call", "mcp.json", "about", "--json", "--env", "SECOND=typed", "--env", "THIRD=3"]
    done = typed(folder, *words, GIVEN="given")
    found = {"FIRST": "given", "SECOND": "typed", "THIRD": "3", "cwd": "inner"}
    assert json.loads(done.stdout)["structuredContent"] == found


class Hearing(BaseHTTPRequestHandler):
    """Keeps the headers that came, and answers nothing that a client could use."""

    def do_POST(self) -> None:
        self.server.received.append((self.path, {name.lower(): text for name, text in self.headers.items()}))
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *words: object) -> None: ...


@pytest.fixture
def ear() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hearing) as server:
        server.received, server.status = [], 404
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
        (OWN, [], {"DOVETAIL_CLIENT_TOKEN": "around"}, f"Bearer {SECRET}", "file"),
        ({}, [], {"DOVETAIL_CLIENT_TOKEN": "around"}, "Bearer around", None),
        ({"Authorization": "${TOKEN:-Bearer x}"}, [], {"TOKEN": "Bearer variable"}, "Bearer variable", None),
    ],
)
def test_headers(
    folder: Path, ear: Any, headers: Any, words: list[str], env: dict[str, str], authorization: str, tenant: str | None
) -> None:
    url = f"http://127.0.0.1:{ear.server_port}/{SECRET}/mcp?key={SECRET}"
    servers = {"far": {"type": "http", "url": url, "headers": headers}, "shop": EXAMPLE}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    done = typed(folder, "list", "mcp.json:far", *words, **env)
    assert done.returncode != 0
    assert SECRET not in done.stderr.decode()
    path, received = ear.received[0]
    assert path == f"/{SECRET}/mcp?key={SECRET}"
    assert (received.get("authorization"), received.get("x-tenant")) == (authorization, tenant)


def test_a_page_that_is_no_mcp_server(folder: Path, ear: Any) -> None:
    for ear.status in (404, 501):
        done = typed(folder, "list", f"http://127.0.0.1:{ear.server_port}/mcp")
        is_reported = b"/mcp does not answer as an MCP server does: " in done.stderr
        assert (done.returncode, is_reported) == (3, True), done.stderr


# ── streams as shells leave them ──


def in_shell(folder: Path, line: str, to: Any = subprocess.PIPE, **env: str) -> "subprocess.CompletedProcess[bytes]":
    env = environment(HOME=str(folder), XDG_CONFIG_HOME=str(folder), **env)
    how: Any = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, "timeout": PROMPTLY, "check": False}
    return subprocess.run(["sh", "-c", line], cwd=folder, env=env, stdout=to, **how)


FULL = b"Error: the result can't be written: No space left on device\n"


@pytest.mark.parametrize(
    ("line", "code", "stderr"),
    [
        ("dovetail call --help", BROKEN_PIPE, b""),
        ("dovetail list dovetail.reference", BROKEN_PIPE, b""),
        ("dovetail list dovetail.reference > /dev/full", FAILED, FULL),
        ("dovetail --help > /dev/full", FAILED, FULL),
        ("dovetail call server.py add a=2 b=3 <&- 2>&-", 0, b""),
    ],
)
def test_streams_without_a_reader_are_full_or_closed(folder: Path, line: str, code: int, stderr: bytes) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as pipe:
        done = in_shell(folder, line, pipe if code == BROKEN_PIPE else subprocess.PIPE)
    assert (done.returncode, done.stderr, done.stdout or b"") == (code, stderr, b"" if code else b"5\n")


@pytest.mark.parametrize(
    ("env", "shown"),
    [
        ({"PYTHONIOENCODING": "cp1252"}, b"\xe9\\u2603"),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "é☃".encode()),
    ],
    ids=["cp1252", "C"],
)
def test_every_text_can_be_written(folder: Path, env: dict[str, str], shown: bytes) -> None:
    (folder / "name.txt").write_text("é☃", encoding="utf-8")
    done = in_shell(folder, "dovetail prompt server.py greet name=@name.txt", **env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert shown in done.stdout


def test_bytes_that_are_no_text_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_in_process(example_server.server, monkeypatch)
    done = typed(folder, "call", "server.py", "summarise", "text=\udcff")  # as Python reads the byte FF
    assert (done.returncode, b"of the command line is no text in UTF-8" in done.stderr) == (USAGE_ERROR, True)


# ── signals: no child process remains ──


INT, TERM = signal.SIGINT, signal.SIGTERM


def reset_signals() -> None:
    """Also if the process that started the tests ignores it, as `nohup` does."""
    for number in (INT, TERM):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize(("numbers", "code"), [([INT, INT], 130), ([TERM], 143)], ids=["twice", "terminated"])
def test_signals(tmp_path: Path, numbers: list[int], code: int) -> None:
    program = shell(tmp_path, "deaf")
    program[-1] = program[-1].replace("server.py;", "silent.py;")
    (tmp_path / "silent.py").write_text("import sys; open('asked', 'w'); sys.stdin.read(); open('closed', 'w')")
    command = subprocess.Popen(
        [BIN / "dovetail", "list", "--", *program], cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=reset_signals,
    )  # fmt: skip
    try:
        pid = pid_in(tmp_path)
        for number, sign in zip(numbers, ("asked", "closed"), strict=False):  # it waits for a response, for the end
            wait_until((tmp_path / sign).exists)
            command.send_signal(number)
        assert command.wait(PROMPTLY) == code
        assert not is_alive(pid)
    finally:
        command.kill()


def test_an_end_as_it_should_be(tmp_path: Path) -> None:
    assert typed(tmp_path, "list", "tools", "--", *shell(tmp_path, "idle")).returncode == 0
    assert not is_alive(pid_in(tmp_path))
