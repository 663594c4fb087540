"""`get_context()`: the same `Context` in all code below a call, and none outside."""

import asyncio
import subprocess
import sys
from typing import Annotated, Any

import pytest

from dovetail import Client, Context, Depends, Server, get_context
from dovetail.client import ElicitResult
from official import Witness

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]


def below() -> Any:
    """Code that has no parameter for it."""
    return get_context().request_id


async def below_async() -> Any:
    await asyncio.sleep(0)
    return below()


def new_server() -> Server:
    server = Server("current", version="1.0.0")

    @server.tool
    async def everywhere(ctx: Context, dependency: Annotated[Any, Depends(below)]) -> bool:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(below_async())
        found = [
            dependency,
            below(),
            await below_async(),
            *await asyncio.gather(below_async(), asyncio.create_task(below_async())),
            task.result(),
            await asyncio.to_thread(below),
            await ctx.step("step", below),
        ]
        return get_context() is ctx and found == [ctx.request_id] * len(found)

    @server.tool
    def in_thread(dependency: Annotated[Any, Depends(below_async)]) -> bool:
        ctx = get_context()
        return [dependency, below(), ctx.wait(below_async())] == [ctx.request_id] * 3

    @server.tool(thread=False)
    def on_the_loop() -> bool:
        return below() is not None

    @server.resource("current://one")
    async def one() -> str:
        return f"{get_context().protocol_version} {id(get_context())}"

    @server.prompt
    def greeting() -> str:
        return get_context().protocol_version

    @server.completion(prompt="greeting", argument="name")
    def names(value: str) -> list[str]:
        return [get_context().protocol_version]

    @server.tool
    async def nested() -> bool:
        """What a call reads has a context of its own, and this one is back afterwards."""
        ctx = get_context()
        (contents,) = await ctx.read_resource("current://one")
        return contents.text != f"{ctx.protocol_version} {id(ctx)}" and get_context() is ctx

    @server.tool
    async def asks() -> str:
        return str((await get_context().elicit("Who?", str)).data)

    return server


@pytest.mark.parametrize("revision", REVISIONS)
async def test_it_is_there_in_all_code_of_a_call(revision: str, witness: Witness) -> None:
    async with Client(new_server(), protocol_version=revision, transcript=witness.see) as client:
        tools = ["everywhere", "in_thread", "on_the_loop", "nested"]
        results = await asyncio.gather(*(client.call_tool(name) for name in tools * 3))
        assert [result.text for result in results] == ["true"] * 12
        (contents,) = await client.read_resource("current://one")
        assert (contents.text or "").startswith(revision)
        (message,) = (await client.get_prompt("greeting")).messages
        assert getattr(message.content, "text", None) == revision
        assert (await client.complete(prompt="greeting", argument="name", value="")).values == [revision]


@pytest.mark.parametrize("thread", [True, False], ids=["first in a thread", "first in a task"])
async def test_it_is_one_object_wherever_it_is_first_asked_for(thread: bool) -> None:
    """What code below a call remembers by it, or on it, is found by all other code of the call."""
    server = Server("one")

    async def current() -> Context:
        return get_context()

    async def given(ctx: Context) -> Context:
        return ctx

    @server.tool
    async def tool() -> bool:
        first = [await asyncio.to_thread(get_context)] if thread else await asyncio.gather(current(), current())
        return {get_context()} == {*first, await asyncio.to_thread(get_context)}

    @server.tool
    async def depends(found: Annotated[Any, Depends(get_context)]) -> bool:
        return found is get_context()

    @server.tool
    async def takes(ctx: Annotated[Any, Depends(given)]) -> bool:
        return ctx is get_context()

    async with Client(server) as client:
        for name in ("tool", "depends", "takes"):
            assert (await client.call_tool(name)).text == "true", name


@pytest.mark.parametrize("revision", REVISIONS[2:])
async def test_it_asks_also_when_the_function_runs_again(revision: str) -> None:
    answer = ElicitResult("accept", {"value": "me"})
    async with Client(new_server(), protocol_version=revision, elicitation_handler=lambda request: answer) as client:
        assert (await client.call_tool("asks")).text == "me"


@pytest.mark.parametrize("revision", REVISIONS[2:])
async def test_it_asks_in_a_loop_that_a_thread_runs(revision: str) -> None:
    """Old code below a `def` does so: the answer comes to the loop of the server."""
    server, answer = Server("loops"), ElicitResult("accept", {"value": "me"})

    async def ask() -> tuple[Any, Any]:
        ctx = get_context()
        return (await ctx.elicit("Who?", str)).data, ctx.wait(ctx.elicit("Really?", str)).data

    @server.tool
    def asks() -> str:
        return str(asyncio.run(ask()))

    async with Client(server, protocol_version=revision, elicitation_handler=lambda _: answer) as client:
        async with asyncio.timeout(10):
            assert (await client.call_tool("asks")).text == "('me', 'me')"


async def test_there_is_none_outside_of_a_call() -> None:
    with pytest.raises(LookupError, match="get_context: no call runs here"):
        get_context()
    async with Client(new_server()) as client:
        assert (await client.call_tool("nested")).text == "true"
        with pytest.raises(LookupError):
            get_context()


async def test_a_middleware_has_the_context_of_the_request_that_it_serves() -> None:
    server, seen = new_server(), []

    @server.middleware
    async def around(request: Any, call_next: Any) -> Any:
        before = get_context()
        result = await call_next(request)
        seen.append((request.method, request.id == before.request_id, get_context() is before))
        return result

    async with Client(server) as client:
        await asyncio.gather(client.list_tools(), client.call_tool("nested"), client.call_tool("in_thread"))
    assert seen
    assert all(is_own and is_same for _, is_own, is_same in seen)
    assert {"tools/list", "tools/call"} <= {method for method, _, _ in seen}


async def test_contents_that_are_cached_for_all_callers_have_no_caller() -> None:
    """Neither that of the request nor that of a call which reads them."""
    server = Server("cached")

    @server.resource("cached://{text}", cache=60)
    async def cached(text: str) -> str:
        with pytest.raises(LookupError, match="are for all callers"):
            get_context()
        return text

    @server.tool
    async def reads(ctx: Context) -> bool:
        return [each.text for each in await ctx.read_resource("cached://a")] == ["a"] and get_context() is ctx

    async with Client(server) as client:
        assert (await client.call_tool("reads")).text == "true"
        assert [each.text for each in await client.read_resource("cached://b")] == ["b"]


LATE = """
import asyncio, sys
import dovetail

server = dovetail.Server("late")

@server.tool
async def awaited_by() -> str:
    return sys._getframe(1).f_code.co_name

@server.tool
async def late() -> str:
    return dovetail.get_context().protocol_version

async def main() -> None:
    async with dovetail.Client(server) as client:
        for name in ("awaited_by", "late", "late", "awaited_by"):
            print((await client.call_tool(name, raise_on_error=False)).text)

asyncio.run(main())
"""


def test_a_call_pays_for_it_only_once_it_is_imported() -> None:
    """In a process of its own. A call that imports it began without it, and is told so."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=True, timeout=60)
    before, first, second, after = done.stdout.splitlines()
    assert before == "call_tool"
    assert "LookupError: get_context: no call runs here" in first
    assert "import it at the top of a module" in first
    assert second == "2026-07-28"
    assert after != "call_tool"
