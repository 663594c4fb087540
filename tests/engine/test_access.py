"""Scopes and `authorize=` on tools, resources and prompts: who may use them, who sees them, and what is kept."""

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from access_stage import ADMIN, ANONYMOUS, ERAS, READER, WRITER, CallerWire, is_admin, new_server
from dovetail import Context, Server, ToolRegistry
from dovetail.auth.principal import Principal
from dovetail.engine.connection import Connection
from wire import MODERN, Wire


def uses(name: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """All ways to use a thing."""
    complete, argument = "completion/complete", {"name": "kind", "value": "g"}
    refs = {
        "prompt": {"type": "ref/prompt", "name": name},
        "template": {"type": "ref/resource", "uri": f"{name}://of/{{kind}}"},
        "resource": {"type": "ref/resource", "uri": f"{name}://one"},
    }
    return {
        "call": ("tools/call", {"name": name, "arguments": {"number": 1}}),
        "get": ("prompts/get", {"name": name, "arguments": {"kind": "good"}}),
        "read": ("resources/read", {"uri": f"{name}://one"}),
        "read template": ("resources/read", {"uri": f"{name}://of/good"}),
        **{f"complete {kind}": (complete, {"ref": ref, "argument": argument}) for kind, ref in refs.items()},
    }


async def ask_all(wire: Wire, name: str) -> dict[str, Any]:
    """The answers to all uses, without their ids."""
    requests = uses(name)
    if wire.version != MODERN:
        requests["subscribe"] = ("resources/subscribe", {"uri": f"{name}://one"})
    answers = {}
    for use, (method, params) in requests.items():
        answer = await wire.exchange(wire.request(method, params))
        answers[use] = answer.get("error") or answer["result"]
    return answers


# ── use ──


@pytest.mark.rule("AUTH-11", "AUTH-12")
@pytest.mark.parametrize("version", ERAS)
@pytest.mark.parametrize(
    ("principal", "usable"),
    [(ANONYMOUS, {"open"}), (READER, {"open"}), (WRITER, {"open", "scoped"}), (ADMIN, {"open", "secret"})],
)
async def test_who_may_use_what(version: str, principal: Principal | None, usable: set[str]) -> None:
    began: list[str] = []
    async with CallerWire(new_server(began), version, principal) as wire:
        for name in ("open", "scoped", "secret"):
            began.clear()
            answers = await ask_all(wire, name)
            errors = {use for use, answer in answers.items() if "code" in answer}
            if name in usable:
                assert not errors, answers
                assert len(began) == 4
            else:
                assert errors == set(answers), answers
                assert not began
            for answer in answers.values() if name == "scoped" and name not in usable else ():
                assert answer["code"] == -32600
                assert answer["message"].startswith("This needs the scopes: notes:read notes:write"), "all of them"


@pytest.mark.parametrize("version", ERAS)
async def test_what_authorize_refuses_does_not_exist(version: str) -> None:
    """The same error as for a name that does not exist."""
    async with CallerWire(new_server(), version, WRITER) as wire:
        hidden = await ask_all(wire, "secret")
        for (use, answer), (_, unknown) in zip(hidden.items(), (await ask_all(wire, "public")).items(), strict=True):
            assert "code" in answer
            assert repr(answer).replace("secret", "public") == repr(unknown), use
        misfit = await wire.refusal("resources/read", {"uri": "secret://of/nothing"})
        unknown = await wire.refusal("resources/read", {"uri": "public://of/nothing"})
        assert repr(misfit).replace("secret", "public") == repr(unknown)


@pytest.mark.parametrize("version", ERAS)
async def test_nothing_is_decoded_counted_or_taken_before(version: str) -> None:
    server = Server("order", version="1.0.0", max_concurrency=1, max_queue=0)
    server.add_tool(lambda number: "", name="t", scopes=["s"], rate_limit="1/hour", requires=["elicitation"])
    server.add_prompt(lambda: "", name="p", scopes=["s"])
    server.add_resource("r://r", lambda: "", name="r", scopes=["s"])
    assert server.engine.limit.take()  # the only slot
    async with CallerWire(server, version, READER) as wire:
        for _ in range(3):
            for method, params in (
                ("tools/call", {"name": "t", "arguments": {"no": "such"}}),
                ("prompts/get", {"name": "p", "arguments": {"no": "such"}}),
                ("resources/read", {"uri": "r://r"}),
            ):
                assert (await wire.refusal(method, params))["message"] == "This needs the scopes: s"


@pytest.mark.rule("SEC-10")
async def test_a_refusal_names_what_this_one_needs_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = new_server()
    server.add_tool(lambda: "", name="other", scopes=["other"])
    caplog.set_level(logging.INFO, "dovetail")
    async with CallerWire(server, MODERN, READER) as wire:
        assert (await wire.refusal("tools/call", {"name": "other"}))["message"] == "This needs the scopes: other"
    assert "'ann'" in caplog.text
    assert "other" in caplog.text


async def test_on_a_pipe_without_a_token_the_message_says_what_helps() -> None:
    async with CallerWire(new_server(), MODERN, ANONYMOUS) as wire:
        assert "DOVETAIL_TOKEN" in (await wire.refusal("tools/call", {"name": "scoped"}))["message"]
        wire.connection = Connection(wire.server.engine, wire, locate=lambda: "127.0.0.1")
        assert "DOVETAIL_TOKEN" not in (await wire.refusal("tools/call", {"name": "scoped"}))["message"]


# ── the function ──


@pytest.mark.parametrize("is_async", [False, True])
async def test_plain_and_async_functions_are_asked_about_those_who_have_the_scopes(is_async: bool) -> None:
    asked: list[Any] = []

    def is_bob(principal: Any) -> bool:
        asked.append(principal)
        return principal is WRITER

    async def is_bob_later(principal: Any) -> bool:
        await asyncio.sleep(0)
        return is_bob(principal)

    server, eve = Server("f", version="1.0.0", timeout=5), Principal(subject="eve", scopes=WRITER.scopes)
    server.add_tool(lambda: "", name="t", scopes=["notes:write"], authorize=is_bob_later if is_async else is_bob)
    missing, unknown = "This needs the scopes: notes:write", "Unknown tool: t"
    for principal, message in ((READER, missing), (eve, unknown), (WRITER, None)):
        async with CallerWire(server, MODERN, principal) as wire:
            answer = await wire.exchange(wire.request("tools/call", {"name": "t"}))
            assert answer.get("error", {}).get("message") == message
            assert len((await wire.ask("tools/list"))["tools"]) == (message is None)
    assert asked == [eve, eve, WRITER, WRITER]


def raises(principal: Any) -> bool:
    raise RuntimeError("no database")


async def hangs(principal: Any) -> bool:
    await asyncio.sleep(60)
    return True


async def generates(principal: Any) -> Any:
    yield True


@pytest.mark.parametrize(
    ("authorize", "logged"),
    [
        (raises, "no database"),
        (hangs, "denies access"),
        (generates, "gave async_generator, which denies access; return True or False"),
        (lambda principal: "yes", "gave str, which denies access"),
        (lambda principal: 1, "gave int, which denies access"),
        (lambda principal: None, ""),
    ],
)
async def test_every_failure_is_a_no(authorize: Any, logged: str, caplog: pytest.LogCaptureFixture) -> None:
    server = Server("f", version="1.0.0", timeout=0.05)
    server.add_tool(lambda: "", name="t", authorize=authorize)
    async with CallerWire(server, MODERN, ADMIN) as wire:
        error = await wire.refusal("tools/call", {"name": "t"})
        assert error["message"] == "Unknown tool: t", "and nothing of what has failed"
        assert logged in caplog.text
        assert bool(caplog.records) == bool(logged)


# ── resources ──


@pytest.mark.parametrize("uri", ["kept://one", "kept://of/x"])
@pytest.mark.parametrize("rule", [{"scopes": ["notes:write"]}, {"authorize": lambda principal: principal is WRITER}])
async def test_kept_contents_are_for_those_who_may_read_them(uri: str, rule: Any) -> None:
    server = Server("kept", version="1.0.0", ttl_ms=1000, cache_scope="public")
    reads: list[str] = []

    def read(name: str = "one") -> str:
        reads.append(name)
        return "the secret"

    server.add_resource("kept://one", lambda: read(), name="r", cache=60, **rule)
    server.add_resource("kept://of/{name}", read, cache=60, **rule)
    for principal, works in ((READER, False), (WRITER, True), (READER, False), (ANONYMOUS, False), (WRITER, True)):
        async with CallerWire(server, MODERN, principal) as wire:
            answer = await wire.exchange(wire.request("resources/read", {"uri": uri}))
            assert ("result" in answer) == works
            assert ("the secret" in repr(answer)) == works
            if works:
                assert answer["result"]["cacheScope"] == "private"
                assert answer["result"]["ttlMs"] == 1000
    assert len(reads) == 1


@pytest.mark.long
async def test_a_listen_leaves_out_what_the_caller_may_not_read() -> None:
    uris = ["open://one", "scoped://one", "scoped://of/good", "secret://one", "unknown://one", "open://of/bad"]
    for principal, honoured in (
        (READER, ["open://one", "open://of/bad"]),
        (WRITER, ["open://one", "scoped://one", "scoped://of/good", "open://of/bad"]),
        (ADMIN, ["open://one", "secret://one", "open://of/bad"]),
    ):
        server = new_server()
        async with CallerWire(server, MODERN, principal) as wire:
            wanted = {"notifications": {"resourceSubscriptions": uris}}
            wire.send(wire.request("subscriptions/listen", wanted, id="l"))
            assert (await wire.receive())["params"]["notifications"]["resourceSubscriptions"] == honoured
            for uri in uris:
                server.notify_resource_updated(uri)
            assert [(await wire.receive())["params"]["uri"] for _ in honoured] == honoured
            await wire.quiet()


@pytest.mark.parametrize("version", ERAS)
@pytest.mark.parametrize(
    ("principal", "uri", "text", "is_error"),
    [
        (READER, "scoped://one", "This needs the scopes: notes:read notes:write", True),
        (READER, "secret://one", "Resource not found", True),
        (WRITER, "scoped://one", "scoped", False),
        (ADMIN, "secret://one", "secret", False),
    ],
)
async def test_a_tool_reads_as_its_caller(version: str, principal: Any, uri: str, text: str, is_error: bool) -> None:
    server = new_server()

    @server.tool
    async def peek(uri: str, ctx: Context) -> str:
        (contents,) = await ctx.read_resource(uri)
        return str(contents.text)

    async with CallerWire(server, version, principal) as wire:
        result = await wire.ask("tools/call", {"name": "peek", "arguments": {"uri": uri}})
        assert result["content"][0]["text"] == text
        assert result.get("isError", False) == is_error


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
    async with CallerWire(server, version, principal) as wire:
        cursor: dict[str, str] = {}
        for _ in range(100):
            page = await wire.ask(LISTS[key], cursor)
            names += [item["name"] for item in page[key]]
            if "nextCursor" not in page:
                return names
            assert len(page[key]) == server.engine.options.page_size
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
async def test_a_caller_sees_what_it_may_use(version: str, key: str, principal: Any, seen: list[str]) -> None:
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
async def test_pages_of_any_size_hold_what_is_visible_once(
    rules: list[frozenset[str]], granted: list[frozenset[str]], size: int
) -> None:
    server = Server("lists", version="1.0.0", page_size=size, declare=["tools"])
    for number, scopes in enumerate(rules):
        server.add_tool(lambda: "", name=f"t{number}", scopes=sorted(scopes))
    for scopes in granted:
        expected = [f"t{number}" for number, needed in enumerate(rules) if needed <= scopes]
        assert await lists(server, caller(*scopes)) == expected


async def test_lists_with_rules_are_private() -> None:
    server = server_of({"a": {"scopes": ["a"]}}, ttl_ms=1000, cache_scope="public")
    plain = server_of({"a": {}}, ttl_ms=1000, cache_scope="public")
    for each, scope in ((server, "private"), (plain, "public")):
        async with Wire(each, MODERN) as wire:
            for method in LISTS.values():
                for _ in range(2):
                    page = await wire.ask(method)
                    assert (page["cacheScope"], page["ttlMs"]) == (scope, 1000)


# ── what is kept ──


async def test_rules_are_looked_at_once_for_all_who_see_the_same() -> None:
    server = Server("lists", version="1.0.0", page_size=500)
    for number in range(500):
        server.add_tool(lambda: "", name=f"t{number}", scopes=[f"s{number % 3}"])
    for _ in range(3):
        for user in ("ann", "bob"):
            scopes = frozenset(["s0", f"{user}:own"])  # which no rule names
            assert len(await lists(server, Principal(subject=user, scopes=scopes))) == 167
        assert len(await lists(server, caller("s0", "s1"))) == 334
        assert await lists(server, None) == await lists(server, caller("other")) == []
    assert len(server.engine.tools.pages) == 3
    server.add_tool(lambda: "", name="new", scopes=["s0"])
    assert len(await lists(server, caller("s0"))) == 168


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


@pytest.mark.parametrize("key", [lambda principal: principal.claims["nothing"], lambda principal: principal.claims])
async def test_a_key_that_fails_keeps_nothing(key: Any, caplog: pytest.LogCaptureFixture) -> None:
    authorize: Any = Asked()
    authorize.key = key
    server = Server("lists", version="1.0.0")
    server.add_tool(lambda: "", name="x", authorize=authorize)
    assert await lists(server, ANN) == ["x"]
    assert await lists(server, EVE) == []
    assert "a key failed" in caplog.text
    assert not server.engine.tools.pages
