"""The gate's own judgement, on results made by hand."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import conformance_fixtures
import conformance_verdict as verdict
import node_tools
import pytest

import conformance
import nodejs
from dovetail import Server
from dovetail.transports.http.options import HttpOptions
from http_serving import listening

TIME = "2026-10-28T09-30-00-123Z"
FIXTURES: dict[str, list[str]] = {
    "capabilities": ["tools.listChanged"],
    "tools": ["one", "two"],
    "prompts": ["ask"],
    "resources": ["test://a"],
    "templates": ["test://{id}"],
}


class Output:
    """A folder as the suite leaves it behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, scenario: str, **statuses: str) -> None:
        folder = self.folder / f"server-{scenario}-{TIME}"
        folder.mkdir()
        checks = [{"id": id, "status": status, "errorMessage": "why"} for id, status in statuses.items()]
        (folder / "checks.json").write_text(json.dumps(checks))

    def judge(self, *wanted: str, **failing: str) -> list[str]:
        return verdict.judge_scenarios(set(wanted), verdict.read_checks(self.folder), failing)


@pytest.fixture
def output(tmp_path: Path) -> Output:
    return Output(tmp_path)


# ── scenarios ──


LATER = "caching"
NOTHING = f"MISSING {LATER}: the suite left no checks"


@pytest.mark.parametrize(
    ("checks", "failing", "problems"),
    [
        ({"a": "SUCCESS", "b": "INFO"}, [], []),
        *(
            ({"a": "SUCCESS", "b": each}, [], [f"{each} caching:b why"])
            for each in ("FAILURE", "WARNING", "SKIPPED", "NEW")
        ),
        ({}, [], [NOTHING]),
        ({}, [LATER], [NOTHING]),  # an expected failure is no excuse for leaving nothing behind
        ({}, ["caching:a"], [NOTHING]),
        ({"a": "FAILURE", "b": "WARNING", "c": "SUCCESS"}, [LATER], []),
        ({"a": "FAILURE", "wire-schema-valid": "FAILURE"}, [LATER], ["FAILURE caching:wire-schema-valid why"]),
        ({"a": "SUCCESS"}, [LATER], ["PASSES caching, though it is listed as failing (later)"]),
        ({"a": "SUCCESS"}, ["another"], []),  # of another leg
        ({"a": "FAILURE", "b": "SUCCESS"}, ["caching:a"], []),
        (
            {"a": "FAILURE", "b": "SUCCESS"},
            ["caching:b"],
            ["FAILURE caching:a why", "PASSES caching:b, though it is listed as failing (later)"],
        ),
    ],
)
def test_one_scenario(output: Output, checks: dict[str, str], failing: list[str], problems: list[str]) -> None:
    output.write(LATER, **checks)
    assert output.judge(LATER, **dict.fromkeys(failing, "later")) == problems


def test_scenarios_that_threw_or_that_were_not_asked_for(output: Output) -> None:
    output.write("ping", a="SUCCESS")
    (output.folder / f"server-{LATER}-{TIME}").mkdir()  # it threw
    assert output.judge("ping", LATER) == [NOTHING]
    assert output.judge(LATER) == [NOTHING, "UNKNOWN ping: ran, but is not in the list"]


def test_the_listing_leaves_clients_out() -> None:
    printed = (
        "Required for 2026-07-28 (5 scenarios):\n\nServer scenarios (test against a server):\n  - ping [2025-06-18]\n"
        "  - sep-2640-skills-manifest [extension]\n\nClient scenarios (test against a client):\n  - tools_call\n\n"
        "Run and reported, but never scored:\n  pending (2):\n    - auth/dpop [client]\n    - dpop [client]\n"
        "    - caching [server]\n"
    )
    assert verdict.read_listing(printed) == {"ping", "sep-2640-skills-manifest", "caching"}


# ── fixtures ──


def fixture_problems(found: dict[str, list[str]], **absent: list[str]) -> list[str]:
    later = {kind: dict.fromkeys(names, "later") for kind, names in absent.items()}
    return verdict.judge_fixtures(FIXTURES, found, later)


