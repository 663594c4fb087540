"""Metrics: their names, the memory of the workers, and what is counted of calls."""

import json
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, mcp_attributes
from opentelemetry.semconv._incubating.metrics import mcp_metrics
from opentelemetry.semconv.attributes import error_attributes

from dovetail import Server
from dovetail.engine.handlers import HANDLERS
from dovetail.engine.metrics import FAMILIES, Family, Metrics, Values, watch
from wire import MODERN, Wire

DOCS = Path(__file__).parents[2] / "docs"
CALLS = FAMILIES["mcp_server_operation_duration_seconds"]
COUNTER, GAUGE = FAMILIES["dovetail_tasks_ended_total"], FAMILIES["dovetail_sessions"]


def constants(module: Any) -> set[str]:
    return {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}


def as_prometheus_has_it(name: str) -> str:
    return name.replace(".", "_")


def test_names_and_labels_are_those_of_the_conventions_where_they_have_some() -> None:
    durations = {f"{as_prometheus_has_it(each)}_seconds" for each in constants(mcp_metrics) if ".server." in each}
    assert {each for each in FAMILIES if not each.startswith("dovetail_")} <= durations
    assert CALLS.name in durations
    attributes = {as_prometheus_has_it(each) for module in (mcp_attributes, gen_ai_attributes, error_attributes)
                  for each in constants(module)}  # fmt: skip
    assert {*CALLS.labels} - attributes == {"outcome"}
    shared = {label for each in FAMILIES.values() for label in each.labels if label.startswith(("mcp_", "gen_ai_"))}
    assert shared <= attributes


@pytest.mark.parametrize("family", FAMILIES.values(), ids=str)
def test_names_and_labels_are_as_prometheus_wants_them(family: Family) -> None:
    assert re.fullmatch(r"(mcp_server|dovetail)(_[a-z]+)+", family.name)
    assert (family.kind == "counter") == family.name.endswith("_total")
    assert (family.kind == "histogram") == family.name.endswith("_seconds")
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", label) for label in family.labels)
    assert not {"le", "job", "instance"} & {*family.labels}
    assert family.help.endswith(".")
    assert "\n" not in family.help


def test_the_documentation_has_them_all() -> None:
    pages = "".join(page.read_text() for page in DOCS.glob("observability*.md"))
    shown = dict(re.findall(r"^\| `((?:mcp_server|dovetail)_\w+)` \| (\w+)", pages, re.MULTILINE))
    assert shown == {each.name: each.kind for each in FAMILIES.values()}
    for family in FAMILIES.values():
        row = next(line for line in pages.splitlines() if line.startswith(f"| `{family.name}` "))
        assert all(f"`{label}`" in row for label in family.labels), row


def test_the_dashboard_and_the_alerts_know_them_all_and_no_others() -> None:
    for file, expected in (("dashboard.json", FAMILIES.keys()), ("alerts.yaml", None)):
        text = (DOCS / "grafana" / file).read_text()
        named = set(re.findall(r"\b(?:mcp_server|dovetail)_[a-z_]+", text))
        labels = {label for family in FAMILIES.values() for label in family.labels}
        found = {re.sub("_(bucket|count|sum)$", "", name) for name in named - labels}
        assert found <= FAMILIES.keys()
        assert expected is None or found == expected


