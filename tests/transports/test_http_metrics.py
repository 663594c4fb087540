"""`/metrics`: who may read it, what it says, and what it counts of calls, sessions, streams, tasks and mounts."""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_servers

from dovetail import Context, Elicit, InputRequired, Server, SetupError, ToolError
from dovetail.engine.workers import LeaseTimings
from dovetail.state.sqlite import SqliteState
from dovetail.transports.http.options import HttpOptions
from http_serving import Serve, Stage, until
from http_wire import CAPABILITIES_KEY, HttpWire, post, text_of
from remote_state import RemoteState
from secret_examples import ALL_SECRETS, KEYED, TEXTS
from server_requests import accept, answer_to, input_responses
from task_stage import DECLARED, TaskStage
from tracing import recording
from wire import MODERN

FORKED = Path(__file__).parent / "programs" / "forked.py"
TOKEN = "a-token-of-sixteen-or-more"
SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Samples = dict[str, dict[tuple[str, ...], float]]


async def scrape(app: Any, **headers: str) -> str:
    answer = await HttpWire(app).raw("GET", path="/metrics", headers={**headers}).done()
    assert answer.status == 200, answer.raw
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return answer.raw.decode()


def parsed(text: str) -> Samples:
    """By name, then by the values of the labels."""
    found: Samples = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            sample = SAMPLE.fullmatch(line)
            assert sample is not None, line
            labels = tuple(value for _, value in LABEL.findall(sample["labels"] or ""))
            found.setdefault(sample["name"], {})[labels] = float(sample["value"])
    return found


async def metrics_of(app: Any) -> Samples:
    return parsed(await scrape(app))


async def until_they_say(app: Any, holds: Callable[[Samples], bool]) -> Samples:
    async with asyncio.timeout(10):
        while not holds(samples := await metrics_of(app)):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return samples


def calls(samples: Samples) -> dict[tuple[str, ...], float]:
    """Tool calls by revision, tool, outcome and error."""
    counts = samples.get("mcp_server_operation_duration_seconds_count", {})
    return {labels[1:]: count for labels, count in counts.items() if labels[0] == "tools/call"}


# ── who may read them ──


async def read(app: Any, client: Any = ("127.0.0.1", 5), method: str = "GET", **headers: str) -> Any:
    exchange = HttpWire(app).raw(method, path="/metrics", headers={name.replace("_", "-"): value
                                                                   for name, value in headers.items()})  # fmt: skip
    exchange.scope["client"] = client
    return await exchange.done()


async def test_without_a_token_they_are_for_this_machine(serve: Serve) -> None:
    """The rule is that of the console, whose tests try all headers of proxies."""
    app = await serve(metrics=True)
    for client, headers, status in (
        (("127.0.0.1", 5), {}, 200),
        (("::1", 5, 0, 0), {"host": "[::1]:8000"}, 200),
        (("192.0.2.7", 5), {}, 403),
        (None, {}, 403),
        (("127.0.0.1", 5), {"x_forwarded_for": "127.0.0.1"}, 403),
        (("127.0.0.1", 5), {"host": "evil.example"}, 403),  # a name that was made to point here
        (("192.0.2.7", 5), {"authorization": "Bearer None"}, 403),
    ):
        answer = await read(app, client, **headers)
        assert answer.status == status, (client, headers)
        assert status == 200 or "metrics_token" in answer.raw.decode()


