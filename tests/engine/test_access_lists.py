"""A caller sees in lists what it may use and no more: pages, cursors, and what is kept for whom."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail import Server, ToolRegistry
from dovetail.auth.principal import Principal
from dovetail.engine import access
from dovetail.protocol import results
from wire import MODERN, Wire

ERAS = ("2024-11-05", "2025-11-25", MODERN)
LISTS = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
}


def caller(*scopes: str, **claims: Any) -> Principal:
    return Principal(subject="ann", scopes=frozenset(scopes), claims=claims)


async def lists(server: Server, principal: Principal | None, version: str = MODERN, key: str = "tools") -> list[str]:
    """The names in a list, over all of its pages."""
    names: list[str] = []
    async with Wire(server, version) as wire:
        wire.connection._principal = principal
        cursor: dict[str, str] = {}
        for _ in range(100):
            page = await wire.ask(LISTS[key], cursor)
            names += [item["name"] for item in page[key]]
            if "nextCursor" not in page:
                return names
            cursor = {"cursor": page["nextCursor"]}
    raise AssertionError("a list without an end")


def server_of(rules: dict[str, dict[str, Any]], **options: Any) -> Server:
    """One of each kind for each rule."""
    server = Server("lists", version="1.0.0", **options)
    for name, rule in rules.items():
        server.add_tool(lambda: "", name=name, **rule)
        server.add_prompt(lambda: "", name=name, **rule)
        server.add_resource(f"r://{name}", lambda: "", name=name, **rule)
        server.add_resource(f"t://{name}/{{x}}", lambda x: "", name=name, **rule)
    return server


def is_admin(principal: Principal | None) -> bool:
    return principal is not None and "admin" in principal.claims


# ── who sees what ──


@pytest.mark.parametrize("version", ERAS)
@pytest.mark.parametrize("key", LISTS)
@pytest.mark.parametrize(
    ("principal", "seen"),
    [
        (None, ["open"]),
        (caller(), ["open"]),
        (caller("a"), ["open", "a"]),
        (caller("b", "c"), ["open"]),
        (caller("a", "b"), ["open", "a", "ab"]),
        (caller(admin=True), ["open", "admin"]),
        (caller("a", admin=True), ["open", "a", "admin", "both"]),
    ],
)
async def test_a_caller_sees_what_it_may_use(
    version: str, key: str, principal: Principal | None, seen: list[str]
) -> None:
    rules: dict[str, dict[str, Any]] = {
        "open": {},
        "a": {"scopes": ["a"]},
        "ab": {"scopes": ["a", "b"]},
        "admin": {"authorize": is_admin},
        "both": {"scopes": ["a"], "authorize": is_admin},
    }
    server = server_of(rules, page_size=2)
    for _ in range(2):  # made, and kept
        assert await lists(server, principal, version, key) == seen


@given(
    rules=st.lists(st.frozensets(st.sampled_from("abc")), max_size=12),
    granted=st.lists(st.frozensets(st.sampled_from("abcd")), min_size=1, max_size=4),
    size=st.integers(1, 5),
)
@settings(max_examples=40)
async def test_pages_of_any_size_hold_what_is_visible_once(
    rules: list[frozenset[str]], granted: list[frozenset[str]], size: int
) -> None:
    server = Server("lists", version="1.0.0", page_size=size, declare=["tools"])
    for number, scopes in enumerate(rules):
        server.add_tool(lambda: "", name=f"t{number}", scopes=sorted(scopes))
    for scopes in granted:
        expected = [f"t{number}" for number, needed in enumerate(rules) if needed <= scopes]
        assert await lists(server, caller(*scopes)) == expected


async def test_every_page_but_the_last_is_full() -> None:
    server = Server("lists", version="1.0.0", page_size=3)
    for number in range(20):
        server.add_tool(lambda: "", name=f"t{number}", scopes=["even"] if number % 2 == 0 else ["odd"])
    async with Wire(server, MODERN) as wire:
        wire.connection._principal = caller("even")
        first = await wire.ask("tools/list")
        assert [tool["name"] for tool in first["tools"]] == ["t0", "t2", "t4"]
        server.remove_tool("t4")  # what a cursor points behind may go
        second = await wire.ask("tools/list", {"cursor": first["nextCursor"]})
        assert [tool["name"] for tool in second["tools"]] == ["t6", "t8", "t10"]
        wire.connection._principal = caller("odd")  # a cursor is a place, and gives nobody more to see
        other = await wire.ask("tools/list", {"cursor": first["nextCursor"]})
        assert [tool["name"] for tool in other["tools"]] == ["t5", "t7", "t9"]
        wire.connection._principal = caller()
        nothing = await wire.ask("tools/list")
        assert nothing["tools"] == []
        assert "nextCursor" not in nothing


async def test_lists_with_rules_are_private() -> None:
    server = server_of({"a": {"scopes": ["a"]}}, ttl_ms=1000, cache_scope="public")
    plain = server_of({"a": {}}, ttl_ms=1000, cache_scope="public")
    for each, scope in ((server, "private"), (plain, "public")):
        async with Wire(each, MODERN) as wire:
            for method in LISTS.values():
                for _ in range(2):
                    page = await wire.ask(method)
                    assert (page["cacheScope"], page["ttlMs"]) == (scope, 1000)


async def test_what_is_offered_stays_the_same() -> None:
    open_server, server = server_of({"a": {}}), server_of({"a": {"scopes": ["a"]}})
    async with Wire(open_server, MODERN) as one, Wire(server, MODERN) as other:
        assert (await one.ask("server/discover"))["capabilities"] == (await other.ask("server/discover"))[
            "capabilities"
        ]


@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_middleware_sees_what_the_caller_sees(version: str) -> None:
    server = server_of({"open": {}, "a": {"scopes": ["a"]}})
    seen: list[list[str]] = []

    @server.middleware
    async def watch(request: Any, call_next: Any) -> Any:
        result = await call_next(request)
        if request.method == "tools/list":
            seen.append([item.name for item in result.items])
        return result

    for principal in (caller("a"), None, caller("a"), None):
        await lists(server, principal, version)
    assert seen == [["open", "a"], ["open"], ["open", "a"], ["open"]]


# ── what is kept ──


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a page was made by looking at rules."""
    pages: list[int] = []
    visible_page = access.visible_page

    async def counting(*arguments: Any) -> Any:
        pages.append(1)
        return await visible_page(*arguments)

    monkeypatch.setattr(access, "visible_page", counting)
    return pages