def test_the_panels_of_the_dashboard_lie_side_by_side() -> None:
    panels = json.loads((DOCS / "grafana" / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    covered = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(covered) == len({*covered}), "some overlap"
    assert len(covered) == 24 * (max(y for _, y in covered) + 1), "there are gaps"


# ── memory ──


def series(values: Values, family: Family = COUNTER) -> dict[tuple[str, ...], float]:
    return {labels: cells[0] for labels, cells in values[family.name].items()}


def test_a_worker_that_replaces_another_counts_on_and_gauges_of_the_dead_are_gone() -> None:
    metrics = Metrics()
    metrics.share(2)
    metrics.add(COUNTER, "403")
    for number in (1, 2):
        metrics.take_slab(number)
        metrics.add(COUNTER, "403", by=number)
        metrics.set(GAUGE, value=5)
        metrics.observe(CALLS, "ping", "2025-11-25", "", "ok", "", seconds=0.003)
    metrics.release_slab(1)
    values = metrics.read()
    assert series(values) == {("403",): 4.0}
    assert series(values, GAUGE) == {(): 5.0}
    metrics.take_slab(1)
    metrics.add(COUNTER, "403")
    metrics.add(COUNTER, "404")
    values = metrics.read()
    assert series(values) == {("403",): 5.0, ("404",): 1.0}
    assert series(values, GAUGE) == {(): 5.0}  # the new worker has said nothing yet
    (cells,) = values[CALLS.name].values()
    assert sum(cells[:-1]) == 2
    assert cells[-1] == pytest.approx(0.006)


def test_what_others_have_added_is_seen_at_once() -> None:
    """Each process reads the slabs of the others as they are."""
    metrics = Metrics()
    metrics.share(1)
    for status in ("400", "401"):
        metrics.take_slab(1)
        metrics.add(COUNTER, status)
        metrics.take_slab(0)
        assert (status,) in series(metrics.read())


@pytest.mark.parametrize("label", ["two\nlines", "half \ud800 pair", "x" * 5000, "tab\t", "ünï", '"\\'])
def test_any_label_can_stand_in_a_key(label: str) -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.add(COUNTER, label)
    metrics.take_slab(0)
    metrics.add(COUNTER, label)
    ((found,),) = series(metrics.read())
    assert series(metrics.read()) == {(found,): 3.0}
    assert len(found) <= 200
    assert "\n" not in found


def test_series_have_a_bound_and_those_without_room_are_counted() -> None:
    metrics = Metrics()
    for number in range(60_000):
        metrics.observe(CALLS, "tools/call", "2026-07-28", f"tool-{number}", "ok", "", seconds=0.001)
    values = metrics.read()
    recorded = len(values[CALLS.name])
    assert 20_000 < recorded < 60_000
    assert series(values, FAMILIES["dovetail_metrics_unrecorded_total"]) == {(): 60_000.0 - recorded}
    metrics.observe(CALLS, "tools/call", "2026-07-28", "tool-0", "ok", "", seconds=0.001)
    assert sum(metrics.read()[CALLS.name]["tools/call", "2026-07-28", "tool-0", "ok", ""][:-1]) == 2


async def test_each_call_without_room_for_its_series_is_counted() -> None:
    server = Server("full", version="1.0.0")

    @server.tool
    async def late() -> str:
        return "x"

    metrics, lost = watch(server.engine), FAMILIES["dovetail_metrics_unrecorded_total"]
    for number in range(60_000):
        metrics.observe(CALLS, "tools/call", "2026-07-28", f"tool-{number}", "ok", "", seconds=0.001)
    for number in range(100):  # smaller ones, for the rest
        metrics.add(COUNTER, str(number))
    async with Wire(server, MODERN) as wire:
        for _ in range(3):
            before = series(metrics.read(), lost)[()]
            await wire.exchange(wire.request("tools/call", {"name": "late", "arguments": {}}))
            assert series(metrics.read(), lost)[()] == before + 1


# ── what they cost where they are off ──


def test_without_metrics_a_call_takes_the_same_way_and_nothing_of_them_is_loaded() -> None:
    """The functions on the way of a call are counted in test_call_path.py."""
    server = Server("plain", version="1.0.0")
    server.add_tool(lambda: "x", name="x")
    server.asgi()
    assert server.engine.chain is None
    assert server.engine.handlers is HANDLERS
    assert (server.engine.metrics, server.engine.observers) == (None, {})
    program = "import sys; from dovetail import Server; Server('x').asgi(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert [each for each in done.stdout.split() if "metrics" in each] == []


async def test_a_server_that_is_mounted_later_is_measured_too() -> None:
    server, child = Server("above", version="1.0.0"), Server("below", version="1.0.0")
    server.asgi(metrics=True)
    server.mount(child, namespace="sub")
    assert child.engine.metrics is server.engine.metrics is not None


def test_memory_is_taken_as_it_is_used() -> None:
    tracemalloc.start()
    try:
        metrics = Metrics()
        metrics.add(COUNTER, "failed")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
