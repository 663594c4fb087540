"""A rule on one URI holds for all texts of its values: those that make a template's function do the same."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest

from access_stage import NOBODY, READER, WRITER, CallerWire
from dovetail import Server
from dovetail.registry.guards import comparable_value
from wire import MODERN


class Colour(enum.Enum):
    RED = 1


@dataclass
class Point:
    x: float
    y: float = 0


@dataclass(eq=False)
class Place:
    at: datetime


class Pair(msgspec.Struct, eq=False):
    one: int
    two: list[int] = []


def by(kind: Any, default: Any = ...) -> Callable[..., str]:
    """A function of one or two values."""

    def show(value: Any) -> str:
        return f"SHOWN {value!r}"

    def show_two(a: Any = default, b: Any = default) -> str:
        return f"SHOWN {a!r} {b!r}"

    function = show if default is ... else show_two
    function.__annotations__ = dict.fromkeys(("value",) if default is ... else ("a", "b"), kind)
    return function


def by_first(kind: Any) -> Callable[..., str]:
    def show(a: Any, b: str) -> str:
        return f"SHOWN {a!r} {b}"

    show.__annotations__["a"] = kind
    return show


def new(template: str, function: Callable[..., str], *strict: str) -> Server:
    server = Server("values", version="1.0.0")
    server.add_resource(template, function, name="open", cache=60)
    for number, uri in enumerate(strict):
        server.add_resource(uri, lambda: "TREASURE", name=f"strict{number}", scopes=["notes:write"], cache=60)
    return server


async def read(server: Server, principal: Any, uri: str) -> str:
    async with CallerWire(server, MODERN, principal) as wire:
        return repr(await wire.exchange(wire.request("resources/read", {"uri": uri})))


ID = "123e4567-e89b-12d3-a456-426614174000"

# the strict URI, the open template, the type of its values, other texts of the same, one that means something else
ALIASES: list[tuple[str, str, Any, list[str], str]] = [
    ("n://7", "n://{value}", float, ["n://7.0", "n://7e0", "n://0.7e1", "n://%207", "n://+7", "n://07"], "n://8"),
    ("n://7.00", "n://{value}", float, ["n://7", "n://7.0"], "n://7.01"),
    ("n://7", "n://{value}", int, ["n://7.0", "n://7e0", "n://70e-1", "n://+7", "n://07"], "n://70"),
    ("n://7", "n://{value}", int | float, ["n://7.0"], "n://7.5"),
    ("n://0", "n://{value}", float, ["n://-0", "n://-0.0", "n://0e5"], "n://1"),
    ("n://7", "n://{value}", Decimal, ["n://7.0", "n://7e0", "n://07", "n://+7"], "n://7.1"),
    ("n://NaN", "n://{value}", Decimal, ["n://nan", "n://%2BNaN"], "n://7"),
    ("n://true", "n://{value}", bool, ["n://tru%65", "n://%20true", "n://True", "n://1"], "n://false"),
    ("n://1", "n://{value}", Colour, ["n://1.0", "n://%201", "n://1e0"], ""),
    ("n://1", "n://{value}", Literal[1, 2], ["n://1.0", "n://1e0"], "n://2"),
    (
        "n://2026-01-01",
        "n://{value}",
        date,
        ["n://%32026-01-01", "n://20260101", "n://2026-1-1", "n://2026-01-01T00:00"],
        "n://2026-01-02",
    ),
    (
        "n://2026-01-01T00:00:00Z",
        "n://{value}",
        datetime,
        ["n://2026-01-01T01:00:00%2B01:00", "n://2026-01-01%2000:00:00z", "n://2026-01-01T00:00:00.000Z"],
        "n://2026-01-01T00:00:01Z",
    ),
    ("n://PT1H", "n://{value}", timedelta, ["n://PT60M", "n://PT3600S"], "n://PT2H"),
    (f"n://{ID}", "n://{value}", UUID, [f"n://{ID.upper()}", f"n://{ID.replace('-', '')}", f"n://%7B{ID}%7D"], ""),
    ("n://a/b", "n://{+value}", PurePosixPath, ["n://a//b", "n://a/./b", "n://a%2Fb"], "n://a/c"),
    ("n://%5B1,2%5D", "n://{value}", list[int], ["n://%5B1.0,2%5D", "n://%5B1,%202%5D"], "n://%5B2,1%5D"),
    ("n://%5B1,2%5D", "n://{value}", set[int], ["n://%5B2,1%5D", "n://%5B2,1,2%5D"], "n://%5B2%5D"),
    ("n://1/2", "n:/{/value*}", list[int], ["n://1.0/2", "n://1/2e0"], "n://2/1"),
    ("n://x?a=1&b=2", "n://x{?value*}", dict[str, int], ["n://x?b=2&a=1", "n://x?b=2.0&a=1"], "n://x?b=1&a=2"),
    ("n://%7B%22x%22:1%7D", "n://{value}", Point, ["n://%7B%22y%22:0,%22x%22:1%7D"], "n://%7B%22x%22:2%7D"),
    (
        "n://%7B%22at%22:%222026-01-01T00:00:00Z%22%7D",
        "n://{value}",
        Place,
        ["n://%7B%22at%22:%222026-01-01T01:00:00%2B01:00%22%7D"],
        "n://%7B%22at%22:%222026-01-01T01:00:00Z%22%7D",
    ),
    ("n://%7B%22one%22:1%7D", "n://{value}", Pair, ["n://%7B%22two%22:%5B%5D,%22one%22:1%7D"], "n://%7B%22one%22:2%7D"),
]


@pytest.mark.parametrize(("strict", "template", "kind", "aliases", "other"), ALIASES)
async def test_another_text_of_the_same_value(
    strict: str, template: str, kind: Any, aliases: list[str], other: str
) -> None:
    function = by(kind)
    if "?" in template:
        function.__defaults__ = (None,)
        function.__annotations__ = {"value": kind | None}
    server = new(template, function, strict)
    served = 0
    for alias in aliases:  # some of which nobody understands
        for principal, works in ((READER, False), (WRITER, True), (NOBODY, False)):
            answer = await read(server, principal, alias)
            assert "SHOWN" not in answer, alias
            assert works or "TREASURE" not in answer, alias
            served += "TREASURE" in answer
    assert served, "at least one of them is read by those who may"
    if other:
        assert "SHOWN" in await read(server, READER, other)


# ── several values, and those that are left out ──

PARAMETERS = [
    ("n://x?a=1&b=2", ["n://x?b=2&a=1", "n://x?b=2.0&a=1"], "n://x?a=2&b=1"),
    ("n://x?b=2&a=1", ["n://x?a=1&b=2", "n://x?a=1.0&b=2e0"], "n://x?a=2&b=1"),
    ("n://x", ["n://x?a=3", "n://x?b=3.0", "n://x?b=3&a=3"], "n://x?a=4"),
    ("n://x?a=3", ["n://x", "n://x?b=3"], "n://x?a=4"),
]


@pytest.mark.parametrize(("strict", "aliases", "other"), PARAMETERS)
async def test_named_values(strict: str, aliases: list[str], other: str) -> None:
    server = new("n://x{?a,b}", by(int, 3), strict)
    for alias in aliases:
        assert "error" in await read(server, READER, alias), alias
        assert "TREASURE" in await read(server, WRITER, alias), alias
    assert "SHOWN" in await read(server, READER, other)


async def test_rules_come_and_go() -> None:
    server = new("n://{value}", by(float))
    for _ in range(2):
        assert "SHOWN" in await read(server, READER, "n://7.0")
        server.add_resource("n://7", lambda: "TREASURE", name="strict", scopes=["notes:write"])
        assert "error" in await read(server, READER, "n://7.0")
        server.remove_resource("n://{value}")
        server.add_resource("n://{value}", by(str), name="open")
        assert "SHOWN '7.0'" in (await read(server, READER, "n://7.0")).replace("\\", ""), "which is no number now"
        server.remove_resource("n://{value}")
        server.add_resource("n://{value}", by(float), name="open")
        server.remove_resource("n://7")


@pytest.mark.parametrize(
    ("kind", "value", "aliases", "other"),
    [
        (float, "7", ["7.0", "7e0", "%207"], "7.5"),
        (Decimal, "7", ["7.0", "7e0", "07"], "7.5"),
        (UUID, ID, [ID.upper(), ID.replace("-", "")], ID.replace("1", "2")),
        (Colour, "1", ["1.0", "1e0"], ""),
        (bool, "true", ["tru%65", "%20true"], "false"),
        (date, "2026-01-01", ["2026%2D01-01"], "2026-01-02"),
    ],
)
async def test_a_strict_template_for_some_of_the_values(kind: Any, value: str, aliases: list[str], other: str) -> None:
    """What is asked for is written in the plain way, and then belongs to whom that belongs to."""
    server = Server("values", version="1.0.0")
    server.add_resource(f"n://{value}/{{name}}", lambda name: "TREASURE", name="strict", scopes=["notes:write"])
    server.add_resource("n://{a}/{b}", by_first(kind), name="open")
    for alias in aliases:
        assert "SHOWN" not in await read(server, READER, f"n://{alias}/x"), alias
    assert not other or "SHOWN" in await read(server, READER, f"n://{other}/x")


async def test_a_scheme_in_capitals_is_the_same() -> None:
    server = new("{+value}", by(str), "no://secret")  # one letter alone would be a drive
    for alias in ("NO://secret", "No://%73ecret", "no%3A//secret"):
        assert "SHOWN" not in await read(server, READER, alias), alias
    assert "SHOWN" in await read(server, READER, "no://Secret")


DETOURS = ["n://a/../s/x", "n://./s/x", "n://s//x", "n://s/./x", "n://%2E/s/x", "n://../s/x", "n://s%2F%2e%2E/s//x"]


@pytest.mark.parametrize("strict", ["n://s/x", "n://s/{name}"])
@pytest.mark.parametrize("alias", DETOURS)
async def test_a_path_with_detours_is_the_same(strict: str, alias: str) -> None:
    server = Server("values", version="1.0.0")
    function = by(str) if "{" in strict else lambda: ""
    server.add_resource(strict.replace("name", "value"), function, name="strict", scopes=["notes:write"])
    server.add_resource("n://{+value}", by(str), name="open")
    assert "error" in await read(server, READER, alias)
    for other in ("n://s/x/", "n:///s/x/y", "n://a/./s/y?b", "n://", "n://x/..", "n://t//x"):
        assert "TREASURE" not in await read(server, READER, other), other
    assert "SHOWN" in await read(server, READER, "n://t//x")


@pytest.mark.parametrize("strict", ["n://x?a={a}", "n://x{?a}"])
async def test_a_strict_template_that_does_without_a_parameter(strict: str) -> None:
    server = Server("values", version="1.0.0")
    server.add_resource(strict, lambda a="": "TREASURE", name="strict", scopes=["notes:write"])
    server.add_resource("n://x{?c,a}", lambda a="", c="3": "SHOWN", name="open")
    for alias in ("n://x?a=1", "n://x?c=3&a=1", "n://x?a=1&c=%33"):
        assert "SHOWN" not in await read(server, READER, alias), alias
    assert "SHOWN" in await read(server, READER, "n://x?c=4&a=1")


# ── a listed file ──


@pytest.mark.parametrize("folder_rule", [{}, {"scopes": ["notes:read"]}])
@pytest.mark.parametrize("folder_first", [True, False])
async def test_a_listed_file_leaves_its_uri_to_a_strict_template(
    tmp_path: Path, folder_rule: Any, folder_first: bool
) -> None:
    """As it is while the file is not listed: of two with rules the first has it, of two with one rule that."""
    (tmp_path / "a.txt").write_text("SHOWN")
    server = Server("values", version="1.0.0")
    if folder_first:
        server.add_directory(tmp_path, uri="docs://x", **folder_rule)
    server.add_resource("docs://x/{name}", lambda name: "TREASURE", name="strict", scopes=["notes:write"])
    if not folder_first:
        server.add_directory(tmp_path, uri="docs://x", **folder_rule)
    (tmp_path / "late.txt").write_text("SHOWN")
    is_folders = folder_first and bool(folder_rule)
    for uri in ("docs://x/a.txt", "docs://x/late.txt", "docs://x/%61.txt"):
        answers = await read(server, READER, uri), await read(server, WRITER, uri)
        assert ("SHOWN" in answers[0], "TREASURE" in answers[1]) == (is_folders, not is_folders), uri
    async with CallerWire(server, MODERN, READER) as wire:
        listed = [each["uri"] for each in (await wire.ask("resources/list"))["resources"]]
    assert ("docs://x/a.txt" in listed) == is_folders


async def test_a_listed_file_gives_way_to_what_gets_a_rule_later(tmp_path: Path) -> None:
    (tmp_path / "a(b).txt").write_text("SHOWN")
    server = Server("values", version="1.0.0")
    server.add_directory(tmp_path, uri="docs://x")
    assert "SHOWN" in await read(server, READER, "docs://x/a%28b%29.txt")
    server.add_resource("docs://x/a(b).txt", lambda: "TREASURE", name="strict", scopes=["notes:write"])
    assert "error" in await read(server, READER, "docs://x/a%28b%29.txt")
    async with CallerWire(server, MODERN, READER) as wire:
        assert not (await wire.ask("resources/list"))["resources"]


# ── the parts ──


def test_deep_and_odd_values_are_compared_on_the_safe_side() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    assert comparable_value(deep) == comparable_value([deep]), "too deep to tell apart"
    assert comparable_value(object()) == comparable_value(object()), "nobody knows"
    assert comparable_value(Decimal("sNaN")) == comparable_value(Decimal("sNaN"))
    assert comparable_value(float("nan")) == comparable_value(float("nan"))
    assert comparable_value(True) == comparable_value(1) == comparable_value(1.0)
    assert comparable_value({"a": [1]}) != comparable_value({"a": [2]})
    assert comparable_value([{"a": {1}}]) == comparable_value([{"a": {1.0}}])
