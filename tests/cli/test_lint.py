"""`dovetail lint`: each rule finds what it is for and nothing else, and the command can fail a build."""

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from command_stage import Run, running, typed
from hypothesis import given
from hypothesis import strategies as st

from dovetail import BadResponse, Client, Server, SkillFile
from dovetail.cli.lint import Catalog, check_catalog, estimate_tokens
from dovetail.cli.lint.rules import LEVELS, RULES, Finding, check_hints
from dovetail.cli.lint.schemas import References, pattern_problem, subschemas
from dovetail.cli.lint.skills import check_skill
from dovetail.cli.main import main

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


def tools(*definitions: dict[str, Any], **more: Any) -> Catalog:
    return Catalog(tools=definitions, **more)


def deep(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        inner = {"type": "object", "properties": {"in": inner}}
    return {**inner, "description": "Deep."}


def skill(
    text: str = "", folder: str = "skill://pdf/", problem: str = "", size: int = 5, files: Any = None, **fields: Any
) -> Catalog:
    """What is found in one without any fault, but for what is given: more fields, and files by their paths."""
    fields = {"name": "pdf", "description": "Fill in forms.", **fields}
    whole = "---\n" + "".join(f"{key}: {value}\n" for key, value in fields.items()) + f"---\n{text}"
    contents = {"SKILL.md": whole, "docs/a b.md": "", "logo.png": b"\x89", **(files or {})}
    listed = [SkillFile(folder + quote(path), "", size) for path in contents]

    async def read(uri: str, **_: Any) -> str | bytes:
        if problem:
            raise BadResponse(problem)
        found: str | bytes = contents[uri]
        return found

    async def check() -> list[Finding]:
        one: Any = SimpleNamespace(uri=f"{folder}SKILL.md", frontmatter=fields, resources=listed, read=read)
        return [finding async for finding in check_skill(one)]

    return Catalog(skills=asyncio.run(check()))


KEY = "sk-" + "a1B2" * 8
UNSAFE = {"_meta": {"dovetail/unsafe": ["b", "c"]}}
BROKEN = [
    ("list-malformed", Catalog(malformed=[("tools", "an object in the place of a list")]), "an object"),
    ("name-characters", tools(tool("shop.bake")), "'.'"),
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
    ("schema-boolean", tools(tool(properties={"x": True})), "x"),
    ("schema-boolean", tools(tool(outputSchema={"type": "object", "properties": {"y": True}})), "outputSchema y"),
    ("schema-untyped", tools(one()), "x"),
    ("schema-pattern", tools(one(type="string", pattern="(")), "("),
    ("schema-format", tools(one(type="string", format="email")), "email"),
    ("schema-keyword", tools(one(type="integer", exclusiveMinimum=0)), "exclusiveMinimum"),
    ("schema-enum", tools(one(enum=[1, 2])), "x"),
    ("schema-map", tools(one(type="object", additionalProperties={"type": "string"})), "x"),
    ("schema-depth", tools(tool(properties={"x": deep(11)})), "12 levels"),
    ("schema-size", tools(tool(properties={f"p{n}": {"type": "null", "description": "x"} for n in range(5_001)})), ""),
    ("output-type", tools(tool(outputSchema={"type": "array", "items": {}}), objects_only=True), '"array"'),
    ("tool-description", tools(tool(description=" ")), ""),
    ("parameter-description", tools(tool(properties={"x": {"type": "string"}})), "x"),
    ("description-length", tools(tool(description="x" * 1_025)), "1025 characters"),
    ("hint-destructive", tools(tool("delete_note")), ""),
    ("hint-read-only", tools(tool("get_note")), ""),
    ("hint-contradiction", tools(tool(annotations={"readOnlyHint": True, "destructiveHint": True})), ""),
    ("hint-contradiction", tools(tool("delete_note", annotations={"readOnlyHint": True})), "delete"),
    ("uri-invalid", Catalog(resources=[{"uri": "no uri", "mimeType": "a/b"}]), ""),
    ("uri-duplicate", Catalog(resources=[{"uri": "a://b", "mimeType": "a/b"}] * 2), ""),
    ("template-malformed", Catalog(templates=[{"uriTemplate": "a://{b", "mimeType": "a/b"}]), ""),
    ("template-unmatchable", Catalog(templates=[{"uriTemplate": "a://{b}{c}", "mimeType": "a/b"}]), ""),
    ("template-unmatchable", Catalog(templates=[{"uriTemplate": "a://b", "mimeType": "a/b"}]), "no variables"),
    ("template-unsafe", Catalog(templates=[{"uriTemplate": "a://{b}", "mimeType": "a/b", **UNSAFE}]), "b, c"),
    ("mime-type", Catalog(resources=[{"uri": "a://b"}]), ""),
    ("icon-source", tools(tool(icons=[{"src": "http://example.com/i.png"}])), "http"),
    ("prompt-description", Catalog(prompts=[{"name": "p"}]), ""),
    ("argument-description", Catalog(prompts=[{"name": "p", "description": "x", "arguments": [{"name": "a"}]}]), "a"),
    ("tool-count", tools(*(tool(f"a{n}x") for n in range(41))), "41 tools"),
    ("tool-count-limit", tools(*(tool(f"a{n}x") for n in range(129))), "129 tools"),
    ("tool-tokens", tools(one(type="string", title="x" * 4_000)), "about 10"),
    ("skill-unreadable", skill(problem="its digest is another one"), "digest"),
    ("skill-invalid", skill(name="p--f", folder="skill://p--f/"), "p--f"),
    ("skill-invalid", skill(folder="skill://forms/"), "pdf"),
    ("skill-invalid", skill(name=3), "3"),
    ("skill-invalid", skill(description=" "), "description: is missing"),
    ("skill-doubtful", skill(description="x" * 1_025), "1025 characters"),
    ("skill-doubtful", skill(metadata="{a: 1}"), "metadata: a is no string"),
    ("skill-doubtful", skill(metadata="{io.modelcontextprotocol/x: y}"), "io.modelcontextprotocol/x is reserved"),
    ("skill-doubtful", skill(license="no"), "line 4: no"),
    ("skill-size", skill(size=2**23), "25,165,824 bytes"),
    ("skill-size", skill(files={f"{n}.md": "" for n in range(510)}), "513 files"),
    ("skill-link", skill("See [forms](references/FORMS.md#top)."), "references/FORMS.md"),
    ("skill-link", skill("![x](../other.png)"), "../other.png"),
    ("skill-secret", skill(f"Use\n{KEY}"), "SKILL.md, line 6"),
    ("skill-secret", skill(files={"run.sh": f"export OPENAI_API_KEY={KEY}"}), "run.sh, line 1"),
    ("catalog-tokens", tools(*(tool(f"a{n}x", description="x" * 1_000) for n in range(40))), "about 1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "catalog", "detail"), BROKEN, ids=[f"{n} {rule}" for n, (rule, *_) in enumerate(BROKEN)]
)
def test_a_rule_finds_what_it_is_for(rule: str, catalog: Catalog, detail: str) -> None:
    found = check_catalog(catalog)
    mine = [finding for finding in found if finding.rule == rule]
    assert mine, found
    assert any(detail in finding.detail for finding in mine), mine
    assert {finding.rule for finding in found} - {rule} <= EXPECTED_WITH.get(rule, set()), found


EXPECTED_WITH = {  # what breaks one rule may break another
    "name-duplicate": {"name-characters"},
    "schema-type": {"schema-properties"},
    "schema-size": {"tool-tokens", "catalog-tokens"},
}


def test_every_rule_is_tested_and_explained() -> None:
    assert {rule for rule, *_ in BROKEN} == set(RULES)
    for name, rule in RULES.items():
        assert rule.level in LEVELS
        assert rule.why, name
        assert rule.fix, name


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
    assert check_catalog(tools(GOOD[name])) == []


@pytest.mark.parametrize(
    "text",
    [
        "[a](docs/a%20b.md) [b](./docs/) [c](https://x.org/y) [d](#top) [e](/abs) [f](mailto:a@b.c) ![g](<logo.png>)",
        "```\n[a](nowhere.md)\n```\nWrite links as `[text](url)`, [e](<docs/a b.md>).",
        "The API key is in the variable `API_KEY`. [redacted]",
    ],
)
def test_skills_that_are_fine_are_not_found(text: str) -> None:
    assert check_catalog(skill(text)) == []


def test_a_folder_of_skills_is_linted(tmp_path: Path) -> None:
    path = tmp_path / "skills" / "pdf" / "SKILL.md"
    path.parent.mkdir(parents=True)
    path.write_text("---\nname: pdf\ndescription: Fill in forms.\nlicense: no\n---\n[a](b.md)\n")
    done = typed(tmp_path, "lint", "skills", "--json", "--fail-on", "warning")
    assert done.returncode == 1
    found = [(each["rule"], each["place"], each["detail"]) for each in json.loads(done.stdout)["findings"]]
    place = "skill skill://pdf/SKILL.md"
    detail = "line 4: no: YAML 1.1 reads another value; put it in quotes"
    assert found == [("skill-doubtful", place, detail), ("skill-link", place, "b.md")]
    assert json.loads(typed(tmp_path, "inspect", "skills", "--json").stdout)["lint"]["counts"]["warnings"] == 2
    path.write_text("---\nname: pdf\n---\n")
    assert typed(tmp_path, "lint", "skills").returncode == 3


MALFORMED = """
from dovetail import Extension, Server

server = Server("strange")
listed = {"skills/list": lambda: {"skills": [{"uri": "skill://a/SKILL.md"}]}}
server.add_extension(Extension("io.modelcontextprotocol/skills", methods=listed))
server.tool(lambda date: date, name="a", description="")
"""


def test_malformed_skills_are_a_finding_beside_others(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(MALFORMED)
    done = typed(tmp_path, "lint", "server.py", "--json")
    found = {(each["rule"], each["place"]): each["detail"] for each in json.loads(done.stdout)["findings"]}
    assert "frontmatter" in found["list-malformed", "all skills"]
    assert ("tool-description", "tool a") in found


SOME_KEYS = [
    *("type", "properties", "items", "$ref", "anyOf", "allOf", "then", "required", "enum", "pattern"),
    *("$id", "$anchor", "$defs", "name", "icons"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(SOME_KEYS), inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from(["name", "inputSchema", "outputSchema", "annotations", "icons",
       "description", "uri", "uriTemplate", "arguments"]), JSON), max_size=3))  # fmt: skip
def test_definitions_of_any_shape_are_linted(definitions: list[dict[str, Any]]) -> None:
    found = check_catalog(Catalog(definitions, definitions, definitions, definitions))
    assert all(finding.rule in RULES for finding in found)


def test_a_schema_without_end_is_not_walked_without_end() -> None:
    endless: dict[str, Any] = {"type": "object"}
    endless["properties"] = {"again": endless}
    assert sum(1 for _ in subschemas(endless)) < 1_000


def test_tokens_are_a_quarter_of_the_bytes_that_models_see() -> None:
    small = {"name": "a", "inputSchema": {}, "outputSchema": {"long": "x" * 1_000}}
    assert estimate_tokens(small) == -(-len(b'{"name":"a","inputSchema":{}}') // 4)


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
    expected = []
    for rule, detail in (("parameter-description", "name"), ("hint-destructive", "delete")):
        broken = RULES[rule]
        expected += [f"warning {rule}: {broken.why}", f"  tool delete_cake: {detail}", f"  fix: {broken.fix}"]
    assert done.stdout.splitlines() == expected
    assert done.stderr.splitlines()[-1] == "2 warnings"
    assert "1 tool, about" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "rules"),
    [
        ([], 0, ["parameter-description", "hint-destructive"]),
        (["--fail-on", "warning"], 1, ["parameter-description", "hint-destructive"]),
        (["--fail-on", "warning", "--ignore", "hint,parameter-description"], 0, []),
        (["--fail-on", "warning", "--select", "hint", "--ignore", "hint-destructive"], 0, []),
        (["--fail-on", "warning", "--ignore", "hint:delete_cake,parameter-description:delete_cake"], 0, []),
        (["--fail-on", "warning", "--select", "hint", "--ignore", "hint:else"], 1, ["hint-destructive"]),
        (["--fail-on", "never"], 0, ["parameter-description", "hint-destructive"]),
    ],
)
def test_rules_can_be_chosen(run: Run, words: list[str], code: int, rules: list[str]) -> None:
    done = run("lint", "--json", *words)
    assert done.exit_code == code
    document = json.loads(done.stdout)
    assert [finding["rule"] for finding in document["findings"]] == rules
    assert document["counts"] == {"errors": 0, "warnings": len(rules), "notes": 0}
    assert document["tokens"]["tools"].keys() == {"delete_cake"}
    assert done.stderr == ""


def test_an_unknown_rule_is_reported(run: Run) -> None:
    done = run("lint", "--ignore", "hint-destuctive:delete_cake")
    assert done.exit_code == 2
    assert "--ignore: there is no rule hint-destuctive; did you mean hint-destructive? --rules lists" in done.stderr
    assert "--select: there is no rule spelling; --rules lists" in run("lint", "--select", "spelling").stderr


def test_the_rules_are_listed_without_a_server(tmp_path: Path) -> None:
    done = typed(tmp_path, "lint", "--rules")
    assert done.returncode == 0
    assert [line.split()[1].decode() for line in done.stdout.splitlines()] == list(RULES)


@pytest.mark.parametrize(
    ("answer", "details"),
    [
        ({"tools": {"a": 1}}, ["object in the place of the list"]),
        ({}, ["null in the place of the list"]),
        ({"tools": [None, 1.5]}, ["null in the place of definition 1", "number in the place of definition 2"]),
        ({"tools": []}, []),
    ],
)
def test_a_list_that_no_client_takes_fails_a_build(run: Run, monkeypatch: Any, answer: Any, details: list[str]) -> None:
    async def listed(_client: Client, _method: str, *_: Any) -> dict[str, Any]:
        return answer

    monkeypatch.setattr(Client, "request", listed)
    done = run("lint", "--json")
    found = json.loads(done.stdout)["findings"]
    assert [(each["rule"], each["place"], each["detail"]) for each in found] == [
        ("list-malformed", "all tools", detail) for detail in details
    ]
    assert done.exit_code == (1 if details else 0)


def test_the_page_has_every_rule() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands" / "lint.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [(name, rule.level, rule.why, rule.fix) for name, rule in RULES.items()]


# ── schemas as JSON Schema means them ──


def found(rule: str, **schema: Any) -> list[str]:
    """The details of what a rule finds in a tool's arguments."""
    definition = tool(inputSchema={"type": "object", "properties": {}, **schema})
    return [finding.detail for finding in check_catalog(tools(definition)) if finding.rule == rule]


NAMES = ("Box<int>", "a/b~c", "50%", "größe")
DOCUMENT = {
    "$defs": {name: {"title": name} for name in NAMES}, "prefixItems": [{"title": "first"}], "required": ["what"],
}  # fmt: skip
NOWHERE = [
    *("#/no", "#no", "#/$defs/Box%3Cstr%3E", "#/$defs/a/b~c", "#/prefixItems/1", "#/prefixItems/01"),
    *("#/prefixItems/²", "#/prefixItems/" + "9" * 5_000, "#/required/0", "#/%", "https://x.org#node", 3, None),
]  # fmt: skip


def test_a_reference_leads_to_what_it_names() -> None:
    def resolve(reference: Any) -> Any:
        return References(DOCUMENT).resolve(reference)

    assert resolve("#") == resolve("") == DOCUMENT
    for name, written in zip(NAMES, ("Box%3Cint%3E", "a~1b~0c", "50%25", "gr%C3%B6%C3%9Fe"), strict=True):
        assert resolve(f"#/$defs/{written}") == {"title": name}
    assert resolve("#/prefixItems/0") == {"title": "first"}
    assert [reference for reference in NOWHERE if resolve(reference) is not None] == []


def test_where_parts_have_names_references_are_not_judged() -> None:
    for inner in ({"$id": "https://example.com/inner"}, {"$anchor": "x"}, {"$dynamicAnchor": "x"}):
        named = {**inner, "type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}}
        assert found("schema-ref-broken", properties={"a": named}) == []


def test_every_schema_inside_is_walked() -> None:
    for keyword in ("items", "additionalItems", "unevaluatedProperties", "contentSchema", "then", "contains"):
        assert [part.path for part in subschemas({keyword: {"type": "null"}})] == [(), (keyword,)]


BOTH = {"a": TEXT, "b": TEXT}
ONLY_A = {"properties": {"a": {"const": "x"}}, "required": ["a", "b"]}
BASE = {"B": {"type": "object", "properties": {"b": TEXT}}, "L": {"type": "array", "items": TEXT}}
INHERITED, LISTS = {"$ref": "#/$defs/B"}, {"$ref": "#/$defs/L"}
BARE = {"type": "array", "minItems": 1}
DESCRIBED_ELSEWHERE: list[dict[str, Any]] = [  # what a branch requires by the whole, a list by another part
    *({"properties": BOTH, keyword: ONLY_A} for keyword in ("if", "then", "else", "not")),
    {"properties": BOTH, "anyOf": [ONLY_A, {"required": ["b"]}]},
    {"properties": BOTH, "allOf": [{"if": {"required": ["a"]}, "then": ONLY_A}]},
    {"properties": BOTH, "dependentSchemas": {"a": ONLY_A}},
    {"allOf": [INHERITED, ONLY_A]},
    {"allOf": [{"oneOf": [INHERITED, {"properties": BOTH}]}, ONLY_A]},
    {**INHERITED, "allOf": [ONLY_A]},
    {**INHERITED, "then": {"anyOf": [ONLY_A]}},
    {"properties": {"x": {"not": BARE}}},
    {"properties": {"x": {"if": BARE, "then": {"maxItems": 5}}}},
    {"properties": {"x": {"if": {"properties": {"a": BARE}}}}},
    {"properties": {"x": {"items": TEXT, "then": BARE}}},
    {"properties": {"x": {**BARE, "allOf": [{"items": TEXT}]}}},
    {"properties": {"x": {"allOf": [BARE, {"allOf": [{"items": TEXT}]}]}}},
    {"properties": {"x": {**BARE, **LISTS}}},
]


@pytest.mark.parametrize("schema", DESCRIBED_ELSEWHERE, ids=str)
def test_what_is_described_elsewhere_is_not_found(schema: dict[str, Any]) -> None:
    inside = {"properties": {"o": {"type": "object", "description": "It.", **schema}}}
    for rule in ("schema-required", "schema-items"):
        assert found(rule, **schema, **{"$defs": BASE}) == []
        assert found(rule, **inside, **{"$defs": BASE}) == []


def test_what_is_not_described_is_found() -> None:
    inner = {"o": {"type": "array", "items": {"anyOf": [{"type": "object", **ONLY_A}, {"type": "null"}]}}}
    assert found("schema-required", properties={"b": TEXT, **inner}) == ['o[]: "b"']
    for schema in (BARE, {"anyOf": [BARE, {"type": "null"}]}, {"properties": {"not": BARE}}):
        assert len(found("schema-items", properties={"x": schema})) == 1


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"^(?<y>\d{4})-\k<y>$", r"(?<=a+)b", r"(?<!a|bc)d", r"^\p{L}[\p{N}_-]+$", r"[[:a:]]", r"\cA", r"^\/$"),
        *(r"^[^[]+$", r"[(]", r"[)]", r"[\]()]", r"\(", r"\[a", "]", "}", "{", "a{,3}"),
        *(r"\u{1F600}", r"\u00e4", r"\x41", r"[\w-.]", r"[\w--\d]", r"[\b]", r"(?i:abc)", r"(?-i:abc)", r"(?im-s:abc)"),
        *(r"(?:a)(?=b)(?!c)", r"\1(a)", "", "^$", "(|)", r"\\", r"[\\]", "a(?<$x_1>b)", r"(?<größe>b)", "a||b", r"\0"),
        *(r"([+-]?[0-9]+)", r"^(\d?)$", r"(\(?\d{3}\)?)"),
    ],
)  # fmt: skip
def test_a_pattern_of_ecmascript_is_left_alone(pattern: str) -> None:
    assert pattern_problem(pattern) == ""


