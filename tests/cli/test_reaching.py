"""Servers that can't be reached, or are none: what is told, and with which exit code."""

import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner
from command_stage import spawned, typed

from dovetail.cli.main import main
from dovetail.cli.target import split_target, what_is_missing

PLAIN = "from dovetail import Server\nserver = Server('plain')\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["server.py:nothing"], 2, "server.py has no nothing; it has server"),
        (["empty.py"], 2, "empty.py has no server"),
        (["nowhere.py:x"], 2, "there is no file nowhere.py; give a URL"),
        (["nowhere.deeper:x"], 2, "there is no module nowhere;"),
        (["broken.py"], 3, "ValueError: no tea"),
        (["127.0.0.1:8314/mcp"], 2, "for a URL write http://127.0.0.1:8314/mcp\n"),
        (["localhost:8000"], 2, "for a URL write http://localhost:8000\n"),
        (["[::1]:8000/mcp"], 2, "for a URL write http://[::1]:8000/mcp\n"),
        (["example.com/mcp?key=SECRET"], 2, "for a URL write https://example.com/mcp\n"),
        (["http://127.0.0.1:1/mcp"], 3, "Connection refused\nstart the server, or correct the URL\n"),
        (["http://x/ a/me:SECRET@y/"], 2, "can't connect to 'http://…': it holds spaces"),
        (["http://x y/?key=SECRET#SECRET"], 2, "can't connect to 'http://x y/': it holds spaces"),
        (["http://me:SECRET@127.0.0.1:1/mcp"], 2, "leave them out, and give --header"),
        (["http://127.0.0.1:1/", "-H", "a b: SECRET"], 2, "--header 'a b': that is not the name of a header\n"),
        (["http://127.0.0.1:1/", "--token", "SEC RET"], 2, "--token is no token"),
        (["http://127.0.0.1:1/#x"], 2, "the URL has a part after #"),
        (
            ["http://127.0.0.1:1/", "--transport=sse", "--revision=2026-07-28"],
            2,
            "over HTTP+SSE; leave --transport out",
        ),
        (["server.py", "--revision", "2020"], 2, "--revision '2020' is unknown; use one of 2026-07-28,"),
        (["--", "no-such-thing"], 2, "can't start no-such-thing: there is no such command"),
        (["leaving.py"], 3, "leaving.py exited with code 2"),
        (["--", "cat"], 3, "cat does not answer as an MCP server does"),
        (["--", "true"], 3, "true exited with code 0"),
        (["--revision", "2025-06-18", "--", "cat"], 3, "MCP server does: Method not found: initialize"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_exit_codes(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    for name, text in {
        "server.py": PLAIN,
        "empty.py": "x = 1",
        "broken.py": "raise ValueError('no tea')",
        "leaving.py": "raise SystemExit(2)",
    }.items():
        (tmp_path / name).write_text(text)
    run = spawned if words[0].partition(":")[0] in ("server.py", "empty.py", "broken.py") else typed
    done = run(tmp_path, "list", *words)
    told = done.stderr.decode()
    assert (done.returncode, said in told, done.stdout) == (code, True, b""), told
    assert sum(line.startswith("Error: ") for line in told.splitlines()) == 1
    assert "SECRET" not in told
    assert "Client:" not in told
    assert "importlib" not in told
    assert str(Path("cli", "target.py")) not in told


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("call", "name a tool; `dovetail list` shows which there are"),
        ("read", "name a resource by its URI; `dovetail list` shows which there are"),
        ("prompt", "name a prompt; `dovetail list` shows which there are"),
        ("complete", "Missing argument 'prompt:NAME|tool:NAME|URI-TEMPLATE'"),
    ],
)
def test_what_is_asked_for_goes_before_the_command(tmp_path: Path, command: str, words: str) -> None:
    told = CliRunner().invoke(main, [command, "--", "python", "server.py", "add"]).stderr
    advice = "It goes before --: all words after that are the command that starts the server"
    assert told.endswith(f"Error: {words}\n{advice}\n")
    (tmp_path / "server.py").write_text(PLAIN)
    assert CliRunner().invoke(main, [command, str(tmp_path / "server.py")]).stderr.endswith(f"Error: {words}\n")


class PlainPages(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    do_GET = do_POST

    def log_message(self, *words: object) -> None: ...


@pytest.fixture
def web_site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), PlainPages) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_a_web_site_is_no_server(tmp_path: Path, web_site: str) -> None:
    assert typed(tmp_path, "list", web_site).returncode == 3


# ── where a program is ──


@pytest.mark.parametrize(
    ("target", "missing"),
    [
        ("server.py", None),
        ("server.py:x", None),
        ("server", None),
        ("package.module:server", None),
        ("loose.part", None),
        ("dovetail.reference:server", None),
        ("nowhere.py", "there is no file nowhere.py"),
        ("nowhere", "there is no module nowhere"),
        ("package.nothing:x", "there is no module package.nothing"),
        ("server.nothing", "there is no module server.nothing"),
        ("not-a-module", "'not-a-module' is neither a Python file nor a module"),
    ],
)
def test_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, missing: str | None) -> None:
    for name in ("server.py", "package/__init__.py", "package/module.py", "loose/part.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('it must not be run')")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert what_is_missing(target) == missing
    assert sys.path == before
    assert "package" not in sys.modules


def test_a_finder_that_fails_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [object()])
    assert what_is_missing("nowhere") is None


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("server.py", ("server.py", "")),
        ("a/server.py:x.y", ("a/server.py", "x.y")),
        (r"C:\shop\server.py", (r"C:\shop\server.py", "")),
        ("package.module:make", ("package.module", "make")),
    ],
)
def test_the_parts_of_a_target(target: str, parts: tuple[str, str]) -> None:
    assert split_target(target) == parts
