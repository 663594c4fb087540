import pytest

from dovetail import Client, Server, ToolError

server = Server("math", version="1.0.0")


@server.tool
def divide(a: float, b: float) -> float:
    """Divide a by b."""
    if b == 0:
        raise ToolError("b must not be 0")
    return a / b


def test_the_function_itself() -> None:
    assert divide(6, 3) == 2


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-11-25", "2026-07-28"])
async def test_the_tool(revision: str) -> None:
    async with Client(server, protocol_version=revision) as client:
        result = await client.call_tool("divide", {"a": 6, "b": 3})
        assert result.text == "2.0"
        with pytest.raises(ToolError, match="must not be 0"):
            await client.call_tool("divide", {"a": 6, "b": 0})


if __name__ == "__main__":
    server.run()
