"""Edits of other programs' configuration files: one entry comes and goes, and everything else stays, byte for byte."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cli.installing import edits
from dovetail.cli.installing.changes import difference, masked
from dovetail.cli.installing.edits import BOM, CantEdit, entry_in, names_in, with_entry, without_entry
from dovetail.cli.installing.jsonc import NotJson, parse

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


def section_of(path: Path) -> str:
    return "servers" if path.stem in ("vscode", "empty_section") else "mcpServers"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_an_entry_comes_and_goes(path: Path, variant: str) -> None:
    text, section = VARIANTS[variant](path.read_text()), section_of(path)
    added = with_entry(text, section, "weather", ENTRY)
    assert entry_in(added, section, "weather") == ENTRY
    assert names_in(added, section)[-1] == "weather"
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
    text = '{\n  "s": {\n    "x": {\n      "old": 1\n    }, // x\n    "b": {}\n  }\n}\n'
    assert with_entry(text, "s", "x", {"new": 2}) == text.replace('"old": 1', '"new": 2')


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
        edits._proved(parse(text), [edits._Change(place, place + len(old), new)], "s", "x", {})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", 1), ('{"a"}', 1), ('{"a": }', 1), ("{\n  a: 1\n}", 2), ('{"a": 1 "b": 2}', 1), ('{"a": "x\n"}', 1),
        ('{"a": 01}', 1), ('{"a": tru}', 1), ("{} {}", 1), ("{}\n/* open", 2), ('{"a": 1,,}', 1), ("{,}", 1),
        ("// only a comment", 1), ('{"a": "\\x"}', 1), ("[" * 300, 1), ("'a'", 1), ('{"a": NaN}', 1), ("[1 2]", 1),
    ],
)  # fmt: skip
def test_what_is_no_json_is_told_with_its_line(text: str, line: int) -> None:
    with pytest.raises(NotJson) as bad:
        parse(text)
    assert bad.value.line == line


# ── any document at all ──

SPACES = st.sampled_from(["", "", " ", "\n", "\n  ", "\t", "\r\n", "/* c */", " // c \n", "/*\n*/ ", "\n//\r\n"])
NAMES = st.sampled_from(["a", "b", "{", '"', "//", "ü", "mcp"])
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
def documents(draw: st.DrawFn) -> str:
    members = [(name, draw(values())) for name in draw(st.lists(NAMES, max_size=3))]
    if draw(st.booleans()):
        servers = [(name, draw(values())) for name in draw(st.lists(NAMES, max_size=3))]
        members.insert(draw(st.integers(0, len(members))), ("mcpServers", draw(objects(servers))))
    return draw(SPACES) + draw(objects(members)) + draw(SPACES)


def said(text: str) -> tuple[Any, list[str]]:
    """All that a document says, without its spaces and without a section that is empty."""
    document = parse(text.removeprefix(BOM))
    rows = [(member.name, member.value.same()) for member in document.root.members or ()]
    return [row for row in rows if row != ("mcpServers", ("object", ()))], [each.text for each in document.comments]


def nothing_is_lost(text: str) -> None:
    added = with_entry(text, "mcpServers", "weather", ENTRY)
    assert entry_in(added, "mcpServers", "weather") == ENTRY
    back = without_entry(added, "mcpServers", "weather")
    assert said(back) == said(text)
    if names_in(text, "mcpServers"):
        assert back == text


@given(documents())
def test_whatever_the_document_nothing_of_it_is_lost(text: str) -> None:
    nothing_is_lost(text)


@pytest.mark.soak
@settings(max_examples=4_000)
@given(documents())
def test_nothing_is_lost_of_many_documents(text: str) -> None:
    nothing_is_lost(text)


@given(documents(), st.data())
def test_any_entry_can_be_replaced(text: str, data: st.DataObject) -> None:
    names = names_in(text, "mcpServers")
    once = [name for name in names if names.count(name) == 1]
    if once:
        name = data.draw(st.sampled_from(once))
        changed = with_entry(text, "mcpServers", name, ENTRY)
        assert names_in(changed, "mcpServers") == names
        assert entry_in(changed, "mcpServers", name) == ENTRY


@given(documents(), st.data())
def test_any_entry_can_go(text: str, data: st.DataObject) -> None:
    names = names_in(text, "mcpServers")
    once = [name for name in names if names.count(name) == 1]
    if not once:
        return
    name = data.draw(st.sampled_from(once))
    left = without_entry(text, "mcpServers", name)
    assert names_in(left, "mcpServers") == [each for each in names if each != name]


@given(st.text(alphabet='{}[]",:/*\\ \n1atrue', max_size=40))
def test_any_text_is_either_read_or_refused(text: str) -> None:
    with suppress(NotJson):
        assert parse(text).root.end <= len(text)


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


# ── what a person sees ──


def test_secrets_are_hidden_also_those_of_others() -> None:
    text = (CONFIGS / "claude_desktop_config.json").read_text()
    assert "ghp_neverShowThis" not in masked(text)
    added = with_entry(text, "mcpServers", "weather", {"command": "x", "env": {"KEY": "hush"}})
    shown = "\n".join(difference(text, added, "config.json"))
    assert "hush" not in shown
    assert "neverShowThis" not in shown
    assert '+        "KEY": "***"' in shown
    assert difference(added, added.replace("hush", "psst"), "config.json") == []


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        ({"env": {"A": "hush", "n": 1}}, '{"env": {"A": "***", "n": 1}}'),
        ({"headers": {"X": "hush"}}, '{"headers": {"X": "***"}}'),
        ({"apiKey": "hush", "API-KEY": "hush"}, '{"apiKey": "***", "API-KEY": "***"}'),
        ({"args": ["--token", "hush", "on"]}, '{"args": ["--token", "***", "on"]}'),
        ({"args": ["--api-key=hush", "--port=80"]}, '{"args": ["--api-key=***", "--port=80"]}'),
        ({"args": ["Authorization: Bearer hush"]}, '{"args": ["Authorization: Bearer ***"]}'),
        ({"url": "https://me:hush@example.com/mcp?a=b"}, '{"url": "https://***@example.com/mcp?a=b"}'),
        ({"url": "https://example.com/mcp?key=hush&a=b"}, '{"url": "https://example.com/mcp?key=***&a=b"}'),
        ({"url": "https://example.com/mcp?token=hush"}, '{"url": "https://example.com/mcp?token=***"}'),
        ({"url": "https://example.com/@user/mcp"}, '{"url": "https://example.com/@user/mcp"}'),
        ({"secrets": ["hush", {"deep": "hush"}]}, '{"secrets": ["***", {"deep": "***"}]}'),
        ({"command": "x", "args": ["a@b", "-y"]}, '{"command": "x", "args": ["a@b", "-y"]}'),
    ],
)
def test_what_counts_as_a_secret(entry: dict[str, Any], shown: str) -> None:
    assert masked(json.dumps(entry)) == shown


def test_a_large_file_is_compared_where_it_changes() -> None:
    text = json.dumps({"history": [{"n": n} for n in range(5_000)], "mcpServers": {"a": {}}}, indent=2)
    added = with_entry(text, "mcpServers", "b", {"url": "x"})
    count = text.count("\n") + 1
    assert difference(text, added, "f") == [
        "--- f",
        "+++ f",
        f"@@ -{count - 4},5 +{count - 4},8 @@",
        "   ],",
        '   "mcpServers": {',
        '-    "a": {}',
        '+    "a": {},',
        '+    "b": {',
        '+      "url": "x"',
        "+    }",
        "   }",
        " }",
    ]
