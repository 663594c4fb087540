"""The response cache and the tool cache of a client."""

import asyncio
from typing import Any

import pytest
from msgspec import Raw
from scripted import AskingServer, Scripted, ScriptedRequest, ScriptedTransport, error, modern, result

from dovetail import Change, Client
from dovetail.client import cache as caching
from dovetail.client.auth import AuthChallenge, OutgoingRequest
from dovetail.client.cache import ResponseCache
from dovetail.errors import BadResponse
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.types import WRAPPED_KEY
from http_serving import Clock

pytestmark = pytest.mark.usefixtures("tidy")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(caching, "monotonic", clock)
    return clock


def answer(ttl: Any = 1000, **more: Any) -> Raw:
    return Raw(encode({"resultType": "complete", "ttlMs": ttl, "cacheScope": "private", **more}))


def filled(*requests: tuple[str, dict[str, Any]], **sizes: int) -> ResponseCache:
    cache = ResponseCache(**sizes)
    for method, params in requests:
        cache.store(method, params, answer(), cache.generation)
    return cache


def test_until_its_time_is_over(clock: Clock) -> None:
    cache = filled(("tools/list", {}))
    clock.now += 0.999
    assert cache.find("tools/list", {}) == answer()
    clock.now += 0.001
    assert cache.find("tools/list", {}) is None
    assert not len(cache)


NOT_KEPT: dict[str, tuple[str, dict[str, Any], Raw]] = {
    "no ttl": ("tools/list", {}, Raw(b"{}")),
    **{repr(ttl): ("tools/list", {}, answer(ttl)) for ttl in (0, -5, "1000", 0.5, True, [1000])},
    "no object": ("tools/list", {}, Raw(b"[1]")),
    "an input_required result": ("resources/read", {"uri": "a:/"}, answer(resultType="input_required")),
    "another kind of result": ("resources/read", {"uri": "a:/"}, answer(resultType="task")),
    "a second round": ("resources/read", {"uri": "a:/", "inputResponses": {}}, answer()),
    "a waiting round": ("resources/read", {"uri": "a:/", "requestState": "x"}, answer()),
    "a call": ("tools/call", {"name": "x"}, answer()),
    "a prompt": ("prompts/get", {"name": "x"}, answer()),
    "a completion": ("completion/complete", {}, answer()),
}


@pytest.mark.parametrize(("method", "params", "raw"), NOT_KEPT.values(), ids=NOT_KEPT.keys())
def test_what_is_not_kept(method: str, params: dict[str, Any], raw: Raw) -> None:
    cache = ResponseCache()
    cache.store(method, params, raw, cache.generation)
    assert not len(cache)


def test_the_one_used_longest_ago_makes_room() -> None:
    uris = [{"uri": f"a://{number}"} for number in range(4)]
    cache = filled(*(("resources/read", uri) for uri in uris[:3]), max_entries=3)
    assert cache.find("resources/read", uris[0]) is not None
    cache.store("resources/read", uris[3], answer(), cache.generation)
    assert [cache.find("resources/read", uri) is not None for uri in uris] == [True, False, True, True]


LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list", "server/discover")
EVERYTHING = (
    *((method, {}) for method in LISTS), *(("resources/read", {"uri": f"notes://{number}"}) for number in (1, 2)),
)  # fmt: skip

CLIENT_REJECTED_ERRORS = {
    Change("tools"): {0},
    Change("prompts"): {1},
    Change("resources"): {2, 3},
    Change("updated", "notes://1"): {5, 6},
}


@pytest.mark.parametrize(
    ("change", "old"), CLIENT_REJECTED_ERRORS.items(), ids=[f"{c.kind} {c.uri}" for c in CLIENT_REJECTED_ERRORS]
)
def test_a_change_makes_old(change: Change, old: set[int]) -> None:
    cache = filled(*EVERYTHING)
    cache.invalidate(change)
    assert {number for number, request in enumerate(EVERYTHING) if cache.find(*request) is None} == old


