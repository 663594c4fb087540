"""Tests of the benchmarks: they count rightly, treat all alike, and leave no process behind. Speed is not tested."""

import http.client
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from signal import Signals
from typing import Any

import fetch_specifications
import fetch_tools
import pytest
from benchmarks import contenders, http_call, plot, processes, record, report, wrk
from benchmarks.__main__ import QUESTIONS, QUICK, chosen, main, measured
from benchmarks.case import CannotMeasure, Case, Measured, Round, Settings
from benchmarks.http_call import ARGUMENTS
from benchmarks.http_contender import MAX_SECONDS, HttpServer, Offer, Post, call, loaded, serving
from benchmarks.http_session import in_session
from benchmarks.processes import ROOT, cpu_seconds, resident_bytes, running
from benchmarks.record import Record
from benchmarks.report import Outcome

import missing

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


Opening = Callable[[str, Settings], AbstractContextManager[Round]]


@contextmanager
def nothing(_contender: str, _settings: Settings) -> Iterator[Round]:
    yield lambda: Measured(1.0)


def case(*, more: bool = True, targets: dict[str, float] | None = None, opened: Opening = nothing) -> Case:
    return Case("key", "A question", "calls/s", more, ("dovetail", "mcp"), opened, targets or {})


def demand_wrk() -> None:
    """Skip loudly; nothing that `make test` runs installs it, so this is no failure in CI either."""
    if shutil.which("wrk") is None:
        pytest.skip("! wrk is not installed: no benchmark was tried")


def outcome(of: Case, dovetail: list[float], mcp: list[float]) -> Outcome:
    rounds = {"dovetail": [Measured(value, 10.0) for value in dovetail], "mcp": [Measured(value) for value in mcp]}
    return Outcome(of, rounds)


# ── arithmetic ──


def test_medians_and_ratios() -> None:
    seen = outcome(case(), [100, 10, 300], [10, 1, 100])
    assert seen.median("dovetail") == 100
    assert seen.cpu_us("dovetail") == 10
    assert seen.cpu_us("mcp") is None
    assert seen.ratio("mcp") == 10  # of 10, 10 and 3: each round by itself, so a slow one does no harm
    assert seen.ratio("mcp", "mcp") == 1
    assert seen.spread("mcp") == pytest.approx(9.9)


def test_without_the_subject_no_target_is_met() -> None:
    seen = Outcome(case(targets={"mcp": 0.5}), {"mcp": [Measured(1.0)]})
    assert (seen.ratio("mcp"), seen.met("mcp")) == (None, None)


def test_without_figures() -> None:
    seen = Outcome(case(targets={"mcp": 10}))
    assert (seen.median("mcp"), seen.ratio("mcp"), seen.spread("mcp"), seen.met("mcp")) == (None, None, None, None)


@pytest.mark.parametrize(
    ("more", "target", "dovetail", "mcp", "met"),
    [
        (True, 10, 100, 10, True),
        (True, 10, 99, 10, False),
        (False, 0.15, 15, 100, True),
        (False, 0.15, 16, 100, False),
    ],
)
def test_targets(more: bool, target: float, dovetail: float, mcp: float, met: bool) -> None:
    seen = outcome(case(more=more, targets={"mcp": target}), [dovetail], [mcp])
    assert seen.met("mcp") is met
    assert seen.met("dovetail") is None
    assert ("MISSED" in report.table([seen])) is not met


def test_table_and_record_hold_everything() -> None:
    seen = outcome(case(targets={"mcp": 10}), [12_345.6], [1_000])
    seen.fail("mcp", CannotMeasure("pip could not install it"))
    shown = report.table([seen])
    assert "A question" in shown
    assert "12,346 calls/s" in shown
    assert "mcp: not measured: pip could not install it" in shown
    contenders = recorded(seen)["cases"][0]["contenders"]
    assert contenders["dovetail"]["rounds"] == [[12_345.6, 10.0]]
    assert contenders["mcp"] == {"not_measured": "pip could not install it"}


def test_table_says_where_only_run_reaches_the_target() -> None:
    of = replace(case(targets={"mcp": 10}), contenders=("dovetail", "dovetail-asgi", "mcp"))
    rounds = {name: [Measured(value)] for name, value in (("dovetail", 100), ("dovetail-asgi", 90), ("mcp", 10))}
    assert "met; asgi MISSED" in report.table([Outcome(of, rounds)])


def test_picture_turns_ratios_so_that_more_is_better() -> None:
    fast = outcome(replace(case(), key="http-async"), [100], [10])
    small = outcome(replace(case(more=False), key="cold-start"), [80], [800])
    other = outcome(case(), [1], [1])
    drawn = plot.rows(recorded(small, other, fast))
    assert [(row.label, row.figure, row.times) for row in drawn] == [
        ("HTTP call", "100 calls/s", {"mcp": 10.0}),
        ("Start to first answer", "80 ms", {"mcp": 10.0}),
    ]


# ── the record ──

RUN = {
    "commit": "abc",
    "cores": 2,
    "python": "3.11.0",
    "settings": {"rounds": 5, "quick": False},
    "versions": {"mcp": ["mcp==2.3.0"]},
}