@pytest.mark.parametrize("kind", verdict.KINDS)
def test_a_missing_fixture_fails(kind: str) -> None:
    name = FIXTURES[kind][0]
    without = {**FIXTURES, kind: FIXTURES[kind][1:]}
    assert fixture_problems(without) == [f"MISSING {kind}: {name} is not listed"]
    assert fixture_problems(without, **{kind: [name]}) == []


def test_a_fixture_to_come_must_be_one_that_is_not_there() -> None:
    assert fixture_problems(FIXTURES) == []
    assert fixture_problems(FIXTURES, tools=["two"]) == ["THERE tools: two is listed, though it is to come (later)"]
    assert fixture_problems(FIXTURES, tools=["tow"]) == ["UNKNOWN tools: tow is to come, but no fixture"]


# ── the lists of the project ──


def test_the_expected_failures_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text(
        '[[later]]\nreason = "r"\nscenarios = ["a"]\ntools = ["t"]\n'
        '[[later]]\nreason = "only there"\nchecks = ["b:c"]\nlegs = ["all"]\n'
    )
    assert verdict.read_expected(path, "all").failing == {"a": "r", "b:c": "only there"}
    assert verdict.read_expected(path, "all-2025-06-18").failing == {"a": "r"}
    assert verdict.read_expected(path, "all").absent["tools"] == {"t": "r"}


def test_every_expected_failure_has_a_reason() -> None:
    expected = verdict.read_expected(conformance.SERVER / "expected_failures.toml", "all")
    assert all(expected.failing.values())
    assert all(reason for group in expected.absent.values() for reason in group.values())


@pytest.mark.parametrize("status", ["SKIPPED", "SUCCESS", "INFO"])
def test_the_stub_of_the_suite_is_excused_by_the_file_until_it_passes(output: Output, status: str) -> None:
    stub = "tasks-status-notifications"
    in_file = verdict.read_expected(conformance.SERVER / "expected_failures.toml", "all").failing
    output.write(stub, **{stub: status})
    problems = output.judge(stub, **in_file)
    if status == "SKIPPED":
        assert (problems, output.judge(stub)) == ([], [f"SKIPPED {stub}:{stub} why"])
    else:
        assert problems[0].startswith(f"PASSES {stub}:{stub}, though it is listed as failing")


def test_a_suite_that_lists_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "run_suite", lambda *arguments, log: "")
    (problem,) = conformance.run_leg("all", url="http://127.0.0.1:9/mcp", folder=tmp_path / "all").problems
    assert problem.startswith("the suite lists 0 scenarios, not 65")


# ── asking a server ──


def small_server(*tools: str, **options: Any) -> Server:
    """With a list of two pages."""
    server = Server("small", page_size=1, **options)
    for name in tools:
        server.add_tool(lambda: "", name=name)
    server.add_prompt(lambda: "", name="ask")
    server.add_resource("test://a", lambda: "", name="a")
    server.add_resource("test://{id}", lambda id: id, name="b")
    return server


MISSING = ["MISSING tools: two is not listed", "MISSING capabilities: tools.listChanged is not listed"]


@pytest.mark.parametrize(
    ("server", "wrong"),
    [(small_server("one", "two"), []), (small_server("one", "three", list_changed=False), MISSING)],
    ids=["all there", "some missing"],
)
async def test_a_server_is_asked_in_both_eras(server: Server, wrong: list[str]) -> None:
    nothing: dict[str, dict[str, str]] = {kind: {} for kind in verdict.KINDS}
    async with listening(server.asgi(), HttpOptions(port=0)) as root:
        problems, _ = await asyncio.to_thread(conformance_fixtures.problems, f"{root}/mcp", FIXTURES, nothing)
    assert sorted(problems) == sorted(f"{era}: {each}" for era in ("2026-07-28", "2025-11-25") for each in wrong)


# ── what is missing is said ──


def test_without_npm_a_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    assert node_tools.main(tmp_path) == 0
    assert "npm is not on the PATH" in capsys.readouterr().err
    monkeypatch.setenv("CI", "true")
    assert node_tools.main(tmp_path) == 1
    with pytest.raises(pytest.fail.Exception, match="not installed"):
        nodejs.demand(tmp_path)
    monkeypatch.setenv("CI", "false")
    with pytest.raises(pytest.skip.Exception, match="not installed"):
        nodejs.demand(tmp_path)
    assert not os.listdir(tmp_path)
