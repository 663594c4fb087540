"""The reader of front matter: held against the YAML library that the official suite uses, and against PyYAML."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import nodejs
from dovetail.extensions.frontmatter import MAX_CHARACTERS, FrontMatterError, read_front_matter

# Values, and pieces of text to break them with.
VALUES = [
    *(
        "word",
        "two words",
        "a: b",
        "it's",
        '"quoted"',
        '"a\\n b"',
        "'s'",
        "'it''s'",
        "1",
        "-3.5",
        "+7",
        "true",
        "no",
        "~",
    ),
    *("[a, b]", '{a: b, "c":d}', "[]", "{}", '[{a: [1]}, "x"]', "http://a/b#c", "a #c", "a#c", "2020-01-01", "012"),
    *(
        "",
        "# only",
        "- x",
        "0b1",
        "0x1f",
        "1e3",
        ".5",
        "1_000",
        "12:30",
        ".inf",
        "x:y",
        "a - b",
        "-x",
        "?x",
        ":x",
        "=",
        "Null",
    ),
    *(
        "a\n   more\n\n   less",
        "|\n   a\n \n   b",
        "a\n \n",
        '"a\n   b \\\n   c"',
        "'a\n\n   b'",
        "[a,\n   b]",
        '{a: 1,\n   b: "x: y"}',
        "a # c\n   b",
    ),
    *(
        "|\n   l1\n    l2\n\n   l3",
        ">-\n   f1\n   f2\n\n    deep\n   f3",
        ">\n\n   x\n\n",
        "|-\n   a: b",
        ">+\n   x\n\n",
    ),
    *(
        "[a b, c d ,\"e\" , 'f']",
        '"\\x41\\u0042\\U0001f600"',
        "[:a]",
        "*a",
        "&a b",
        "!!str 1",
        "012345678901234567890123",
    ),
]
KEYS = ["a", "b", "c d", '"q"', "'s'", "k-e_y", "x.y/z", "yes", "on", "1", "null", "<<", "b"]
PIECES = [
    *(
        "\n",
        "\n  ",
        "\n - i",
        ": ",
        ":",
        "- ",
        "-",
        "#",
        " #c",
        "[",
        "]",
        "{",
        "}",
        ", ",
        '"',
        "'",
        "|",
        ">",
        "  ",
        "? ",
    ),
    *(
        "&a ",
        "*a",
        "!t ",
        "---",
        "...",
        "%",
        "@",
        "`",
        "<<: ",
        "\\",
        "\\u00e9",
        "é",
        "\n\n",
        "\\\n",
        " \n",
        "\t",
        "\r\n",
    ),
]


def make_text(dice: random.Random) -> str:
    """A YAML mapping, broken in two of five cases."""

    def value(indent: int, depth: int) -> str:
        kind = dice.random() if depth else 1
        if kind < 0.2:
            return "\n" + mapping(indent + dice.choice([1, 2, 4]), depth - 1)
        if kind < 0.4:
            return "\n" + sequence(indent + dice.choice([0, 1, 2]), depth - 1)
        return " " + dice.choice(VALUES).replace("\n   ", "\n" + " " * (indent + 3))

    def mapping(indent: int, depth: int) -> str:
        return "\n".join(f"{' ' * indent}{dice.choice(KEYS)}:{value(indent, depth)}" for _ in range(dice.randint(1, 3)))

    def sequence(indent: int, depth: int) -> str:
        items = (mapping(indent + 2, depth) if dice.random() < 0.2 else "" for _ in range(dice.randint(1, 3)))
        return "\n".join(f"{' ' * indent}-{' ' + item.strip() if item else value(indent, depth)}" for item in items)

    text = mapping(0, 3)
    for _ in range(dice.choice([0, 0, 0, 1, 2])):
        at = dice.randrange(len(text) + 1)
        text = text[:at] + dice.choice(PIECES) + text[at + dice.choice([0, 0, 1, 2]) :]
    return text


def read(body: str) -> Any:
    return read_front_matter(f"---\n{body}\n---\n").fields


def test_what_is_read_is_what_npm_yaml_reads_and_pyyaml_too_unless_it_is_ambiguous(tmp_path: Path) -> None:
    nodejs.demand()
    dice = random.Random(2640)
    texts = [make_text(dice) for _ in range(8_000)]
    path = tmp_path / "texts.json"
    path.write_text(json.dumps(texts))
    compared = ambiguous = 0
    for text, theirs in zip(texts, nodejs.run("yaml.mjs", str(path))["read"], strict=True):
        try:
            ours = read_front_matter(f"---\n{text}\n---\n")
        except FrontMatterError:
            continue
        if text.startswith("---") or "\n---" in text:
            continue  # it ends earlier for us
        assert plain(ours.fields) == plain(theirs.get("value")), text
        if ours.ambiguous:
            ambiguous += 1
        else:
            assert yaml.safe_load(f"{text}\n") == ours.fields, text
            compared += 1
    assert compared > 500
    assert ambiguous > 200


def plain(value: Any) -> str:
    """As JSON, with the one type of numbers that JavaScript has; so true is not 1."""

    def number(each: Any) -> Any:
        if isinstance(each, dict):
            return {key: number(inner) for key, inner in each.items()}
        if isinstance(each, list):
            return [number(inner) for inner in each]
        return float(each) if type(each) is int else each

    return json.dumps(number(value), sort_keys=True)


@given(st.lists(st.sampled_from(PIECES + VALUES + KEYS + ["\n   "]), max_size=30).map("".join) | st.text())
def test_any_text_is_read_or_refused_with_a_line(text: str) -> None:
    try:
        fields = read(text)
    except FrontMatterError as problem:
        assert str(problem).startswith("line ")  # noqa: PT017
    else:
        json.dumps(fields, allow_nan=False).encode()


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ("a: b", {"a": "b"}),
        ("a:\n- b\n-  - c\n   - d\n- e: f\n  g:", {"a": ["b", ["c", "d"], {"e": "f", "g": None}]}),
        ("a: >-\n  one\n  two\n\n  three\n   deeper\n  four", {"a": "one two\nthree\n deeper\nfour"}),
        ("b: |\n  x\n\n  y\n\n", {"b": "x\n\ny\n"}),
        ('a: "x\\ty\n   z"\nb: \'it\'\'s\n  one\'', {"a": "x\ty z", "b": "it's one"}),
        ('a: [1, -2.5, "x",\n  y ]\nb: {k: v, "n":1} # c', {"a": [1, -2.5, "x", "y"], "b": {"k": "v", "n": 1}}),
        ('a:\n  {\n    "b": { "c": [[d], {}], },\n  }', {"a": {"b": {"c": [["d"], {}]}}}),
        ("a: [true, FALSE, ~, null]", {"a": [True, False, None, None]}),
        ("a: one\n  - two\n\nb:\n  below # end", {"a": "one - two", "b": "below"}),
        ("# c\n\na: b # c\n  # d\nc: d#e\n", {"a": "b", "c": "d#e"}),
        ("a: []\nb: {}\nc: [x, ]\nd: {e: f, }", {"a": [], "b": {}, "c": ["x"], "d": {"e": "f"}}),
        ('a: "\\u0000\\ud7ff\\/\\b"', {"a": "\0\ud7ff/\b"}),
        ("a:\n-\n  - b\n-\n  c: d\n-\ne:", {"a": [["b"], {"c": "d"}, None], "e": None}),
        ("a:\n  b:\n    c: d\n\n  e: f", {"a": {"b": {"c": "d"}, "e": "f"}}),
        ("a: x\r\nb: |\r\n  y\r\n  z\r\n", {"a": "x", "b": "y\nz\n"}),
        ("x.y/z: http://a/b?c=d\n\"1\": '2'", {"x.y/z": "http://a/b?c=d", "1": "2"}),
    ],
)  # fmt: skip
def test_values(body: str, fields: Any) -> None:
    assert read(body) == fields


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("a: b\na: c", "line 3: there is 'a' already"),
        ("a: &x b", "line 2: a value can't begin with '&' here; put it in quotes"),
        ("a: *x", r"begin with '\*'"),
        ("a: !!str 1", "begin with '!'"),
        ("<<: {a: b}", "the key '<<' is no string"),
        ("1: a", "the key 1 is no string"),
        ("? a\n: b", r"line 2: write key: value"),
        ("a: Use it when: always", "line 2: the value is followed by something else; put the whole of it in quotes"),
        ("a: b\n  c: d", "line 2: the value is followed by something else"),
        ("a:\n    b: c\n  d: e", "line 4: the line is indented differently"),
        ("a: 'b", "closing quote is missing"),
        ("a: 'b\n\n  c'", "closing quote is missing"),
        ("a: [b", "a bracket, comma or key: is missing"),
        ("a: b # c\n  d", "a value of several lines has a # in it"),
        ("a: |\n   b\n  c", "line 2: a line of the text below is indented more"),
        ("a: |\n  b\n   \n  c", "line 2: a line of the text below is indented more"),
        ("a: b\n\n  c", "line 4: the line is indented differently"),
        ("a: [b c: d]", "a bracket, comma or key: is missing"),
        ("a: {b}", "a bracket, comma or key: is missing"),
        ("a: [b? c]", r"a value can't begin with '\?' here"),
        ("a: [b,\nc]", "line 2: a bracket, comma or key: is missing"),
        ("a: [b]x", "a bracket, comma or key: is missing"),
        ("a: [&b c]", "a value can't begin with '&'"),
        ("a: {b: 1, b: 2}", "there is 'b' already"),
        ("a: {<<: {b: c}}", "the key '<<' is no string"),
        ("a: {1: b}", "a bracket, comma or key: is missing"),
        ("a: ['b]", "closing quote is missing"),
        ('a: "b\nc"', "line 2: its closing quote is missing"),
        ("a:\tb", "line 2: a tab or another invisible character"),
        ("a: b\u2028c", "invisible"),
        ("a: b\n---x\n... \nc: d", "only one document"),
        ('a: "\\q"', "an escape that JSON has not"),
        ('a: "\\ud83d\\ude00"', "an escape that JSON has not"),
        ("a: .nan", "is no decimal number"),
        ("a: 0x1f", "is no decimal number"),
        ("a: 9007199254740993", "too large for JSON"),
        ("a: 1e999", "too large for JSON"),
        ("a: |2\n    b", "a digit or . is not possible"),
        ("- a", "line 2: write key: value"),
        ("just words", "line 2: write key: value"),
        ("# nothing", "line 3: it is empty"),
        (f"a: {'[' * 10_000}", "more than 100 brackets"),
        ("\n".join(f"{' ' * depth}a:" for depth in range(10_000 // 60)), "indented by more than 40 spaces"),
        (f"a: {'- ' * 10_000}", "can't begin"),
        (f"a:\n{'- ' * 10_000}", "indented by more than 40 spaces"),
        (f"a: {'x' * MAX_CHARACTERS}", "ends with another, within 65,536 characters"),
    ],
)
def test_what_is_refused_says_its_line_and_the_fix(body: str, problem: str) -> None:
    with pytest.raises(FrontMatterError, match=problem):
        read(body)


@pytest.mark.parametrize(
    "text", ["", "# Title\n---\n", "--- \na: b\n---\n", " ---\na: b\n---", "---\na: b\n", "---\n---\n"]
)
def test_front_matter_is_between_two_lines(text: str) -> None:
    with pytest.raises(FrontMatterError, match="line 1: front matter begins with a line ---"):
        read_front_matter(text)


def test_a_long_text_of_digits_is_read_in_one_pass() -> None:
    text = "1_" * 32_000
    assert read_front_matter(f"---\na: {text}x\n---").ambiguous == []
    assert len(read_front_matter(f"---\na: {text}\n---").ambiguous) == 1


def test_plain_scalars_that_yaml_1_1_reads_otherwise_are_reported() -> None:
    plain = ["yes", "no", "On", "y", "012", "1_000", "12:30", "1e3", "0b11", "2026-07-28", "=", "0o14"]
    for text in plain[:-1]:
        assert read_front_matter(f"---\na: {text}\n---").ambiguous == [f"line 2: {text}"]
        assert read_front_matter(f"---\na: '{text}'\n---").ambiguous == []
    assert read_front_matter("---\non: b\nversion: 1.0\nlicense: MIT\n---").ambiguous == ["line 2: on"]
    assert read("a: 012\nb: yes\nc: 1e3") == {"a": 12, "b": "yes", "c": 1000.0}