def recorded(*outcomes: Outcome, run: str = "first") -> dict[str, Any]:
    kept = Record()
    for one in outcomes:
        kept.add(one, run, RUN)
    return kept.as_json([one.case for one in outcomes])


def test_a_question_that_is_asked_again_takes_the_place_of_the_old_answer(tmp_path: Path) -> None:
    file, one, other = tmp_path / "results.json", replace(case(), key="one"), replace(case(), key="other")
    first = Record()
    first.add(outcome(one, [1, 2], [1, 1]), "first", RUN)
    first.add(outcome(other, [3], [1]), "first", RUN)
    first.outcomes["other"].fail("mcp", CannotMeasure("gone"))
    first.write(file, [one, other])

    again = record.read(file, [one, other])
    assert again.outcomes == first.outcomes
    again.add(outcome(one, [5], [1]), "second", {**RUN, "commit": "def"})
    found = again.as_json([one, other])
    assert [(each["key"], each["run"]) for each in found["cases"]] == [("one", "second"), ("other", "first")]
    assert [run["commit"] for run in found["runs"].values()] == ["abc", "def"]
    assert all(each["made"] for each in found["cases"])
    assert list(record.read(file, [other]).as_json([one, other])["runs"]) == ["first"]


def test_a_run_records_on_what_it_was_made() -> None:
    made = record.run_on(QUICK, {"mcp": contenders.installed("dovetail")})
    assert set(made) >= {"commit", "processor", "cores", "python"}
    assert made["settings"] == {"seconds": 0.5, "rounds": 1, "quick": True}
    assert any(line.startswith("uvicorn==") for line in made["versions"]["mcp"])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cases":[{"key":"key"}],"runs":{}}'])