async def test_with_a_token_they_are_for_those_who_have_it(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    app = await serve(metrics=True, metrics_token=TOKEN, allowed_hosts=["mcp.example"])
    for value in (f"Bearer {TOKEN}", f"bearer  {TOKEN}"):
        assert (await read(app, ("192.0.2.7", 5), host="any.example", authorization=value)).status == 200
    for value in ("", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, "Bearer ünï"):
        answer = await read(app, authorization=value)
        assert answer.status == 401, value
        assert answer.headers["www-authenticate"] == 'Bearer realm="metrics"'
    assert (await read(app)).status == 401
    twice = [(b"authorization", b"Bearer x"), (b"authorization", f"Bearer {TOKEN}".encode())]
    assert (await HttpWire(app).raw("GET", path="/metrics", more=twice).done()).status == 400
    assert TOKEN not in caplog.text
    assert TOKEN not in await scrape(app, authorization=f"Bearer {TOKEN}")


async def test_the_methods_and_the_mount_path(serve: Serve) -> None:
    app = await serve(metrics=True)
    head = await read(app, method="HEAD")
    assert (head.status, head.raw) == (200, b"")
    assert int(head.headers["content-length"]) > 1000
    for method in ("POST", "OPTIONS", "DELETE"):
        answer = await read(app, method=method)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    mounted = HttpWire(app, root_path="/below")
    assert (await mounted.raw("GET", path="/below/metrics").done()).status == 200


async def test_they_are_off_unless_asked_for(serve: Serve) -> None:
    assert (await read(await serve())).status == 404


def test_options_that_can_not_be_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("options", version="1.0.0")
    for options, words in (
        ({"path": "/metrics"}, "something else is served there"),
        ({"routes": {"/metrics": print}}, "belongs to the server"),
        ({"metrics_token": "short-secret"}, "at least 16 characters"),
        ({"metrics_token": "short secret, with blanks"}, "no blanks"),
        ({"metrics_token": b"short-secret-in-bytes"}, "at least 16 characters"),
    ):
        with pytest.raises(SetupError, match=words) as refused:
            server.asgi(metrics=True, **options)
        assert "short" not in str(refused.value)
    with pytest.raises(SetupError, match="metrics=True") as refused:
        server.asgi(metrics_token=TOKEN)
    assert TOKEN not in str(refused.value)
    monkeypatch.setenv("DOVETAIL_METRICS", "on")
    monkeypatch.setenv("DOVETAIL_METRICS_TOKEN", TOKEN)
    options = HttpOptions.from_keywords({})
    assert (options.metrics, options.metrics_token) == (True, TOKEN)
    assert TOKEN not in repr(options)
    monkeypatch.setenv("DOVETAIL_METRICS", "off")  # then the token is for other servers
    assert not HttpOptions.from_keywords({}).metrics
    monkeypatch.setenv("DOVETAIL_METRICS_TOKEN", "short")
    with pytest.raises(SetupError, match="DOVETAIL_METRICS_TOKEN"):
        HttpOptions.from_keywords({})


# ── calls ──


class Measured(Stage):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for tool in (self.fail, self.crash):
            self.server.add_tool(tool)

    async def fail(self) -> str:
        raise ToolError("the secret of Ann")

    async def crash(self, name: str) -> str:
        raise ValueError(name)


@pytest.fixture
async def stage() -> Measured:
    return Measured()


async def test_calls_are_counted_by_tool_and_outcome_with_registered_names_alone(serve: Serve, stage: Measured) -> None:
    app = await serve(metrics=True)
    wire = HttpWire(app)
    for _ in range(3):
        await wire.call("add", {"a": 1, "b": 2})
    await wire.call("fail")
    await wire.call("add", {"a": "no number"})
    await wire.call("of-ann")
    await wire.post("resources/read", {"uri": "secret://ann"})
    cancelled = wire.start_call("work")
    await stage.entered.wait()
    cancelled.leave()
    await cancelled.done()
    session = await HttpWire.session(app, "2025-06-18")
    await session.call("add", {"a": 1, "b": 2})
    text = await scrape(app)
    samples = parsed(text)
    assert calls(samples) == {
        (MODERN, "add", "ok"): 3,
        ("2025-06-18", "add", "ok"): 1,
        (MODERN, "add", "tool_error", "tool_error"): 1,
        (MODERN, "fail", "tool_error", "tool_error"): 1,
        (MODERN, "_OTHER", "error", "-32602"): 1,
        (MODERN, "work", "cancelled"): 1,
    }
    counts = samples["mcp_server_operation_duration_seconds_count"]
    assert counts["initialize", "2025-06-18", "ok"] == 1
    assert counts["resources/read", MODERN, "error", "-32602"] == 1
    assert "ann" not in text.lower()
    assert str(session.session_id) not in text


async def test_no_secret_is_in_the_metrics(serve: Serve) -> None:
    app = await serve(metrics=True)
    wire = HttpWire(app)
    for text in (*(f"{key}={secret}" for key, secret in KEYED.items()), *(text for text, _ in TEXTS)):
        await wire.call("crash", {"name": text})
        for method, params in (("tools/call", {"name": text}), ("resources/read", {"uri": f"note://{text}"})):
            await wire.post(method, params, id=text)
        await wire.post(text.replace("\n", " "))
    shown = await scrape(app)
    assert 'gen_ai_tool_name="crash"' in shown
    assert not [each for each in ALL_SECRETS if each in shown]


async def test_histograms_add_up_and_promtool_finds_nothing_wrong(serve: Serve) -> None:
    app = await serve(metrics=True)
    for _ in range(5):
        await HttpWire(app).call("add", {"a": 1, "b": 2})
    text = await scrape(app)
    samples = parsed(text)
    buckets = [
        count for labels, count in samples["mcp_server_operation_duration_seconds_bucket"].items() if "add" in labels
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 5
    assert samples["mcp_server_operation_duration_seconds_sum"]["tools/call", MODERN, "add", "ok"] > 0
    try:
        promtool = test_servers.prometheus().with_name("promtool")
    except test_servers.ServerMissing:
        return  # test_prometheus.py says so
    checked = await asyncio.to_thread(
        subprocess.run, [promtool, "check", "metrics"], input=text.encode(), capture_output=True, timeout=30
    )
    assert (checked.returncode, checked.stderr.decode()) == (0, "")


async def test_refusals_of_http_count_by_their_status(serve: Serve) -> None:
    app = await serve(metrics=True, max_body_bytes=1000)
    wire = HttpWire(app)
    for method, path, headers in (
        ("GET", "/nowhere", {}),
        ("POST", "/mcp", {"host": "evil.example"}),
        ("PUT", "/mcp", {}),
        ("POST", "/mcp", {"content-type": "text/plain"}),
    ):
        await wire.raw(method, b"{}", headers, path=path).done()
    await wire.raw("POST", b" " * 2000).done()
    wire.session_id, wire.version = "unknown", "2025-11-25"
    await wire.post("ping")
    counts = parsed(await scrape(app))["dovetail_http_refusals_total"]
    assert counts == {("404",): 2, ("403",): 1, ("405",): 1, ("415",): 1, ("413",): 1}


async def test_limits_say_who_waits_and_who_is_refused(serve: Serve) -> None:
    server, go, entered = Server("limited", version="1.0.0", max_queue=1, rate_limit="5/day"), asyncio.Event(), []

    async def one() -> str:
        entered.append(1)
        await go.wait()
        return "x"

    server.add_tool(one, max_concurrency=1)
    server.add_tool(lambda: "x", name="rare", rate_limit="1/day")
    app = await serve(server, metrics=True)
    wire = HttpWire(app)
    running = [wire.start_call("one") for _ in range(2)]
    await until(lambda: bool(entered))
    await wire.call("one")  # there is room for one to wait
    samples = await metrics_of(app)
    assert samples["dovetail_slots_in_use"]["server",] == 1
    go.set()
    await asyncio.gather(*(each.done() for each in running))
    for _ in range(3):
        await wire.call("rare")
    samples = await metrics_of(app)
    assert samples["dovetail_refused_calls_total"] == {
        ("one", "busy"): 1,
        ("rare", "rate_limit"): 1,
        ("rate_limit",): 1,
    }
    assert samples["dovetail_queue_duration_seconds_count"] == {("one",): 2, ("rare",): 1}
    assert samples["dovetail_slots_in_use"]["server",] == 0


async def test_a_process_that_another_server_forks_counts_for_itself() -> None:
    """As under `gunicorn --preload`: no two processes write to the same memory."""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, str(FORKED)], capture_output=True, text=True, timeout=30
    )
    assert (done.stdout, done.stderr) == ("child 3 of 1\nparent 2 of 1\n", "")


