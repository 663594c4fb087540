"""A client uses answers again for as long as the server says, and not a moment longer."""

from collections.abc import Callable
from typing import Any

import pytest
from fake_clock import Clock
from modern_script import modern
from scripted_link import ScriptedLink, error, result
from served_http import Scripted, Visit

from dovetail import Change, Client, ServerError, ToolDefinition
from dovetail.client.credentials import Challenged, Sending
from dovetail.protocol.results import SUBSCRIPTION_KEY

MODERN, OLD = "2026-07-28", "2025-11-25"
INFO = {"name": "fake", "version": "0"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock.of_caches(monkeypatch)


class CachingServer(ScriptedLink):
    """Counts how often it is asked; tools come in two pages."""

    reconnects = True

    def __init__(self, revision: str = MODERN, ttl: int | None = 1000) -> None:
        super().__init__(self.reply)
        self.revision = revision
        self.hints: dict[str, Any] = {} if ttl is None else {"ttlMs": ttl, "cacheScope": "private"}
        self.bad_cursor = False
        self.listens: list[dict[str, Any]] = []

    def reply(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        params, complete = message.get("params", {}), {"resultType": "complete", **self.hints}
        match message["method"]:
            case "server/discover" if self.revision == MODERN:
                return [result(message, {**complete, "supportedVersions": [MODERN], "capabilities": {"tools": {}}})]
            case "initialize":
                return [result(message, {"protocolVersion": OLD, "capabilities": {"tools": {}}, "serverInfo": INFO})]
            case "tools/list" if "cursor" not in params:
                return [result(message, {**complete, "tools": [tool("one")], "nextCursor": "2"})]
            case "tools/list" if self.bad_cursor:
                self.bad_cursor = False
                return [error(message, -32602, "Invalid cursor")]
            case "tools/list":
                return [result(message, {**complete, "tools": [tool(f"two{len(self.sent)}")]})]
            case "resources/list" | "prompts/list" | "resources/templates/list" as method:
                key = {"resources/templates/list": "resourceTemplates"}.get(method, method.partition("/")[0])
                return [result(message, {**complete, key: []})]
            case "resources/read":
                text = {"uri": params["uri"], "text": str(len(self.sent))}
                return [result(message, {**complete, "contents": [text]})]
            case "tools/call":
                return [result(message, {"resultType": "complete", "content": [], **self.hints})]
            case "subscriptions/listen":
                self.listens.append(message)
                told = {"notifications": params["notifications"], "_meta": {SUBSCRIPTION_KEY: message["id"]}}
                return [{"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": told}]
            case _:
                return []

    def asked(self, method: str) -> int:
        return self.methods().count(method)

    def tell(self, kind: str, **params: Any) -> None:
        self.say({"jsonrpc": "2.0", "method": f"notifications/{kind}", "params": params})


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}}


Reach = Callable[..., Client]


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> Reach:
    def connect(server: CachingServer, **options: Any) -> Client:
        monkeypatch.setattr("dovetail.client.client.link_to", lambda *target, **more: server)
        return Client(["any"], protocol_version=server.revision, **options)

    return connect


ASKS: dict[str, Any] = {
    "tools/list": lambda client, **how: client.list_tools(**how),
    "prompts/list": lambda client, **how: client.list_prompts(**how),
    "resources/list": lambda client, **how: client.list_resources(**how),
    "resources/templates/list": lambda client, **how: client.list_resource_templates(**how),
    "resources/read": lambda client, **how: client.read_resource("a://1", **how),
    "server/discover": lambda client, **how: client.discover(**how),
}


@pytest.mark.parametrize("method", ASKS)
async def test_the_second_time_nobody_is_asked(reach: Reach, clock: Clock, method: str) -> None:
    server, ask = CachingServer(), ASKS[method]
    async with reach(server) as client:
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


@pytest.mark.parametrize("method", ASKS)
@pytest.mark.parametrize("options", [{"ttl": None}, {"ttl": 0}, {"cache": False}], ids=str)
async def test_who_does_not_cache(reach: Reach, method: str, options: dict[str, Any]) -> None:
    server = CachingServer(ttl=options.get("ttl", 1000))
    async with reach(server, cache=options.get("cache", True)) as client:
        await ASKS[method](client)
        begun = server.asked(method)
        await ASKS[method](client)
        assert server.asked(method) > begun


async def test_an_older_revision_has_no_such_hints(reach: Reach) -> None:
    server = CachingServer(OLD)
    async with reach(server) as client:
        await client.list_prompts()
        await client.list_prompts()
        assert server.asked("prompts/list") == 2