async def test_rules_are_looked_at_once_for_all_who_see_the_same(made: list[int]) -> None:
    server = Server("lists", version="1.0.0", page_size=500)
    for number in range(500):
        server.add_tool(lambda: "", name=f"t{number}", scopes=[f"s{number % 3}"])
    for _ in range(3):
        for user in ("ann", "bob"):
            scopes = frozenset(["s0", f"{user}:own"])  # of which no rule has heard
            assert len(await lists(server, Principal(subject=user, scopes=scopes))) == 167
        assert len(await lists(server, caller("s0", "s1"))) == 334
        assert await lists(server, None) == await lists(server, caller("other")) == []
    assert len(made) == 3
    server.add_tool(lambda: "", name="new", scopes=["s0"])
    assert len(await lists(server, caller("s0"))) == 168
    assert len(made) == 4


async def test_a_server_without_rules_looks_at_none(made: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "sight", None)
    server = server_of({"open": {}})
    assert await lists(server, caller("a")) == await lists(server, None) == ["open"]
    assert not made
    assert len(server.engine.tools.encoded) == 1


async def test_rules_come_and_go() -> None:
    server = server_of({"open": {}})
    assert await lists(server, None) == ["open"]
    server.add_tool(lambda: "", name="a", scopes=["a"])
    assert await lists(server, None) == ["open"]
    assert await lists(server, caller("a")) == ["open", "a"]
    server.remove_tool("a")
    server.add_tool(lambda: "", name="a")
    assert await lists(server, None) == ["open", "a"]


async def test_servers_that_share_tools_do_not_share_pages() -> None:
    registry = ToolRegistry()
    for name in ("one", "two"):
        registry.register_tool(name, "", {"type": "object"}, lambda: "", scopes=["a"])
    for server in [Server(name, version="1.0.0", tools=registry, page_size=1) for name in ("first", "second")]:
        assert await lists(server, caller("a")) == ["one", "two"], "with cursors of their own"
        assert await lists(server, None) == []


class Asked:
    """An `authorize` that counts."""

    def __init__(self) -> None:
        self.about: list[str | None] = []

    def __call__(self, principal: Principal | None) -> bool:
        self.about.append(None if principal is None else principal.subject)
        return principal is not None and principal.claims["tenant"] == "acme"


class Keyed(Asked):
    """The same, which tells who is alike."""

    def key(self, principal: Principal | None) -> Any:
        return None if principal is None else principal.claims["tenant"]


