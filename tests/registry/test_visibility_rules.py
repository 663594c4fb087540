"""Rules that enable and disable: what they fit, what is refused, and what a catalog shows by them."""

from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.errors import SetupError
from dovetail.protocol.session import EVERYTHING, VisibilityRule
from dovetail.protocol.types import TAGS_KEY
from dovetail.registry.catalog import BACKEND_BLOCK, BLOCK_BITS, Catalog
from dovetail.registry.visibility import compile_rules, extended, fits, is_enabled, texts


def item(tags: str, **labels: Any) -> Any:
    return SimpleNamespace(definition=SimpleNamespace(meta={TAGS_KEY: tags.split()}), **labels)


PAY, BACK, DOC = item("money", name="pay"), item("money admin", name="pay_back"), item("", uri="docs://x", name="x")
FILE = item("money", uri="docs://f/a.txt", name="a", folder="docs://f", folder_tags=frozenset({"files"}))
ITEMS = [PAY, BACK, DOC, FILE]
OFF, ON = (VisibilityRule(enabled, names=("pay*",)) for enabled in (False, True))


@pytest.mark.parametrize(
    ("tags", "names", "expected"),
    [
        ("money", (), [PAY, BACK]), (["admin", "files"], (), [BACK, FILE]), ((), "pay", [PAY]), ((), "*", ITEMS),
        ((), {"pay_*", "docs://f"}, [BACK, FILE]), ("money", "*back", [BACK]), ((), "docs://[xy]", [DOC]),
    ],
)  # fmt: skip
def test_what_a_rule_fits(tags: Any, names: Any, expected: list[Any]) -> None:
    (rule,) = compile_rules(ITEMS, "enable", enabled=True, tags=tags, names=names)
    assert [each for each in ITEMS if fits(rule, each)] == expected
    assert compile_rules(ITEMS, "", enabled=True, tags=tags, names=names, only=True) == (VisibilityRule(False), rule)
    assert [each for each in ITEMS if is_enabled((rule,), each, default=False)] == expected
    assert [is_enabled(rules, PAY) for rules in ((), (OFF,), (OFF, ON), (ON, OFF))] == [True, False, True, False]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs tags= or names="), ({"tags": "mony"}, "has the tag 'mony' (did you mean money?)"),
        ({"names": ["pay", "a"]}, "nothing has the name or URI 'a'"), ({"tags": "pay"}, "nothing has the tag 'pay'"),
        ({"tags": "admin", "names": "pay"}, "nothing has both"), ({"tags": [5]}, "disable: tags=[5] is not possible"),
        ({"names": ""}, "names='' is not possible"), ({"names": "x" * 257}, "1 to 256 characters"),
    ],
)  # fmt: skip
def test_rules_that_are_refused(options: Any, words: str) -> None:
    with pytest.raises(SetupError) as caught:
        compile_rules(ITEMS, "disable", enabled=False, **options)
    assert words in str(caught.value)
    assert texts(["x" * 256, "a", "a"], "tags") == ("a", "x" * 256)


def test_later_rules_replace_those_for_the_same() -> None:
    other, everything = VisibilityRule(False, tags=("a",)), VisibilityRule(False, names=("*",))
    assert extended((OFF, other), (ON,)) == (other, ON)
    assert extended((OFF, other), (everything, ON)) == (everything, ON)
    many = tuple(VisibilityRule(True, names=(str(number),)) for number in range(101))
    assert extended(many[:99], many[99:100], of_session=True) == many[:100]
    assert extended(many[:100], many[100:]) == many
    with pytest.raises(SetupError, match="100"):
        extended(many[:100], many[100:], of_session=True)


def test_a_catalog_holds_disabled_items_aside() -> None:
    catalog, changes = Catalog[Any]("tool"), list[int]()
    catalog.swap((), {"pay": PAY, "doc": DOC})
    catalog.on_change(lambda: changes.append(len(catalog)))
    for rules in ((OFF,), (OFF,), (ON,), (OFF,)):
        catalog.set_visibility(rules)
    catalog.add("back", BACK)
    assert changes == [1, 2, 1, 1], "only what changes something is announced"
    assert (catalog.all(), catalog.names(), len(catalog)) == ([DOC], ["doc"], 1)
    assert (catalog.get("pay"), catalog.find("pay", ()), catalog.find("pay")) == (None, None, PAY)
    assert [catalog.find("pay", (ON,)), catalog.find("doc", (ON,)), catalog.find("pay", (OFF,))] == [PAY, DOC, None]
    assert catalog.snapshot_for((ON,)).items == catalog.registered.items == [PAY, DOC, BACK]
    assert catalog.snapshot_for(EVERYTHING).numbers == [1, 2, 3]


def test_items_from_elsewhere_are_listed_in_blocks() -> None:
    catalog, first = Catalog[str]("tool"), BACKEND_BLOCK << BLOCK_BITS
    old, new = {"b": "B", "own": "x"}, {"c": "C", "b": "B", "own": "x"}
    catalog.add("own", "OWN")
    assert catalog.exchange({}, old, BACKEND_BLOCK)
    assert not catalog.exchange(old, old, BACKEND_BLOCK)
    assert catalog.exchange(old, new, BACKEND_BLOCK)
    catalog.add("late", "LATE")
    assert list(catalog.snapshot.items_after(0)) == [(1, "OWN"), (2, "LATE"), (first, "C"), (first + 1, "B")]
