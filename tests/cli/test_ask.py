"""The command line at a terminal: colours, bars and columns, questions, a yes before what destroys, and Ctrl-C."""

import asyncio
import io
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from command_stage import BIN, environment

from dovetail.cli import output
from dovetail.cli.ask import FormPrompt, ask
from dovetail.cli.output import DECLINED, INTERRUPTED, align, bar, one_line, truncate
from processes import wait_until

pytestmark = pytest.mark.long


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("screen", "variable", "expected"),
    [
        (Screen(), "ANY", True), (io.StringIO(), "ANY", False), (Screen(), "NO_COLOR", False),
        (Screen(), "TERM", False), (io.StringIO(), "FORCE_COLOR", True),
    ],
)  # fmt: skip
def test_colours(screen: Any, variable: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NO_COLOR": "", "FORCE_COLOR": "", "TERM": "xterm", variable: "dumb"}.items():
        monkeypatch.setenv(name, value)
    assert output.has_colours(screen) is expected
    assert (output.styled("x", screen, fg="red") != "x") is expected
    assert output.styled("x", screen) == "x"


@pytest.mark.parametrize(
    ("progress", "total", "message", "line"),
    [
        (1, 2, None, "[###############---------------]  50%"),
        (0, 2, "a\nb\x1b[1m", "[------------------------------]   0% a b\N{REPLACEMENT CHARACTER}[1m"),
        (9, 2, "", "[##############################] 100%"),
        (5, None, "on", "… 5 on"),
        (float("inf"), float("inf"), None, "… inf"),
    ],
)
def test_bars(progress: float, total: float | None, message: str | None, line: str) -> None:
    assert bar(progress, total, message) == line


def test_nothing_is_drawn_over_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    line = output.ProgressBar()
    line.show(1, 1)
    with line.paused():
        before = screen.getvalue()
        assert before.endswith("\r\x1b[K")
        line.show(1, 1)
        assert screen.getvalue() == before
    line.show(1, 1, "on")
    assert screen.getvalue().endswith("100% on")
    output.err("above")
    assert screen.getvalue().endswith("100% on\r\x1b[Kabove\n\r\x1b[K[##############################] 100% on")
    line.show(1, 2, "日本" * 50)
    line.draw()
    drawn = screen.getvalue().rpartition("\x1b[K")[2]
    assert 77 <= output.display_width(drawn) <= 79  # the last column would begin another line
    line.clear()
    assert screen.getvalue().endswith("\r\x1b[K")


async def test_an_answer_where_no_loop_can_wait_for_the_keyboard(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_given: object) -> None:
        raise NotImplementedError  # as on Windows

    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse)
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as keys, os.fdopen(writing, "wb", buffering=0) as hand:
        monkeypatch.setattr("sys.stdin", keys)
        hand.write("é\n".encode())
        assert await ask("? ") == "é"
        hand.close()
        assert await ask("? ") is None


def test_text_and_json_without_what_steers() -> None:
    assert output.sanitize("a\tb\nc\r\x1b[31m\x9b1m\u202e") == "a\tb\nc��[31m�1m�"
    assert one_line("a\n\n b\x07 ") == "a b�"
    assert one_line("word " * 1_000, 20) == "word word word word…"
    value = {"a\x9b": ["\x1b[1m\x7f\u202e\n", 1.5, None]}
    for text in (output.to_json(value, indent=True), output.to_json(value, indent=False)):
        assert not {"\x1b", "\x9b", "\x7f", "\u202e"} & set(text)
        assert json.loads(text) == value


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("abcd", 4, "abcd"), ("abcde", 4, "abc…"), ("日本語", 4, "日…"),
        ("e\u0301" * 5, 5, "e\u0301" * 5), ("e\u0301" * 6, 5, "e\u0301" * 4 + "…"),
    ],
)  # fmt: skip
def test_texts_are_cut_by_columns(text: str, width: int, shown: str) -> None:
    assert truncate(text, width) == one_line(text, width) == shown


def test_columns() -> None:
    rows = [("a", "", "ccc"), ("\x1b[1mbb\x1b[0m", "", "c"), ("日本", "", "")]
    assert align(rows) == ["a     ccc", "\x1b[1mbb\x1b[0m    c", "日本"]
    assert align([]) == []


