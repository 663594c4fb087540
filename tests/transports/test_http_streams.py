"""One POST, one answer: JSON until something has to be told before, then a stream of events."""

import asyncio
from typing import Any

import pytest

from dovetail import Context
from http_serving import serving, until
from http_stage import HANDSHAKE, MODERN, REVISIONS, Stage, open_wire, text_of
from http_wire import HttpWire

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")

LEVEL = "io.modelcontextprotocol/logLevel"
META = {LEVEL: "debug", "progressToken": 7}
JSON_ONLY = ["application/json", "application/*", "text/event-stream;q=0, application/json", "text/html"]
SSE_ONLY = ["text/event-stream", "text/*", "TEXT/EVENT-STREAM", "application/json;q=0.0, text/event-stream"]
BOTH = ["*/*", "application/json, text/event-stream", "text/event-stream,application/json;charset=utf-8", ""]


def methods(exchange: Any) -> list[str]:
    return [message.get("method", "answer") for message in exchange.messages]


# ── JSON, until there is something to tell ──


@pytest.mark.seed("S1-08")
@pytest.mark.parametrize("version", REVISIONS)
@pytest.mark.rule("SH-8", "MH-7")
async def test_a_quiet_call_is_answered_with_json(version: str) -> None:
    async with serving(Stage().server) as app:
        wire = await open_wire(app, version)
        answer = await wire.call("add", {"a": 1, "b": 2})
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        assert int(answer.headers["content-length"]) == len(answer.raw)
        assert text_of(answer.json) == "3"