async def test_tools_that_find_tools_have_their_names(serve: Serve) -> None:
    server = Server("searched", version="1.0.0", tool_search=True)
    server.add_tool(lambda: "x", name="hidden")
    app = await serve(server, metrics=True)
    await HttpWire(app).call("search_tools", {"query": "hidden"})
    await HttpWire(app).call("call_tool", {"name": "hidden", "arguments": {}})
    assert calls(await metrics_of(app)).keys() == {(MODERN, "search_tools", "ok"), (MODERN, "hidden", "ok")}


# ── sessions, streams, questions ──


async def test_sessions_and_streams_while_they_last(serve: Serve, stage: Measured) -> None:
    app = await serve(metrics=True)
    wires = [await HttpWire.session(app) for _ in range(3)]
    stream = await wires[0].get().started()
    samples = await metrics_of(app)
    assert samples["dovetail_sessions"] == {(): 3}
    assert samples["dovetail_streams"] == {(): 1}
    for wire in wires:
        await wire.delete()
    await stream.done()
    samples = await metrics_of(app)
    assert (samples["dovetail_sessions"], samples["dovetail_streams"]) == ({(): 0}, {(): 0})


def asking_server(*, is_traced: bool = False) -> Server:
    server = Server("asking", version="1.0.0", telemetry=is_traced)

    @server.tool
    async def sure(ctx: Context, timeout: float = 10.0) -> str:
        return (await ctx.elicit("Sure?", bool, timeout=timeout)).action

    @server.tool
    async def own(ctx: Context) -> str | InputRequired:
        if ctx.input_responses:
            return "done"
        return InputRequired({"mine": Elicit("Mine?", bool)})

    return server


