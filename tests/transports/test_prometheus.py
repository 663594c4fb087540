"""A real Prometheus scrapes three workers, under load and under kill -9; it is asked all that the dashboard asks."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

import prometheus
from http_wire import CAPABILITIES_KEY, HANDSHAKE, META, mirrored
from processes import HttpProgram, StartHttp, children_of, http_programs, wait_until
from prometheus import Prometheus, scraping

GRAFANA = Path(__file__).parents[2] / "docs" / "grafana"
ALERTS, DASHBOARD = GRAFANA / "alerts.yaml", GRAFANA / "dashboard.json"
PROGRAM = Path(__file__).parent / "programs" / "measured.py"
WORKERS = 3
COUNT = "mcp_server_operation_duration_seconds_count"
ADDED = f'sum({COUNT}{{gen_ai_tool_name="add"}})'
TOKEN = "for-prometheus-alone-0123456789"
TASKS = {**META, CAPABILITIES_KEY: {"extensions": {"io.modelcontextprotocol/tasks": {}}}}

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork"), pytest.mark.slow, pytest.mark.long]


@pytest.fixture(autouse=True)
def _needs_prometheus() -> None:
    prometheus.demand()


@pytest.fixture
def start() -> Iterator[StartHttp]:
    with http_programs() as start:
        yield start


def measured(start: StartHttp, **options: Any) -> HttpProgram:
    given = {"workers": WORKERS, **options}
    program = start(command=[sys.executable, str(PROGRAM), json.dumps(given)])
    wait_until(lambda: len(children_of(program.process.pid)) == WORKERS)
    return program


class Load:
    """Calls of `add` over fresh connections, so that all workers get some: how many were made, and answered."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/mcp"
        self.attempts = self.answered = 0

    async def call(self, http: aiohttp.ClientSession, tool: str, arguments: dict[str, Any], meta: Any = META) -> None:
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        accept = {"accept": "application/json, text/event-stream", **mirrored("tools/call", tool)}
        self.attempts += 1
        async with http.post(self._url, json=body, headers=accept) as response:
            self.answered += "result" in await response.json()

    async def run(self, calls: int, *, may_fail: bool = False) -> None:
        connector = aiohttp.TCPConnector(limit=8, force_close=True)
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:

            async def one(number: int) -> None:
                try:
                    await self.call(http, "add", {"a": number, "b": 1})
                except (aiohttp.ClientError, OSError):
                    assert may_fail

            await asyncio.gather(*(one(number) for number in range(calls)))

    async def some_of_everything(self) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
            for tool, arguments in (("fail", {}), ("remember", {"a": 1}), ("child_add", {"a": 1, "b": 2}), ("x", {})):
                for _ in range(4):
                    await self.call(http, tool, arguments)
            await self.call(http, "work", {}, TASKS)
            for revision in HANDSHAKE:
                hello = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
                await self.post(http, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
            await self.post(http, {})

    async def post(self, http: aiohttp.ClientSession, body: Any) -> None:
        async with http.post(self._url, json=body, headers={"accept": "application/json"}) as response:
            await response.read()


# ── the numbers ──


async def load_and_compare(program: HttpProgram, server: Prometheus, calls: int) -> Load:
    """Without failures the sums are the calls that were made."""
    load = Load(program.port)
    await load.run(calls)
    assert load.answered == calls
    wait_until(lambda: (server.value(ADDED) or 0) >= calls, lambda: str(server.value(ADDED)))
    assert server.value(ADDED) == calls
    assert server.value("dovetail_workers") == WORKERS
    return load


async def kill_workers(program: HttpProgram, server: Prometheus, load: Load, calls: int, kills: int) -> None:
    """An answered call is counted, and none more often than it was made, whichever worker is killed under it."""
    for number in range(1, kills + 1):
        soon = load.answered + calls // 4
        loading = asyncio.create_task(load.run(calls, may_fail=True))
        async with asyncio.timeout(30):
            while load.answered < soon and not loading.done():  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        os.kill(children_of(program.process.pid)[number % WORKERS], signal.SIGKILL)
        await loading
        wait_until(lambda: len(children_of(program.process.pid)) == WORKERS)
        wait_until(lambda: server.value("dovetail_worker_restarts_total") == number)  # noqa: B023
        wait_until(lambda: server.value("dovetail_workers") == WORKERS)
        wait_until(lambda: (server.value(ADDED) or 0) >= load.answered)
        assert (server.value(ADDED) or 0) <= load.attempts


def fallen(server: Prometheus) -> list[str]:
    """The counters that have fallen at any time: Prometheus takes that for a restart."""
    names = server.label_values("__name__", f'{{job="{prometheus.JOB}"}}')
    counters = [name for name in names if name.endswith(("_total", "_count", "_bucket", "_sum"))]
    assert len(counters) > 10
    return [name for name in counters if server.query(f"resets({name}[1h]) > 0")]


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_no_counter_falls_when_workers_are_killed_again_and_again(start: StartHttp, tmp_path: Path) -> None:
    program = measured(start)
    with scraping(program.port, tmp_path, ALERTS) as server:
        load = await load_and_compare(program, server, 10_000)
        await kill_workers(program, server, load, calls=2_000, kills=30)
        assert not fallen(server)
        assert server.value("min_over_time(up[1h])") == 1


# ── the dashboard and the alerts ──

VARIABLES = {"$job": "dovetail", "$instance": ".*", "$__rate_interval": "1m", "$__range": "5m"}
# Panels without values where a server is well, and has no store, no questions, no proxies.
EMPTY = re.compile(
    "questions|replays|refused by limits|blocked|thread back|p99 by operation|failed operations"
    "|worker restarts|open tasks",
    re.IGNORECASE,
)


def in_grafana(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


def queries() -> dict[str, str]:
    """The queries of the dashboard, by panel and letter."""
    dashboard = json.loads(DASHBOARD.read_text())
    notes = {note["name"]: in_grafana(note["expr"]) for note in dashboard["annotations"]["list"]}
    return notes | {
        f"{panel['title']} {target['refId']}": in_grafana(target["expr"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    }


def draw_all(server: Prometheus) -> None:
    """Each query is understood, and those that should show something do."""
    asked = queries()
    assert len(asked) > 40

    def empty() -> list[str]:
        found = [name for name, expression in asked.items() if not server.query(expression)]
        return [name for name in found if not EMPTY.search(name)]

    wait_until(lambda: not empty(), lambda: str(empty()))
    for name in ("job", "instance"):  # the variables of the dashboard
        assert server.label_values(name, "dovetail_build_info")


def check_rules(server: Prometheus) -> None:
    written = [rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    assert [rule["name"] for rule in server.rules()] == written
    for rule in server.rules():
        server.query(rule["query"])
    wait_until(lambda: all(rule["health"] == "ok" for rule in server.rules()))


FIRING = {  # by alert: series of which each makes it fire; a value a minute
    "DovetailThreadsStuck": {'dovetail_stuck_calls_total{job="dovetail"}': "_x10 1x20"},  # the first makes the series
    "DovetailStoreDown": {
        'dovetail_state_store_duration_seconds_count{job="dovetail", operation="put", outcome="unavailable"}': "0+3x30"
    },
    "DovetailMountFails": {
        'dovetail_mount_duration_seconds_count{job="dovetail", mount="shop", outcome="ok"}': "5x30",
        'dovetail_mount_duration_seconds_count{job="dovetail", mount="shop", outcome="tool_error"}': "0+2x30",
    },
    "DovetailWorkerRestarts": {'dovetail_worker_restarts_total{job="dovetail"}': "0x10 1+1x20"},
}


@pytest.mark.parametrize("alert", FIRING)
def test_alerts_fire(alert: str, tmp_path: Path) -> None:
    series = [{"series": name, "values": values} for name, values in FIRING[alert].items()]
    calm = {"eval_time": "1m", "alertname": alert, "exp_alerts": []}
    expression = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})'
    fires = {"expr": expression, "eval_time": "18m", "exp_samples": [{"labels": "{}", "value": 1}]}
    case = {"interval": "1m", "input_series": series, "alert_rule_test": [calm], "promql_expr_test": [fires]}
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [case]}))
    prometheus.promtool("test", "rules", file)


