"""A server in the same process."""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from served_http import served

from dovetail.auth import ApiKeys, Auth, Principal
from dovetail.client import CallResult, Client
from dovetail.engine.context import Context
from dovetail.errors import NotSignedIn, ServerError
from dovetail.protocol import revisions
from dovetail.server import Server

EVERY = [revision.name for revision in revisions.ALL]


class Diary:
    """A lifespan that writes down when it was entered and left, and in which task."""

    def __init__(self, *, slow: float = 0.0) -> None:
        self.lines: list[str] = []
        self.tasks: list[asyncio.Task[Any] | None] = []
        self._slow = slow

    @asynccontextmanager
    async def __call__(self, owner: Any) -> AsyncIterator[str]:
        await asyncio.sleep(self._slow)
        self.lines.append(f"enter {owner.name}")
        self.tasks.append(asyncio.current_task())
        yield "value"
        await asyncio.sleep(self._slow)
        self.tasks.append(asyncio.current_task())
        self.lines.append("leave")


def make_server(lifespan: Callable[[Any], Any] | None = None) -> Server:
    server = Server("live") if lifespan is None else Server("live", lifespan=lifespan)

    @server.tool
    def show(ctx: Context) -> str:
        return str(ctx.lifespan)

    @server.tool
    async def stuck() -> str:
        await asyncio.sleep(60)
        return "never"

    return server


async def test_the_lifespan_is_around_the_client() -> None:
    diary = Diary()
    server = make_server(diary)
    async with Client(server) as client:
        assert diary.lines == ["enter live"]
        assert (await client.call_tool("show")).data == "value"
    assert diary.lines == ["enter live", "leave"]
    async with Client(server) as client:
        assert (await client.call_tool("show")).data == "value"
    assert diary.lines == ["enter live", "leave"] * 2


async def test_a_lifespan_that_fails_to_start() -> None:
    attempts: list[int] = []

    @asynccontextmanager
    async def lifespan(owner: Any) -> AsyncIterator[str]:
        attempts.append(1)
        if len(attempts) < 3:
            raise RuntimeError("no database")
        yield "at last"

    server = make_server(lifespan)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no database"):
            async with Client(server):
                pass
    async with Client(server) as client:
        assert (await client.call_tool("show")).data == "at last"


async def test_each_side_keeps_its_own_context() -> None:
    whose = contextvars.ContextVar("whose", default="nobody's")
    seen: list[str] = []
    server = make_server()

    @server.tool
    async def peek(ctx: Context) -> str:
        found = whose.get()
        whose.set("the server's")
        await ctx.report_progress(1)
        return found

    whose.set("the client's")
    async with Client(server) as client:
        result = await client.call_tool("peek", progress_handler=lambda *told: seen.append(whose.get()))
    assert result.data == "nobody's"
    assert seen == ["the client's"]


ALICE, BOB, CARL = "key-of-alice-0123456789", "key-of-bob-0123456789", "key-of-carl-0123456789"

PEOPLE = {
    "alice": {"key": ALICE, "scopes": ["read", "write"], "claims": {"admin": True}},
    "bob": {"key": BOB, "scopes": ["read"]},
    "carl": {"key": CARL, "scopes": ["other"]},
}


def is_admin(caller: Principal | None) -> bool:
    return caller is not None and caller.claims.get("admin") is True


def guarded_server(**options: Any) -> Server:
    server = Server("guarded", auth=Auth(ApiKeys(PEOPLE), scopes=["read"]), **options)

    @server.tool
    async def whoami(ctx: Context) -> str:
        return "nobody" if ctx.principal is None else f"{ctx.principal.name}: {sorted(ctx.principal.scopes)}"

    @server.tool(scopes=["write"])
    def write() -> str:
        return "written"

    @server.tool(authorize=is_admin)
    def rule() -> str:
        return "ruled"

    @server.resource("notes://all", scopes=["write"])
    def notes() -> str:
        return "milk"

    return server


async def heard_of(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except ServerError as refusal:
        return refusal.code, refusal.message


async def experience(client: Client) -> list[Any]:
    """What a caller sees of the server, and may do there."""
    async with client:
        called = [await heard_of(client.call_tool(name)) for name in ("whoami", "write", "rule")]
        return [
            [tool.name for tool in await client.list_tools()],
            [resource.uri for resource in await client.list_resources()],
            [each.data if isinstance(each, CallResult) else each for each in called],
            await heard_of(client.read_resource("notes://all")),
        ]


@pytest.mark.parametrize("version", EVERY)
@pytest.mark.parametrize("token", [ALICE, BOB])
async def test_a_token_means_in_process_what_it_means_over_http(token: str, version: str) -> None:
    server = guarded_server()
    here = await experience(Client(server, auth=token, protocol_version=version))
    async with served(server.asgi()) as origin:
        there = await experience(Client(f"{origin}/mcp", auth=token, protocol_version=version))
    assert here == there
    assert ("write" in here[0]) is (token == ALICE)


@pytest.mark.parametrize("version", EVERY)
async def test_a_principal_comes_straight_in(version: str) -> None:
    writer = Principal(subject="wendy", scopes=frozenset({"write"}))
    async with Client(guarded_server(), principal=writer, protocol_version=version) as client:
        assert (await client.call_tool("whoami")).data == "wendy: ['write']"
        assert (await client.call_tool("write")).data == "written"
        assert [tool.name for tool in await client.list_tools()] == ["whoami", "write"]
        with pytest.raises(ServerError, match="Unknown tool: rule"):
            await client.call_tool("rule")


@pytest.mark.parametrize("version", EVERY)
async def test_a_wrong_token_is_not_signed_in_and_leaves_the_server(version: str) -> None:
    diary = Diary()
    with pytest.raises(NotSignedIn, match="The token is not good, or not any more"):
        async with Client(guarded_server(lifespan=diary), auth="key-of-nobody-0123456789", protocol_version=version):
            pass
    assert diary.lines == ["enter guarded", "leave"]


async def test_without_a_token_the_refusal_says_how_to_give_one() -> None:
    async with Client(guarded_server()) as client:
        assert (await client.call_tool("whoami")).data == "nobody"
        with pytest.raises(ServerError, match=r"needs the scopes: write; .*Client\(server, auth=…\)"):
            await client.call_tool("write")
