"""`scopes=` and `authorize=` at registration: the rules, errors for those that can't work, and the snapshot."""

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from access_stage import READER, CallerWire, is_admin
from dovetail import Server, SetupError, ToolRegistry
from dovetail.registry.catalog import Catalog
from dovetail.registry.registration import AccessRule, AccessRules, access_rule
from wire import MODERN


def agreeing(**attributes: Any) -> Any:
    def agree(principal: Any) -> bool:
        return True

    vars(agree).update(attributes)
    return agree


async def _late_key(principal: Any) -> str:
    return ""


agree, keyed = agreeing(), agreeing(key=lambda principal: "all")


def function() -> str:
    """Everything that is registered."""
    return ""


# ── rules ──


@pytest.mark.parametrize(
    ("options", "scopes", "authorize", "has_key"),
    [
        ({"scopes": ["a", "b", "a"]}, {"a", "b"}, None, False),
        ({"scopes": "notes:write"}, {"notes:write"}, None, False),
        ({"scopes": ("a",), "authorize": agree}, {"a"}, agree, False),
        ({"authorize": keyed}, set(), keyed, True),
        ({"authorize": bool}, set(), bool, False),
        ({"scopes": None, "authorize": agree}, set(), agree, False),
    ],
)
def test_a_rule(options: Any, scopes: set[str], authorize: Any, has_key: bool) -> None:
    rule = access_rule(options, "tool t")
    assert rule is not None
    assert (rule.scopes, rule.authorize, rule.key is not None) == (scopes, authorize, has_key)


@pytest.mark.parametrize("options", [{}, {"scopes": []}, {"scopes": None}, {"authorize": None}])
def test_what_every_caller_may_use_has_no_rule(options: Any) -> None:
    server = Server("open", version="1.0.0")
    server.add_tool(function, **options)
    tool = server.engine.tools.get("function")
    assert tool is not None
    assert tool.access is None
    assert server.engine.tools.snapshot.rules is None


def test_every_kind_takes_a_rule(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    server, options = Server("all", version="1.0.0"), {"scopes": ["s"], "authorize": agree}
    registry = ToolRegistry()
    registry.register_tool("t", "", {"type": "object"}, lambda: "", **options)
    server.add_tool(function, **options)
    server.add_prompt(function, **options)
    server.add_resource("a://b", function, **options)
    server.add_resource("a://of/{name}", lambda name: name, name="template", **options)
    server.add_file(tmp_path / "a.txt", uri="file:///one", **options)
    server.add_directory(tmp_path, uri="docs://d", **options)
    resources = server.engine.resources
    catalogs: list[Catalog[Any]] = [
        registry.catalog, server.engine.tools, server.engine.prompts, resources.direct, resources.templates,
    ]  # fmt: skip
    things = [item for catalog in catalogs for item in catalog.all()]
    assert len(things) == 8, "with the file that the directory lists"
    assert all((thing.access.scopes, thing.access.authorize) == ({"s"}, agree) for thing in things)


def test_all_rules_together() -> None:
    first, second = AccessRule(frozenset("ab")), AccessRule(frozenset("bc"), keyed, keyed.key)
    third = AccessRule(frozenset(), keyed, keyed.key)
    together = AccessRules.combine([first, second, third])
    assert together.scopes == frozenset("abc")
    assert len(together.keys) == 1
    assert together.has_keys
    assert not AccessRules.combine([first, AccessRule(frozenset(), agree)]).has_keys


def test_the_scopes_of_a_server() -> None:
    server = Server("scopes", version="1.0.0")
    assert server.engine.scopes_in_use() == frozenset()
    server.add_tool(function, scopes=["a", "b"])
    server.add_prompt(function, scopes=["b", "c"])
    server.add_resource("a://b", function, scopes=["d"])
    server.add_resource("a://of/{name}", lambda name: name, name="template", scopes=["e"])
    assert server.engine.scopes_in_use() == frozenset("abcde")
    server.remove_tool("function")
    assert server.engine.scopes_in_use() == frozenset("bcde")


# ── what can't work ──


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scopes": ["two words"]}, "'two words' can't be a scope; it is printable ASCII"),
        ({"scopes": [1]}, "1 can't be a scope"),
        ({"scopes": 5}, 'scopes=5 is not possible; write scopes=["notes:write"]'),
        ({"authorize": "admin"}, "authorize='admin' is not callable; give it a function of the principal"),
        ({"authorize": lambda: True}, "let it take one argument, the principal"),
        ({"authorize": agreeing(key=7)}, "authorize.key=7 is not callable"),
        ({"authorize": agreeing(key=_late_key)}, "is async; write it as a plain def"),
        ({"scope": ["a"]}, "unknown options scope (did you mean scopes?); known are"),
    ],
)
def test_wrong_options_name_the_function_and_the_fix(options: Any, words: str) -> None:
    with pytest.raises(SetupError) as refused:
        Server("wrong", version="1.0.0").add_tool(function, **options)
    assert words in str(refused.value)
    assert "function" in str(refused.value)