def test_a_file_of_something_else_is_not_overwritten(text: str, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(text)
    with pytest.raises(SystemExit, match="move it away"):
        record.read(file, [case()])


def test_what_is_published_was_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Record()
    kept.add(outcome(http_call.CASES[0], [100], [10]), "first", RUN)
    kept.write(tmp_path / "results.json", http_call.CASES)
    for suffix in (".png", ".svg"):
        (tmp_path / f"plot{suffix}").write_text("drawn")
    monkeypatch.setattr("benchmarks.plot.draw", lambda file: None)
    published = tmp_path / "published"
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--show", "--out", str(tmp_path)])
    assert main(published) == 0
    assert not list(tmp_path.glob("published*"))
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--publish"])
    assert main(published) == 0
    assert {path.name for path in tmp_path.glob("published*")} == {"published.png", "published.svg"}
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--quick"])
    with pytest.raises(SystemExit, match="a trial"):
        main(published)


# ── wrk ──

FIGURES = "Running 1s test\n  garbage\nFIGURES requests=1234 microseconds=2000000 status={} sockets={} wrong={}\n"


@pytest.mark.parametrize(("bad", "errors"), [((0, 0, 0), 0), ((1, 2, 4), 7)])
def test_figures_of_wrk(bad: tuple[int, int, int], errors: int) -> None:
    assert wrk.figures_in(FIGURES.format(*bad)) == wrk.WrkFigures(1234, 2.0, errors)


def test_wrk_without_figures() -> None:
    with pytest.raises(CannotMeasure, match="unable to connect"):
        wrk.figures_in("unable to connect to 127.0.0.1:1 Connection refused\n")


def test_script_quotes_what_it_sends() -> None:
    assert wrk.constant({"a": 'x"y'}, '{"b":"\\n"}') == (
        'wrk.method = "POST"\nwrk.body = "{\\"b\\":\\"\\\\n\\"}"\nwrk.headers["a"] = "x\\"y"\n'
    )


# ── the run ──


def test_contenders_take_turns_and_failures_are_reported() -> None:
    order: list[str] = []

    @contextmanager
    def opened(name: str, _: Settings) -> Iterator[Round]:
        def once() -> Measured:
            order.append(name)
            if name == "b" and order.count("b") == 2:
                raise ValueError("broke")
            return Measured(1.0)

        if name == "c":
            raise CannotMeasure("is not there")
        yield once
        order.append(f"{name} ended")

    of = replace(case(opened=opened), contenders=("a", "b", "c"))
    seen = measured(of, Settings(rounds=3))
    assert order == ["a", "b", "b", "a", "a", "b ended", "a ended"]
    assert seen.reasons == {"c": "is not there", "b": "ValueError: broke"}
    assert list(seen.rounds) == ["a"]


def test_every_case_is_distinct() -> None:
    cases = chosen([], [])
    assert len({one.key for one in cases}) == len(cases)
    for one in cases:
        assert one.subject in one.contenders
        assert set(one.targets) <= set(one.contenders)
    assert chosen(["http-async"], ["floor"])[0].contenders == ("floor",)
    with pytest.raises(SystemExit, match="unknown: nonsense"):
        chosen(["nonsense"], [])
    assert {path.stem for path in (ROOT / "benchmarks").glob("*.py")} >= set(QUESTIONS)


def interrupted() -> subprocess.Popen[bytes]:
    with suppress(KeyboardInterrupt), running(SLEEPER) as process:
        assert resident_bytes(process.pid) > 0
        assert cpu_seconds(process.pid) >= 0
        raise KeyboardInterrupt
    return process


def test_processes_end_whatever_happens() -> None:
    assert interrupted().returncode is not None


@pytest.mark.slow
@pytest.mark.parametrize(("signal", "code"), [(Signals.SIGINT, 130), (Signals.SIGTERM, 143)])
def test_a_run_that_is_stopped_leaves_no_process(signal: Signals, code: int, tmp_path: Path) -> None:
    demand_wrk()
    words = ["http-async", "--contenders", "floor", "--seconds", "30", "--out", str(tmp_path)]
    with subprocess.Popen([sys.executable, "-m", "benchmarks", *words], stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        assert any("round 1 of 5" in line for line in run.stderr)
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        assert children
        run.send_signal(signal)
        run.stderr.read()
    assert run.returncode == code
    assert not [child for child in children if Path("/proc", child).exists()]


# ── equal work ──


def body(server: HttpServer, post: Post) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", "/mcp", post.body, dict(post.headers))
    try:
        return connection.getresponse().read()
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["add", "add_in_thread", "count", "text", "image"])
def test_the_floor_answers_what_dovetail_answers(tool: str) -> None:
    post = call(tool, ARGUMENTS, progressToken=1) if tool.startswith("add") else call(tool, {}, progressToken=1)
    answers = []
    for contender in ("dovetail", "dovetail-asgi", "floor") if tool == "add" else ("dovetail", "floor"):
        with serving(contender, Offer(tool)) as server:
            answers.append(body(server, post))
    assert answers[0]
    assert set(answers) == {answers[0]}


@pytest.mark.slow
def test_the_floor_answers_what_dovetail_answers_in_a_session() -> None:
    answers = []
    for contender in ("dovetail", "floor"):
        with serving(contender, Offer(sessions=True)) as server:
            answers.append(body(server, in_session(server)))
    assert b'"structuredContent":{"result":3}' in answers[0]
    assert answers[0] == answers[1]


@pytest.mark.slow
def test_a_case_can_be_measured() -> None:
    demand_wrk()
    of = replace(http_call.CASES[0], contenders=("dovetail", "floor"))
    seen = measured(of, QUICK)
    assert not seen.reasons
    assert all(seen.rounds[name][0].value > 0 for name in of.contenders)
    assert seen.ratio("floor") is not None


def test_what_takes_too_long_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.http_contender._seconds", lambda server, post: MAX_SECONDS)
    opened = loaded("floor", QUICK, Offer(), call("add", ARGUMENTS), http_call.check_sum)
    with pytest.raises(CannotMeasure, match="one answer takes 8"):
        opened.__enter__()


def test_children_run_with_bytecode_whatever_the_shell_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    switches = "import os; print([name for name in os.environ if name.startswith('PYTHON')])"
    with processes.running([sys.executable, "-c", switches], stdout=subprocess.PIPE) as process:
        assert process.communicate()[0].strip() == b"[]"


@pytest.mark.slow
def test_wrong_bodies_are_found_under_load() -> None:
    demand_wrk()
    with serving("floor", Offer()) as server:
        post = call("add", {"a": 2, "b": 2})
        server.load(post.lua + wrk.looking({'"text":"4"': 1}), 1, 2)
        with pytest.raises(CannotMeasure, match="requests failed under load"):
            server.load(post.lua + wrk.looking({'"text":"3"': 1}), 1, 2)


def test_a_server_that_does_not_start_leaves_its_last_words() -> None:
    with pytest.raises(CannotMeasure, match="KeyError"):
        serving("dovetail", Offer("unknown")).__enter__()


def test_help() -> None:
    command = [sys.executable, "-m", "benchmarks", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "http_call" in shown


# ── gateways ──


@pytest.mark.slow
@pytest.mark.parametrize("key", ["proxy-hop", "proxy-lists", "mount-5000", "proxy-5000"])
def test_gateways_are_measured(key: str) -> None:
    """Without FastMCP, whose environment may be missing; each contender checks its own answers."""
    demand_wrk()
    (one,) = chosen([key], ["direct", "dovetail", "dovetail-1", "slowest"])
    seen = measured(one, QUICK)
    assert seen.reasons == {}
    assert all(figures[0].value > 0 for figures in seen.rounds.values())
    if key == "proxy-lists":
        assert all(figures[0].value >= 500 for figures in seen.rounds.values()), "the slowest takes half a second"


# ── catalogues from elsewhere ──


@pytest.mark.slow
@pytest.mark.parametrize("key", ["search-200", "search-hits", "openapi-box"])
def test_searches_and_imports_are_measured(key: str) -> None:
    """Without FastMCP, whose environment may be missing."""
    demand_wrk()
    missing.demand(fetch_tools.why_missing() or fetch_specifications.why_missing())
    (one,) = chosen([key], ["dovetail"])
    seen = measured(one, QUICK)
    assert seen.reasons == {}
    assert seen.rounds["dovetail"][0].value > 0
    if key == "search-hits":
        assert seen.rounds["dovetail"][0].value <= 60
