"""`dovetail read`, `prompt` and `complete`: what goes out, on the screen and into files."""

import json
from pathlib import Path

import example_server
import pytest
from command_stage import Run, furnish, running, typed

from dovetail.cli.exits import FAILED, WRONG_USE


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
    assert found == {"contents": [{"uri": "notes://all", "mimeType": "text/plain", "text": "milk, bread"}]}


def test_there_is_no_such_resource(run: Run) -> None:
    done = run("read", "notes://none")
    assert (done.exit_code, done.stdout) == (FAILED, "")
    assert "Error: " in done.stderr


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
    done = run("complete", "notes://{shop}/{day}", "day", "--with", "shop=Rome")
    assert (done.stdout, done.stderr) == ("Monday\nSunday\n", "… of 7\n")
    found = json.loads(run("complete", "notes://{shop}/{day}", "day", "M", "--json").stdout)
    assert found == {"completion": {"values": ["Monday"], "total": 7, "hasMore": True}}


def test_what_can_be_completed(run: Run) -> None:
    done = run("complete", "greet", "name")
    assert done.exit_code == WRONG_USE
    assert "write prompt:greet" in done.stderr