ANN = Principal(subject="ann", claims={"tenant": "acme"})
BOB = Principal(subject="bob", claims={"tenant": "acme"})
EVE = Principal(subject="eve", claims={"tenant": "evil"})


async def test_a_function_without_a_key_is_asked_each_time() -> None:
    server, authorize = Server("lists", version="1.0.0"), Asked()
    for name in ("x", "y"):
        server.add_tool(lambda: "", name=name, authorize=authorize)
    for principal, seen in ((ANN, ["x", "y"]), (EVE, []), (ANN, ["x", "y"]), (BOB, ["x", "y"]), (None, [])):
        assert await lists(server, principal) == seen
    assert authorize.about == ["ann", "eve", "ann", "bob", None], "once, however many tools there are"
    assert not server.engine.tools.encoded


async def test_a_function_with_a_key_is_asked_once_per_key() -> None:
    server, authorize = Server("lists", version="1.0.0"), Keyed()
    for name in ("x", "y"):
        server.add_tool(lambda: "", name=name, authorize=authorize)
    for principal, seen in ((ANN, ["x", "y"]), (EVE, []), (BOB, ["x", "y"]), (EVE, []), (None, []), (None, [])):
        assert await lists(server, principal) == seen
    assert authorize.about == ["ann", "eve", None]
    async with Wire(server, MODERN) as wire:  # but a call is a call
        for principal in (ANN, BOB, BOB):
            wire.connection._principal = principal
            await wire.ask("tools/call", {"name": "x"})
    assert authorize.about[3:] == ["ann", "bob", "bob"]


async def test_one_function_without_a_key_is_enough_to_keep_nothing() -> None:
    server = Server("lists", version="1.0.0")
    server.add_tool(lambda: "", name="x", authorize=Keyed())
    server.add_tool(lambda: "", name="y", authorize=Asked())
    assert await lists(server, ANN) == ["x", "y"]
    assert not server.engine.tools.encoded


@pytest.mark.parametrize("key", [lambda principal: principal.claims["nothing"], lambda principal: principal.claims])
async def test_a_key_that_fails_keeps_nothing(key: Any, caplog: pytest.LogCaptureFixture) -> None:
    authorize: Any = Asked()
    authorize.key = key
    server = Server("lists", version="1.0.0")
    server.add_tool(lambda: "", name="x", authorize=authorize)
    assert await lists(server, ANN) == ["x"]
    assert await lists(server, EVE) == []
    assert "a key failed" in caplog.text
    assert not server.engine.tools.encoded


async def test_a_page_made_while_a_rule_came_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("lists", version="1.0.0")
    server.add_tool(lambda: "", name="a", scopes=["a"])
    visible_page = access.visible_page

    async def change_meanwhile(*arguments: Any) -> Any:
        monkeypatch.undo()
        page = await visible_page(*arguments)
        server.add_tool(lambda: "", name="b", scopes=["b"])
        return page

    monkeypatch.setattr(access, "visible_page", change_meanwhile)
    assert await lists(server, caller("a", "b")) == ["a"]
    assert not server.engine.tools.encoded
    assert await lists(server, caller("a", "b")) == ["a", "b"]
    assert await lists(server, caller("a")) == ["a"]


async def test_a_kept_list_is_encoded_once_for_all_who_see_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("lists", version="1.0.0")
    for number in range(50):
        server.add_tool(lambda: "", name=f"t{number}", scopes=["a"])
    sizes: list[int] = []
    encode = results.encode

    def counting(value: Any) -> bytes:
        data = encode(value)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(results, "encode", counting)
    for _ in range(5):
        await lists(server, caller("a"))
    assert sum(size > 1000 for size in sizes) == 1


@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_changes_are_told_to_whoever_listens(version: str) -> None:
    server = server_of({"a": {"scopes": ["a"]}})
    async with Wire(server, version) as wire:
        wire.connection._principal = caller("a")
        if version == MODERN:
            wanted = {"notifications": {"toolsListChanged": True}}
            wire.send(wire.request("subscriptions/listen", wanted, id="l"))
            assert (await wire.receive())["method"] == "notifications/subscriptions/acknowledged"
        assert len((await wire.ask("tools/list"))["tools"]) == 1
        server.add_tool(lambda: "", name="b", scopes=["a"])
        assert (await wire.receive())["method"] == "notifications/tools/list_changed"
        assert len((await wire.ask("tools/list"))["tools"]) == 2
