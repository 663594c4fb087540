import pytest

from dovetail import Client, Context, NotSignedIn, Server, ServerError
from dovetail.auth import ApiKeys, Principal

KEYS = {"alice": {"key": "key-of-alice-for-tests", "scopes": ["notes:write"]}}
server = Server("notes", version="1.0.0", auth=ApiKeys(KEYS))


@server.tool(scopes=["notes:write"])
def write(text: str, ctx: Context) -> str:
    """Write a note."""
    assert ctx.principal is not None
    return f"{ctx.principal.name} wrote {text}."


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_a_key(revision: str) -> None:
    async with Client(server, auth="key-of-alice-for-tests", protocol_version=revision) as client:
        assert (await client.call_tool("write", {"text": "milk"})).data == "alice wrote milk."


async def test_a_wrong_key() -> None:
    with pytest.raises(NotSignedIn):
        async with Client(server, auth="unknown-key"):
            pass


async def test_a_caller_without_the_scope() -> None:
    reader = Principal(subject="bob", scopes=frozenset({"notes:read"}))
    async with Client(server, principal=reader) as client:
        with pytest.raises(ServerError, match="This needs the scopes: notes:write"):
            await client.call_tool("write", {"text": "milk"})


if __name__ == "__main__":
    server.run()
