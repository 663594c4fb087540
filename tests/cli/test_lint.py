"""`dovetail lint`: each rule finds what it is for and nothing else, and the command can fail a build."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_stage import Run, furnish, running, spawned, typed
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail import Client, Server
from dovetail.cli.lint import Catalogue, findings_of, tokens
from dovetail.cli.lint.rules import LEVELS, RULES, Finding, RuleChoice, at_least, is_chosen
from dovetail.cli.lint.schemas import parts

TEXT = {"type": "string", "description": "A text."}


def tool(name: str = "bake", properties: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """One without any fault, but for what is given."""
    schema = {"type": "object", "properties": {"what": TEXT} if properties is None else properties}
    return {"name": name, "description": "Bake it.", "inputSchema": schema, **more}


def schema(**keywords: Any) -> dict[str, Any]:
    return tool(inputSchema={"type": "object", "properties": {"what": TEXT}, **keywords})


def one(**keywords: Any) -> dict[str, Any]:
    """A tool with one parameter of that schema."""
    return tool(properties={"x": {"description": "It.", **keywords}})


def tools(*definitions: dict[str, Any], **more: Any) -> Catalogue:
    return Catalogue(tools=definitions, **more)


def deep(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        inner = {"type": "object", "properties": {"in": inner}}
    return {**inner, "description": "Deep."}


BROKEN = [
    ("list-malformed", Catalogue(malformed=[("tools", "an object in the place of a list")]), "an object"),
    ("name-characters", tools(tool("shop.bake")), "'.'"),
    ("name-characters", tools(tool("bäcker")), "'ä'"),
    ("name-start", tools(tool("3d_print")), ""),
    ("name-length", tools(tool("b" * 65)), "65 characters"),
    ("name-prefixed", tools(tool("b" * 51), server="a_bakery!"), ""),
    ("name-prefixed", tools(tool("b" * 59), server="g"), "60 characters with g"),
    ("name-missing", tools({"inputSchema": {"type": "object", "properties": {}}, "description": "x"}), ""),
    ("name-duplicate", tools(tool("bake"), tool("bake")), "bake"),
    ("name-similar", tools(tool("bake_cake"), tool("bakeCakes")), "bakeCakes"),
    ("schema-type", tools({"name": "a", "description": "x"}), "no inputSchema"),
    ("schema-type", tools(tool(inputSchema={"properties": {}})), "null"),
    ("schema-type", tools(tool(inputSchema={"type": "array", "items": {}, "properties": {}})), '"array"'),
    ("schema-union", tools(schema(anyOf=[{"required": ["what"]}])), "anyOf"),
    ("schema-union", tools(schema(oneOf=[{}])), "oneOf"),
    ("schema-union", tools(schema(allOf=[{}])), "allOf"),
    ("schema-ref", tools(tool(inputSchema={
        "type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": TEXT}})), "x"),
    ("schema-ref-broken", tools(one(**{"$ref": "#/$defs/X"})), '"#/$defs/X"'),
    ("schema-ref-broken", tools(one(**{"$ref": "https://example.com/schema"})), "example.com"),
    ("schema-ref-broken", tools(tool(outputSchema={"type": "object", "items": {"$ref": "#/no"}})), "outputSchema"),
    ("schema-items", tools(one(type="array")), "x"),
    ("schema-items", tools(one(type=["array", "null"])), "x"),
    ("schema-property-name", tools(tool(properties={"filter[id]": TEXT})), '"filter[id]"'),
    ("schema-property-name", tools(tool(properties={"a" * 65: TEXT})), ""),
    ("schema-required", tools(schema(required=["what", "whom"])), '"whom"'),
    ("schema-properties", tools(tool(inputSchema={"type": "object"})), "it has none"),
    ("schema-properties", tools(one(type="object")), "x"),
    ("schema-properties", tools(one(type="object", properties={})), "x"),
    ("schema-boolean", tools(tool(properties={"x": True})), "x"),
    ("schema-boolean", tools(tool(outputSchema={"type": "object", "properties": {"y": True}})), "outputSchema y"),
    ("schema-untyped", tools(one()), "x"),
    ("schema-pattern", tools(one(type="string", pattern="(")), "("),
    ("schema-format", tools(one(type="string", format="email")), "email"),
    ("schema-keyword", tools(one(type="integer", exclusiveMinimum=0)), "exclusiveMinimum"),
    ("schema-keyword", tools(schema(**{"if": {}})), "if"),
    ("schema-enum", tools(one(enum=[1, 2])), "x"),
    ("schema-map", tools(one(type="object", additionalProperties={"type": "string"})), "x"),
    ("schema-depth", tools(tool(properties={"x": deep(11)})), "12 levels"),
    ("schema-size", tools(tool(properties={f"p{n}": {"type": "null", "description": "x"} for n in range(5_001)})), ""),
    ("output-type", tools(tool(outputSchema={"type": "array", "items": {}}), objects_only=True), '"array"'),
    ("tool-description", tools(tool(description=" ")), ""),
    ("parameter-description", tools(tool(properties={"x": {"type": "string"}})), "x"),
    ("description-length", tools(tool(description="x" * 1_025)), "1025 characters"),
    ("hint-destructive", tools(tool("delete_note")), ""),
    ("hint-destructive", tools(tool("noteDelete")), ""),
    ("hint-read-only", tools(tool("get_note")), ""),
    ("hint-contradiction", tools(tool(annotations={"readOnlyHint": True, "destructiveHint": True})), ""),
    ("hint-contradiction", tools(tool("delete_note", annotations={"readOnlyHint": True})), "delete"),
    ("uri-invalid", Catalogue(resources=[{"uri": "no uri", "mimeType": "a/b"}]), ""),
    ("uri-duplicate", Catalogue(resources=[{"uri": "a://b", "mimeType": "a/b"}] * 2), ""),
    ("template-malformed", Catalogue(templates=[{"uriTemplate": "a://{b", "mimeType": "a/b"}]), ""),
    ("template-unmatchable", Catalogue(templates=[{"uriTemplate": "a://{b}{c}", "mimeType": "a/b"}]), ""),
    ("template-unmatchable", Catalogue(templates=[{"uriTemplate": "a://b", "mimeType": "a/b"}]), "no variables"),
    (
        "template-unsafe",
        Catalogue(
            templates=[{"uriTemplate": "a://{b}/{c}", "mimeType": "a/b", "_meta": {"dovetail/unsafe": ["b", "c"]}}]
        ),
        "b, c",
    ),
    ("mime-type", Catalogue(resources=[{"uri": "a://b"}]), ""),
    ("icon-source", tools(tool(icons=[{"src": "http://example.com/i.png"}])), "http"),
    ("prompt-description", Catalogue(prompts=[{"name": "p"}]), ""),
    ("argument-description", Catalogue(prompts=[{"name": "p", "description": "x", "arguments": [{"name": "a"}]}]), "a"),
    ("tool-count", tools(*(tool(f"a{n}x") for n in range(41))), "41 tools"),
    ("tool-count-limit", tools(*(tool(f"a{n}x") for n in range(129))), "129 tools"),
    ("tool-tokens", tools(one(type="string", title="x" * 4_000)), "about 10"),
    ("catalogue-tokens", tools(*(tool(f"a{n}x", description="x" * 1_000) for n in range(40))), "about 1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "catalogue", "detail"), BROKEN, ids=[f"{n} {rule}" for n, (rule, *_) in enumerate(BROKEN)]
)
def test_a_rule_finds_what_it_is_for(rule: str, catalogue: Catalogue, detail: str) -> None:
    found = findings_of(catalogue)
    mine = [finding for finding in found if finding.rule == rule]
    assert mine, found
    assert any(detail in finding.detail for finding in mine), mine
    assert {finding.rule for finding in found} - {rule} <= EXPECTED_WITH.get(rule, set()), found


EXPECTED_WITH = {  # what breaks one rule may break another
    "name-duplicate": {"name-characters"},
    "schema-type": {"schema-properties"},
    "schema-boolean": set(),
    "schema-keyword": set(),
    "schema-size": {"tool-tokens", "catalogue-tokens"},
}


def test_every_rule_is_tested_and_explained() -> None:
    assert {rule for rule, *_ in BROKEN} == set(RULES)
    for rule, told in RULES.items():
        assert told.level in LEVELS
        assert told.why, rule
        assert told.fix, rule


GOOD = {
    "plain": tool(),
    "without parameters": tool(properties={}),
    "marked": tool("delete_note", annotations={"destructiveHint": True}),
    "marked as harmless": tool("clear_cache", annotations={"destructiveHint": False}),
    "read-only": tool("get_note", annotations={"readOnlyHint": True}),
    "optional": one(anyOf=[{"type": "string"}, {"type": "null"}]),
    "described inside": tool(properties={"x": {"anyOf": [TEXT, {"type": "null"}]}}),
    "a list": one(type="array", items={"type": "string"}),
    "a pattern of ECMAScript": one(type="string", pattern=r"^(?<year>\d{4})-\p{L}+\/$"),
    "any output": tool(outputSchema={"type": "array", "items": {"type": "string"}}),
    "an icon": tool(icons=[{"src": "https://example.com/i.png"}, {"src": "data:image/png;base64,AA=="}]),
    "required in a union": one(anyOf=[{"required": ["a"]}, {"type": "null"}]),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_what_is_fine_is_not_found(name: str) -> None:
    assert findings_of(tools(GOOD[name])) == []


SOME_KEYS = [
    *("type", "properties", "items", "$ref", "anyOf", "allOf", "then", "required", "enum", "pattern"),
    *("$id", "$anchor", "$defs", "name", "icons"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(SOME_KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.lists(st.dictionaries(st.sampled_from(["name", "inputSchema", "outputSchema", "annotations", "icons",
       "description", "uri", "uriTemplate", "arguments"]), JSON), max_size=3))  # fmt: skip
def test_definitions_of_any_shape_are_linted(definitions: list[dict[str, Any]]) -> None:
    found = findings_of(Catalogue(definitions, definitions, definitions, definitions))
    assert all(finding.rule in RULES for finding in found)


def test_a_schema_without_end_is_not_walked_without_end() -> None:
    endless: dict[str, Any] = {"type": "object"}
    endless["properties"] = {"again": endless}
    assert sum(1 for _ in parts(endless)) < 1_000


def test_tokens_are_a_quarter_of_the_bytes_that_models_see() -> None:
    small = {"name": "a", "inputSchema": {}, "outputSchema": {"long": "x" * 1_000}}
    assert tokens(small) == -(-len(b'{"name":"a","inputSchema":{}}') // 4)


@pytest.mark.parametrize(
    ("word", "finding", "chosen"),
    [
        ("mime-type", Finding("mime-type", "resource a://b"), True),
        ("mime-type", Finding("schema-ref", "tool a"), False),
        ("schema", Finding("schema-ref", "tool a"), True),
        ("schema-ref", Finding("schema-ref-broken", "tool a"), False),
        ("schema-ref:a", Finding("schema-ref", "tool a"), True),
        ("schema:a", Finding("schema-ref", "tool a"), True),
        ("schema-ref:a", Finding("schema-ref", "tool ab"), False),
        ("mime-type:a://b", Finding("mime-type", "resource a://b"), True),
        ("prompt-description:a b", Finding("prompt-description", "prompt a b"), True),
    ],
)
def test_rules_are_chosen_by_name_group_or_place(word: str, finding: Finding, chosen: bool) -> None:
    assert is_chosen(finding, [RuleChoice.of(word)]) == chosen
    assert not is_chosen(finding, [])


@pytest.mark.parametrize("word", ["nothing", "schema-", "sch", "", ":a"])
def test_a_rule_that_is_not_there_can_not_be_chosen(word: str) -> None:
    with pytest.raises(KeyError):
        RuleChoice.of(word)


def test_a_group_does_not_stand_for_a_rule_that_begins_alike() -> None:
    assert RuleChoice.of("tool-count").rules == {"tool-count"}
    assert RuleChoice.of("tool").rules == {"tool-description", "tool-count", "tool-count-limit", "tool-tokens"}


# ── the command ──


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    server = Server("bakery", version="1.0.0")

    @server.tool
    def delete_cake(name: str) -> str:
        """Throw \x1b[31mit\x1b[0m away."""
        return name

    return running(server, monkeypatch)


def test_the_command_groups_by_rule(run: Run) -> None:
    done = run("lint")
    assert done.exit_code == 0  # warnings only
    assert done.stdout.splitlines() == [
        f"warning parameter-description: {RULES['parameter-description'].why}",
        "  tool delete_cake: name",
        f"  fix: {RULES['parameter-description'].fix}",
        f"warning hint-destructive: {RULES['hint-destructive'].why}",
        "  tool delete_cake: delete",
        f"  fix: {RULES['hint-destructive'].fix}",
    ]
    assert done.stderr.splitlines()[-1] == "2 warnings"
    assert "1 tool, about" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "rules"),
    [
        ([], 0, ["parameter-description", "hint-destructive"]),
        (["--fail-on", "warning"], 1, ["parameter-description", "hint-destructive"]),
        (["--fail-on", "warning", "--ignore", "hint,parameter-description"], 0, []),
        (["--fail-on", "warning", "--select", "hint"], 1, ["hint-destructive"]),
        (["--fail-on", "warning", "--select", "hint", "--ignore", "hint-destructive"], 0, []),
        (["--fail-on", "warning", "--ignore", "hint:delete_cake,parameter-description:delete_cake"], 0, []),
        (["--fail-on", "warning", "--select", "hint", "--ignore", "hint:else"], 1, ["hint-destructive"]),
        (["--fail-on", "note"], 1, ["parameter-description", "hint-destructive"]),
        (["--fail-on", "never"], 0, ["parameter-description", "hint-destructive"]),
    ],
)
def test_rules_can_be_chosen(run: Run, words: list[str], code: int, rules: list[str]) -> None:
    done = run("lint", "--json", *words)
    assert done.exit_code == code
    said = json.loads(done.stdout)
    assert [finding["rule"] for finding in said["findings"]] == rules
    assert said["counts"] == {"errors": 0, "warnings": len(rules), "notes": 0}
    assert said["tokens"]["tools"].keys() == {"delete_cake"}
    assert done.stderr == ""


def test_a_rule_that_does_not_exist_is_told(run: Run) -> None:
    done = run("lint", "--ignore", "hint-destuctive:delete_cake")
    assert done.exit_code == 2
    assert "--ignore: there is no rule hint-destuctive; did you mean hint-destructive? --rules lists" in done.stderr
    assert "--select: there is no rule spelling; --rules lists" in run("lint", "--select", "spelling").stderr


def test_the_rules_are_listed_without_a_server(tmp_path: Path) -> None:
    done = typed(tmp_path, "lint", "--rules")
    assert done.returncode == 0
    assert [line.split()[1].decode() for line in done.stdout.splitlines()] == list(RULES)


def test_a_server_with_an_error_fails_the_build(tmp_path: Path) -> None:
    furnish(tmp_path)
    (tmp_path / "server.py").write_text(
        'from dovetail import Server\nserver = Server("s", version="1")\n'
        '@server.tool(name="a.b")\ndef f() -> str:\n    """Do it."""\n    return ""\n'
    )
    done = typed(tmp_path, "lint", "server.py")
    assert (done.returncode, done.stdout.splitlines()[0][:22]) == (1, b"error name-characters:"), done.stderr
    assert typed(tmp_path, "lint", "server.py", "--fail-on", "never").returncode == 0


def test_a_completion_of_a_prompt_that_is_not_there_is_told(tmp_path: Path) -> None:
    furnish(tmp_path)
    (tmp_path / "server.py").write_text(
        'from dovetail import Server\nserver = Server("s", version="1")\n'
        '@server.completion(prompt="tripp", argument="city")\ndef cities(value: str) -> list[str]:\n    return []\n'
        '@server.prompt\ndef trip(city: str) -> str:\n    """Plan it."""\n    return city\n'
    )
    done = spawned(tmp_path, "lint", "server.py")
    words = b"Error: completion of tripp, city (server.cities): there is no prompt tripp (did you mean trip?)"
    assert (done.returncode, done.stderr.splitlines()) == (3, [words])


@pytest.mark.parametrize(
    ("answer", "details"),
    [
        ({"tools": {"a": 1}}, ["an object in the place of the list"]),
        ({"tools": None}, ["null in the place of the list"]),
        ({}, ["null in the place of the list"]),
        ({"tools": [None, [1], "x", 1.5, True]}, [
            "null in the place of definition 1", "a list in the place of definition 2",
            "a text in the place of definition 3", "a number in the place of definition 4",
            "true or false in the place of definition 5"]),
        ({"tools": []}, []),
    ],
)  # fmt: skip
def test_a_list_that_no_client_takes_fails_the_build(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], details: list[str]
) -> None:
    async def listed(_client: Client, _method: str, *_: Any) -> dict[str, Any]:
        return answer

    server = Server("s", version="1")
    server.tool(lambda: "", name="any", description="Any.")
    run = running(server, monkeypatch)
    monkeypatch.setattr(Client, "request", listed)
    done = run("lint", "--json")
    found = json.loads(done.stdout)["findings"]
    assert [(each["rule"], each["place"], each["detail"]) for each in found] == [
        ("list-malformed", "all tools", detail) for detail in details
    ]
    assert done.exit_code == (1 if details else 0)


def test_levels_are_ordered() -> None:
    found = findings_of(tools(tool("a.b", description=""), one(type="string", format="email")))
    assert [finding.level for finding in found] == ["error", "warning", "note"]
    assert [len(at_least(level, found)) for level in LEVELS] == [3, 2, 1]


def test_the_page_has_every_rule() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands" / "lint.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [(rule, told.level, told.why, told.fix) for rule, told in RULES.items()]
