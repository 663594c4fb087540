"""`dovetail bench`: what it asks, whom it refuses to load, and its figures."""

import json

import pytest
from command_stage import Run, running

from dovetail import Server, ToolError
from dovetail.cli.bench import Measurement
from dovetail.cli.output import FAILED

QUICKLY = ("--seconds", "0.1", "--clients", "2")


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def run(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    server = Server("loaded")

    @server.tool
    def send_letters() -> None:
        asked.append("send_letters")

    @server.tool(annotations={"readOnlyHint": True})
    def look(what: str = "sky") -> str:
        asked.append(f"look {what}")
        return what

    @server.tool
    def fail_later() -> None:
        asked.append("fail_later")
        if len(asked) > 3:
            raise ToolError("no \x1b[31mmore")

    return running(server, monkeypatch)


def test_what_is_marked_read_only_is_called_by_itself(run: Run, asked: list[str]) -> None:
    done = run("bench", *QUICKLY, "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["asked"], found["errors"]) == (0, "look", 0)
    assert set(asked) == {"look sky"}
    assert 0 < found["calls"] < len(asked)  # the warm-up does not count
    latency = found["latencyMs"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    assert found["callsPerSecond"] == pytest.approx(found["calls"] / found["seconds"], rel=0.01)


@pytest.mark.seed("S3-16")
def test_nothing_that_might_do_something_is_called_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    server, called = Server("loaded"), []
    server.add_tool(lambda: called.append(1), name="send_letters")
    found = json.loads(running(server, monkeypatch)("bench", *QUICKLY, "--json").stdout)
    assert (found["asked"], called) == ("tools/list", [])


def test_a_tool_with_arguments(run: Run, asked: list[str]) -> None:
    done = run("bench", *QUICKLY, "--tool", "look", "--args", '{"what": "sea"}')
    assert done.exit_code == 0
    assert set(asked) == {"look sea"}
    assert " calls/s " in done.stdout
    assert "p99" in done.stdout


def test_errors_are_counted_and_shown_without_their_colours(run: Run) -> None:
    done = run("bench", *QUICKLY, "--tool", "fail_later")
    assert done.exit_code == FAILED
    assert "ToolError: no \ufffd[31mmore" in done.stderr
    assert "0 calls/s" in done.stdout


def test_figures() -> None:
    found = Measurement()
    for each in range(100, -1, -1):
        found.add(float(each))
    found.close(2.0)
    assert found.percentiles() == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    assert found.rate == 101 / 2
    nothing = Measurement()
    nothing.close(1.0)
    assert (nothing.percentiles(), nothing.rate) == ({}, 0.0)


def test_of_very_many_calls_a_fair_sample_is_kept() -> None:
    found = Measurement(sample_size=1_000)
    for each in range(20_000):
        found.add(float(each if each != 7 else 90_000))
    found.close(2.0)
    assert (found.calls, len(found.times), found.rate) == (20_000, 1_000, 10_000)
    assert 8_000 < found.percentiles()["p50"] < 12_000  # of the last thousand alone it would be 19,500
    assert found.percentiles()["max"] == 90_000
