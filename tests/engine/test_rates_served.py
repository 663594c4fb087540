"""Rate limits as clients meet them: which requests count, and what whoever comes too often is told."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail import Client, Context, Server
from dovetail.engine import rates
from dovetail.engine.dispatch import handle
from dovetail.engine.exchange import Exchange
from dovetail.errors import INTERNAL_ERROR, RateLimited, SetupError
from dovetail.protocol import inbound, jsonrpc
from far_state import FarState
from replaying import asking_client, retry
from wire import MODERN, Wire

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN]
NOTHING: Any = None


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still, 12.5 seconds before the end of a minute."""
    monkeypatch.setattr(rates, "time", SimpleNamespace(monotonic=lambda: 47.5, time=lambda: 6047.5))


def work() -> str:
    return "done"


def offering(**options: Any) -> Server:
    server = Server("limited", **options)
    server.add_tool(work)
    server.add_prompt(lambda: "hello", name="greet")
    server.add_resource("note://one", lambda: "text", name="one")
    return server


REQUESTS: dict[str, dict[str, Any]] = {
    "tools/call": {"name": "work"},
    "prompts/get": {"name": "greet"},
    "resources/read": {"uri": "note://one"},
    "completion/complete": {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "x", "value": ""}},
    "tools/list": {},
    "prompts/list": {},
    "resources/list": {},
    "resources/templates/list": {},
    "ping": {},
    "logging/setLevel": {"level": "info"},
}


@pytest.mark.parametrize("method", REQUESTS)
async def test_which_requests_count(method: str) -> None:
    async with Wire(offering(rate_limit="1/minute", declare=["completions"]), "2025-11-25") as wire:
        answers = [await wire.exchange(wire.request(method, REQUESTS[method])) for _ in range(3)]
    assert "error" not in answers[0]
    assert all(("error" in answer) == (method in rates.COUNTED) for answer in answers[1:])


@pytest.mark.parametrize("version", REVISIONS)
async def test_what_is_told_when_the_server_is_asked_too_often(version: str) -> None:
    async with Wire(offering(rate_limit="1/minute"), version) as wire:
        await wire.ask("tools/call", {"name": "work"})
        answer = await wire.exchange(wire.request("tools/call", {"name": "work"}))
    assert answer["error"] == {
        "code": INTERNAL_ERROR,
        "message": "This server takes 1 request per minute from all callers together; try again in 13 s.",
        "data": {"retryAfter": 13},
    }


async def test_the_error_fits_http() -> None:
    server = offering(rate_limit="1/minute")
    await server.engine.start(server)
    message = jsonrpc.decode(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work","_meta":{'
        b'"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}'
    )
    assert isinstance(message, jsonrpc.Envelope)
    request = inbound.modern(inbound.open_request(message))
    assert request is not None
    await handle(server.engine, Exchange(request, NOTHING))
    with pytest.raises(RateLimited) as caught:
        await handle(server.engine, Exchange(request, NOTHING))
    await server.engine.stop()
    assert (caught.value.http_status, caught.value.retry_after) == (429, 13)


@pytest.mark.parametrize("version", REVISIONS)
@pytest.mark.parametrize(
    ("rate", "text"),
    [
        ("2/minute", "The tool work takes 2 calls per minute from all callers together; try again in 13 s."),
        ("2/day per principal", "The tool work takes 2 calls per day from each caller; try again in 86353 s."),
        ("2/second per address", "The tool work takes 2 calls per second from each address; try again in 1 s."),
    ],
)
async def test_what_the_model_is_told_when_a_tool_is_called_too_often(version: str, rate: str, text: str) -> None:
    server = Server("limited")
    server.add_tool(lambda: "done", name="work", rate_limit=rate)
    server.add_tool(lambda: "rest", name="other", rate_limit="1000/second")
    async with Wire(server, version) as wire:
        results = [await wire.ask("tools/call", {"name": "work"}) for _ in range(3)]
        assert (await wire.ask("tools/call", {"name": "other"}))["content"][0]["text"] == "rest"
    assert [result["content"][0]["text"] for result in results[:2]] == ["done", "done"]
    assert results[2]["isError"] is True
    assert results[2]["content"][0]["text"] == text


