"""`dovetail inspect`: what a server is, speaks and offers, of servers of every age and over every transport."""

import json
import re
import sys
from pathlib import Path

import pytest
from command_stage import PROGRAM, running, typed
from server_process import serving

from dovetail import Server
from dovetail.cli.lint import brief
from dovetail.cli.lint.rules import RULES, Finding
from dovetail.protocol.revisions import SUPPORTED

OLD = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    params, answer = asked.get("params") or {}, {"jsonrpc": "2.0", "id": asked["id"]}
    results = {
        "initialize": {
            "protocolVersion": "2025-06-18", "serverInfo": {"name": "old\\x1b[31m", "version": "0.1"},
            "capabilities": {"tools": {}, "tasks": {}, "experimental": {"x": {}}}, "instructions": "one\\ntwo\\x07",
        },
        "ping": {},
        "tools/list": {"tools": [{"name": "a"}], "nextCursor": "2"} if "cursor" not in params else {"tools": [{}]},
    }
    if asked["method"] in results:
        answer["result"] = results[asked["method"]]
    else:
        answer["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(answer), flush=True)
"""


def test_a_server_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("bakery", version="2.0.0", title="The Bakery", instructions="Bread first.\n" * 13)

    @server.tool
    def bake(minutes: int) -> str:
        """Bake it."""
        return "bread" * minutes

    done = running(server, monkeypatch)("inspect")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "The Bakery 2.0.0"
    assert lines[-14:] == ["Instructions", *["  Bread first."] * 12, "  … --json has all of them"]
    told = dict(line.split(None, 1) for line in lines[1:-14] if not line.startswith(" "))
    assert told["Speaks"] == ", ".join(SUPPORTED)
    assert told["Offers"] == "1 tool, 0 resources, 0 templates, 0 prompts"
    assert told["Hints"] == "1 destructive, 1 open-world, 1 not annotated"
    assert told["Lint"] == "1 warning"
    assert [line.split() for line in lines if "parameter-description" in line] == [
        ["warning", "parameter-description", "tool", "bake:", "minutes"]
    ]
    assert "tools (listChanged)" in told["Capabilities"]
    assert "Transports" not in told
    assert done.stderr == ""


def test_an_old_server_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(OLD)
    done = typed(tmp_path, "inspect", "--json", "--timeout", "20", "--", sys.executable, "old.py")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [name for name, probe in said["revisions"].items() if probe["speaks"]] == ["2025-06-18"]
    assert "offers 2025-06-18" in said["revisions"]["2025-11-25"]["why"]
    assert said["revision"] == "2025-06-18"
    assert said["counts"] == {"tools": 2, "resources": 0, "templates": 0, "prompts": 0}
    assert said["pages"] == {"tools": 2, "resources": 0, "templates": 0, "prompts": 0}
    assert said["hints"] == {"destructive": 2, "open-world": 2, "not annotated": 2}
    assert said["extensions"] == ["tasks"]
    assert said["lint"]["counts"]["errors"] >= 2
    linted = json.loads(typed(tmp_path, "lint", "--json", "--", sys.executable, "old.py").stdout)
    assert said["lint"] == linted
    assert {"rule": "name-missing", "level": "error"}.items() <= said["lint"]["findings"][0].items()
    assert said["seconds"]["answer"] > 0
    done = typed(tmp_path, "inspect", "--", sys.executable, "old.py")
    assert b"\x1b" not in done.stdout
    assert b"\x07" not in done.stdout
    assert "Speaks        2025-06-18; not 2026-07-28, 2025-11-25" in done.stdout.decode()
    assert "2 tools on 2 pages" in done.stdout.decode()


def test_one_that_leaves_when_it_is_pinged_is_inspected_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(
        OLD.replace("    results = {", "    asked['method'] == 'ping' and sys.exit()\n    results = {")
    )
    done = typed(tmp_path, "inspect", "--json", "--", sys.executable, "old.py")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["counts"]["tools"], said["seconds"]["answer"]) == (2, None)


def test_a_server_at_a_url_and_a_transport_that_is_missing_there(tmp_path: Path) -> None:
    with serving(["-m", "dovetail.cli", "run", str(PROGRAM), "--transport", "http"], tmp_path / "log.txt") as served:
        found = {
            path: json.loads(typed(tmp_path, "inspect", f"{served.origin}/{path}", "--json").stdout)
            for path in ("mcp", "sse")
        }
        told = typed(tmp_path, "inspect", f"{served.origin}/mcp").stdout.decode()
    assert all(probe["speaks"] for probe in found["mcp"]["revisions"].values())
    transports = {
        path: {name: probe["speaks"] for name, probe in said["transports"].items()} for path, said in found.items()
    }
    assert transports == {"mcp": {"http": True, "sse": False}, "sse": {"http": False, "sse": True}}
    assert "\nTransports    http; not sse at this address\n" in told
    assert found["mcp"]["server"]["name"] == "example"


MANY = [Finding("tool-description", f"tool t{number}") for number in range(5)]


@pytest.mark.parametrize(
    ("findings", "lines"),
    [
        ([], []),
        ([Finding("mime-type", "resource a://b")], []),  # notes are counted only
        ([Finding("name-start", "tool 3d")], ["warning  name-start  tool 3d"]),
        ([Finding("schema-items", "tool a", "x\x1b[2J")], ["error  schema-items  tool a: x\ufffd[2J"]),
        (MANY, ["warning  tool-description  tool t0, tool t1, tool t2 and 2 more"]),
        (
            [Finding("name-length", "tool a", "65 characters"), Finding("name-start", "tool 3d")],
            ["error    name-length  tool a: 65 characters", "warning  name-start   tool 3d"],
        ),
    ],
)
def test_findings_are_told_in_short(findings: list[Finding], lines: list[str]) -> None:
    assert brief(findings) == lines


def test_of_many_rules_some_are_told() -> None:
    rules = [rule for rule, told in RULES.items() if told.level != "note"]
    lines = brief([Finding(rule, "tool a") for rule in rules])
    assert len(lines) == 11
    assert lines[-1] == f"… and {len(rules) - 10} more rules"


def test_nobody_there(tmp_path: Path) -> None:
    done = typed(tmp_path, "inspect", "http://127.0.0.1:9/mcp", "--timeout", "5")
    assert (done.returncode, done.stdout) == (3, b"")


def test_the_page_shows_what_is_said(tmp_path: Path) -> None:
    docs = PROGRAM.parents[2] / "docs"
    (tmp_path / "server.py").write_text((docs / "programs" / "tools.py").read_text())
    page = (docs / "commands" / "inspect.md").read_text()
    shown = page.partition("$ dovetail inspect server.py\n")[2].partition("```")[0]
    said = typed(tmp_path, "inspect", "server.py").stdout.decode()
    times = re.compile(r"[\d.]+ m?s\b")
    assert times.sub("…", said) == times.sub("…", shown)
