"""`dovetail call`, `read`, `prompt` and `complete`: results, input requests without a terminal, prepared answers."""

import json
import os
from pathlib import Path
from typing import Any

import example_server
import pytest
from command_stage import Run, running

from dovetail import Context, Server
from dovetail.cli.connect import find_by_name
from dovetail.cli.given_arguments import GivenArguments
from dovetail.cli.output import DECLINED, FAILED, USAGE_ERROR, CommandExit
from dovetail.protocol.types import ToolDefinition

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates:DeprecationWarning")


@pytest.fixture(params=["2025-11-25", "2026-07-28"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    return running(example_server.server, monkeypatch, protocol_version=request.param)


HEAD = "word  shop  floor  open\n"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["add", "--args", '{"a": 2}', "b=3"], "5\n"),
        (["summarise", "text=two words"], "2 words\n"),
        (
            ["search", "words=a", "words=b", "where.shop=Rome"],
            HEAD + "a     Rome  0      true\nb     Rome  0      true\n",
        ),
        (["search", "words=red"], f"{HEAD}red         0      true\n"),
        (
            ["echo", "whole=5", "size=3", "numbers=1"],
            '{\n  "whole": 5,\n  "part": 0.5,\n  "on": false,\n  "size": 3,\n  "numbers": [1]\n}\n',
        ),
        (["bake"], "A cake.\n"),
        (
            ["paint"],
            "[image/png, 2.0 KB; --output FILE saves it]\n[audio/wav, 4 bytes; --output FILE saves it]\n"
            "All notes: notes://all (text/plain)\nThat was it.\n",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_result_is_shown(run: Run, words: list[str], shown: str) -> None:
    done = run("call", *words)
    assert (done.exit_code, done.stdout) == (0, shown), done.stderr


def test_the_whole_result_as_json(run: Run) -> None:
    found = json.loads(run("call", "paint", "--json").stdout)
    assert [block["type"] for block in found["content"]] == ["image", "audio", "resource_link", "text"]
    assert "isError" not in found
    done = run("call", "break_down", "--json")
    assert (done.exit_code, json.loads(done.stdout)["isError"]) == (FAILED, True)


@pytest.mark.parametrize(
    ("output", "files"),
    [("art.png", {"art-1.png", "art-2.png"}), ("art/", {"art/image.png", "art/audio.wav"})],
)
def test_what_is_no_text_is_saved(run: Run, output: str, files: set[str]) -> None:
    done = run("call", "paint", "--output", output)
    assert {str(path) for path in Path().rglob("*.*")} == files
    assert min(files, key=lambda name: -Path(name).stat().st_size) in done.stderr
    assert "That was it." in done.stdout
    assert example_server.PNG in {Path(name).read_bytes() for name in files}


def test_text_is_saved_where_there_is_nothing_else(run: Run) -> None:
    done = run("call", "summarise", "text=a", "--output", "said.txt")
    assert (done.stdout, Path("said.txt").read_text()) == ("", "1 words")
    done = run("call", "summarise", "text=a", "--output", f"{os.devnull}/folder/")
    assert (done.exit_code, "Error: --output /dev/null/folder: Not a dir" in done.stderr) == (FAILED, True)


def test_a_tool_that_fails(run: Run) -> None:
    done = run("call", "break_down")
    assert (done.exit_code, done.stdout) == (FAILED, "")
    assert "Error: it is broken: safe \N{REPLACEMENT CHARACTER}[31mred" in done.stderr
    for name in ("break_down", "steer"):
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(run("call", name).stderr)
    assert run("call", "steer").stdout == example_server.STEERING + "\n"  # what is piped is what came


@pytest.mark.seed("S2-72", "S4-17")
def test_a_destructive_tool_needs_a_yes(run: Run) -> None:
    done = run("call", "forget", "note=old")
    assert (done.exit_code, done.stdout, "forget is marked destructive" in done.stderr) == (DECLINED, "", True)
    assert run("call", "forget", "note=old", "--yes").stdout == "Forgot old.\n"


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"openWorldHint": False}, "t does not say whether it is destructive\n"),
        ({"readOnlyHint": True}, ""),
        ({"destructiveHint": False}, ""),
        ({"readOnlyHint": True, "destructiveHint": True}, "Error: t is marked destructive"),
    ],
    ids=str,
)
def test_missing_annotations_are_reported(monkeypatch: Any, annotations: dict[str, bool], message: str) -> None:
    server = Server("hints")
    server.add_tool(lambda: "done", name="t", description="Do it.", annotations=annotations)
    run = running(server, monkeypatch)
    assert run("call", "t").stderr.startswith(message)
    assert bool(run("call", "t").stderr) == bool(message)
    assert run("call", "t", "--yes").stderr == ""
    assert ("destructive" in run("list").stdout) == ("destructive" in message and "Error" not in message)