async def test_questions_that_wait_for_their_answers(serve: Serve) -> None:
    app = await serve(asking_server(), metrics=True)
    wire = await HttpWire.session(app, capabilities={"elicitation": {"form": {}}})
    call = wire.start_call("sure")
    question = await call.message()
    await post(wire, answer_to(question, accept(True)))
    assert text_of((await call.done()).answer) == "accept"
    await wire.call("sure", {"timeout": 0.01})
    samples = await metrics_of(app)
    assert samples["dovetail_questions_total"] == {
        ("asked",): 2,
        ("answered",): 1,
        ("timed_out",): 1,
    }
    assert "dovetail_replays_total" not in samples


@pytest.mark.parametrize("is_traced", [False, True])
async def test_questions_over_rounds(serve: Serve, is_traced: bool) -> None:
    """Each once, also where a trace reads the request state too."""
    with recording() as spans:
        await play_rounds(serve, is_traced)
    assert bool(spans.all()) == is_traced


async def play_rounds(serve: Serve, is_traced: bool) -> None:
    app = await serve(asking_server(is_traced=is_traced), metrics=True)
    wire, meta = HttpWire(app), {CAPABILITIES_KEY: {"elicitation": {"form": {}}}}

    async def play(tool: str, arguments: dict[str, Any], pause: float = 0) -> dict[str, Any]:
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        asked = await wire.ask("tools/call", params)
        await asyncio.sleep(pause)
        given = {**input_responses(asked, lambda _: True), "never-asked": {"action": "accept"}}
        return (
            await wire.post("tools/call", {**params, "requestState": asked["requestState"], "inputResponses": given})
        ).answer

    assert text_of(await play("sure", {})) == "accept"
    assert text_of(await play("own", {})) == "done"
    assert "error" in await play("sure", {"timeout": 0.001}, 0.01)
    samples = await metrics_of(app)
    assert samples["dovetail_questions_total"] == {
        ("asked",): 2,  # an InputRequired of the author is none of ours
        ("answered",): 1,
        ("timed_out",): 1,
    }
    assert samples["dovetail_replays_total"] == {("tools/call",): 2}


# ── tasks, mounts, the cache, the store ──


async def test_tasks_by_status(serve: Serve) -> None:
    stage = TaskStage()
    app = await serve(stage.server, metrics=True)
    wire, meta = HttpWire(app), {CAPABILITIES_KEY: DECLARED}
    first = await wire.ask("tools/call", {"name": "work", "arguments": {}, "_meta": meta})
    second = await wire.ask("tools/call", {"name": "greet_both", "arguments": {}, "_meta": meta})
    await stage.entered.wait()
    open_tasks = {("input_required",): 1, ("working",): 1}
    await until_they_say(app, lambda samples: samples["dovetail_tasks"] == open_tasks)
    await wire.ask("tasks/cancel", {"taskId": first["taskId"], "_meta": meta})
    await wire.ask("tasks/cancel", {"taskId": second["taskId"], "_meta": meta})
    samples = await metrics_of(app)
    assert samples["dovetail_tasks_ended_total"] == {("cancelled",): 2}


