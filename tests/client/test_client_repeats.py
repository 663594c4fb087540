"""A client sends a key for each call of a tool whose calls may be repeated, and repeats after a lost connection."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from scripted import DISCOVERED, EVERY, Scripted, ScriptedRequest, brisk_client, handshake

from dovetail import Client, ConnectionLost, Context, Server, ServerError
from server_requests import MODERN

KEY, MARK = "dovetail/idempotencyKey", "dovetail/idempotency"
DONE = {"resultType": "complete", "content": [{"type": "text", "text": "paid"}], "isError": False}
ASKED = {
    "resultType": "input_required",
    "requestState": "sealed",
    "inputRequests": {
        "q": {
            "method": "elicitation/create",
            "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
        }
    },
}
DECLARED = {"tools": {}, "experimental": {MARK: {"process": "p"}}}


def marked(*, name: str = "pay", is_marked: bool = True) -> dict[str, Any]:
    meta = {"_meta": {MARK: {"windowSeconds": 60}}} if is_marked else {}
    return {"name": name, "inputSchema": {"type": "object"}, **meta}


def listed(*tools: dict[str, Any]) -> dict[str, Any]:
    return {"resultType": "complete", "tools": [*tools], "ttlMs": 0, "cacheScope": "private"}


class Shop:
    """A server of one tool, whose answers to `tools/call` are those of the test, in order."""

    def __init__(
        self, *answers: Callable[[ScriptedRequest], Any], revision: str = MODERN, is_marked: bool = True,
        capabilities: Any = DECLARED,
    ) -> None:  # fmt: skip
        self._answers = list(answers)
        self._revision = revision
        self._tools = listed(marked(is_marked=is_marked))
        self._capabilities = capabilities
        self.calls: list[dict[str, Any]] = []

    def __call__(self, request: ScriptedRequest) -> Any:
        if self._revision == MODERN and request.method == "server/discover":
            return request.result({**DISCOVERED, "capabilities": self._capabilities})
        if self._revision != MODERN and handshake(request, self._revision, self._capabilities, Mcp_Session_Id="s"):
            return None
        if request.method == "tools/list":
            return request.result(self._tools)
        assert request.method == "tools/call"
        self.calls.append(request.message["params"])
        return self._answers.pop(0)(request)

    @property
    def keys(self) -> list[Any]:
        return [params.get("_meta", {}).get(KEY) for params in self.calls]


def cut(request: ScriptedRequest) -> None:
    request.cut()


def unavailable(request: ScriptedRequest) -> None:
    request.answer(503)


def paid(request: ScriptedRequest) -> None:
    request.result(DONE)


def asked(request: ScriptedRequest) -> None:
    request.result(ASKED)


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25", MODERN])
async def test_a_call_is_repeated_with_its_key(revision: str) -> None:
    shop = Shop(cut, unavailable, paid, paid, revision=revision)
    async with Scripted(shop) as server, brisk_client(server.url, protocol_version=revision) as client:
        assert (await client.call_tool("pay")).text == "paid"
        await client.call_tool("pay")
    first, second, third, other = shop.keys
    assert first == second == third != other
    processes = [call["_meta"].get("dovetail/idempotencyProcess") for call in shop.calls]
    assert processes == [None, "p", "p", None]  # a repeat says which process has to know of the first call
    assert min(map(len, shop.keys)) >= 32


async def test_repeats_are_bounded() -> None:
    shop = Shop(*[unavailable] * 10)
    async with Scripted(shop) as server, brisk_client(server.url) as client:
        with pytest.raises(ConnectionLost, match="503"):
            await client.call_tool("pay")
    assert len(shop.calls) == 4


async def test_each_round_of_a_call_is_repeated() -> None:
    shop = Shop(cut, asked, cut, unavailable, paid)
    options: Any = {"elicitation_handler": lambda _: {}, "protocol_version": MODERN}
    async with Scripted(shop) as server, brisk_client(server.url, **options) as client:
        assert (await client.call_tool("pay")).text == "paid"
    assert len({*shop.keys}) == 1
    assert ["requestState" in call for call in shop.calls] == [False, False, True, True, True]


async def test_no_call_is_repeated_in_another_session() -> None:
    """The server may know its caller by the session alone, and would run the call for another one."""

    def forgotten(request: ScriptedRequest) -> None:
        request.answer(404)

    shop = Shop(forgotten, paid, revision="2025-11-25")
    async with Scripted(shop) as server, brisk_client(server.url, protocol_version="2025-11-25") as client:
        with pytest.raises(ConnectionLost):
            await client.call_tool("pay")
        assert len(shop.calls) == 1
        await client.call_tool("pay")  # by its caller, in a new session
        assert shop.keys[0] != shop.keys[1]


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
@pytest.mark.parametrize("capabilities", [{"tools": {}}, {"tools": {}, "experimental": [MARK]}, DECLARED])
async def test_other_tools_are_called_once_and_without_a_key(revision: str, capabilities: Any) -> None:
    is_declared = capabilities is DECLARED
    shop = Shop(cut, revision=revision, capabilities=capabilities, is_marked=not is_declared)
    async with Scripted(shop) as server, brisk_client(server.url, protocol_version=revision) as client:
        with pytest.raises(ConnectionLost):
            await client.call_tool("pay")
        said = server.said()
    assert shop.keys == [None]
    assert ("POST tools/list" in said) == (is_declared or revision == MODERN)  # a list costs a request


@pytest.mark.parametrize("revision", EVERY)
async def test_a_caller_may_give_its_own_key(revision: str) -> None:
    server, keys = Server("shop"), list[Any]()

    @server.tool(idempotency=True)
    async def pay(ctx: Context) -> str:
        keys.append(ctx.meta.get(KEY))
        return "paid"

    @server.tool
    async def look(ctx: Context) -> str:
        return json.dumps(ctx.meta.get(KEY))

    async with Client(server, protocol_version=revision) as client:
        given = [await client.call_tool("pay", idempotency_key="order-17") for _ in range(2)]
        assert [result.meta.get("dovetail/idempotentReplay") for result in given] == [None, True]
        await asyncio.gather(*(client.call_tool("pay") for _ in range(2)))
        assert (await client.call_tool("look")).text == "null"
        assert (await client.call_tool("look", idempotency_key="x")).text == '"x"'
        with pytest.raises(ServerError, match="1 to 255 printable"):
            await client.call_tool("pay", idempotency_key="")
    assert keys[0] == "order-17"
    assert len(keys) == 3
    if revision in ("2024-11-05", "2025-03-26"):  # whose lists can't mark a tool
        assert keys[1:] == [None, None]
    else:
        assert keys[1] != keys[2]
        assert None not in keys