async def test_what_prometheus_sees_of_three_workers(start: StartHttp, tmp_path: Path) -> None:
    """One after the other, since a Prometheus takes long to start: sums, dashboard, alerts, and the end of workers."""
    prometheus.promtool("check", "rules", ALERTS)
    program = measured(start, metrics_token=TOKEN)
    with scraping(program.port, tmp_path, ALERTS, authorization={"credentials": TOKEN}) as server:
        load = await load_and_compare(program, server, 300)
        others = Load(program.port)
        await others.some_of_everything()
        failed = f'sum({COUNT}{{gen_ai_tool_name="fail"}})'
        wait_until(lambda: server.value(failed) == 4)
        await others.some_of_everything()  # a rate needs two values
        draw_all(server)
        check_rules(server)
        assert not [rule["name"] for rule in server.rules() if rule["state"] == "firing"]
        await kill_workers(program, server, load, calls=100, kills=3)
        assert not fallen(server)
        assert server.value("min_over_time(up[1h])") == 1

        def raised() -> set[str]:
            return {rule["name"] for rule in server.rules() if rule["state"] in ("firing", "pending")}

        wait_until(lambda: "DovetailWorkerRestarts" in raised(), lambda: str(raised()))
        program.signal(signal.SIGTERM)
        program.exits()
        wait_until(lambda: "DovetailDown" in raised(), lambda: str(raised()))
