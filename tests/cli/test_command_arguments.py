"""`key=value` words and schemas: the parsed values, and the errors for invalid ones."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.given_arguments import GivenArguments, describe_type
from dovetail.cli.output import USAGE_ERROR, CommandExit
from stable_ids import stable

PLACE = {"type": "object", "properties": {"shop": {"type": "string"}, "floor": {"type": "integer"}}}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "whole": {"type": "integer"},
        "part": {"type": "number"},
        "on": {"type": "boolean"},
        "text": {"type": "string"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "either": {"type": ["integer", "string"]},
        "numbers": {"type": "array", "items": {"type": "integer"}},
        "texts": {"type": "array", "items": {"type": "string"}},
        "list_or_text": {"type": ["array", "string"], "items": {"type": "string"}},
        "size": {"enum": ["S", "M", 3, True]},
        "fixed": {"const": 7},
        "place": {"$ref": "#/$defs/Place"},
        "maybe_place": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        "free": {"type": "object"},
        "open": {"type": "object", "additionalProperties": True},
        "anything": {},
        "dotted.name": {"type": "integer"},
        "odd": True,
    },
    "$defs": {"Place": PLACE},
}


def read(*words: str, whole: str | None = None, schema: Any = SCHEMA) -> dict[str, Any]:
    return GivenArguments.from_words(words, whole).typed(schema, "buy")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["whole=5", "on=true", "text=5", "maybe=null"], {"whole": 5, "on": True, "text": "5", "maybe": None}),
        (["on=No", "text=", "either=5", "numbers=1"], {"on": False, "text": "", "either": 5, "numbers": [1]}),
        (["text=a=b", "numbers=1", "numbers=2"], {"text": "a=b", "numbers": [1, 2]}),
        (["texts=1", "texts=a", "list_or_text=a"], {"texts": ["1", "a"], "list_or_text": "a"}),
        (["list_or_text=a", "list_or_text=b", "fixed=7"], {"list_or_text": ["a", "b"], "fixed": 7}),
        (["size=3", "dotted.name=5", "odd=x"], {"size": 3, "dotted.name": 5, "odd": "x"}),
        (["size=true", "anything=5"], {"size": True, "anything": 5}),
        (["place.shop=1", "place.floor=1", "maybe_place.floor=1"],
         {"place": {"shop": "1", "floor": 1}, "maybe_place": {"floor": 1}}),
        (['place={"floor": 2}', "free.a.b=1"], {"place": {"floor": 2}, "free": {"a": {"b": 1}}}),
        (["anything=[1", 'text:="@x"'], {"anything": "[1", "text": "@x"}),
        (["anything=1e999", "numbers:=[1, null]"], {"anything": "1e999", "numbers": [1, None]}),
        (["whole:=1.5"], {"whole": 1.5}),  # raw JSON is the user's own business
    ],
    ids=stable,
)  # fmt: skip
def test_words_get_the_types_of_the_schema(words: list[str], expected: dict[str, Any]) -> None:
    found = read(*words)
    assert json.dumps(found) == json.dumps(expected)  # 1 is not 1.0, and not True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["whole=x"], "whole: expected integer, got 'x'"),
        (["whole=01"], "whole: expected integer, got '01'"),
        (["part=NaN"], "part: expected number"),
        (["on=maybe"], "on: expected boolean"),
        (["size=L"], "size: expected S|M|3|True, got 'L'"),
        (["place=Rome"], "place: expected object"),
        (["numbers=1", "numbers=x"], "numbers: expected integer, got 'x'"),
        (["text=1", "text=2"], "text: it is given 2 times, but takes string"),
        (["whoel=1"], "buy takes no whoel; did you mean whole?"),
        (["place.street=1"], "buy takes no place.street"),
        (["place.floor=1", "place={}"], "given twice"),
        (["whole:={"], "whole: this is not JSON"),
        (["part:=NaN"], "part: this is not JSON"),
        (['{"text": "a=b"}'], "--args takes all arguments as JSON"),
        (["text=@nowhere.txt"], "@nowhere.txt: No such file"),
        (["text=@ada"], """a text that begins with @, write 'text:="@ada"'"""),
        (["text=@/"], "@/: Is a directory"),
        (["part=1e999"], "part: expected number, got '1e999'"),
        (["part:=1e999"], "part: this is not JSON"),
        ([r'anything:="\ud800"'], "anything: this is not JSON"),
        (["wh\nole=1"], "buy takes no wh ole; did you mean whole?"),
    ],
    ids=stable,
)
def test_invalid_values_are_reported(words: list[str], message: str) -> None:
    with pytest.raises(CommandExit) as ended:
        read(*words)
    assert message in ended.value.message
    assert ended.value.exit_code == USAGE_ERROR


def test_missing_arguments_are_reported_with_all_parameters() -> None:
    schema = {
        "properties": {
            "a": {"type": "integer", "description": "The\nfirst \x1b[1m one."},
            "b": {"type": "array", "items": {"type": "string"}, "default": ["x"]},
        },
        "required": ["a"],
    }
    with pytest.raises(CommandExit) as ended:
        read(schema=schema)
    assert ended.value.message.splitlines() == [
        "buy needs a",
        "It takes:",
        "  a  integer         required       The first �[1m one.",
        '  b  list of string  default ["x"]',
    ]


def test_whole_arguments_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "arguments.json"
    file.write_text('{"whole": "x", "new": 1}')
    assert read("part=2", whole=f"@{file}") == {"whole": "x", "new": 1, "part": 2}
    for wrong in ("{", '{"part": 1e999}', '{"part": NaN}', "[" * 100_000, '{"text": "\udcff"}'):
        with pytest.raises(CommandExit, match="--args: this is not JSON"):
            read(whole=wrong)
    with pytest.raises(CommandExit, match="--args: a JSON object is needed"):
        read(whole="[1]")


def test_the_text_of_a_file_and_of_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("5")
    (tmp_path / "b").write_bytes(b"\xff")
    assert read(f"whole=@{tmp_path / 'a'}", f"text=@{tmp_path / 'a'}") == {"whole": 5, "text": "5"}
    with pytest.raises(CommandExit, match="no text in UTF-8"):
        read(f"text=@{tmp_path / 'b'}")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"five")))
    assert read("text=@-") == {"text": "five"}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    with pytest.raises(CommandExit, match="stdin: it is no text in UTF-8"):
        read("text=@-")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array", "items": {"type": ["integer", "string"]}}, "list of integer or string"),
        ({"type": "array"}, "list"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string"),
        ({"enum": list(range(20))}, "0|1|2|3|4|5|6|7|…"),
        ({}, "anything"),
    ],
    ids=stable,
)
def test_types_in_words(schema: dict[str, Any], words: str) -> None:
    assert describe_type(schema, schema) == words


def test_arguments_that_are_all_text() -> None:
    assert GivenArguments.from_words(["a=1", "b="]).texts() == {"a": "1", "b": ""}
    assert GivenArguments.from_words(["a=1"]).texts({"a": True, "b": False}, "greet") == {"a": "1"}