def test_nothing_is_shared_with_another_identity() -> None:
    cache = filled(("tools/list", {}))
    cache.set_owner("")
    assert len(cache) == 1
    asked = cache.generation
    cache.set_owner("Bearer of Ada")
    assert not len(cache)
    cache.store("tools/list", {}, answer(), asked)  # requested by another identity
    assert not len(cache)


MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"


class CachingServer(ScriptedTransport):
    """Counts how often it is asked; tools come in two pages."""

    reconnects = True

    def __init__(self) -> None:
        super().__init__(self.reply)
        self.bad_cursor = False

    def reply(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        params, method = message.get("params", {}), message["method"]
        if "cursor" in params and self.bad_cursor:
            self.bad_cursor = False
            return [error(message, -32602, "Invalid cursor")]
        first, second = {"tools": [tool("one")], "nextCursor": "2"}, {"tools": [tool(f"two{len(self.sent)}")]}
        found: dict[str, Any] = {
            "server/discover": {"supportedVersions": [MODERN], "capabilities": {"tools": {}}},
            "tools/list": second if "cursor" in params else first,
            "resources/list": {"resources": []},
            "prompts/list": {"prompts": []},
            "resources/templates/list": {"resourceTemplates": []},
            "resources/read": {"contents": [{"uri": params.get("uri"), "text": str(len(self.sent))}]},
        }
        cacheable = {"resultType": "complete", "ttlMs": 1000, "cacheScope": "private"}
        return [result(message, {**cacheable, **found[method]})] if method in found else []

    def asked(self, method: str) -> int:
        return self.methods().count(method)

    def tell(self, kind: str, **params: Any) -> None:
        self.say({"jsonrpc": "2.0", "method": f"notifications/{kind}", "params": params})


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}}


ASKS: dict[str, Any] = {
    "tools/list": lambda client, **how: client.list_tools(**how),
    "prompts/list": lambda client, **how: client.list_prompts(**how),
    "resources/list": lambda client, **how: client.list_resources(**how),
    "resources/templates/list": lambda client, **how: client.list_resource_templates(**how),
    "resources/read": lambda client, **how: client.read_resource("a://1", **how),
    "server/discover": lambda client, **how: client.discover(**how),
}


@pytest.mark.parametrize("method", ASKS)
async def test_the_second_time_the_server_is_not_asked(clock: Clock, method: str) -> None:
    server, ask = CachingServer(), ASKS[method]
    async with Client(server) as client:
        begun = server.asked(method)
        first = await ask(client)
        once = server.asked(method) - begun
        assert once
        assert await ask(client) == first
        assert server.asked(method) == begun + once
        await ask(client, fresh=True)
        assert server.asked(method) == begun + 2 * once
        clock.now += 1
        await ask(client)
        assert server.asked(method) == begun + 3 * once


async def test_a_change_is_noticed_before_the_next_read(clock: Clock) -> None:
    server = CachingServer()
    async with Client(server) as client:
        await client.read_resource("a://1")
        await client.list_tools()
        server.tell("resources/updated", uri="a://1")
        server.tell("tools/list_changed")
        await client.list_prompts()  # by now they have arrived
        await client.read_resource("a://1")
        await client.list_tools()
        assert (server.asked("resources/read"), server.asked("tools/list")) == (2, 4)
        await client.read_resource("a://1")
        assert server.asked("resources/read") == 2


async def test_a_kept_cursor_that_is_too_old(clock: Clock) -> None:
    server = CachingServer()
    async with Client(server) as client:
        await client.list_tools_page()
        server.bad_cursor = True
        assert len(await client.list_tools()) == 2
        assert server.asked("tools/list") == 4  # page 1; page 2 is refused; both anew


class Changing:
    """Credentials that change, and do not say so: nothing is cached for them."""

    token = "Ada"

    async def headers(self, request: OutgoingRequest) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    async def refused(self, request: OutgoingRequest, challenge: AuthChallenge) -> bool:
        return False