async def test_threads_that_do_not_come_back_from_tasks_and_mounted_servers(serve: Serve) -> None:
    server, child, go, entered = Server("above", version="1.0.0"), Server("below"), threading.Event(), threading.Event()

    def keep() -> None:
        entered.set()
        go.wait(20)

    server.add_tool(keep, task=True)
    child.add_tool(keep, timeout=0.01)
    server.mount(child, namespace="sub")
    app = await serve(server, metrics=True)
    wire, meta = HttpWire(app), {CAPABILITIES_KEY: DECLARED}
    task = await wire.ask("tools/call", {"name": "keep", "arguments": {}, "_meta": meta})
    await until(entered.is_set)
    await wire.ask("tasks/cancel", {"taskId": task["taskId"], "_meta": meta})
    await wire.call("sub_keep")
    stuck = {("keep",): 1, ("sub_keep",): 1}
    await until_they_say(app, lambda samples: samples.get("dovetail_stuck_calls_total") == stuck)
    go.set()


async def test_what_is_mounted_is_timed_and_named_as_at_the_root(serve: Serve) -> None:
    server, child = Server("above", version="1.0.0"), Server("below", version="1.0.0")
    child.add_tool(lambda: "x", name="x", rate_limit="1/day")
    server.mount(child, namespace="sub")
    app = await serve(server, metrics=True)
    for _ in range(2):
        await HttpWire(app).call("sub_x")
    samples = await metrics_of(app)
    assert samples["dovetail_mount_duration_seconds_count"] == {("sub", "ok"): 1, ("sub", "tool_error"): 1}
    assert calls(samples)[MODERN, "sub_x", "ok"] == 1
    assert samples["dovetail_refused_calls_total"] == {("sub_x", "rate_limit"): 1}


async def test_the_cache_of_results(serve: Serve) -> None:
    server = Server("cached", version="1.0.0")
    server.add_tool(lambda a: str(a), name="same", cache=60, cache_shared=True)
    app = await serve(server, metrics=True)
    for a in ("1", "1", "2", "1"):
        await HttpWire(app).call("same", {"a": a})
    assert (await metrics_of(app))["dovetail_result_cache_requests_total"] == {("same", "hit"): 2, ("same", "miss"): 2}


async def test_a_shared_store_is_timed(serve: Serve, tmp_path: Path) -> None:
    state = SqliteState(tmp_path / "state.db")
    server = Server("stored", version="1.0.0")
    app = server.asgi(metrics=True, state=state)
    await app.start()
    wire = await HttpWire.session(app)
    await wire.ask("ping")
    samples = await metrics_of(app)
    seen = samples["dovetail_state_store_duration_seconds_count"]
    assert {operation for operation, outcome in seen if outcome == "ok"} >= {"get", "put", "claim"}
    await app.drain(1)
    await state.close()


async def test_a_store_that_does_not_answer(serve: Serve) -> None:
    server, state = Server("stored", version="1.0.0"), RemoteState()
    server.engine.lease_timings = LeaseTimings(lease=1.0, renew_every=0.005)
    app = await serve(server, metrics=True, state=state)
    wire = await HttpWire.session(app)
    state.break_down()
    assert (await wire.post("ping")).status == 503
    outcomes = {outcome for _, outcome in (await metrics_of(app))["dovetail_state_store_duration_seconds_count"]}
    assert outcomes == {"ok", "unavailable"}
    state.error = None


async def test_the_loop_and_the_process(serve: Serve) -> None:
    app = await serve(Server("facts", version="2.1"), metrics=True)
    samples = await metrics_of(app)
    ((labels, one),) = samples["dovetail_build_info"].items()
    assert (labels[1:], one) == (("facts", "2.1"), 1)
    assert samples["dovetail_workers"] == {(): 1}
    await until_they_say(app, lambda samples: "dovetail_event_loop_lag_seconds_count" in samples)
