"""Edits of other programs' configuration files: one entry comes and goes, and everything else stays, byte for byte."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cli.installing import edits, jsonc
from dovetail.cli.installing.edits import BOM, CantEdit, ServerSection, merged
from dovetail.cli.installing.hosts import OWN_KEYS
from dovetail.cli.installing.jsonc import JsonMember, NotJson, TooDeep, parse

CONFIGS = Path(__file__).parent / "configs"
GOOD = sorted(path for path in CONFIGS.iterdir() if path.stem != "broken")
ENTRY = {"command": "/usr/bin/python3", "args": ["-m", "dovetail.cli", "run", "/srv/ü/server.py"], "env": {"A": "b"}}
VARIANTS = {
    "as it is": lambda text: text,
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "BOM": lambda text: BOM + text,
    "tabs": lambda text: text.replace("    ", "\t").replace("  ", "\t"),
    "no line end": lambda text: text.rstrip("\n"),
}


def with_entry(text: str, section: str, name: str, entry: dict[str, Any]) -> str:
    return ServerSection(text, section).with_entry(name, entry).text


def without_entry(text: str, section: str, name: str) -> str:
    return ServerSection(text, section).without_entry(name).text


def section_of(path: Path) -> str:
    return "servers" if path.stem in ("vscode", "empty_section") else "mcpServers"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_an_entry_comes_and_goes(path: Path, variant: str) -> None:
    text, section = VARIANTS[variant](path.read_text()), section_of(path)
    added = with_entry(text, section, "weather", ENTRY)
    assert ServerSection(added, section).entry("weather") == ENTRY
    assert ServerSection(added, section).names[-1] == "weather"
    assert added.count("\r\n") == (added.count("\n") if variant == "CRLF" else 0)
    assert added.startswith(BOM) == (variant == "BOM")
    back = without_entry(added, section, "weather")
    assert back == text or (path.stem in ("claude", "without_section") and said(back) == said(text))


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_only_whole_lines_are_added_to_a_document_of_lines(path: Path) -> None:
    text, section = path.read_text(), section_of(path)
    if "\n" not in text:
        return
    lines = set(with_entry(text, section, "weather", ENTRY).splitlines())
    assert len([line for line in text.splitlines() if line not in lines]) <= 1  # the one that needs a comma now


def test_the_layout_of_the_document_is_kept() -> None:
    assert with_entry('{\n\t"mcpServers": {\n\t\t"a": {}\n\t}\n}\n', "mcpServers", "b", {"url": "x"}) == (
        '{\n\t"mcpServers": {\n\t\t"a": {},\n\t\t"b": {\n\t\t\t"url": "x"\n\t\t}\n\t}\n}\n'
    )
    assert with_entry('{"mcpServers":{"a":{}}}', "mcpServers", "b", {"url": "x"}) == (
        '{"mcpServers":{"a":{}, "b": {"url": "x"}}}'
    )
    assert with_entry("{}", "servers", "b", {}) == '{\n  "servers": {\n    "b": {}\n  }\n}'
    assert with_entry("", "servers", "b", {}) == '{\n  "servers": {\n    "b": {}\n  }\n}\n'
    assert with_entry(f"{BOM}\r\n", "servers", "b", {}).startswith(f'{BOM}{{\r\n  "servers"')


def test_a_remark_on_the_line_before_stays_there() -> None:
    text = '{\n  "servers": {\n    "a": {} // first\n    // end\n  }\n}\n'
    added = with_entry(text, "servers", "b", {})
    assert added == '{\n  "servers": {\n    "a": {}, // first\n    "b": {}\n    // end\n  }\n}\n'
    assert without_entry(added, "servers", "b") == text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"s": {"x": 1, "b": 2}}', '{"s": { "b": 2}}'),
        ('{"s": {"a": 0, "x": 1, "b": 2}}', '{"s": {"a": 0, "b": 2}}'),
        ('{"s": {"a": 0, "x": 1}}', '{"s": {"a": 0}}'),
        ('{"s": {"a": 0, "x": 1,}}', '{"s": {"a": 0,}}'),
        ('{"s": {"x": 1}}', '{"s": {}}'),
        ('{"s": {"x": 1,}}', '{"s": {}}'),
        ('{"s": {\n  "x": 1\n}}', '{"s": {}}'),
        ('{"s": {\n  "x": 1,\n  "b": 2\n}}', '{"s": {\n  "b": 2\n}}'),
        ('{"s": { // of x\n "x": 1, "b": 2}}', '{"s": { // of x\n  "b": 2}}'),
        ('{"s": { // of x\n "x": 1}}', '{"s": { // of x\n }}'),
        ('{"s": {"x": 1 /* in */, /* out */ "b": 2}}', '{"s": { /* in */ /* out */ "b": 2}}'),
        (
            '{"s": {"a": 0 /* of a */, // then  \n "x": {"in": 1 // gone\n}\n}}',
            '{"s": {"a": 0 /* of a */ // then  \n}}',
        ),
        ('{"s": {"b": 2}}', '{"s": {"b": 2}}'),
        ('{"t": {"x": 2}}', '{"t": {"x": 2}}'),
        ("", ""),
    ],
)
def test_what_is_left_when_an_entry_goes(text: str, left: str) -> None:
    assert without_entry(text, "s", "x") == left
    assert with_entry(text, "s", "x", {"new": 1}) != text


def test_another_entry_of_the_name_is_replaced_in_its_place() -> None:
    text = '{\n  "s": {\n    "x": {\n      "url": 1\n    }, // x\n    "b": {}\n  }\n}\n'
    assert with_entry(text, "s", "x", {"command": 2}) == text.replace('"url": 1', '"command": 2')


def test_what_is_not_ours_in_an_entry_stays_as_it_is() -> None:
    text = """{
  "s": {
    "x": {
      "url": "https://old.example.com", // of the old one
      "disabled": false, // for now
      "headers": {"Old": "1"},
      /* in seconds */ "timeout": 1.10,
      "autoApprove": [
        "add", // harmless
      ],
    },
  },
}
"""
    edited = ServerSection(text, "s").with_entry("x", {"command": "c", "args": ["a"]})
    assert edited.lost_comments == 0
    assert (
        edited.text
        == """{
  "s": {
    "x": { // of the old one
      "disabled": false, // for now
      /* in seconds */ "timeout": 1.10,
      "autoApprove": [
        "add", // harmless
      ],
      "command": "c",
      "args": [
        "a"
      ],
    },
  },
}
"""
    )


def test_a_key_that_is_already_right_is_not_touched() -> None:
    text = '{"s": {"x": {"command": "c", "env": {"A": "1" /* one */}, "args": ["a", /* first */ "b"]}}}'
    edited = ServerSection(text, "s").with_entry("x", {"command": "c", "args": ["z"], "env": {"A": "1"}})
    assert edited.text == text.replace('["a", /* first */ "b"]', '["z"]')
    assert edited.lost_comments == 1


def test_an_entry_that_says_something_twice_is_left_alone() -> None:
    with pytest.raises(CantEdit, match='"env" more than once'):
        with_entry('{"s": {"x": {"env": {}, "env": {"A": "b"}}}}', "s", "x", ENTRY)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "no object"),
        ('{"s": []}', "is no object"),
        ('{"s": null}', "is no object"),
        ('{"s": {}, "s": {}}', "more than once"),
        ('{"s": {"x": 1, "x": 2}}', "more than once"),
    ],
)
def test_what_can_not_be_edited_is_left_alone(text: str, words: str) -> None:
    for edit in (lambda: with_entry(text, "s", "x", {}), lambda: without_entry(text, "s", "x")):
        with pytest.raises(CantEdit, match=words):
            edit()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"a": 0', '"a": 1', "more than this entry"),
        ('"a": 0,', "", "more than this entry"),
        ("1.10", "1.1", "more than this entry"),
        ('"t": 1.10, "u": 2', '"u": 2, "t": 1.10', "more than this entry"),
        ("// kept", "// other", "a comment"),
        ("/* too */", "", "a comment"),
        ('"x": {}', '"x": {"more": 1}', "what was asked for"),
        ('"x": {}', "", "what was asked for"),
        ('"u": 2', '"u": 2 3', "broken"),
    ],
)
def test_an_edit_that_does_more_than_it_should_is_not_given_out(old: str, new: str, words: str) -> None:
    text = '{"s": {"a": 0, "x": {}}, // kept\n"t": 1.10, "u": 2 /* too */}'
    place = text.index(old)
    with pytest.raises(CantEdit, match=words):
        edits._proved(parse(text, "s"), [edits._Change(place, place + len(old), new)], "s", "x", {})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", 1), ('{"a"}', 1), ('{"a": }', 1), ("{\n  a: 1\n}", 2), ('{"a": 1 "b": 2}', 1), ('{"a": "x\n"}', 1),
        ('{"a": 01}', 1), ('{"a": tru}', 1), ("{} {}", 1), ("{}\n/* open", 2), ('{"a": 1,,}', 1), ("{,}", 1),
        ("// only a comment", 1), ('{"a": "\\x"}', 1), ("'a'", 1), ('{"a": NaN}', 1), ("[1 2]", 1),
    ],
)  # fmt: skip
def test_what_is_no_json_is_told_with_its_line(text: str, line: int) -> None:
    with pytest.raises(NotJson) as bad:
        parse(text)
    assert bad.value.line == line


@pytest.mark.parametrize("middle", ["1,", '{"a": 1,}'])
def test_what_is_too_deep_is_not_called_broken(middle: str) -> None:
    with pytest.raises(TooDeep, match="nested too deep, more than 200 levels at line 2"):
        parse('{"a":\n' + "[" * 250 + middle + "]" * 250 + "}")
    with pytest.raises(TooDeep):
        parse("[" * 100_000 + "]" * 100_000)


def test_depth_that_a_machine_has_written_does_not_matter() -> None:
    text = '{"a": ' + "[" * 250 + "]" * 250 + ', "s": {}}'
    assert ServerSection(with_entry(text, "s", "x", ENTRY), "s").names == ["x"]


# ── any document at all ──

SPACES = st.sampled_from(["", "", " ", "\n", "\n  ", "\t", "\r\n", "/* c */", " // c \n", "/*\n*/ ", "\n//\r\n"])
NAMES = st.sampled_from(["a", "b", "{", '"', "//", "ü", "mcp"])
KEYS = st.sampled_from([*OWN_KEYS, "disabled", "timeout", "//", "ü"])
SCALARS = st.sampled_from(["1", "-1.50e3", "true", "null", '""', '"a // b"', '"/* \\" */"', "12345678901234567890"])


@st.composite
def values(draw: st.DrawFn, depth: int = 2) -> str:
    kind = draw(st.sampled_from(["scalar", "object", "array"])) if depth else "scalar"
    if kind == "scalar":
        return draw(SCALARS)
    if kind == "object":
        names = draw(st.lists(NAMES, max_size=3))
        return draw(objects([(name, draw(values(depth - 1))) for name in names]))
    items = [draw(SPACES) + draw(values(depth - 1)) + draw(SPACES) for _ in range(draw(st.integers(0, 2)))]
    trailing = "," + draw(SPACES) if items and draw(st.booleans()) else ""
    return "[" + (",".join(items) or draw(SPACES)) + trailing + "]"


@st.composite
def objects(draw: st.DrawFn, members: list[tuple[str, str]]) -> str:
    rows = [
        draw(SPACES) + json.dumps(name) + draw(SPACES) + ":" + draw(SPACES) + value + draw(SPACES)
        for name, value in members
    ]
    trailing = "," + draw(SPACES) if rows and draw(st.booleans()) else ""
    return "{" + (",".join(rows) or draw(SPACES)) + trailing + "}"


@st.composite
def entries(draw: st.DrawFn) -> str:
    """What may stand under the name of a server, sensible or not."""
    keys = draw(st.lists(KEYS, max_size=4, unique=True))
    return draw(objects([(key, draw(values(1))) for key in keys])) if draw(st.booleans()) else draw(values())


@st.composite
def documents(draw: st.DrawFn) -> str:
    members = [(name, draw(values())) for name in draw(st.lists(NAMES, max_size=3))]
    if draw(st.booleans()):
        servers = [(name, draw(entries())) for name in draw(st.lists(NAMES, max_size=3))]
        members.insert(draw(st.integers(0, len(members))), ("mcpServers", draw(objects(servers))))
    return draw(SPACES) + draw(objects(members)) + draw(SPACES)


def said(text: str) -> tuple[Any, list[str]]:
    """All that a document says, without the spaces between its entries and without a section that is empty."""
    document = parse(text.removeprefix(BOM), "mcpServers")
    rows = [(member.name, written(text, member)) for member in document.root.members or ()]
    return [row for row in rows if row != ("mcpServers", [])], [each.text for each in document.comments]


def written(text: str, member: JsonMember) -> Any:
    if member.name == "mcpServers":
        return [written(text, each) for each in member.value.members or ()]
    return member.name, text.removeprefix(BOM)[member.value.start : member.value.end]


def nothing_is_lost(text: str) -> None:
    added = with_entry(text, "mcpServers", "weather", ENTRY)
    assert ServerSection(added, "mcpServers").entry("weather") == ENTRY
    back = without_entry(added, "mcpServers", "weather")
    assert said(back) == said(text)
    if ServerSection(text, "mcpServers").names:
        assert back == text


@given(documents())
def test_whatever_the_document_nothing_of_it_is_lost(text: str) -> None:
    nothing_is_lost(text)


@pytest.mark.soak
@settings(max_examples=4_000)
@given(documents())
def test_nothing_is_lost_of_many_documents(text: str) -> None:
    nothing_is_lost(text)


def an_entry_is_replaced(text: str, data: st.DataObject) -> None:
    before = ServerSection(text, "mcpServers")
    once = [name for name in before.names if before.names.count(name) == 1]
    if not once:
        return
    name = data.draw(st.sampled_from(once))
    edited = before.with_entry(name, ENTRY)
    after = ServerSection(edited.text, "mcpServers")
    assert after.names == before.names
    assert after.entry(name) == merged(before.entry(name), ENTRY)
    for other in once:
        assert other == name or after.entry(other) == before.entry(other)
    assert len(said(text)[1]) - len(said(edited.text)[1]) == edited.lost_comments >= 0
    assert without_entry(text, "mcpServers", name) == without_entry(edited.text, "mcpServers", name)


@given(documents(), st.data())
def test_any_entry_can_be_replaced(text: str, data: st.DataObject) -> None:
    an_entry_is_replaced(text, data)


@pytest.mark.soak
@settings(max_examples=4_000)
@given(documents(), st.data())
def test_many_entries_can_be_replaced(text: str, data: st.DataObject) -> None:
    an_entry_is_replaced(text, data)


@pytest.mark.parametrize(
    ("text", "comments"),
    [
        ('{"//": "/* a */" /* "b" */, "c": "\\"//" // "d"\n}', ['/* "b" */', '// "d"']),
        ("{/**//***///\n}", ["/**/", "/***/", "//"]),
        ("// a\r\n{} /* b\nc */", ["// a", "/* b\nc */"]),
    ],
)
def test_comments_are_told_from_strings(text: str, comments: list[str]) -> None:
    assert [comment.text for comment in parse(text).comments] == comments


@pytest.mark.parametrize("text", ['{"a": "x /* \\q */ y"}', '{"a": "x // \n y"}', "{} /", '{"a" / 1}', "{} /*/"])
def test_what_only_looks_like_a_comment_helps_nobody(text: str) -> None:
    with pytest.raises(NotJson):
        parse(text)


@given(documents(), st.data())
def test_any_entry_can_go(text: str, data: st.DataObject) -> None:
    names = ServerSection(text, "mcpServers").names
    once = [name for name in names if names.count(name) == 1]
    if not once:
        return
    name = data.draw(st.sampled_from(once))
    left = without_entry(text, "mcpServers", name)
    assert ServerSection(left, "mcpServers").names == [each for each in names if each != name]


@given(st.text(alphabet='{}[]",:/*\\ \n1atrue', max_size=40))
def test_any_text_is_either_read_or_refused(text: str) -> None:
    with suppress(NotJson):
        assert parse(text).root.end <= len(text)


@given(documents())
def test_looking_closer_shows_the_same(text: str) -> None:
    """What is read in great steps ends where it ends for who looks at each sign of it."""
    quick, slow = parse(text), jsonc._Reader(jsonc._apart(text)[0], None)
    slow._stop = len(text)  # no great steps
    slow.skip()
    root = slow.value(jsonc.MAX_DEPTH, 3)
    assert (root.start, root.end) == (quick.root.start, quick.root.end)
    pairs = list(zip(root.members or (), quick.root.members or (), strict=True))
    assert all((one.name, one.comma, *one.value[:2]) == (two.name, two.comma, *two.value[:2]) for one, two in pairs)
    assert root.meaning() == quick.root.meaning()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_all_json_is_read(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=1, ensure_ascii=False)):
        assert parse(text).root.end == len(text)
