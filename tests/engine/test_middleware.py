"""Middleware: what it sees, what it may change, and in which order."""

import asyncio
from typing import Any

import msgspec
import pytest

from dovetail import ProtocolError, Server, SetupError, Text, ToolError, ToolResult
from dovetail.protocol.inbound import Request
from dovetail.protocol.results import ListResult
from wire import MODERN, Wire


def new_server() -> Server:
    server = Server("middleware", version="1.0.0")
    server.add_tool(lambda: "said", name="say")
    server.add_tool(lambda: "hidden", name="hide", tags=["secret"])
    server.add_prompt(lambda: "p", name="ask")
    server.add_resource("a://b", lambda: "r", name="res")
    return server


async def test_every_method_is_seen_once() -> None:
    server, seen = new_server(), list[str]()

    @server.middleware
    async def watch(request: Request, call_next: Any) -> Any:
        seen.append(request.method)
        return await call_next(request)

    asked: list[tuple[str, dict[str, Any]]] = [
        ("ping", {}), ("tools/list", {}), ("tools/call", {"name": "say"}), ("tools/call", {"name": "unknown"}),
        ("resources/list", {}), ("resources/templates/list", {}), ("resources/read", {"uri": "a://b"}),
        ("resources/subscribe", {"uri": "a://b"}), ("resources/unsubscribe", {"uri": "a://b"}), ("prompts/list", {}),
        ("prompts/get", {"name": "ask"}), ("logging/setLevel", {"level": "info"}),
    ]  # fmt: skip
    async with Wire(server, "2025-11-25") as wire:
        for method, params in asked:
            await wire.exchange(wire.request(method, params))
        await wire.refusal("no/such/method")
        await wire.refusal("tools/call", {"arguments": 1})
        wire.send({"jsonrpc": "2.0", "method": "notifications/progress"})
    assert seen == ["initialize", *(method for method, _ in asked)]
    seen.clear()
    async with Wire(server, MODERN) as wire:
        await wire.ask("server/discover")
        wire.send(wire.request("subscriptions/listen", {"notifications": {"toolsListChanged": True}}))
        await wire.receive()
        server.add_tool(lambda: "", name="new")
        await wire.receive()
        server.engine.hub.end_all()
        await wire.receive()
    assert seen == ["server/discover", "subscriptions/listen"]


async def test_the_first_is_outermost() -> None:
    server = new_server()
    order: list[str] = []
    for name in ("one", "two"):

        async def around(request: Request, call_next: Any, name: str = name) -> Any:
            order.append(f"{name} in")
            result = await call_next(request)
            order.append(f"{name} out")
            return result

        server.middleware(around)
    async with Wire(server, MODERN) as wire:
        await wire.ask("tools/call", {"name": "say"})
    assert order == ["one in", "two in", "two out", "one out"]


async def test_a_list_is_encoded_anew_only_if_it_was_changed() -> None:
    server = new_server()
    results: list[ListResult] = []
    hiding = False

    @server.middleware
    async def filter_tools(request: Request, call_next: Any) -> Any:
        result = await call_next(request)
        assert len(result.items) == 2  # looking is not touching
        if hiding:
            result.items = [item for item in result.items if "dovetail/tags" not in (item.meta or {})]
        results.append(result)
        return result

    async with Wire(server, MODERN) as wire:
        await wire.ask("tools/list")
        (kept,) = [page.body for page in server.engine.tools.pages.values()]
        await wire.ask("tools/list")
        hiding = True
        assert [tool["name"] for tool in (await wire.ask("tools/list"))["tools"]] == ["say"]
        hiding = False
        assert len((await wire.ask("tools/list"))["tools"]) == 2
    sent = [result.encode(server.engine.shapers[MODERN]) for result in results]
    assert [body is kept for body in sent] == [True, True, False, True]


async def test_it_may_answer_itself_and_refuse() -> None:
    server = new_server()

    @server.middleware
    async def guard(request: Request, call_next: Any) -> Any:
        if request.method == "prompts/get":
            raise ProtocolError("Not for you", code=-1, data={"why": "because"})
        if request.method == "resources/read":
            raise ToolError("not a tool")
        if request.method == "tools/call":
            if request.params.name == "hide":  # type: ignore[attr-defined]
                raise ToolError("Hidden")
            return ToolResult(content=[Text("from the middleware")])
        return await call_next(request)

    async with Wire(server, MODERN) as wire:
        answered = await wire.ask("tools/call", {"name": "not even there"})
        assert answered["content"][0]["text"] == "from the middleware"
        hidden = await wire.ask("tools/call", {"name": "hide"})
        assert (hidden["isError"], hidden["content"][0]["text"]) == (True, "Hidden")
        refused = await wire.refusal("prompts/get", {"name": "ask"})
        assert refused == {"code": -1, "message": "Not for you", "data": {"why": "because"}}
        assert (await wire.refusal("resources/read", {"uri": "a://b"}))["message"] == "not a tool"


