"""`dovetail list` and `inspect`: what a server is and offers, for people and for programs, however strange it is."""

import contextlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import example_server
import pytest
from command_stage import PROGRAM, Run, running, typed
from server_process import serving

from costs import functions_called
from documented import load
from dovetail import Client, Server
from dovetail.cli.commands import MAX_PAGES
from dovetail.cli.given_arguments import Argument, GivenArguments, parameter_lines
from dovetail.cli.lint import Catalog, check_catalog
from dovetail.cli.output import CommandExit
from dovetail.cli.show import details, lines
from dovetail.protocol.revisions import SUPPORTED


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return running(example_server.server, monkeypatch)


def test_everything_by_default(run: Run) -> None:
    done = run("list")
    assert done.exit_code == 0
    titles = [line for line in done.stdout.splitlines() if line and line[0] != " "]
    assert titles == ["Tools", "Resources", "Templates", "Prompts"]
    assert re.search(r"^  add  +a: integer, b: integer {10,}\[read-only, open-world\] Add two", done.stdout, re.M)
    shown = ("[destructive, open-world] Forget a note for good.", "  Look for articles: Search the shop.",
             "  greet  name, [language]  Greet a person.")  # fmt: skip
    assert [words in done.stdout for words in (*shown, "They may be negative")] == [True, True, True, False]
    assert done.stderr == ""


@pytest.mark.seed("S3-17", "S3-19")
def test_hints_that_a_tool_does_not_give_stand_for_the_worse(run: Run) -> None:
    """The specification gives the defaults to the reader; they are not sent."""
    shown = run("list", "tools", "-v").stdout
    assert "  summarise [destructive, open-world]\n" in shown
    assert "  add [read-only, open-world]\n" in shown
    assert "  search Look for articles\n" in shown
    assert "    They may be negative." in shown
    assert '      "type": "object"' in shown.split("inputSchema:")[1]
    assert "    The logo.\n    name: logo\n    mimeType: image/png\n" in run("list", "resources", "-v").stdout
    assert "[" not in "".join(line for line in run("list", "resources", "-v").stdout.splitlines() if line[:3] != "    ")


def test_json_is_what_came(run: Run) -> None:
    for words in (["list"], ["list", "-v"], ["list", "--json"]):
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(run(*words).stdout)
    found = json.loads(run("list", "--json").stdout)
    titles = {tool["name"]: tool.get("title") for tool in found["tools"]}
    assert titles["steer"] == example_server.STEERING  # escapes change nothing of what JSON says
    assert found.keys() == {"tools", "resources", "resourceTemplates", "prompts"}
    assert found["tools"][0]["annotations"] == {"readOnlyHint": True}
    assert json.loads(run("list", "prompts", "--json").stdout)["prompts"][0]["name"] == "greet"


def test_nothing_to_list(monkeypatch: pytest.MonkeyPatch) -> None:
    run = running(Server("empty"), monkeypatch)
    for words, message in ((["list"], "offers nothing"), (["list", "prompts"], "offers no prompts")):
        done = run(*words)
        assert (done.exit_code, done.stdout, message in done.stderr) == (0, "", True)


def test_a_list_without_an_end_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def again(_client: Client, _method: str, *_: Any) -> dict[str, Any]:
        return {"tools": [{"name": "a"}, None], "nextCursor": "again"}

    monkeypatch.setattr(Client, "request", again)
    for command in ("list", "lint"):
        assert f"tools/list has no end: what comes after {MAX_PAGES} pages is left out" in run(command).stderr
    done = run("list", "tools", "--json")
    assert len(json.loads(done.stdout)["tools"]) == MAX_PAGES
    assert "tools/list: null in the place of definition 2; it is left out" in done.stderr


def _ref(name: object) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


DOUBLING = {f"d{n}": {"anyOf": [_ref(f"d{n + 1}")] * 10, "oneOf": [_ref(f"d{n + 1}")] * 10} for n in range(20)}
ITSELF = {"anyOf": [_ref("d0")] * 20, "oneOf": [_ref("d0")] * 20, "allOf": [_ref("d0")] * 20}
HOSTILE: dict[str, dict[str, Any]] = {
    "doubling": {"properties": {"a": _ref("d0")}, "$defs": DOUBLING | {"d20": {"type": "string"}}},
    "itself": {"properties": {"a": _ref("d0")}, "$defs": {"d0": ITSELF}},
    "wide": {
        "properties": {f"p{n}": _ref("d0") for n in range(2_000)} | {"a": _ref("d0")},
        "$defs": {"d0": {"anyOf": [{"const": n} for n in range(500)]}},
    },
}


