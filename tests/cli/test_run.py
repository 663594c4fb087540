"""`dovetail run`: what it serves, what it says about wrong command lines, and how little `--help` loads."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from command_stage import PROMPTLY, forgetting_programs

from dovetail import Server
from dovetail.cli.main import main
from dovetail.cli.run import HELP
from dovetail.cli.target import split_target
from dovetail.transports.http.options import KINDS, RunOptions

PLAIN = """
from dovetail import Server
server = Server("plain")

@server.tool
def add(a: int, b: int) -> int:
    return a + b
"""
GUARDED = PLAIN + "if __name__ == '__main__':\n    server.run()\n"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a file in the current folder, which is empty at first; imports are undone at the end."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("DOVETAIL_")]:
        monkeypatch.delenv(name)

    def write(source: str, name: str = "server.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(source)
        return path

    with forgetting_programs(tmp_path):
        yield write


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, dict[str, Any]]]:
    """What would have been served: the server's name, the transport, the options."""
    calls: list[tuple[str, str, dict[str, Any]]] = []

    def record(self: Server, transport: str = "stdio", **options: Any) -> None:
        calls.append((self.name, transport, options))

    monkeypatch.setattr(Server, "run", record)
    return calls


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["run", *words])


# ── targets ──


SEVERAL = "from dovetail import Server\none, two = Server('one'), Server('two')\n"


@pytest.mark.parametrize(
    ("source", "target", "name"),
    [
        ("from dovetail import Server\nanything = Server('only')", "server.py", "only"),
        ("from dovetail import Server\na = b = Server('same')", "server.py", "same"),
        (SEVERAL + "mcp = one", "server.py", "one"),
        (SEVERAL, "server.py:two", "two"),
        (SEVERAL + "class Holder: held = two", "server.py:Holder.held", "two"),
        (
            "from dovetail import Server\ndef make(name='made', *more, **others): return Server(name)",
            "server.py:make",
            "made",
        ),
        ("import click as json\nfrom dovetail import Server\nserver = Server('json')", "json.py", "json"),
        ("from dataclasses import dataclass\n@dataclass\nclass A: x: 'int'\n" + PLAIN, "my-server.py", "plain"),
        *((PLAIN, target, "plain") for target in ("./server.py", "server.py:server", "server", "folder.other:server")),
    ],
)
def test_which_server(write: Write, ran: list, source: str, target: str, name: str) -> None:
    write(source, target.partition(":")[0] if ".py" in target else f"{target.partition(':')[0].replace('.', '/')}.py")
    result = run(target)
    assert result.exit_code == 0, result.output
    assert ran == [(name, "stdio", {})]


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (PLAIN, "missing.py", "there is no file missing.py"),
        (PLAIN, "folder/server", "is neither a Python file nor a module"),
        (PLAIN, "server.deeper:server", "there is no module server.deeper"),
        (PLAIN, "server.py:nothing", "server.py has no nothing; it has server"),
        (SEVERAL, "server.py", "server.py has several servers: one, two; say which, as in server.py:one"),
        ("x = 1", "server.py", "server.py has no server: it needs a line like `server = Server(...)`"),
        ("x = 1", "server.py:x", "server.py:x is a int, not a dovetail.Server or a plain function that makes one"),
        ("def make(): return 1", "server.py:make", "server.py:make is a int, not a dovetail.Server"),
        ("async def make(): return 1", "server.py:make", "server.py:make is a coroutine, not a dovetail.Server"),
        (PLAIN + "make = dict", "server.py:make", "server.py:make is a dict, not a dovetail.Server"),
        (PLAIN, "server.py:add", "server.py:add is called without arguments, but needs a, b; give them defaults"),
    ],
)
def test_bad_targets(write: Write, ran: list, source: str, target: str, words: str) -> None:
    write(source)
    result = run(target)
    assert (result.exit_code, ran) == (2, [])
    assert words in result.output


