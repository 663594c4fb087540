"""How many bytes are encoded for a list, and for a result: each once, however often it is asked for."""

from typing import Any

import pytest
from msgspec import Raw

from dovetail import Client, Server
from dovetail.protocol import results

TOOLS = 200


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all results that are encoded, from now on."""
    sizes: list[int] = []
    encode = results.encode

    def counting(value: Any) -> bytes:
        data = encode(value)
        if not isinstance(value, Raw):  # which is encoded already
            sizes.append(len(data))
        return data

    monkeypatch.setattr(results, "encode", counting)
    return sizes


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_list_is_encoded_once(version: str, encoded: list[int]) -> None:
    server = Server("lists", version="1.0.0")
    for number in range(TOOLS):
        server.add_tool(add, name=f"add{number}")
    async with Client(server, protocol_version=version) as client:
        encoded.clear()
        assert len(await client.list_tools()) == TOOLS
        first = sum(encoded)
        assert first > TOOLS * 100, "the list itself"
        for _ in range(5):
            assert len(await client.list_tools()) == TOOLS
        assert sum(encoded) == first
        server.add_tool(add, name="one_more")
        assert len(await client.list_tools()) == TOOLS + 1
        assert first < sum(encoded) < 2.2 * first


async def test_a_result_is_encoded_once(encoded: list[int]) -> None:
    """What a tool returns is made JSON where it is checked; what is sent is put together from that."""
    server = Server("results", version="1.0.0")

    @server.tool
    async def rows() -> list[int]:
        return list(range(5_000))

    async with Client(server, protocol_version="2026-07-28") as client:
        encoded.clear()
        result = await client.call_tool("rows")
        assert len(result.data) == 5_000
        size = len(str(list(range(5_000))).replace(" ", ""))
        assert sum(encoded) < 1.5 * size, "as the text of a block, where it has to be quoted, and not again"