async def test_what_a_user_does_to_a_result_stays_with_that_user(reach: Reach) -> None:
    async with reach(CachingServer()) as client:
        (await client.discover())["capabilities"]["tools"]["spoilt"] = True
        assert (await client.discover())["capabilities"] == {"tools": {}}


async def test_a_change_is_heard_before_anybody_reads_again(reach: Reach, clock: Clock) -> None:
    server = CachingServer()
    async with reach(server) as client:
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


async def test_a_kept_cursor_that_is_too_old(reach: Reach, clock: Clock) -> None:
    server = CachingServer()
    async with reach(server) as client:
        await client.list_tools_page()
        server.bad_cursor = True
        assert len(await client.list_tools()) == 2
        assert server.asked("tools/list") == 4  # page 1; page 2 is refused; both anew


async def test_a_cursor_that_is_never_right(reach: Reach) -> None:
    server = CachingServer(ttl=0)
    server.bad_cursor = True
    async with reach(server) as client:
        with pytest.raises(ServerError, match="Invalid cursor"):
            await client.list_tools()
        assert server.asked("tools/list") == 2


async def test_another_connection_begins_with_nothing(reach: Reach) -> None:
    server = CachingServer()
    client = reach(server)
    for expected in (1, 2):
        async with client:
            await client.list_prompts()
            await client.list_prompts()
            assert server.asked("prompts/list") == expected


@pytest.mark.usefixtures("brisk")
async def test_whoever_hears_of_a_possible_change_can_read_it(reach: Reach) -> None:
    """A stream of changes that was broken tells everything as changed once: what was kept is as doubtful."""
    server = CachingServer()
    async with reach(server) as client, client.listen(prompts=True) as changes:
        await client.list_prompts()
        await client.list_tools()
        server.say(result(server.listens[-1], {"resultType": "complete"}))  # the server ends it
        assert await anext(changes) == Change("prompts")
        await client.list_prompts()
        await client.list_tools()
        assert (server.asked("prompts/list"), server.asked("tools/list")) == (2, 4)
        assert server.asked("subscriptions/listen") == 2


class Changing:
    """Credentials that change, and do not say so: nothing is kept for them."""

    token = "Ada"

    async def headers(self, request: Sending) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    async def refused(self, request: Sending, challenged: Challenged) -> bool:
        return False


class Telling(Changing):
    """They say so themselves, as those of OAuth do."""

    @property
    def identity(self) -> str:
        return self.token


@pytest.mark.parametrize(("who", "reads"), [(Changing(), 3), (Telling(), 2)], ids=["unknown", "told"])
async def test_whoever_signs_in_as_somebody_else_gets_answers_of_their_own(who: Changing, reads: int) -> None:
    def behave(visit: Visit) -> None:
        name = visit.headers["authorization"].removeprefix("Bearer ")
        if visit.method == "resources/read":
            contents = [{"uri": "a://1", "text": f"for {name}"}]
            visit.result({"resultType": "complete", "contents": contents, "ttlMs": 60_000, "cacheScope": "private"})
        else:
            modern()(visit)

    async with Scripted(behave) as server, Client(server.url, auth=who) as client:
        for name in ("Ada", "Ada", "Bob"):
            who.token = name
            assert (await client.read_resource("a://1"))[0].text == f"for {name}"
        assert server.said().count("POST resources/read") == reads


@pytest.mark.parametrize("auth", [None, "a-token"])
async def test_whoever_stays_the_same_is_not_asked_for_again(auth: str | None) -> None:
    def behave(visit: Visit) -> None:
        if visit.method == "prompts/list":
            visit.result({"resultType": "complete", "prompts": [], "ttlMs": 60_000, "cacheScope": "private"})
        else:
            modern()(visit)

    async with Scripted(behave) as server, Client(server.url, auth=auth) as client:
        await client.list_prompts()
        await client.list_prompts()
        assert server.said().count("POST prompts/list") == 1


async def test_what_is_approved_is_what_the_server_offers_now(reach: Reach) -> None:
    server, seen = CachingServer(), []

    def approve(tool: ToolDefinition, arguments: dict[str, Any]) -> bool:
        seen.append(tool.name)
        return True

    async with reach(server, approve=approve) as client:
        await client.list_tools()
        await client.call_tool("one")
        assert seen == ["one"]
        assert server.asked("tools/list") == 4


async def test_a_call_is_made_each_time(reach: Reach) -> None:
    server = CachingServer()
    async with reach(server) as client:
        await client.call_tool("one")
        await client.call_tool("one")
        assert server.asked("tools/call") == 2