DEEP = """
def first():
    try:
        return 1 / 0
    except ZeroDivisionError as failure:
        raise ValueError("no tea") from failure
def again(n):
    return again(n - 1) if n else first()
again(100)
"""


def test_a_long_traceback_is_cut_and_a_cause_is_shown(write: Write) -> None:
    path = write(DEEP)
    result = run("server.py")
    assert result.exit_code == 1
    assert result.output.startswith("Error: server.py can't be loaded\nTraceback")
    assert "division by zero" in result.output
    assert result.output.endswith("ValueError: no tea\n")
    assert 0 < result.output.count("again(n - 1)") < 20
    assert set(re.findall('File "([^"]+)"', result.output)) <= {str(path), path.name}


def test_a_wrong_registration_is_reported(write: Write) -> None:
    write(PLAIN + "server.add_tool(add)")
    result = run("server.py")
    assert (result.exit_code, "add" in result.output, "Traceback" in result.output) == (1, True, False)


def test_a_program_that_serves_when_it_is_imported(write: Write) -> None:
    write(PLAIN + "server.run('http', workers=2)")
    for words in (["server.py"], ["server.py", "--transport", "http"], ["server:server"]):
        result = run(*words)
        assert result.exit_code == 1
        assert 'put that call under `if __name__ == "__main__":`' in result.output
        sys.modules.pop("server", None)


# ── the console ──


@pytest.mark.parametrize(
    ("words", "has_console"),
    [
        ("", True),
        ("--no-console", False),
        ("--console-remote", True),
        ("server.py --transport http", False),
        ("server.py --transport http --console", True),
        ("server.py", False),
    ],
)
def test_a_console_is_there(write: Write, ran: list, words: str, has_console: bool) -> None:
    write(PLAIN)
    assert run(*words.split()).exit_code == 0
    ((_, transport, options),) = ran
    assert transport == ("http" if "--transport http" in words or "server.py" not in words else "stdio")
    assert list(options.get("routes", ())) == (["/console/*"] if has_console else [])


# ── options ──


def test_every_option_of_run_is_there_and_a_drive_divides_no_target() -> None:
    assert set(HELP) == set(KINDS) & set(RunOptions.__annotations__) == set(KINDS)
    assert split_target(r"C:\shop\server.py") == (r"C:\shop\server.py", "")


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--port 0 --workers 4 --drain-delay 1.5", {"port": 0, "workers": 4, "drain_delay": 1.5}),
        ("--no-sse --stateless --access-log", {"sse": False, "stateless": True, "access_log": True}),
        (
            "--allowed-hosts a.example,b.example --allowed-hosts c.example",
            {"allowed_hosts": ["a.example", "b.example", "c.example"]},
        ),
        ("--host ::1 --path /there", {"host": "::1", "path": "/there"}),
    ],
)
def test_options(write: Write, ran: list, words: str, options: dict[str, Any]) -> None:
    write(PLAIN)
    result = run("server.py", "--transport", "http", *words.split())
    assert result.exit_code == 0, result.output
    assert ran == [("plain", "http", options)]
    assert CliRunner().invoke(main, ["run", "server.py"], env={"DOVETAIL_TRANSPORT": "http"}).exit_code == 0
    assert ran[1:] == [("plain", "http", {})]


