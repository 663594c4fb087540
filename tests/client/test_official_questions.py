"""Servers of the official Python SDK ask, over HTTP and over stdio, and the client answers."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import official_asking
import pytest
from served_http import served

import official
from dovetail import Client
from dovetail.client import ElicitQuestion, ElicitReply
from dovetail.errors import BadAnswer, ServerError, ToolError

pytestmark = [
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

PROGRAM = str(Path(__file__).parent / "official_asking.py")
WITH_FORMS = ("2025-06-18", "2025-11-25", "2026-07-28")
HANDSHAKES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
ANSWERS = {"Who are you?": {"name": "Ada"}, "Which colour?": "blue"}

Reach = Callable[..., AbstractAsyncContextManager[Client]]


def answer(question: ElicitQuestion) -> Any:
    return ANSWERS[question.message] if question.mode == "form" else True


HANDLERS: dict[str, Any] = {
    "elicitation_handler": answer,
    "sampling_handler": lambda request: f"Fine, said {len(request.messages)}.",
    "roots": ["/x", {"uri": "file:///y", "name": "Y"}],
    "timeout": 10,
}


@asynccontextmanager
async def over_http(version: str, **options: Any) -> AsyncIterator[Client]:
    async with (
        served(official_asking.make().streamable_http_app()) as origin,
        Client(f"{origin}/mcp", protocol_version=version, **options) as client,
    ):
        await client._channel._link.attend()  # or a question aside would go nowhere
        yield client


@asynccontextmanager
async def over_sse(version: str, **options: Any) -> AsyncIterator[Client]:
    async with (
        served(official_asking.make().sse_app()) as origin,
        Client(f"{origin}/sse", transport="sse", protocol_version=version, **options) as client,
    ):
        yield client


@asynccontextmanager
async def over_stdio(version: str, **options: Any) -> AsyncIterator[Client]:
    async with Client([sys.executable, PROGRAM], protocol_version=version, **options) as client:
        yield client


everywhere = pytest.mark.parametrize(
    "reach", [over_http, over_sse, pytest.param(over_stdio, marks=pytest.mark.slow)], ids=["http", "sse", "stdio"]
)
both_eras_everywhere = pytest.mark.parametrize(
    ("reach", "version"),
    [
        *((over_http, version) for version in WITH_FORMS),
        (over_sse, "2025-11-25"),
        *(pytest.param(over_stdio, version, marks=pytest.mark.slow) for version in WITH_FORMS),
    ],
)


@both_eras_everywhere
async def test_a_tool_that_asks_four_things(reach: Reach, version: str) -> None:
    async with reach(version, **HANDLERS) as client:
        for _ in range(2):
            result = await client.call_tool("introduce", {"greeting": "Hello"})
            assert result.text == "Hello Ada, 30, blue, Fine, said 1., file:///x, file:///y"


@everywhere
@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25"])
async def test_requests_of_the_server(reach: Reach, version: str) -> None:
    async with reach(version, **HANDLERS) as client:
        assert (await client.call_tool("sample")).text == "unknown: Fine, said 1."
        assert (await client.call_tool("list_roots")).text == "file:///x, file:///y"
        await client.set_roots(["/z"])
        assert (await client.call_tool("list_roots")).text == "file:///z"


@everywhere
async def test_a_url(reach: Reach) -> None:
    visited: list[str] = []
    async with reach("2025-11-25", **HANDLERS, elicitation_complete_handler=visited.append) as client:
        assert (await client.call_tool("visit")).text == "accept"
    assert visited == ["e1"]


@pytest.mark.parametrize(
    ("given", "says"),
    [({"name": "Ada", "age": 3}, "accept Ada, 3"), (None, "decline"), (ElicitReply("cancel"), "cancel")],
)
async def test_what_the_user_does(given: Any, says: str) -> None:
    async with over_http("2025-11-25", elicitation_handler=lambda question: given) as client:
        assert (await client.call_tool("form")).text == says


@pytest.mark.parametrize("version", HANDSHAKES)
async def test_a_client_that_answers_nothing(version: str) -> None:
    async with over_http(version) as client:
        for tool in ("sample", "list_roots", "form", "visit"):
            with pytest.raises((ToolError, ServerError)):
                await client.call_tool(tool)


async def test_a_modern_client_that_answers_nothing() -> None:
    async with over_http("2026-07-28") as client:
        with pytest.raises((ToolError, ServerError)):
            await client.call_tool("introduce", {"greeting": "Hello"})
    declared = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
    async with over_http("2026-07-28", capabilities=declared) as client:
        with pytest.raises(BadAnswer, match="needs elicitation_handler="):
            await client.call_tool("introduce", {"greeting": "Hello"})


@pytest.mark.skipif(not official.available(), reason=official.MISSING)
@pytest.mark.parametrize("version", WITH_FORMS)
async def test_the_server_finds_no_fault_with_what_it_is_told(version: str, caplog: pytest.LogCaptureFixture) -> None:
    async with over_http(version, **HANDLERS) as client:
        await client.call_tool("introduce", {"greeting": "Hello"})
    assert not [record.getMessage() for record in caplog.records if record.name.startswith("mcp")]
