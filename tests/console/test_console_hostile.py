"""The console in a browser against a server that means ill or errs: the rest of the page goes on."""

import json
from typing import Any

import pytest
from console_page import ConsolePage, Impostor, schema

pytestmark = pytest.mark.slow

SECRET = {"type": "string", "format": "password"}
NESTED = {"type": "object", "properties": {"pw": SECRET}}


# ── schemas ──


def test_a_schema_that_is_none_harms_nothing_else(impostor: Impostor) -> None:
    tab = impostor.tab
    odd = {"minimum": {"toString": 5}, "maximum": 1, "type": "number"}  # can't be written as words
    for bad in (schema(a={"$ref": "#/%E0%A4%A"}), schema(a=odd)):
        impostor.offer(bad)
        assert tab.region("All tools").get_by_role("link").count() == 2
        tab.call("good")
        tab.sees(tab.result, "Done")


def test_a_link_says_where_it_leads(impostor: Impostor) -> None:
    impostor.content = [
        {"type": "resource_link", "name": "masked", "uri": "https://accounts.google.com@evil.example/in"},
        {"type": "resource_link", "name": "alike", "uri": "https://аpple.com/in"},  # its first letter is Cyrillic
    ]
    impostor.offer(schema())
    impostor.tab.button("Call").click()
    link = impostor.tab.result.get_by_role("link", name="https://xn--pple-43d.com/in")
    assert link.get_attribute("href") == "https://xn--pple-43d.com/in"
    impostor.tab.sees(impostor.tab.result, "https://accounts.google.com@evil.example/in")
    assert impostor.tab.result.get_by_role("link", name="evil.example").count() == 0


PATTERNS = {  # and whether they are tried
    "^[a-z]+$": True,
    r"^\d{4}-\d{2}$": True,
    "^(red|green)$": True,
    "^[a-z]{2,10}-[0-9]{1,5}$": True,
    "^(a|a)*$": False,
    "^((a+))+$": False,
    "^.*.*.*.*.*.*=$": False,
    "^" + "a?" * 40 + "a" * 40 + "$": False,
    "^" + "(a|a)" * 30 + "$": False,
    "^" + ".{0,20}" * 20 + "=$": False,
    "x" * 201: False,
}


def test_only_patterns_that_are_quick_are_tried(tab: ConsolePage) -> None:
    tried = tab.page.evaluate(
        """async (patterns) => {
          const { problemsOf } = await import("/console/static/validate.js");
          return patterns.map((pattern) => problemsOf("a".repeat(60) + "!", { type: "string", pattern }).length > 0);
        }""",
        list(PATTERNS),
    )
    assert dict(zip(PATTERNS, tried, strict=True)) == PATTERNS


# ── secrets ──

DEFS = {"$defs": {"A": NESTED}}
DEEP = json.loads('{"type": "object", "properties": {"a": ' * 12 + json.dumps(SECRET) + "}}" * 12)
DEEPER = json.loads('{"a": ' * 60 + '"hush"' + "}" * 60)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"$ref": "#/$defs/A", **DEFS}, {"pw": "hush"}),
        (schema(users={"type": "array", "items": NESTED}), {"users": [{"pw": "hush"}]}),
        (schema(keys={"type": "array", "items": SECRET}), {"keys": ["hush"]}),
        (schema(keys={"prefixItems": [{}, SECRET]}), {"keys": [1, "hush"]}),
        (schema(a={"anyOf": [{"type": "integer"}, SECRET]}), {"a": "hush"}),
        ({"oneOf": [schema(b={}), {"allOf": [{"$ref": "#/$defs/A"}]}], **DEFS}, {"pw": "hush"}),
        ({"type": "object", "additionalProperties": SECRET}, {"x": "hush"}),
        ({"type": "object", "patternProperties": {"^x": SECRET}}, {"x": "hush"}),
        (schema(a={"$ref": "#/nowhere"}), {"a": "hush"}),
        (schema(a={"$ref": "https://elsewhere.example/"}), {"a": "hush"}),
        (DEEP, json.loads('{"a": ' * 12 + '"hush"' + "}" * 12)),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, DEEPER),
    ],
)
def test_secrets_are_not_kept(tab: ConsolePage, given: Any, values: Any) -> None:
    """What the history would keep of the values."""
    stored = tab.page.evaluate(
        """async ([schema, values]) => {
          const { withoutSecrets } = await import("/console/static/secrets.js");
          return JSON.stringify(withoutSecrets(JSON.parse(schema), JSON.parse(values)));
        }""",
        [json.dumps(given), json.dumps(values)],
    )
    assert "hush" not in stored


# ── results ──


def test_a_part_that_can_not_be_shown_hides_no_other(impostor: Impostor) -> None:
    impostor.content = [
        {"type": "image", "data": " " * 300_000 + "!", "mimeType": "image/png"},  # which took minutes
        {"type": "image", "data": "QQ=", "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "x", "blob": "%%%"}},
        {"type": "constructor"},
        {"type": "__proto__"},
        {"type": "text", "text": "odd", "annotations": {"audience": [{"toString": 5}]}},
        {"type": "text", "text": "fine"},
    ]
    impostor.offer(schema())
    impostor.tab.button("Call").click()
    impostor.tab.sees(impostor.tab.result, "Done")
    impostor.tab.sees(impostor.tab.result, "fine")


# ── subscriptions ──


@pytest.mark.parametrize("agreed", [{}, {"resourceSubscriptions": ["a://other"]}])
def test_nothing_is_subscribed_to_unless_the_server_agrees(impostor: Impostor, agreed: dict[str, Any]) -> None:
    tab = impostor.tab
    impostor.agreed = agreed
    tab.start_again("resources/a%3A%2F%2Fb")
    tab.button("Subscribe").click()
    tab.page.get_by_text("The server does not tell of changes").wait_for()
    assert tab.button("Subscribe").is_visible()


# ── names ──


def test_a_name_that_a_command_would_take_for_an_option_is_not_copied_as_one(impostor: Impostor) -> None:
    tab = impostor.tab
    impostor.tools = [{"name": "--trap", "inputSchema": schema()}]
    tab.start_again("tools/--trap")
    tab.button("Copy as command").click()
    tab.page.get_by_text("There is no command for a name").wait_for()
