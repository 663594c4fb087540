"""One trace over a client, a gateway, a backend and the author's own span, each in a process of its own."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mcp import Client as OfficialClient
from mcp.server.mcpserver import MCPServer

from dovetail import Client, Server
from http_serving import hosted
from processes import ENVIRONMENT, HttpProgram, wait_until
from tracing import Recorded, Spans, recording, spans_in

PROGRAM = Path(__file__).with_name("traced_program.py")

pytestmark = pytest.mark.long


class Stage(NamedTuple):
    gateway: str
    shops: list[str]  # two processes with one secret
    files: list[Path]

    def finished(self, spans: Spans, count: int) -> list[Recorded]:
        """All spans of the traces that this process has begun, once there are so many."""

        def found() -> list[Recorded]:
            own = spans.all()
            return [each for each in (*own, *spans_in(self.files)) if each.trace in {span.trace for span in own}]

        wait_until(lambda: len(found()) >= count, lambda: str([each.name for each in found()]))
        return found()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("traces")
    files = [folder / f"{name}.jsonl" for name in ("one", "other", "gateway")]
    added = {"DOVETAIL_SECRET": "a-secret-that-two-shops-share", "PYTHONPATH": os.pathsep.join(sys.path)}
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name, value in added.items():
            patch.setitem(ENVIRONMENT, name, value)

        def start(file: Path, *more: str) -> HttpProgram:
            file.touch()
            program = HttpProgram([sys.executable, str(PROGRAM), str(file), *more])
            stack.callback(program.close)
            return program

        shops = [start(file) for file in files[:2]]
        urls = [f"http://127.0.0.1:{shop.ready().port}/mcp" for shop in shops]
        gateway = start(files[2], urls[0]).ready()
        yield Stage(f"http://127.0.0.1:{gateway.port}/mcp", urls, files)


def chain(spans: list[Recorded], last: str) -> list[str]:
    """From the root down to a span, by parents."""
    by_id = {each.id: each for each in spans}
    (span,) = [each for each in spans if each.name == last]
    names = [f"{span.kind} {span.name}"]
    while span.parent is not None:
        span = by_id[span.parent]
        names.append(f"{span.kind} {span.name}")
    return names[::-1]


async def test_one_trace_from_the_client_to_the_span_in_the_backends_tool(stage: Stage) -> None:
    async with Client(stage.gateway, telemetry=True) as client:
        await client.list_tools()
        with recording() as spans:
            assert (await client.call_tool("shop_price", {"article": "hat"})).data == 3
    found = stage.finished(spans, 6)
    assert len({each.trace for each in found}) == 1
    assert chain(found, "query") == [
        "CLIENT tools/call shop_price",
        "SERVER tools/call shop_price",
        "INTERNAL mount shop",
        "CLIENT tools/call price",
        "SERVER tools/call price",
        "INTERNAL query",
    ]


async def test_a_question_that_is_answered_at_another_worker_is_one_span_of_the_trace(stage: Stage) -> None:
    def handler(*_: Any) -> dict[str, Any]:
        return {"value": 2}

    one, other = (Client(url, telemetry=True, elicitation_handler=handler) for url in stage.shops)
    async with one, other:
        with recording() as spans:
            first = await one.request("tools/call", {"name": "order"})
            (key,) = first["inputRequests"]
            answers = {key: {"action": "accept", "content": {"value": 2}}}
            more = {"inputResponses": answers, "requestState": first["requestState"]}
            second = await other.request("tools/call", {"name": "order", **more})
    assert second["content"][0]["text"] == "2 ordered"
    found = stage.finished(spans, 7)
    mine = spans.all()
    asked, answered = (each for each in found if (each.kind, each.name) == ("SERVER", "tools/call order"))
    if asked.parent != mine[0].id:
        asked, answered = answered, asked
    (question,) = (each for each in found if each.name == "elicitation/create")
    assert (asked.parent, answered.parent) == (mine[0].id, mine[1].id)
    assert (question.trace, question.parent, question.kind) == (asked.trace, asked.id, "CLIENT")
    assert asked.start <= question.start <= asked.end <= answered.start
    assert question.end >= mine[1].start
    assert answered.links == (asked.id,)
    assert question.whole in stage.files[1].read_text().splitlines()  # made by the worker that got the answer
    assert asked.whole in stage.files[0].read_text().splitlines()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_the_official_sdk_is_in_the_same_trace_on_either_side() -> None:
    ours, theirs = Server("ours", version="1.0.0", telemetry=True), MCPServer("theirs", log_level="ERROR")

    @ours.tool
    async def relay() -> str:
        async with Client(url_of_theirs, telemetry=True) as client:
            return (await client.call_tool("echo", {"text": "hi"})).text

    @theirs.tool()
    def echo(text: str) -> str:
        return text

    with recording() as spans:
        async with hosted(theirs.streamable_http_app()) as other, hosted(ours.asgi()) as url:
            url_of_theirs = f"{other}/mcp"
            async with OfficialClient(f"{url}/mcp") as client:
                assert (await client.call_tool("relay", {})).content[0].text == "hi"
    (relayed,) = spans.named("tools/call relay")
    found = spans.all()
    (caller,) = (each for each in found if each.id == relayed.parent)
    (inner,) = (each for each in found if each.name == "tools/call echo" and each.kind == "CLIENT")
    (last,) = (each for each in found if each.parent == inner.id and each.kind == "SERVER")
    assert (caller.kind, inner.parent) == ("CLIENT", relayed.id)
    assert caller.trace == relayed.trace == inner.trace == last.trace
