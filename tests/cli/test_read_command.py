"""`dovetail read`, `prompt` and `complete`: what goes out, on the screen and into files."""

import json
from pathlib import Path

import example_server
import pytest
from command_stage import Run, furnish, running, typed

from dovetail import Server
from dovetail.cli.output import FAILED, WRONG_USE


@pytest.fixture(params=["2025-11-25", "2026-07-28"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    return running(example_server.server, monkeypatch, protocol_version=request.param)


def test_text_goes_out_as_it_came(run: Run) -> None:
    assert run("read", "notes://all").stdout == "milk, bread"
    assert run("read", "notes://Rome/Monday").stdout == "Rome on Monday"


def test_bytes_go_out_as_they_came(tmp_path: Path) -> None:
    furnish(tmp_path)
    done = typed(tmp_path, "read", "server.py", "logo://small")
    assert done.stdout == example_server.PNG
    assert done.stderr == b""


def test_into_a_file(run: Run) -> None:
    done = run("read", "logo://small", "--output", "logo.png")
    assert (done.stdout, done.stderr) == ("", "saved logo.png (2.0 KB)\n")
    assert Path("logo.png").read_bytes() == example_server.PNG


def test_into_a_folder_nothing_is_overwritten(run: Run) -> None:
    Path("art").mkdir()
    for _ in range(2):
        run("read", "logo://small", "--output", "art")
    assert sorted(path.name for path in Path("art").iterdir()) == ["resource-2.png", "resource.png"]


def test_contents_as_json(run: Run) -> None:
    found = json.loads(run("read", "notes://all", "--json").stdout)
    assert found["contents"] == [{"uri": "notes://all", "mimeType": "text/plain", "text": "milk, bread"}]


@pytest.mark.parametrize("words", [["read", "notes://all"], ["prompt", "greet", "name=Ada"]], ids=str)
def test_a_document_keeps_meta(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    run = running(example_server.server, monkeypatch, protocol_version="2026-07-28")
    said = json.loads(run(*words, "--json").stdout)["_meta"]
    assert said["io.modelcontextprotocol/serverInfo"]["name"] == "example"
    run = running(example_server.server, monkeypatch, protocol_version="2025-11-25")
    assert "_meta" not in json.loads(run(*words, "--json").stdout)


@pytest.mark.parametrize(
    ("words", "feature"),
    [
        (["read", "notes://all"], "resources"),
        (["prompt", "greet"], "prompts"),
        (["complete", "prompt:greet", "name"], "completions"),
    ],
    ids=str,
)
def test_what_a_server_does_not_have_at_all(monkeypatch: pytest.MonkeyPatch, words: list[str], feature: str) -> None:
    server = Server("small")
    server.tool(lambda: "hi", name="greet")
    done = running(server, monkeypatch)(*words)
    assert (done.exit_code, done.stdout) == (WRONG_USE, "")
    assert done.stderr == f"Error: dovetail.reference has no {feature} at all; it has tools\n"


@pytest.mark.parametrize(
    ("uri", "advice"),
    [("notes://al", "did you mean notes://all?"), ("zzz://1", "`dovetail list` shows which resources there are")],
)
def test_there_is_no_such_resource(run: Run, uri: str, advice: str) -> None:
    done = run("read", uri)
    assert (done.exit_code, done.stdout) == (FAILED, "")
    assert done.stderr.startswith("Error: ")
    assert done.stderr.endswith(f")\n{advice}\n")


@pytest.mark.parametrize("name", ["read", "prompt", "call"])
def test_what_has_to_be_named(run: Run, name: str) -> None:
    done = run(name)
    assert done.exit_code == WRONG_USE
    assert "`dovetail list` shows which there are" in done.stderr


# ── prompts ──


def test_messages_of_a_prompt(run: Run) -> None:
    assert run("prompt", "greet", "name=Ada").stdout == "user:\nGreet Ada in English.\n"
    found = json.loads(run("prompt", "greet", "name=Ada", "language=Latin", "--json").stdout)
    assert found["messages"] == [{"role": "user", "content": {"type": "text", "text": "Greet Ada in Latin."}}]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["greet"], "greet needs name\nIt takes:\n  name      string  required\n  language  string\n"),
        (["greet", "name=Ada", "age=5"], "greet takes no age"),
        (["great", "name=Ada"], "there is no prompt great; did you mean greet?"),
    ],
    ids=str,
)
def test_wrong_use_of_a_prompt(run: Run, words: list[str], told: str) -> None:
    done = run("prompt", *words)
    assert (done.exit_code, done.stdout) == (WRONG_USE, "")
    assert told in done.stderr


# ── completion ──


def test_suggestions(run: Run) -> None:
    assert run("complete", "prompt:greet", "name", "A").stdout == "Ada\nAlan\n"
    assert run("complete", "prompt:greet", "name").stdout == "Ada\nAlan\nGrace\n"
    assert run("complete", "tool:add", "a", "1").stdout == "10\n12\n"
    done = run("complete", "notes://{shop}/{day}", "day", "--with", "shop=Rome")
    assert (done.stdout, done.stderr) == ("Monday\nSunday\n", "… of 7\n")
    found = json.loads(run("complete", "notes://{shop}/{day}", "day", "M", "--json").stdout)
    assert found == {"completion": {"values": ["Monday"], "total": 7, "hasMore": True}}


def test_nothing_to_suggest(run: Run) -> None:
    done = run("complete", "prompt:greet", "name", "Z")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "no suggestions\n")


def test_what_can_be_completed(run: Run) -> None:
    done = run("complete", "greet", "name")
    assert done.exit_code == WRONG_USE
    assert "write prompt:greet or tool:greet" in done.stderr