class Telling(Changing):
    """They say so themselves, as those of OAuth do."""

    @property
    def identity(self) -> str:
        return self.token


@pytest.mark.parametrize(("who", "reads"), [(Changing(), 3), (Telling(), 2)], ids=["unknown", "notified"])
async def test_another_identity_gets_responses_of_its_own(who: Changing, reads: int) -> None:
    def behave(request: ScriptedRequest) -> None:
        name = request.headers["authorization"].removeprefix("Bearer ")
        if request.method == "resources/read":
            contents = [{"uri": "a://1", "text": f"for {name}"}]
            request.result({"resultType": "complete", "contents": contents, "ttlMs": 60_000, "cacheScope": "private"})
        else:
            modern()(request)

    async with Scripted(behave) as server, Client(server.url, auth=who) as client:
        for name in ("Ada", "Ada", "Bob"):
            who.token = name
            assert (await client.read_resource("a://1"))[0].text == f"for {name}"
        assert server.said().count("POST resources/read") == reads


OBJECT = {"type": "object"}


class ToolServer(AskingServer):
    """Its tools wrap; `listed` is what comes of a listing instead of them: None is silence, an int an error."""

    def __init__(self, revision: str, *names: str, listed: Any = ...) -> None:
        super().__init__(revision, self.answer)
        tools = [{"name": name, "inputSchema": OBJECT, "_meta": {WRAPPED_KEY: True}} for name in names]
        self.listed = {"tools": tools} if listed is ... else listed

    def answer(self, message: dict[str, Any]) -> Any:
        value = {"content": [], "structuredContent": {"result": "paid"}}
        if message["method"] == "tools/list":
            value = self.listed
        if isinstance(value, int):
            self.say(error(message, value))
        return {"resultType": "complete", **value} if isinstance(value, dict) else None


@pytest.mark.parametrize("failure", [-32603, {"tools": "none"}, None], ids=["refused", "nonsense", "silence"])
async def test_the_result_of_a_tool_that_ran_is_not_lost(failure: Any) -> None:
    server = ToolServer(HANDSHAKE, listed=failure)
    async with Client(server, protocol_version=HANDSHAKE, timeout=30) as client, asyncio.timeout(5):
        paid = await client.call_tool("pay", timeout=0.2)
    assert paid.data == paid.structured == {"result": "paid"}
    assert len(server.calls()) == 1


@pytest.mark.parametrize("version", [HANDSHAKE, MODERN])
async def test_calls_at_once_need_one_listing(version: str) -> None:
    server = ToolServer(version, "pay")
    server.tool_headers = {}  # it wants headers
    async with Client(server, protocol_version=version) as client:
        results = await asyncio.gather(*(client.call_tool("pay") for _ in range(50)))
    wrapped = version == MODERN  # where nothing has to be wrapped, what looks like it is meant
    assert [each.data for each in results] == [{"result": "paid"} if wrapped else "paid"] * 50
    assert (len(server.calls("tools/list")), len(server.calls())) == (1, 50)


@pytest.mark.parametrize("ttl", [0, 60_000])
@pytest.mark.parametrize(
    "cursors", [lambda number: "same", lambda number: f"{number % 2}"], ids=["its own", "in a circle"]
)
async def test_a_cursor_that_comes_twice(cursors: Any, ttl: int) -> None:
    cacheable = {"resultType": "complete", "ttlMs": ttl, "cacheScope": "private"}
    tools = [{"name": f"t{number}", "inputSchema": OBJECT} for number in range(10)]
    server = AskingServer(
        MODERN, lambda message: {**cacheable, "tools": tools, "nextCursor": cursors(len(server.calls("tools/list")))}
    )
    async with Client(server) as client:
        with pytest.raises(BadResponse, match="tools/list: the server's list does not end: it gave the same cursor"):
            await client.list_tools()
    assert len(server.calls("tools/list")) <= 3
