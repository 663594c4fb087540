import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from dovetail import Client, NotSignedIn, ServerError, ToolError

import company
import team_gateway

ADA, BOB = "key-of-ada-in-sales", "key-of-bob-in-the-warehouse"


@pytest.fixture(scope="session", autouse=True)
def _the_company() -> Iterator[None]:
    """Its API at a free port."""
    server = uvicorn.Server(uvicorn.Config(company.app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team_gateway, "DOCUMENT", f"http://127.0.0.1:{port}/openapi.json")
        patch.setenv("SALES_KEYS", f"ada:{ADA}")
        patch.setenv("WAREHOUSE_KEYS", f"bob:{BOB}")
        yield
    server.should_exit = True
    thread.join()


async def found(client: Client, query: str) -> set[str]:
    result: Any = await client.call_tool("search_tools", {"query": query, "limit": 20})
    return {tool["name"] for tool in result.data["tools"]}


async def test_each_team_finds_and_calls_what_is_its_business() -> None:
    async with Client(team_gateway.gateway("sales"), auth=ADA) as sales:
        assert [tool.name for tool in await sales.list_tools()] == ["search_tools", "call_tool"]
        assert "place_order" in await found(sales, "order something")
        assert "count_stock" not in await found(sales, "count the stock of an article")
        with pytest.raises(ToolError, match="no tool 'count_stock'"):
            await sales.call_tool("call_tool", {"name": "count_stock", "arguments": {"article": "hat", "pieces": 1}})
        assert (await sales.call_tool("find_customers", {"name": "love"})).text == '{"1":"Ada Lovelace"}'
    async with Client(team_gateway.gateway("warehouse"), auth=BOB) as warehouse:
        await warehouse.call_tool("count_stock", {"article": "coat", "pieces": 5})
        assert (await warehouse.call_tool("look_into_stock", {"article": "coat"})).text == "5"


async def test_what_the_api_refuses_is_an_error_for_the_model() -> None:
    async with Client(team_gateway.gateway("sales"), auth=ADA) as sales:
        with pytest.raises(ToolError, match="answered 409: There are 0 of tie"):
            await sales.call_tool("place_order", {"customer": 1, "article": "tie"})


async def test_a_key_of_another_team_is_none() -> None:
    with pytest.raises(NotSignedIn):
        async with Client(team_gateway.gateway("sales"), auth=BOB):
            pass


async def test_who_calls_too_often_is_told_when_to_come_back() -> None:
    async with Client(team_gateway.gateway("sales"), auth=ADA) as sales:
        with pytest.raises(ServerError, match="60 requests per minute from each caller"):
            [await sales.call_tool("look_into_stock", {"article": "hat"}) for _ in range(61)]


async def test_the_audit_says_who_did_what(tmp_path: Path) -> None:
    team_gateway.write_audit(tmp_path / "audit.log")
    async with Client(team_gateway.gateway("sales"), auth=ADA) as sales:
        await sales.call_tool("cancel_order", {"number": 1})
    event = json.loads((tmp_path / "audit.log").read_text())
    assert (event["subject"], event["name"], event["arguments"]) == ("ada", "cancel_order", {"number": 1})