@pytest.mark.seed("S1-08", "S1-16")
@pytest.mark.parametrize("version", REVISIONS)
@pytest.mark.rule("SH-11", "SH-12", "SH-14", "MH-8", "MH-10", "MH-11", "PROG-10")
async def test_a_call_that_notifies_is_answered_with_a_stream(version: str) -> None:
    stage = Stage()

    @stage.server.tool
    async def speak(ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        await ctx.error("careful")
        return "spoken"

    async with serving(stage.server) as app:
        wire = await open_wire(app, version)
        answer = await wire.start_call("speak", meta=META).done()
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["x-accel-buffering"] == "no"
        assert "no-cache" in answer.headers["cache-control"]
        assert "content-length" not in answer.headers
        assert methods(answer) == ["notifications/progress", "notifications/message", "answer"]
        assert answer.messages[0]["params"]["progressToken"] == 7
        assert text_of(answer.answer) == "spoken"
        assert answer.sent[-1]["more_body"] is False


@pytest.mark.parametrize(("version", "primed"), [("2025-03-26", 0), ("2025-06-18", 0), ("2025-11-25", 1), (MODERN, 0)])
@pytest.mark.rule("SH-9", "SH-22", "MH-30")
async def test_only_2025_11_25_is_primed(version: str, primed: int) -> None:
    stage = Stage()
    stage.go.set()
    async with serving(stage.server) as app:
        wire = await open_wire(app, version)
        answer = await wire.start_call("tell", meta=META).done()
        assert len(answer.events) == 3 + primed
        if primed:
            assert answer.events[0].data == b""
            assert answer.events[0].id
            assert b"retry: 1000\n" in answer.raw.split(b"\n\n")[0]
        else:
            assert b"retry" not in answer.raw
        if version == MODERN:
            assert b"id:" not in answer.raw.replace(b'"id":', b"")
        else:
            ids = [event.id for event in answer.events]
            assert len(set(ids)) == len(ids)
            assert len({id.split(".")[0] for id in ids if id}) == 1  # they say which stream they belong to


@pytest.mark.parametrize(("version", "stream"), [("2025-03-26", False), ("2025-11-25", True), (MODERN, False)])
@pytest.mark.rule("SH-9")
async def test_a_call_that_takes_its_time_becomes_a_stream_where_it_can_be_resumed(version: str, stream: bool) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await open_wire(app, version)
        call = wire.start_call("work")
        await call.watched.wait()  # it has taken its time
        assert bool(call.sent) is stream
        stage.go.set()
        await call.done()
        assert call.is_stream is stream
        assert text_of(call.answer) == "done"


@pytest.mark.parametrize("version", REVISIONS)
async def test_a_request_that_fails_after_it_has_notified_fails_in_the_stream(version: str) -> None:
    stage = Stage()

    @stage.server.middleware
    async def fail(request: Any, call_next: Any) -> Any:
        result = await call_next(request)
        if request.method == "tools/call":
            raise ValueError("secret")
        return result

    stage.go.set()
    async with serving(stage.server) as app:
        wire = await open_wire(app, version)
        call = await wire.start_call("tell", meta=META).done()
        assert call.status == 200
        assert call.answer["error"]["message"] == "Internal error"
        assert b"secret" not in call.raw


# ── what the client reads ──


@pytest.mark.parametrize("accept", JSON_ONLY)
@pytest.mark.parametrize("version", REVISIONS)
async def test_who_reads_json_only_hears_nothing_before_the_answer(version: str, accept: str) -> None:
    stage = Stage()
    stage.go.set()
    async with serving(stage.server, keep_alive=0.01) as app:
        wire = await open_wire(app, version, accept=accept)
        answer = await wire.start_call("tell", meta=META).done()
        assert text_of(answer.json) == "told"


@pytest.mark.parametrize("version", REVISIONS)
async def test_who_reads_json_only_gets_it_however_long_it_takes(version: str) -> None:
    stage = Stage()
    async with serving(stage.server, keep_alive=0.01) as app:
        wire = await open_wire(app, version, accept="application/json")
        call = wire.start_call("work")
        await call.watched.wait()
        await asyncio.sleep(0.03)  # it is kept alive a few times
        assert call.sent == []
        stage.go.set()
        assert text_of((await call.done()).json) == "done"


@pytest.mark.parametrize("accept", SSE_ONLY)
@pytest.mark.parametrize("version", REVISIONS)
async def test_who_reads_streams_only_gets_one(version: str, accept: str) -> None:
    async with serving(Stage().server) as app:
        wire = await open_wire(app, version, accept=accept)
        answer = await wire.call("add", {"a": 1, "b": 2})
        assert answer.is_stream
        assert text_of(answer.answer) == "3"


@pytest.mark.parametrize("accept", BOTH)
@pytest.mark.parametrize("version", REVISIONS)
async def test_whoever_reads_anything_gets_what_fits(version: str, accept: str) -> None:
    stage = Stage()
    stage.go.set()
    async with serving(stage.server) as app:
        wire = await open_wire(app, version, accept=accept)
        assert not (await wire.call("add", {"a": 1, "b": 2})).is_stream
        assert (await wire.start_call("tell", meta=META).done()).is_stream


async def test_without_accept_anything_goes() -> None:
    stage = Stage()
    stage.go.set()
    async with serving(stage.server) as app:
        wire = HttpWire(app)
        assert (await wire.start_call("tell", meta=META, headers={"accept": None}).done()).is_stream
        assert (await wire.call("add", {"a": 1, "b": 2}, headers={"accept": None})).json["result"]


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream", "*/*"])
@pytest.mark.rule("MH-16")
async def test_a_refusal_keeps_its_status_whatever_is_read(accept: str) -> None:
    async with serving(Stage().server) as app:
        refused = await HttpWire(app, accept=accept).post("prompts/list")  # this server has none
        assert refused.status == 404
        assert refused.json["error"]["code"] == -32601


# ── while it takes long ──


@pytest.mark.parametrize("version", REVISIONS)
@pytest.mark.rule("MH-12")
async def test_a_long_call_is_kept_alive(version: str) -> None:
    stage = Stage()
    async with serving(stage.server, keep_alive=0.03) as app:
        wire = await open_wire(app, version)
        call = wire.start_call("work")
        await stage.entered.wait()
        await until(lambda: call.raw.count(b": keep-alive\n\n") == 3)
        stage.go.set()
        await call.done()
        assert methods(call) == ["answer"]
        assert call.headers["x-accel-buffering"] == "no"


async def test_a_large_answer_goes_out_in_pieces() -> None:
    stage = Stage()

    @stage.server.tool
    async def much(megabytes: int, ctx: Context) -> str:
        if megabytes > 1:
            await ctx.error("much")
        return "x" * (megabytes << 20)

    async with serving(stage.server) as app:
        wire = HttpWire(app)
        for megabytes in (1, 2):
            answer = await wire.start_call("much", {"megabytes": megabytes}, meta=META).done()
            assert answer.is_stream is (megabytes == 2)
            assert len(text_of(answer.answer)) == megabytes << 20
            assert max(len(message.get("body", b"")) for message in answer.sent) <= 256 * 1024


# ── nothing else on it ──


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("SH-12", "SH-20")
async def test_changes_do_not_go_on_the_stream_of_a_call(version: str) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        wire = await open_wire(app, version)
        await wire.ask("resources/subscribe", {"uri": "test://one"})
        stream = await wire.get().started()
        call = wire.start_call("tell", meta=META)
        await stage.entered.wait()
        stage.change_tools()
        stage.server.notify_resource_updated("test://one")
        heard = [(await stream.message())["method"] for _ in range(2)]
        assert heard == ["notifications/tools/list_changed", "notifications/resources/updated"]
        stage.go.set()
        await call.done()
        assert methods(call) == ["notifications/message", "notifications/message", "answer"]
        stream.leave()
        await stream.done()
        assert len(stream.messages) == 2


async def test_calls_of_one_session_have_their_own_streams() -> None:
    stage = Stage()

    @stage.server.tool
    async def echo(text: str, ctx: Context) -> str:
        for _ in range(3):
            await ctx.error(text)
            await asyncio.sleep(0)
        return text

    async with serving(stage.server) as app:
        wire = await HttpWire.session(app)
        calls = await asyncio.gather(*(wire.start_call("echo", {"text": f"{n}"}).done() for n in range(20)))
        for number, call in enumerate(calls):
            assert [message["params"]["data"] for message in call.messages[:-1]] == [f"{number}"] * 3
            assert text_of(call.answer) == f"{number}"
        ids = [event.id for call in calls for event in call.events]
        assert len(set(ids)) == len(ids) == 20 * 5