@pytest.mark.parametrize(
    ("part", "needed", "says"),
    [
        ({"type": "boolean"}, True, "!decline and !cancel say no.\n"),
        ({"type": "boolean"}, False, "Enter leaves a field empty; !decline and !cancel say no.\n"),
        ({"type": "boolean", "default": True}, True, "Enter takes the default; !decline and !cancel say no.\n"),
    ],
)
async def test_the_help_of_a_form_says_what_goes_for_its_fields(
    part: dict[str, Any], needed: bool, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    form = FormPrompt({"type": "object", "properties": {"value": part}, "required": ["value"] if needed else []})
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as keys, os.fdopen(writing, "wb", buffering=0) as hand:
        monkeypatch.setattr("sys.stdin", keys)
        hand.write(b"y\n")
        assert await form.fill_in({}) == {"value": True}
    assert capsys.readouterr().err.startswith(says)


def test_short_lists_of_plain_values_are_on_one_line() -> None:
    rows = [["hat [old]", 1.5], ["coat", None]]
    value = {"columns": ["name", "sum"], "rows": rows, "empty": [], "long": [10**30] * 4}
    text = output.to_json(value, indent=True)
    assert json.loads(text) == value
    shown = ['  "columns": ["name", "sum"],', '    ["hat [old]", 1.5],', '    ["coat", null]', '  "empty": [],']
    assert [line for line in shown if line not in text.splitlines()] == []
    assert text.count("\n      1" + "0" * 30) == 0
    assert text.count("\n    1" + "0" * 30) == 4


# ── in a real terminal ──


STEERING = re.compile(r"\x1b(?!\[[0-9;]*[mK])|[\x00-\x06\x07\x0b\x0c\x0e-\x1a\x80-\x9f\u202a-\u202e]")
Type = Callable[..., Any]


@pytest.fixture
def terminal(folder: Path) -> Iterator[Type]:
    """Types a command into a terminal, and sees to its end."""
    opened: list[Any] = []

    def type_in(*words: str, width: int = 100, **env: str) -> Any:
        child = pexpect.spawn(
            str(BIN / "dovetail"), [*words], cwd=str(folder), timeout=20, encoding="utf-8",
            env=environment(**{"TERM": "xterm", **env}), dimensions=(40, width), echo=False,
        )  # fmt: skip
        opened.append(child)
        return child

    yield type_in
    for child in opened:
        child.close(force=True)


def ended(child: Any) -> tuple[int | None, str]:
    """The exit code, and what was still to be seen."""
    rest = child.read()
    child.wait() if child.isalive() else None
    child.close()
    return child.exitstatus, rest


def test_colours_and_columns(terminal: Type) -> None:
    code, seen = ended(terminal("list", "server.py", "tools"))
    assert code == 0
    assert "\x1b[36madd\x1b[0m " in seen
    assert "\x1b[31m[destructive, open-world]\x1b[0m Forget a note" in seen  # it says so itself
    assert "\x1b[33m[destructive, open-world]\x1b[0m Say it in fewer words" in seen  # and this one says nothing
    plain = re.sub(r"\x1b\[\d+m", "", seen)
    assert max(map(len, plain.splitlines())) <= 100


def test_progress_is_a_bar_that_goes_away_and_no_server_steers_the_terminal(terminal: Type) -> None:
    _, seen = ended(terminal("call", "server.py", "steer"))
    assert "safe \N{REPLACEMENT CHARACTER}[31mred" in seen
    assert not STEERING.search(seen.replace("\r\n", "\n"))
    child = terminal("call", "server.py", "bake", "minutes=2", "seconds=0.15", "--json")
    child.expect_exact("info oven: the oven is hot")
    child.expect(r"\[#{15}-{15}\]  50% baking")
    code, rest = ended(child)
    assert code == 0
    assert '\r\x1b[K{\r\n  "content": [' in rest  # on a line that was wiped, and indented for a person


NIGHTS = r"nights \(integer\): "
FORM = [  # what is to be seen, and what is typed then
    ("server.py asks: How would you like to stay\\?.*How long\\?", None),
    (NIGHTS, ""),  # it is needed
    ("expected integer.*" + NIGHTS, "many"),
    ("expected integer, got 'many'.*" + NIGHTS, "99"),
    ("nights.*14.*" + NIGHTS, "3"),
    (r" 1  single\r\n +2  double\r\n.*size \(number or name\) \[double\]: ", "1"),
    (r"breakfast \(yes or no\) \[yes\]: ", "n"),
    (r"email \(email\): ", "nobody"),
    (r"email.*nobody|nobody.*email", "ada@example.com"),
]


def test_a_form_is_asked_for_field_by_field(terminal: Type) -> None:
    child = terminal("call", "server.py", "book", "--revision", "2025-11-25")
    for seen, words in FORM:
        child.expect(seen)
        child.sendline(words) if words is not None else None
    code, rest = ended(child)
    assert (code, "3 nights, single, breakfast False, ada@example.com." in rest) == (0, True)


@pytest.mark.parametrize(("keys", "action"), [("!decline\n", "decline"), ("\x04", "cancel")], ids=["!decline", "^D"])
def test_a_form_can_be_refused(terminal: Type, keys: str, action: str) -> None:
    child = terminal("call", "server.py", "book")
    child.expect(r"nights \(integer\): ")
    child.send(keys)
    assert f"Nothing booked: {action}." in ended(child)[1]


@pytest.mark.parametrize(("key", "action", "opened"), [("y", "accept", True), ("", "decline", False)])
def test_a_page_is_opened_only_after_a_yes(terminal: Type, folder: Path, key: str, action: str, opened: bool) -> None:
    browser = folder / "browser.sh"
    browser.write_text('#!/bin/sh\necho "$1" > visited.txt\n')
    browser.chmod(0o755)
    child = terminal("call", "server.py", "visit", BROWSER=f"{browser} %s")
    child.expect_exact("https://example.com/sign-in")
    child.expect_exact("Open this page at example.com in the browser? [y/N] ")
    assert not (folder / "visited.txt").exists()
    child.sendline(key)
    assert ended(child)[1].endswith(f"{action}\r\n")
    assert (folder / "visited.txt").exists() is opened


def test_a_person_answers_for_the_model(terminal: Type) -> None:
    child = terminal("call", "server.py", "think", "--revision", "2025-11-25")
    child.expect(r"user: What is the capital of Italy\?.*  > ")
    child.sendline("Rome")
    assert ended(child)[1].endswith("Rome\r\n")


@pytest.mark.parametrize(("key", "code", "seen"), [("y", 0, "Forgot old."), ("", DECLINED, "forget was not called")])
def test_a_destructive_tool_is_called_only_after_a_yes(terminal: Type, key: str, code: int, seen: str) -> None:
    child = terminal("call", "server.py", "forget", "note=old")
    child.expect(r'note  "old".*Call it\? \[y/N\] ')
    child.sendline("what?")
    child.expect_exact("Please say y or n.")
    child.sendline(key)
    found, rest = ended(child)
    assert (found, seen in rest) == (code, True)


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_ctrl_c_cancels_the_call(terminal: Type, folder: Path, revision: str) -> None:
    child = terminal("call", "server.py", "bake", "minutes=1", "seconds=60", "--revision", revision)
    child.expect_exact("0% baking")
    child.sendintr()
    code, rest = ended(child)
    assert (code, "Traceback" in rest) == (INTERRUPTED, False)
    assert (folder / "cancelled.txt").read_text() == "the oven is off"


FILMS = """
import asyncio

from dovetail import Context, Server, TaskConfig

server = Server("films")


@server.tool(task=TaskConfig(poll_interval=0.05))
async def render(ctx: Context) -> None:
    await ctx.report_progress(1, 2, "Drawing")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        open("cancelled.txt", "w").close()
        raise
"""


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_ctrl_c_cancels_the_task_of_a_call_but_not_one_that_is_waited_for(
    terminal: Type, folder: Path, revision: str
) -> None:
    (folder / "films.py").write_text(FILMS)
    server = terminal("run", "films.py", "--transport", "http", "--port", "0")
    server.expect(r"serves MCP at (\S+)")
    url, pinned = server.match[1], ("--revision", revision)
    started = terminal("call", url, "render", "--background", *pinned)
    started.expect(r"([0-9a-f]{32})\r\n")
    id = started.match[1]
    for words in (("task", url, id, "--wait"), ("call", url, "render")):
        assert not (folder / "cancelled.txt").exists()
        child = terminal(*words, *pinned)
        child.expect_exact("Drawing (1/2)")
        child.sendintr()
        code, rest = ended(child)
        assert (code, "Traceback" in rest) == (INTERRUPTED, False)
    wait_until((folder / "cancelled.txt").exists)
    assert ended(terminal("task", url, id, *pinned))[1] == "working Drawing (1/2)\r\n"