def test_an_unfinished_pattern_or_one_of_python_is_reported() -> None:
    for pattern in ("(", "a(b(c)", ")", "(a))", r"(\)", r"([)]", "[a-z", r"[a\]", "a\\", "[a\\"):
        assert "without the other one" in pattern_problem(pattern)
    python = {"(?P<year>a)": "(?P", "(?i)abc": "(?i)", "(?#why)a": "(?#", "(?>a)": "(?>", "(?": "(?"}
    for pattern, unknown in python.items():
        detail = f"x: {pattern}: {unknown} is not for JSON Schema"
        assert found("schema-pattern", properties={"x": {**TEXT, "pattern": pattern}}) == [detail]


# ── what the names of tools sound like ──
#
# A wrong warning teaches people to look away, so every name here is judged: L loses something, R only reads, - neither.


SERVERS = {  # the name that a server gives itself, and its tools
    "github-mcp-server": """
        L delete_file  L delete_workflow_run_logs  L delete_pending_pull_request_review  L remove_sub_issue
        R get_me  R list_workflow_run_artifacts  R search_code  - create_or_update_file  - push_files  - create_branch
        - dismiss_notification  - mark_all_notifications_read  - cancel_workflow_run  - pull_request_read
    """,
    "slack": """
        R slack_list_channels  R slack_get_channel_history  R slack_get_users  L slack_delete_message
        - slack_post_message  - slack_reply_to_thread  - slack_add_reaction  L slack_remove_reaction
    """,
    "kubernetes-mcp-server": """
        L pods_delete  L helm_uninstall  R pods_list_in_namespace  - pods_exec  - resources_create_or_update
    """,
    "desk": """
        L kill_process  L emptyTrash  L uninstallApp  L noteDelete  L wipe_disk  L forget_memory  L prune_images
        L clear_history  L clearCache  L truncate_table  L overwrite_file  L discard_changes  L erase  L clear
    """,
    "misleading": """
        - format_text  - clear_sky_forecast  R get_reset_date  R get_deleted_items  R list_removed_users
        - reset_password
        - truncate_text  - drop_pin  - clean_html  - formatDisk  - undelete_note  - restore_deleted  - set_auto_delete
        - schedule_delete  - cancel_delete  - undo_remove  - is_terminated  - killer_whale_facts  - removable_media
        - get_or_create_user  - find_and_replace  - getaway_plans  - listen  - reading_time  - query  - show_dialog
        - clear_text_password_check  - empty_cart_reminder  - reset_filters  - a  - 123  - ñandú  - enable_auto_kill
        - confirm_delete  - countdown  - search_and_index  R search_and_rescue_teams_list  - flush_toilet
    """,
}  # fmt: skip
VERDICTS = {"hint-destructive": "L", "hint-read-only": "R"}