@pytest.mark.parametrize("version", ["2025-06-18", MODERN])
@pytest.mark.parametrize("always", [True, False])
async def test_its_error_is_like_one_of_the_tool_itself(always: bool, version: str) -> None:
    server = Server("s", version="1.0.0", always_structured_content=always)
    refuses = False

    @server.middleware
    async def guard(request: Request, call_next: Any) -> Any:
        if refuses and request.method == "tools/call":
            raise ToolError("No")
        return await call_next(request)

    @server.tool
    def number() -> int:
        raise ToolError("No")

    @server.tool
    def word() -> str:
        raise ToolError("No")

    async with Wire(server, version) as wire:
        names = ("number", "word")
        own = [await wire.ask("tools/call", {"name": name}) for name in names]
        refuses = True
        assert [await wire.ask("tools/call", {"name": name}) for name in names] == own
        unknown = await wire.ask("tools/call", {"name": "unknown"})
    assert ["structuredContent" in result for result in (*own, unknown)] == [False, always, always]


async def test_it_sees_the_structured_value_of_a_tool_and_may_change_it() -> None:
    server = Server("s", version="1.0.0")
    seen: list[Any] = []

    @server.tool
    def count(word: str) -> dict[str, list[int]]:
        return {"places": [place for place, letter in enumerate(word) if letter == "a"]}

    @server.tool
    def half(number: int) -> float:
        return number / 2

    for _ in range(2):

        @server.middleware
        async def double(request: Request, call_next: Any) -> Any:
            result = await call_next(request)
            if isinstance(result, ToolResult):
                seen.append(result.structured)
                if isinstance(result.structured, float):
                    return msgspec.structs.replace(result, structured=result.structured * 2)
            return result

    async with Wire(server, MODERN) as wire:
        counted = await wire.ask("tools/call", {"name": "count", "arguments": {"word": "banana"}})
        halved = await wire.ask("tools/call", {"name": "half", "arguments": {"number": 3}})
    assert seen == [{"places": [1, 3, 5]}] * 2 + [1.5, 3.0]
    assert counted["structuredContent"] == {"places": [1, 3, 5]}
    assert (halved["structuredContent"], halved["content"][0]["text"]) == (6.0, "6.0")


@pytest.mark.parametrize("failure", [RuntimeError("secret 42"), asyncio.CancelledError(), SystemExit(42), None])
async def test_mistakes_are_internal_errors(failure: BaseException | None, caplog: pytest.LogCaptureFixture) -> None:
    server = new_server()

    @server.middleware
    async def broken(request: Request, call_next: Any) -> Any:
        if request.method != "tools/list":
            return await call_next(request)
        if failure is not None:
            raise failure
        return None

    async with Wire(server, MODERN) as wire:
        assert await wire.refusal("tools/list") == {"code": -32603, "message": "Internal error"}
        await wire.ask("tools/call", {"name": "say"})
    assert "tools/list failed" in caplog.text


async def test_a_refused_initialize_opens_no_session() -> None:
    server = new_server()

    @server.middleware
    async def gate(request: Request, call_next: Any) -> Any:
        if request.method == "initialize" and request.id == 1:
            raise ProtocolError("Closed", code=-1)
        return await call_next(request)

    async with Wire(server) as wire:
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "w", "version": "1"}}
        wire.send(wire.request("initialize", params, id=1))
        wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (await wire.receive())["error"]["message"] == "Closed"
        assert wire.connection.session is None
        server.add_tool(lambda: "", name="unheard")
        await wire.quiet(0.02)
        wire.send(wire.request("initialize", params, id=2))
        wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (await wire.receive())["result"]["protocolVersion"] == "2025-06-18"
        server.add_tool(lambda: "", name="received")
        assert (await wire.receive())["method"] == "notifications/tools/list_changed"
        await wire.quiet(0.02)


@pytest.mark.parametrize("wrong", [lambda request, call_next: None, "name", 5])
def test_only_async_functions_are_middleware(wrong: Any) -> None:
    with pytest.raises(SetupError, match="async def"):
        new_server().middleware(wrong)