async def test_wrong_arguments_do_not_count() -> None:
    server = Server("limited")

    @server.tool(rate_limit="1/day")
    def double(x: int) -> int:
        return 2 * x

    async with Wire(server, MODERN) as wire:
        assert (await wire.ask("tools/call", {"name": "double", "arguments": {"x": "?"}}))["isError"] is True
        assert (await wire.ask("tools/call", {"name": "double", "arguments": {"x": 2}}))["isError"] is False
        assert (await wire.ask("tools/call", {"name": "double", "arguments": {"x": 2}}))["isError"] is True


async def test_the_limit_stands_before_the_middleware() -> None:
    server = offering(rate_limit="1/minute")
    seen: list[str] = []

    @server.middleware
    async def sees(request: Any, call_next: Callable[[Any], Any]) -> Any:
        seen.append(request.method)
        return await call_next(request)

    async with Wire(server, MODERN) as wire:
        for _ in range(3):
            await wire.exchange(wire.request("tools/call", {"name": "work"}))
    assert seen == ["tools/call"]


@pytest.mark.parametrize("is_shared", [False, True])
async def test_the_rounds_of_a_call_are_one_call(is_shared: bool) -> None:
    server = Server("limited")

    @server.tool(rate_limit="1/day")
    async def greet(ctx: Context) -> str:
        return f"{(await ctx.elicit('Name?', str)).data} {(await ctx.elicit('Surname?', str)).data}"

    if is_shared:
        server.engine.state = FarState()
    async with asking_client(server) as client:
        first = await client.request("tools/call", {"name": "greet"})
        again = {"name": "greet", **retry(first, {"Name?": "Ada"})}
        second = await client.request("tools/call", again)
        last = {"name": "greet", **retry(second, {"Surname?": "Lovelace"})}
        assert (await client.request("tools/call", last))["content"][0]["text"] == "Ada Lovelace"
        for repeated in (again, last, {"name": "greet"}):  # that would be as good as another call
            assert (await client.request("tools/call", repeated))["isError"] is True


async def test_two_servers_with_one_state_count_together() -> None:
    state = FarState()
    servers = [offering(rate_limit="3/minute") for _ in range(2)]
    for server in servers:
        server.add_tool(lambda: "", name="rare", rate_limit="1/minute")
        server.engine.state = state
    async with Client(servers[0]) as one, Client(servers[1]) as other:
        assert not (await one.call_tool("rare", raise_on_error=False)).is_error
        assert (await other.call_tool("rare", raise_on_error=False)).is_error
        await other.call_tool("work")
        with pytest.raises(Exception, match="This server takes 3 requests per minute"):
            await one.call_tool("work")


async def test_what_has_no_limit_never_asks_the_store() -> None:
    state = FarState()
    server = offering()
    server.engine.state = state
    async with Wire(server, MODERN) as wire:
        state.calls.clear()
        await wire.ask("tools/call", {"name": "work"})
    assert not state.calls


def test_a_wrong_limit_is_found_at_registration() -> None:
    fix = (
        'write it as "60/minute": a whole number from 1, a slash, and second, minute, hour or day, '
        'with " per principal" or " per address" behind it if each has a limit of its own'
    )
    with pytest.raises(SetupError) as caught:
        Server("limited", rate_limit="60/min")
    assert str(caught.value) == f"Server: rate_limit='60/min' is not possible; {fix}"
    with pytest.raises(SetupError, match=re.escape(f"rate_limit='often' is not possible; {fix}")) as caught:
        Server("limited").tool(rate_limit="often")(work)
    assert "work" in str(caught.value)