@pytest.fixture(params=["2025-11-25", "2026-07-28"])
def searched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Of a server whose tools are searched."""
    server = Server("kitchen", version="1", tool_search=True)

    @server.tool(annotations={"destructiveHint": True})
    def throw_away(thing: str, pieces: int = 1) -> str:
        return f"{pieces} {thing} thrown away"

    return running(server, monkeypatch, protocol_version=request.param)


def test_a_tool_that_is_not_listed_is_searched_for(searched: Run) -> None:
    done = searched("call", "throw_away", "thing=hat", "pieces=2", "--yes")
    assert (done.exit_code, done.stdout) == (0, "2 hat thrown away\n"), done.stderr
    done = searched("call", "throw_away", "thing=hat")
    assert (done.exit_code, "throw_away is marked destructive" in done.stderr) == (DECLINED, True)
    done = searched("call", "throw_away", "thing=hat", "peaces=2", "--yes")
    assert (done.exit_code, "throw_away takes no peaces" in done.stderr) == (USAGE_ERROR, True)
    done = searched("call", "throw", "thing=hat")
    assert (done.exit_code, "there is no tool throw; did you mean throw_away?" in done.stderr) == (USAGE_ERROR, True)


@pytest.mark.parametrize("answer", [{"tools": "all"}, {"tools": [{"name": 1}]}, "nothing"])
def test_another_kind_of_search_finds_nothing(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    server = Server("library", version="1")

    @server.tool(annotations={"readOnlyHint": True}, output="structured")
    def search_tools(query: str, limit: int) -> Any:
        return answer

    @server.tool
    def call_tool(name: str) -> None: ...

    done = running(server, monkeypatch)("call", "saw")
    assert done.exit_code == USAGE_ERROR
    assert "there is no tool saw; it has search_tools, call_tool" in done.stderr


def test_logs_are_lines_on_stderr(run: Run) -> None:
    assert "info oven: the oven is hot" in run("call", "bake").stderr
    assert "debug: very hot" in run("call", "bake", "--log-level", "debug").stderr
    for words in (["--log-level", "error"], ["--quiet"]):
        assert run("call", "bake", *words).stderr == ""


ASKS = "asks: How would you like to stay?"
CANCELLED = "Nothing booked: cancel.\n"


@pytest.mark.parametrize(
    ("options", "result", "message"),
    [
        ("--answer nights=3", "3 nights, double, breakfast True, None.\n", ASKS),
        ("-a nights=3 -a breakfast=no -a size=single", "3 nights, single, breakfast False, None.\n", ASKS),
        ('--answers {"nights":3,"other":1}', "3 nights, double, breakfast True, None.\n", ASKS),
        ("", CANCELLED, "There is no terminal to ask at, so it is cancelled. --answer nights=… answers it."),
        ("--answer nights=30", CANCELLED, "No answer is sent: nights"),
        ("--answer nights=x", CANCELLED, "No answer is sent: nights: expected integer"),
    ],
)
def test_a_form_is_answered_beforehand_or_cancelled(run: Run, options: str, result: str, message: str) -> None:
    done = run("call", "book", *options.split())
    assert (done.stdout, message in done.stderr) == (result, True)


def test_a_page_that_has_to_be_opened_first_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    example_server.UNLOCKED.clear()
    done = running(example_server.server, monkeypatch, protocol_version="2025-11-25")("call", "unlock")
    assert (done.exit_code, done.stdout) == (FAILED, "")
    assert done.stderr.endswith("Open this first, and call it again:\nhttps://example.com/pay\n")


def test_a_page_and_a_model_need_a_person(run: Run) -> None:
    done = run("call", "visit")
    assert (done.stdout, "  https://example.com/sign-in\n" in done.stderr) == ("cancel\n", True)
    done = run("call", "think")
    assert (done.exit_code, "there is no terminal to ask the user instead: refused" in done.stderr) == (FAILED, True)


NAME = "fa\nError: \x1b[31mke"  # as no framework lets a server speak
SHOWN = "fa Error: \N{REPLACEMENT CHARACTER}[31mke"


def test_names_of_a_server_stay_in_their_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("tool", "prompt"):
        with pytest.raises(CommandExit) as ended:
            find_by_name("faError: ke", [ToolDefinition(name=NAME, input_schema={})], kind)
        assert ended.value.message == f"there is no {kind} faError: ke; did you mean {SHOWN}?"
    with pytest.raises(CommandExit) as ended:
        GivenArguments.from_words(["faError: ke=1"]).typed({"properties": {NAME: {}}}, "t")
    assert ended.value.message.splitlines()[0] == f"t takes no faError: ke; did you mean {SHOWN}?"

    async def speak(ctx: Context) -> None:
        await ctx.info("said", logger=NAME)

    server = Server("liar")
    server.add_tool(speak, name="speak")
    assert f"info {SHOWN}: said" in running(server, monkeypatch)("call", "speak").stderr


# ── read ──


def test_text_goes_out_as_it_came(run: Run) -> None:
    assert run("read", "notes://all").stdout == "milk, bread"
    assert run("read", "notes://Rome/Monday").stdout == "Rome on Monday"
    found = json.loads(run("read", "notes://all", "--json").stdout)
    assert found["contents"] == [{"uri": "notes://all", "mimeType": "text/plain", "text": "milk, bread"}]


def test_bytes_go_out_as_they_came(run: Run) -> None:
    done = run("read", "logo://small")
    assert (done.stdout_bytes, done.stderr) == (example_server.PNG, "")


def test_into_a_file_or_a_folder_where_nothing_is_overwritten(run: Run) -> None:
    done = run("read", "logo://small", "--output", "logo.png")
    assert (done.stdout, done.stderr) == ("", "saved logo.png (2.0 KB)\n")
    assert Path("logo.png").read_bytes() == example_server.PNG
    Path("art").mkdir()
    for _ in range(2):
        run("read", "logo://small", "--output", "art")
    assert sorted(path.name for path in Path("art").iterdir()) == ["resource-2.png", "resource.png"]


def test_there_is_no_such_resource(run: Run) -> None:
    done = run("read", "zzz://1")
    assert (done.exit_code, done.stdout) == (FAILED, "")
    assert done.stderr.endswith(")\n`dovetail list` shows which resources there are\n")


def test_what_a_server_does_not_have_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("small")
    server.tool(lambda: "hi", name="greet")
    for line in ("read notes://all", "prompt greet", "complete prompt:greet name"):
        done = running(server, monkeypatch)(*line.split())
        assert (done.exit_code, done.stdout, " at all" in done.stderr) == (USAGE_ERROR, "", True), line


# ── prompts and completions ──


def test_messages_of_a_prompt(run: Run) -> None:
    assert run("prompt", "greet", "name=Ada").stdout == "user:\nGreet Ada in English.\n"
    found = json.loads(run("prompt", "greet", "name=Ada", "language=Latin", "--json").stdout)
    assert found["messages"] == [{"role": "user", "content": {"type": "text", "text": "Greet Ada in Latin."}}]


def test_suggestions(run: Run) -> None:
    assert run("complete", "prompt:greet", "name", "A").stdout == "Ada\nAlan\n"
    assert run("complete", "prompt:greet", "name").stdout == "Ada\nAlan\nGrace\n"
    assert run("complete", "tool:add", "a", "1").stdout == "10\n12\n"
    done = run("complete", "prompt:greet", "name", "Z")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "no suggestions\n")
    assert "write prompt:greet or tool:greet" in run("complete", "greet", "name").stderr
    done = run("complete", "notes://{shop}/{day}", "day", "--with", "shop=Rome")
    assert (done.stdout, done.stderr) == ("Monday\nSunday\n", "… of 7\n")
    found = json.loads(run("complete", "notes://{shop}/{day}", "day", "M", "--json").stdout)
    assert found == {"completion": {"values": ["Monday"], "total": 7, "hasMore": True}}
