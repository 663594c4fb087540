"""The client and servers made with the official Python SDK and with FastMCP, as programs, over stdio and HTTP."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import interop_stage
import pytest
from benchmarks import contenders
from benchmarks.case import CannotMeasure

from dovetail import Change, Client, ElicitQuestion, LogMessage, ToolError

pytestmark = [pytest.mark.timeout(300)]

HERE = Path(__file__).parent
HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"


class Maker(NamedTuple):
    """Who made the server, and what is known of it."""

    program: str
    contender: str | None  # whose environment it needs
    asks: tuple[str, ...]  # the revisions in which it can ask
    announces: tuple[str, ...]  # and those in which it tells of changes
    caches: bool
    marks_wrapping: bool

    def command(self) -> list[str]:
        return [self._python(), str(HERE / self.program)]

    def _python(self) -> str:
        if self.contender is None:
            return sys.executable
        try:
            return str(contenders.python_of(self.contender))
        except CannotMeasure as missing:
            if os.environ.get("CI") == "true":
                pytest.fail(f"CI: {missing}")
            pytest.skip(f"! {missing}")


OFFICIAL = Maker("interop_official.py", None, (HANDSHAKE, MODERN), (MODERN,), False, False)
FASTMCP = Maker("interop_fastmcp.py", "fastmcp", (HANDSHAKE,), (), True, True)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((OFFICIAL, "stdio"), marks=pytest.mark.slow, id="official over stdio"),
        pytest.param((OFFICIAL, "http"), marks=pytest.mark.slow, id="official over http"),
        pytest.param((FASTMCP, "stdio"), marks=pytest.mark.soak, id="fastmcp over stdio"),
        pytest.param((FASTMCP, "http"), marks=pytest.mark.soak, id="fastmcp over http"),
    ],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Maker, Any]]:
    maker, way = request.param
    if way == "stdio":
        yield maker, maker.command()
        return
    log = tmp_path_factory.mktemp("interop") / "log"
    with interop_stage.listening([*maker.command(), "--port", "{port}"], log) as origin:
        yield maker, f"{origin}/mcp"


@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
async def test_everything(server: tuple[Maker, Any], revision: str) -> None:
    maker, target = server
    logs: list[LogMessage] = []
    asked: list[ElicitQuestion] = []

    def introduce(question: ElicitQuestion) -> str:
        asked.append(question)
        return "Ada"

    async with Client(
        target,
        protocol_version=None if revision == MODERN else revision,
        timeout=60,
        elicitation_handler=introduce,
        log_handler=logs.append,
    ) as client:
        assert client.protocol_version == revision
        await use_tools(client, maker, logs)
        if revision in maker.asks:
            assert "Hello, Ada" in (await client.call_tool("introduce")).text
            assert [question.message for question in asked] == ["Who are you?"]
        await use_resources(client, cached=maker.caches and revision == MODERN)
        await use_prompts(client)
        if revision in maker.announces:
            await hear_changes(client)


async def use_tools(client: Client, maker: Maker, logs: list[LogMessage]) -> None:
    progress: list[Any] = []
    assert {"add", "work", "fail", "introduce"} <= {tool.name for tool in await client.list_tools()}
    added = await client.call_tool("add", {"a": 1, "b": 2})
    assert added.structured == {"result": 3}
    assert added.data == (3 if maker.marks_wrapping else {"result": 3})
    done = await client.call_tool("work", {"steps": 2}, progress_handler=lambda *told: progress.append(told))
    assert done.text == "done"
    assert progress == [(1, 2, "step 1"), (2, 2, "step 2")]
    assert any("worked" in str(log.data) for log in logs)
    with pytest.raises(ToolError, match="it can't be done"):
        await client.call_tool("fail")
    assert (await client.call_tool("add", {"a": "one"}, raise_on_error=False)).is_error
    sums = await asyncio.gather(*(client.call_tool("add", {"a": n, "b": n}) for n in range(10)))
    assert [each.structured["result"] for each in sums] == [2 * n for n in range(10)]


async def use_resources(client: Client, *, cached: bool) -> None:
    assert [resource.uri for resource in await client.list_resources()] == ["notes://all"]
    assert [each.uri_template for each in await client.list_resource_templates()] == ["notes://{name}/text"]
    first, second, third = [
        (await client.read_resource("notes://all", fresh=fresh))[0].text for fresh in (False, False, True)
    ]
    assert (first == second) is cached
    assert first != third
    assert (await client.read_resource("notes://shopping/text"))[0].text == "the note shopping"


async def use_prompts(client: Client) -> None:
    assert [prompt.name for prompt in await client.list_prompts()] == ["review"]
    (message,) = (await client.get_prompt("review", {"language": "Perl"})).messages
    assert message.content.text == "Review this Perl program."  # type: ignore[union-attr]
    found = await client.complete(prompt="review", argument="language", value="p")
    assert list(found.values) == ["python", "perl"]


async def hear_changes(client: Client) -> None:
    async with client.listen(tools=True, uris=["notes://all"]) as changes:
        await client.call_tool("announce")
        heard = {await asyncio.wait_for(anext(changes), 20) for _ in range(2)}
        assert heard == {Change("tools"), Change("updated", "notes://all")}