def test_the_format_of_the_log_is_that_of_the_environment_unless_given(
    write: Write, ran: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(PLAIN)
    monkeypatch.setenv("DOVETAIL_LOG_FORMAT", "text")
    for words in (["--log-format", "json"], ["--log-format", "json", "--transport", "http"]):
        assert run("server.py", *words).exit_code == 0
        assert os.environ["DOVETAIL_LOG_FORMAT"] == "json"  # where `run` of any server finds it
    assert run("server.py", "--log-format", "xml").exit_code == 2
    monkeypatch.setenv("DOVETAIL_LOG_FORMAT", "xml")
    assert "'xml' is not one of 'text', 'json'" in run("server.py").output
    assert len(ran) == 2


# ── gateways and bridges ──


SHOP = {"command": "python", "args": ["shop.py"]}


def config(write: Write, **servers: Any) -> None:
    write(json.dumps({"mcpServers": servers}), "mcp.json")


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        ({"shop": SHOP}, "starts commands (shop)"),
        ({"shop": SHOP, "notes": {"url": "https://notes.example/mcp"}}, "starts commands (shop)"),
        ({"notes": {"url": "https://notes.example/mcp", "headers": {"X-Key": "secret"}}}, "sends your headers (notes)"),
    ],
)
def test_a_gateway_that_could_harm_its_user_is_not_open_to_the_network(
    write: Write, ran: list, servers: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config(write, **servers)
    typed = run("mcp.json", "--transport", "http", "--host", "0.0.0.0")
    monkeypatch.setenv("DOVETAIL_HOST", "::")
    for result, host in ((typed, "0.0.0.0"), (run("mcp.json", "--transport", "http"), "::")):
        assert (result.exit_code, ran) == (1, [])
        assert f"mcp.json {words}, which all who reach host={host!r} could use" in result.output
        assert "set DOVETAIL_API_KEYS=alice:key1,bob:key2" in result.output
        assert "secret" not in result.output


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        ("missing.json", 2, "missing.json can't be read"),
        ("mcp.json:nothing", 2, "mcp.json has no server nothing"),
        ("mcp.json:broken", 2, "The server 'broken' can't be used"),
        ("mcp.json", 1, "Error: mcp.json has no server that can be used"),
        ("ftp://host.example/mcp", 2, "a URL has to begin with http:// or https://"),
        ("https://ada:secret@host.example/mcp", 2, "the URL holds a user or a password"),
        ("https://host.example/mcp --transport http", 2, "a URL is served over stdio"),
        ("server.py --name other", 2, "--name: only for an mcp.json or a URL"),
    ],
)
def test_what_can_not_be_a_gateway(write: Write, ran: list, target: str, code: int, words: str) -> None:
    write(PLAIN)
    config(write, broken={"command": "a", "url": "https://b"}, off={"command": "a", "disabled": True})
    result = run(*target.split())
    assert (result.exit_code, ran) == (code, [])
    assert words in result.output
    assert "secret" not in result.output


def test_a_program_loads_nothing_of_gateways(write: Write) -> None:
    write(PLAIN + "import sys\nserver.run = lambda *words, **options: print(*sys.modules)\n")
    command = [sys.executable, "-m", "dovetail.cli", "run", "server.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PROMPTLY)
    loaded = done.stdout.split()
    assert "dovetail.cli.run" in loaded
    assert not [name for name in loaded if name.startswith(("dovetail.client", "dovetail.cli.gateway"))]


# ── the real thing ──


def test_help_is_light() -> None:
    program = (
        "import sys\nfrom dovetail.cli.main import main\n"
        "try: main(['run', '--help'])\n"
        "except SystemExit: pass\n"
        "import json; print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PROMPTLY)
    help_text, _, names = done.stdout.rpartition("\n[")
    assert "Examples:" in help_text
    loaded = set(json.loads("[" + names))
    heavy = {"asyncio", "dovetail.server", "dovetail.engine", "dovetail.reference", "uvicorn", "uvloop", "httptools"}
    assert not loaded & heavy


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_it_serves_until_a_signal_comes_and_a_port_in_use_is_one_clear_line(write: Write) -> None:
    words = [str(write(GUARDED)), "--transport", "http", "--port"]
    process = subprocess.Popen([sys.executable, "-m", "dovetail.cli", "run", *words, "0"], stderr=subprocess.PIPE)
    with process:
        try:
            port = process.stderr.readline().split(b"/mcp")[0].rpartition(b":")[2].decode()
            done = run(*words, port)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PROMPTLY) == 0
        finally:
            process.kill()
    assert (done.exit_code, f"Error: host='127.0.0.1', port={port}: another program" in done.output) == (1, True)