def received(name: str, server: str = "", **annotations: Any) -> list[tuple[str, str]]:
    found = check_hints([{"name": name, "annotations": annotations}], server)
    return [(finding.rule, finding.detail) for finding in found]


def test_the_destructive_verb_is_reported() -> None:
    assert received("remove_background", readOnlyHint=True) == []  # of a picture that was sent along
    assert received("delete_note", destructiveHint=False) == []
    assert received("delete_note", readOnlyHint=False) == [("hint-destructive", "delete")]
    assert received("slack_delete_message", "slack-mcp") == [("hint-destructive", "delete")]
    assert received("slack_delete_message", "else") == []  # only a server's own name, or one of many tools, is a prefix
    assert received("delete_note", readOnlyHint=True) == [("hint-contradiction", "readOnlyHint, and the word delete")]


@pytest.mark.parametrize("server", SERVERS)
def test_verbs_in_names_are_understood(server: str) -> None:
    words = SERVERS[server].split()
    expected = dict(zip(words[1::2], words[::2], strict=True))
    found = check_hints([{"name": name} for name in expected], server)
    guessed = {finding.place.removeprefix("tool "): VERDICTS[finding.rule] for finding in found}
    assert {name: guessed.get(name, "-") for name in expected} == expected


def test_portable_shows_what_changes_and_checks_the_tools_as_they_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("bakery", version="1.0.0")

    @server.tool
    def bake(weights: dict[str, float], oven: int | None = None) -> str:
        """Bake.

        Args:
            weights: Grams of each.
            oven: Its number.
        """
        return "bread"

    run = running(server, monkeypatch)
    plain = run("lint", "--select", "schema")
    assert "schema-map" in plain.stdout
    done = run("lint", "--select", "schema", "--portable")
    assert done.stdout.splitlines() == [
        "bake",
        "  map (weights): an object with an example of a property",
        "  null (oven): not offered; what is optional can be left out",
    ]
    before, after = re.findall(r"about (\d+) tokens", done.stderr)
    assert before != after
    document = json.loads(run("lint", "--portable", "--json").stdout)
    assert [line.partition(" ")[0] for line in document["changes"]["bake"]] == ["map", "null"]
    assert document["tokens"]["total"] == int(after)


def test_an_openapi_document_is_shown_as_tools(tmp_path: Path) -> None:
    operation = {"operationId": "listPets", "summary": "List all pets.", "responses": {}}
    document = {"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"}, "paths": {"/pets": {"get": operation}}}
    for name in ("openapi.json", "openapi.yaml"):
        path = tmp_path / name
        path.write_text(json.dumps(document))
        shown = CliRunner().invoke(main, ["lint", str(path)])
        assert shown.exit_code == 0
        assert re.match(r"listPets +GET /pets +about \d+ tokens\n1 tool, 0 cut", shown.stdout)
        found = json.loads(CliRunner().invoke(main, ["lint", str(path), "--json"]).stdout)
        assert found["operations"] == {"listPets": "GET /pets"}
        assert found["report"]["left_out"] == []
    path.write_text("openapi: 2.0")
    assert CliRunner().invoke(main, ["lint", str(path)]).exit_code != 0
    path = tmp_path / "swagger.json"
    path.write_text('{"swagger": "2.0"}')
    assert "convert it to OpenAPI 3" in CliRunner().invoke(main, ["lint", str(path)]).stderr
