"""What a terminal gets to see: colours, bars, columns, and no text that steers it."""

import asyncio
import io
import json
import os

import pytest

from dovetail.cli.ask import ask
from dovetail.cli.output import (
    ProgressLine,
    aligned,
    as_json,
    bar,
    cut,
    has_colours,
    in_line,
    plain,
    styled,
    width_of,
)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("screen", "variables", "expected"),
    [
        (Screen(), {}, True),
        (io.StringIO(), {}, False),
        (Screen(), {"NO_COLOR": "1"}, False),
        (Screen(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colours(
    screen: io.StringIO, variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ({"NO_COLOR": "", "FORCE_COLOR": "", "TERM": "xterm"} | variables).items():
        monkeypatch.setenv(name, value)
    assert has_colours(screen) is expected
    assert (styled("x", screen, fg="red") != "x") is expected
    assert styled("x", screen) == "x"


@pytest.mark.parametrize(
    ("progress", "total", "message", "line"),
    [
        (1, 2, None, "[###############---------------]  50%"),
        (0, 2, "a\nb\x1b[1m", "[------------------------------]   0% a b\N{REPLACEMENT CHARACTER}[1m"),
        (9, 2, "", "[##############################] 100%"),
        (-9, 2, "", "[------------------------------]   0%"),
        (5, None, "on", "… 5 on"),
        (5, 0, None, "… 5"),
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
    line = ProgressLine()
    line.show(1, 1)
    with line.held():
        before = screen.getvalue()
        assert before.endswith("\r\x1b[K")
        line.show(1, 1)
        assert screen.getvalue() == before
    line.show(1, 1, "on")
    assert screen.getvalue().endswith("100% on")
    line.clear()
    line.clear()
    assert screen.getvalue().endswith("100% on\r\x1b[K")


async def test_an_answer_where_no_loop_can_wait_for_the_keyboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""

    def refuse(*_given: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse)
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as keys, os.fdopen(writing, "wb", buffering=0) as hand:
        monkeypatch.setattr("sys.stdin", keys)
        hand.write("é\n".encode())
        assert await ask("? ") == "é"
        hand.close()
        assert await ask("? ") is None


def test_text_without_what_steers() -> None:
    assert plain("a\tb\nc\r\x1b[31m\x9b1m\u202e") == "a\tb\nc��[31m�1m�"
    assert in_line("a\n\n b\x07 ") == "a b�"
    assert in_line("word " * 1_000, 20) == "word word word word…"


@pytest.mark.parametrize("indent", [True, False])
def test_json_says_the_same_without_what_steers(indent: bool) -> None:
    value = {"a\x9b": ["\x1b[1m\x7f\u202e\n", 1.5, None]}
    text = as_json(value, indent=indent)
    assert not {"\x1b", "\x9b", "\x7f", "\u202e"} & set(text)
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("abc", 3),
        ("日本", 4),
        ("e\u0301", 1),
        ("a\u200db\u200bc", 3),
        ("😀", 2),
        ("\N{HEAVY BLACK HEART}\ufe0f", 2),
        ("\x1b[1mab\x1b[0m", 2),
    ],
)
def test_widths(text: str, width: int) -> None:
    assert width_of(text) == width


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("abcd", 4, "abcd"),
        ("abcde", 4, "abc…"),
        ("日本語", 6, "日本語"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("e\u0301" * 5, 5, "e\u0301" * 5),
        ("e\u0301" * 6, 5, "e\u0301" * 4 + "…"),
        ("😀😀😀", 5, "😀😀…"),
    ],
)
def test_texts_are_cut_by_columns(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown
    assert in_line(text, width) == shown


def test_a_bar_never_fills_more_than_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    for message in ("日本" * 50, "e\u0301" * 100, "😀" * 50, "x" * 100):
        line = ProgressLine()
        line.show(1, 2, message)
        drawn = screen.getvalue().rpartition("\x1b[K")[2]
        line.clear()
        assert 77 <= width_of(drawn) <= 79  # the last column would make some terminals begin another line


def test_columns() -> None:
    assert aligned([("a", "", "ccc"), ("\x1b[1mbb\x1b[0m", "", "c"), ("日本", "", "")]) == [
        "a     ccc",
        "\x1b[1mbb\x1b[0m    c",
        "日本",
    ]
    assert aligned([]) == []
