"""A rule on a template: for every text of the values that it names, and whatever was registered before it."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from access_stage import NOBODY, READER, WRITER, CallerWire
from dovetail import Server
from dovetail.registry.guards import UriGuard
from wire import MODERN

ID = "123E4567-E89B-12D3-A456-426614174000"
NOON = "2026-01-01T12:00:00Z"
RULE: dict[str, Any] = {"scopes": ["notes:write"]}


def treasure(x: str = "", y: str = "") -> str:
    return "TREASURE"


def showing(kind: Any) -> Callable[..., str]:
    def show(a: Any, x: str = "", y: str = "", z: int = 3) -> str:
        return f"SHOWN {a!r} {x} {y} {z}"

    show.__annotations__["a"] = kind
    return show


def new(*registered: tuple[str, Callable[..., str], dict[str, Any]]) -> Server:
    server = Server("templates", version="1.0.0")
    for number, (uri, function, rule) in enumerate(registered):
        server.add_resource(uri, function, name=f"t{number}", cache=60, **rule)
    return server


async def read(server: Server, principal: Any, uri: str) -> str:
    async with CallerWire(server, MODERN, principal) as wire:
        return repr(await wire.exchange(wire.request("resources/read", {"uri": uri})))


async def is_guarded(server: Server, uri: str) -> bool:
    """Tell whether the one with the rule is meant, for whomever asks."""
    answers = [await read(server, principal, uri) for principal in (READER, WRITER, NOBODY)]
    assert "TREASURE" not in answers[0] + answers[2], uri
    return "TREASURE" in answers[1] and "SHOWN" not in repr(answers)


# ── other texts of a value ──

# the type of `a`, its text in the strict template, other texts of the same value, and one of another value
TEXTS: list[tuple[Any, str, list[str], str]] = [
    (int, "7", ["7.0", "7e0"], "8"),
    (float, "7.0", ["7", "7.00", "70e-1", "%37"], "7.5"),
    (Decimal, "7.0", ["7", "7.00"], "7.5"),
    (bool, "%20true", ["true", "tru%65"], "false"),
    (UUID, ID, [ID.lower(), ID.replace("-", "")], ID.replace("1", "2")),
    (UUID, ID.lower(), [ID, ID.replace("-", "").lower()], ID.replace("1", "2")),
    (datetime, NOON, ["2026-01-01T13:00:00%2B01:00", "2026-01-01T12:00:00.0Z"], NOON.replace("2026", "2025")),
    (datetime, NOON.replace(":", "%3A", 1), [NOON, "2026-01-01T12:00:00.0Z"], NOON.replace("2026", "2025")),
    (timedelta, "PT1H", ["PT60M", "PT3600S"], "PT2H"),
    (list[int], "%5B1,2%5D", ["%5B1,%202%5D", "%5B1.0,2%5D"], "%5B2,1%5D"),
    (str, "a%28b%29", ["a(b)", "a%28b)"], "a(c)"),
]

# the strict template, the open one, and what they are asked for; VALUE stands for the text
SHAPES = [
    ("n://u/VALUE/{x}", "n://u/{a}/{x}", "n://u/VALUE/one"),
    ("n://u/VALUE{/x}", "n://u{/a,x}", "n://u/VALUE/one"),
    ("n://u/{x}/VALUE", "n://u/{x}/{a}", "n://u/one/VALUE"),
    ("n://v-VALUE/{x}", "n://v-{a}/{x}", "n://v-VALUE/one"),
    ("n://{x}/VALUE", "n://item/{a}", "n://item/VALUE"),  # the open one is wider in one place, narrower in another
    ("n://{x}/v/VALUE{?y}", "n://item/v/{a}{?y}", "n://item/v/VALUE?y=two"),
    ("n://u/VALUE/{x}", "n://u/{a}/{x}{?z}", "n://u/VALUE/one?z=3.0"),  # and a default is written out
]


@pytest.mark.parametrize(("kind", "text", "aliases", "other"), TEXTS)
@pytest.mark.parametrize(("strict", "template", "asked"), SHAPES)
async def test_another_text_of_a_value_has_the_same_rule(
    strict: str, template: str, asked: str, kind: Any, text: str, aliases: list[str], other: str
) -> None:
    server = new((strict.replace("VALUE", text), treasure, RULE), (template, showing(kind), {}))
    for alias in [text, *aliases]:
        assert await is_guarded(server, asked.replace("VALUE", alias)), alias
    assert "SHOWN" in await read(server, READER, asked.replace("VALUE", other))


async def test_several_values() -> None:
    server = new(("n://7.0,2.00/{x}", treasure, RULE), ("n://{a},{z}/{x}", showing(float), {}))
    for alias in ("n://7,2/x", "n://7.0,2/x", "n://7e0,2.0/x"):
        assert await is_guarded(server, alias), alias
    for other in ("n://2,7/x", "n://7,3/x"):
        assert "SHOWN" in await read(server, READER, other), other


async def test_what_the_strict_template_can_not_read_is_not_its_own() -> None:
    def numbered(x: int) -> str:
        return "TREASURE"

    server = new(("n://7.0/{x}", numbered, RULE), ("n://{a}/{x}", showing(float), {}))
    for text in ("7.0", "7"):
        assert await is_guarded(server, f"n://{text}/1")
        assert "SHOWN" in await read(server, READER, f"n://{text}/one")


async def test_rules_come_and_go() -> None:
    server = new(("n://{a}/{x}", showing(float), {}))
    for _ in range(2):
        assert "SHOWN" in await read(server, READER, "n://7/x")
        server.add_resource("n://7.0/{x}", treasure, name="strict", **RULE)
        assert await is_guarded(server, "n://7/x")
        server.remove_resource("n://7.0/{x}")


# ── order ──

ORDERS = [
    ("n://{+a}", "n://secret/{x}", "n://secret/7"),
    ("n://{a}/{x}", "n://secret/{x}", "n://secret/7"),
    ("n://{a}/{x}", "n://secret/{x}", "n://%73ecret/7"),
    ("n://{a}/7", "n://{x}/{y}", "n://s/7"),
]


@pytest.mark.parametrize(("template", "strict", "uri"), ORDERS)
@pytest.mark.parametrize("strict_first", [True, False])
async def test_a_rule_goes_before_what_has_none(template: str, strict: str, uri: str, strict_first: bool) -> None:
    both: Any = [(strict, treasure, RULE), (template, showing(str), {})]
    server = new(*(both if strict_first else reversed(both)))
    assert await is_guarded(server, uri)
    library = server.engine.library
    rule = library.access_to(uri)
    assert rule is not None
    assert server.engine.choices("ref/resource", uri) == ({}, rule)
    for principal, works in ((READER, False), (WRITER, True)):
        async with CallerWire(server, "2025-11-25", principal) as wire:
            answer = await wire.exchange(wire.request("resources/subscribe", {"uri": uri}))
            assert ("result" in answer) == works
            listed = (await wire.ask("resources/templates/list"))["resourceTemplates"]
            assert (strict in [each["uriTemplate"] for each in listed]) == works


@pytest.mark.parametrize("rule", [{}, RULE])
async def test_among_equals_the_first_one_goes_first(rule: dict[str, Any]) -> None:
    for first, second in (("n://{a}/{x}", "n://s/{x}"), ("n://s/{x}", "n://{a}/{x}")):
        server = new((first, lambda a="", x="": "FIRST", rule), (second, lambda a="", x="": "SECOND", rule))
        assert "FIRST" in await read(server, WRITER, "n://s/7")


async def test_a_static_uri_goes_before_all_templates() -> None:
    server = new(("n://{x}", treasure, RULE), ("n://open", lambda: "SHOWN", {}))
    assert "SHOWN" in await read(server, NOBODY, "n://open")


@pytest.mark.parametrize("strict_first", [True, False])
async def test_a_strict_folder_goes_before_an_open_function(tmp_path: Path, strict_first: bool) -> None:
    server = Server("templates", version="1.0.0")
    if strict_first:
        server.add_directory(tmp_path, uri="docs://x", **RULE)
    server.add_resource("docs://{+a}", showing(str), name="open")
    if not strict_first:
        server.add_directory(tmp_path, uri="docs://x", **RULE)
    (tmp_path / "late.txt").write_text("TREASURE")
    assert await is_guarded(server, "docs://x/late.txt")
    assert "SHOWN" in await read(server, READER, "docs://y/late.txt")


# ── listings ──


async def test_files_are_told_apart_in_the_thread_that_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.txt", "b (1).txt"):
        (tmp_path / name).write_text("SHOWN")
    server = new(("docs://x/a{y}", treasure, RULE))
    server.add_directory(tmp_path, uri="docs://x")
    asked: list[tuple[int, int]] = []
    instead = UriGuard.instead

    def counted(guard: UriGuard, source: Any, spellings: Any) -> Any:
        asked.append((threading.get_ident(), len(set(spellings))))
        return instead(guard, source, spellings)

    monkeypatch.setattr(UriGuard, "instead", counted)
    async with CallerWire(server, MODERN, READER) as wire:
        listed = [each["uri"] for each in (await wire.ask("resources/list"))["resources"]]
    assert listed == ["docs://x/b%20%281%29.txt"]
    assert sorted(spellings for _, spellings in asked) == [1, 2]
    assert threading.get_ident() not in [thread for thread, _ in asked]


def test_a_rule_that_came_while_the_files_were_listed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("SHOWN")
    server = new(("n://{x}", treasure, RULE))
    server.add_directory(tmp_path, uri="docs://x")
    library = server.engine.library
    (folder,) = library.folders()
    guard, entries = library._files_of(folder)
    assert [entry.uri for entry in entries] == ["docs://x/a.txt"]
    server.add_resource("docs://x/{x}", treasure, name="late", **RULE)
    library._sync(folder, guard, entries)
    assert library.resources.all() == []
