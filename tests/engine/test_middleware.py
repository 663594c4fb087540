"""Middleware: what it sees, what it may change, and in which order."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from dovetail import CallNext, Notification, ProtocolError, Result, Server, SetupError, Text, ToolError, ToolResult
from dovetail.engine.hooks import NAMES
from dovetail.protocol.inbound import Request
from dovetail.protocol.results import ListResult
from wire import MODERN, Wire

NOTHING = {"name": "x", "value": ""}


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
@pytest.mark.parametrize("content", ["said", Text("said"), ["said"], (Text("said"),)], ids=str)
async def test_content_of_its_own_is_sent_as_that_of_a_tool(content: Any, version: str) -> None:
    server = new_server()

    @server.middleware
    class Answers:
        async def on_call_tool(self, context: Request, call_next: CallNext) -> Result:
            return ToolResult(content=content)

    async with Wire(server, version) as wire:
        assert (await wire.ask("tools/call", {"name": "say"}))["content"] == [{"type": "text", "text": "said"}]


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
    assert failure is not None or "a middleware returned NoneType; return what call_next gives" in caplog.text


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


async def test_a_partial_of_an_async_function_is_middleware() -> None:
    server, seen = new_server(), list[str]()

    async def watch(seen: list[str], request: Request, call_next: CallNext) -> Result:
        seen.append(request.method)
        return await call_next(request)

    server.add_middleware(partial(watch, seen))
    async with Wire(server, MODERN) as wire:
        await wire.ask("tools/list")
    assert seen == ["tools/list"]


# ── classes ──


async def suggest_nothing(ref: Any, argument: Any, context: Any) -> list[str]:
    return []


def new_watcher(names: Sequence[str], seen: list[str]) -> Any:
    """An object with these hooks, which note their name and the method."""

    def hook(name: str) -> Any:
        async def on(self: Any, context: Any, call_next: Any) -> Any:
            seen.append(f"{name} {context.method}")
            return await call_next(context)

        return on

    return type("Watcher", (), {name: hook(name) for name in names})()


ASKED: list[tuple[str, dict[str, Any], str]] = [
    ("tools/list", {}, "on_list_tools"),
    ("tools/call", {"name": "say"}, "on_call_tool"),
    ("resources/list", {}, "on_list_resources"),
    ("resources/templates/list", {}, "on_list_resource_templates"),
    ("resources/read", {"uri": "a://b"}, "on_read_resource"),
    ("prompts/list", {}, "on_list_prompts"),
    ("prompts/get", {"name": "ask"}, "on_get_prompt"),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "ask"}, "argument": NOTHING}, "on_complete"),
]


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_hooks_are_called_for_their_methods_and_general_ones_around_them(revision: str) -> None:
    server, seen = new_server(), list[str]()
    server.completion(suggest_nothing)
    server.add_middleware(new_watcher(NAMES, seen))
    async with Wire(server, revision) as wire:
        first = ("server/discover", {}, "on_discover") if revision == MODERN else ("initialize", {}, "on_initialize")
        for method, params, hook in (first, *ASKED):
            if method != "initialize":  # which the wire has sent
                await wire.ask(method, params)
            called = [line for line in seen if "notifications/" not in line]
            assert called == [f"on_message {method}", f"on_request {method}", f"{hook} {method}"]
            seen.clear()


async def test_a_class_or_an_object_of_one_is_middleware() -> None:
    server = new_server()
    order: list[str] = []

    @server.middleware
    class Hide:
        """Nobody sees secret tools, and nobody calls them."""

        async def on_list_tools(self, context: Request, call_next: CallNext) -> Result:
            order.append("hide")
            result = await call_next(context)
            assert isinstance(result, ListResult)
            result.items = [tool for tool in result.items if tool.name != "hide"]
            return result

        async def on_call_tool(self, context: Request, call_next: CallNext) -> Result:
            if context.params.name == "hide":
                raise ToolError("There is no such tool")
            return await call_next(context)

    class Brand:
        def __init__(self, name: str) -> None:
            self.name = name

        async def on_call_tool(self, context: Request, call_next: CallNext) -> Result:
            result = await call_next(context)
            assert isinstance(result, ToolResult)
            return msgspec.structs.replace(result, content=[*result.content, Text(self.name)])

        async def on_request(self, context: Request, call_next: CallNext) -> Result:
            order.append(f"{self.name} {context.method}")
            return await call_next(context)

    assert isinstance(Hide, type)
    assert isinstance(server.middleware(Brand("us")), Brand)
    async with Wire(server, MODERN) as wire:
        assert [tool["name"] for tool in (await wire.ask("tools/list"))["tools"]] == ["say"]
        assert order == ["hide", "us tools/list"]
        said = await wire.ask("tools/call", {"name": "say"})
        assert [block["text"] for block in said["content"]] == ["said", "us"]
        hidden = await wire.ask("tools/call", {"name": "hide"})
        assert (hidden["content"][0]["text"], hidden["isError"]) == ("There is no such tool", True)


async def test_notifications_are_told_to_their_hooks(caplog: pytest.LogCaptureFixture) -> None:
    server = new_server()
    heard: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    class Listener:
        async def on_notification(self, context: Notification, call_next: Any) -> None:
            assert await call_next(context) is None
            heard.put_nowait((context.method, context.params))
            if context.method == "notifications/odd":
                raise ValueError("broken")

    class Around:
        async def on_message(self, context: Request | Notification, call_next: Any) -> Any:
            if isinstance(context, Notification):
                heard.put_nowait((f"before {context.method}", context.revision.name))
            return await call_next(context)

    server.add_middleware(Around())
    server.add_middleware(Listener())
    async with Wire(server, "2025-11-25") as wire:
        assert await heard.get() == ("before notifications/initialized", "2025-11-25")
        assert await heard.get() == ("notifications/initialized", {})
        wire.send({"jsonrpc": "2.0", "method": "notifications/odd", "params": {"a": [1]}})
        assert await heard.get() == ("before notifications/odd", "2025-11-25")
        assert await heard.get() == ("notifications/odd", {"a": [1]})
        assert (await wire.ask("tools/call", {"name": "say"}))["content"][0]["text"] == "said"
    assert "a hook of notifications/odd failed" in caplog.text


class Misspelled:
    async def on_call_tools(self, context: Any, call_next: Any) -> Any: ...


class Plain:
    def on_call_tool(self, context: Any, call_next: Any) -> Any: ...


class Short:
    async def on_request(self, context: Any) -> Any: ...


class Needy:
    def __init__(self, name: str) -> None: ...

    async def on_request(self, context: Any, call_next: Any) -> Any: ...


class Empty: ...


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            Misspelled(),
            r"\(Misspelled\), on_call_tools: there is no such hook \(did you mean on_call_tool\?\); known are",
        ),
        (
            Plain,
            r"\(Plain\), on_call_tool: a hook is written `async def on_call_tool\(self, context, call_next",
        ),
        (Short, r"\(Short\), on_request: a hook is written `async def on_request\(self"),
        (Needy, r"\(Needy\): .*'name'; give it an object of the class"),
        (Empty(), r"\(Empty\): it must be `async def m\(request, call_next\)`, or have hooks"),
    ],
    ids=["misspelled", "plain", "short", "needy", "empty"],
)
def test_hooks_that_can_not_work_are_refused(wrong: Any, words: str) -> None:
    with pytest.raises(SetupError, match=words) as refusal:
        new_server().add_middleware(wrong)
    assert (refusal.value.__cause__ is not None) == (wrong is Needy)  # where its `__init__` failed