def test_what_not_every_caller_may_read_is_not_for_public_caches(tmp_path: Path) -> None:
    server = Server("wrong", version="1.0.0")
    (tmp_path / "a").write_text("")
    options: Any = {"scopes": ["s"], "cache_scope": "public"}
    for register in (
        lambda: server.add_resource("a://b", function, **options),
        lambda: server.add_file(tmp_path / "a", **options),
        lambda: server.add_directory(tmp_path, **options),
    ):
        with pytest.raises(SetupError, match='cache_scope="public" is not possible; leave it out'):
            register()


# ── two resources that one URI fits ──

OPEN: dict[str, Any] = {}
RULE: dict[str, Any] = {"scopes": ["s"]}


@pytest.mark.parametrize(
    ("one", "rule", "other", "other_rule", "is_refused"),
    [
        ("n://{a}", OPEN, "n://x{a}", RULE, True), ("n://{a}", RULE | {"authorize": agree}, "n://x{a}", RULE, True),
        ("n://{a}", dict(RULE), "n://x{a}", RULE, False), ("n://{a}", OPEN, "m://x{a}", RULE, False),
        ("n://{a}", OPEN, "n://x", RULE, True), ("n://{a}", RULE, "n://x", OPEN, False),
        ("n://y", OPEN, "n://x", RULE, False), ("docs://", OPEN, "docs://{a}", RULE, True),
        ("docs://", OPEN, "docs://in/", RULE, False), ("docs://", RULE, "docs://in/", OPEN, True),
    ],
)  # fmt: skip
def test_an_overlap_under_another_rule(
    tmp_path: Path, one: str, rule: Any, other: str, other_rule: Any, is_refused: bool
) -> None:
    for first, second in itertools.permutations([(one, rule), (other, other_rule)]):
        server = Server("two", version="1.0.0")
        with pytest.raises(SetupError, match="has another rule") if is_refused else nullcontext():
            for uri, options in (first, second):
                if uri.endswith("/"):
                    server.add_directory(tmp_path, uri=uri, **options)
                else:
                    server.add_resource(uri, (lambda a: a) if "{" in uri else function, name="r", **options)


# ── a file that two folders offer ──

READ = "notes:read"


@pytest.mark.parametrize("is_file", [True, False])
@pytest.mark.parametrize(
    ("inner", "outer", "is_offered"),
    [
        ({"scopes": [READ, "admin"]}, {"scopes": [READ]}, False),
        ({"scopes": ["admin"], "authorize": agree}, {"scopes": [READ], "authorize": agree}, False),
        ({"scopes": [READ], "authorize": is_admin}, {"scopes": [READ]}, False),
        ({"authorize": is_admin}, {"scopes": [READ], "authorize": agree}, False),
        ({"authorize": is_admin}, {}, False),
        ({"scopes": [READ]}, {"scopes": [READ], "authorize": agree}, True),
        ({"scopes": [READ], "authorize": agree}, {"scopes": [READ], "authorize": agree}, True),
        ({}, {"scopes": [READ]}, True),
    ],
)
async def test_a_folder_offers_a_file_of_another_rule_only_if_its_own_is_as_strict(
    tmp_path: Path, inner: Any, outer: Any, is_offered: bool, is_file: bool
) -> None:
    """Else a caller whom the inner rule refuses would read the file through the outer folder."""
    server = Server("two", version="1.0.0")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "s.txt").write_text("TREASURE")
    if is_file:
        server.add_file(tmp_path / "in" / "s.txt", uri="x://s", **inner)
    else:
        server.add_directory(tmp_path / "in", uri="x://y", **inner)
    server.add_directory(tmp_path, uri="docs://x", **outer)
    async with CallerWire(server, MODERN, READER) as wire:
        listed = [each["uri"] for each in (await wire.ask("resources/list"))["resources"]]
        answer = await wire.exchange(wire.request("resources/read", {"uri": "docs://x/in/s.txt"}))
    assert ("docs://x/in/s.txt" in listed, "TREASURE" in str(answer)) == (is_offered, is_offered)