@pytest.mark.long
@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_schema_is_looked_at_once(schema: dict[str, Any]) -> None:
    schema = {"type": "object", **schema}
    tool = {"name": "t", "inputSchema": schema}
    parts = json.dumps(schema).count("{")
    given = GivenArguments([Argument("a", "x"), Argument("a", "y")])
    nested = GivenArguments([Argument("a.b.c.d", "x")])
    for look in (
        lambda: lines("tools", [tool]),
        lambda: details("tools", [tool]),
        lambda: parameter_lines(schema),
        lambda: given.typed(schema, "t"),
        lambda: nested.typed(schema, "t"),
        lambda: check_catalog(Catalog(tools=[tool])),
    ):
        with functions_called() as called, contextlib.suppress(CommandExit):
            look()
        assert len(called) <= 600 * parts + 20_000


# ── inspect ──


OLD = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    asked["method"] == "ping" and sys.exit()
    params, answer = asked.get("params") or {}, {"jsonrpc": "2.0", "id": asked["id"]}
    results = {
        "initialize": {
            "protocolVersion": "2025-06-18", "serverInfo": {"name": "old\\x1b[31m", "version": "0.1"},
            "capabilities": {"tools": {}, "tasks": {}, "experimental": {"x": {}}}, "instructions": "one\\ntwo\\x07",
        },
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
    rows = dict(line.split(None, 1) for line in lines[1:-14] if not line.startswith(" "))
    assert rows["Speaks"] == ", ".join(SUPPORTED)
    assert rows["Offers"] == "1 tool, 0 resources, 0 templates, 0 prompts"
    assert rows["Hints"] == "1 destructive, 1 open-world, 1 not annotated"
    assert rows["Lint"] == "1 warning"
    assert "warning parameter-description tool bake: minutes" in [" ".join(line.split()) for line in lines]
    assert "tools (listChanged)" in rows["Capabilities"]
    assert "Transports" not in rows
    assert done.stderr == ""


def test_an_old_server_of_another_framework(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(OLD)
    done = typed(tmp_path, "inspect", "--json", "--timeout", "20", "--", sys.executable, "old.py")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [name for name, probe in document["revisions"].items() if probe["speaks"]] == ["2025-06-18"]
    assert "offers 2025-06-18" in document["revisions"]["2025-11-25"]["why"]
    assert document["revision"] == "2025-06-18"
    assert document["counts"] == {"tools": 2, "resources": 0, "templates": 0, "prompts": 0}
    assert document["hints"] == {"destructive": 2, "open-world": 2, "not annotated": 2}
    assert document["extensions"] == ["tasks"]
    assert document["lint"]["counts"]["errors"] >= 2
    assert {"rule": "name-missing", "level": "error"}.items() <= document["lint"]["findings"][0].items()
    assert document["seconds"]["answer"] is None  # it exits on a ping
    done = typed(tmp_path, "inspect", "--", sys.executable, "old.py")
    assert not set(b"\x1b\x07") & set(done.stdout)
    assert "Speaks        2025-06-18; not 2026-07-28, 2025-11-25" in done.stdout.decode()


def test_a_server_at_a_url_and_a_transport_that_is_missing_there(tmp_path: Path) -> None:
    with serving(["-m", "dovetail.cli", "run", str(PROGRAM), "--transport", "http"], tmp_path / "log.txt") as served:
        found = {
            path: json.loads(typed(tmp_path, "inspect", f"{served.origin}/{path}", "--json").stdout)
            for path in ("mcp", "sse")
        }
        text = typed(tmp_path, "inspect", f"{served.origin}/mcp").stdout.decode()
        assert b"  greet  name, [language]" in typed(tmp_path, "list", f"{served.origin}/mcp", "prompts").stdout
    assert all(probe["speaks"] for probe in found["mcp"]["revisions"].values())
    transports = {
        path: {name: probe["speaks"] for name, probe in document["transports"].items()}
        for path, document in found.items()
    }
    assert transports == {"mcp": {"http": True, "sse": False}, "sse": {"http": False, "sse": True}}
    assert "\nTransports    http; not sse at this address\n" in text
    assert found["mcp"]["server"]["name"] == "example"


def test_the_page_shows_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (PROGRAM.parents[2] / "docs" / "commands" / "inspect.md").read_text()
    shown = page.partition("$ dovetail inspect server.py\n")[2].partition("```")[0]
    text = running(load("tools").server, monkeypatch)("inspect").stdout
    times = re.compile(r"[\d.]+ m?s\b")
    assert times.sub("…", text) == times.sub("…", shown)
