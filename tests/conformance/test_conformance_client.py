"""The official suite's client scenarios: a few of them in every run, all of them in the long one."""

from pathlib import Path

import conformance_client as client_side
import conformance_verdict as verdict
import pytest

import conformance
import nodejs

FEW = [
    ("sse-retry", "2025-11-25"),
    ("elicitation-sep1034-client-defaults", "2025-11-25"),
    ("auth/metadata-default", "2025-11-25"),
    ("request-metadata", "2026-07-28"),
    ("auth/scope-step-up", "2026-07-28"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "revision"), FEW)
def test_a_few_scenarios(scenario: str, revision: str, tmp_path: Path) -> None:
    nodejs.demand()
    assert client_side.judge_scenario(scenario, revision, tmp_path, conformance.run_suite) == []


@pytest.mark.soak
@pytest.mark.parametrize("leg", conformance.CLIENT_NAMES)
def test_client_leg(leg: str) -> None:
    nodejs.demand()
    result = conformance.run_leg(leg)
    assert not result.problems, "\n".join([str(result), *result.problems])


# ── the judgement ──


def wrote(folder: Path, scenario: str, stderr: str = "", **statuses: str) -> None:
    place = folder / f"{scenario}-2026-10-28T09-30-00-123Z"
    place.mkdir(parents=True)
    checks = ", ".join(f'{{"id": "{id}", "status": "{status}"}}' for id, status in statuses.items())
    (place / "checks.json").write_text(f"[{checks}]")
    (place / "stderr.txt").write_text(stderr)


def problems(folder: Path, scenario: str) -> list[str]:
    return client_side.problems_of({scenario}, folder, "client-all")[0]


def test_a_program_that_fails_though_its_checks_pass(tmp_path: Path) -> None:
    wrote(tmp_path, "auth/basic-cimd", "Traceback (most recent call last):\n  …\nValueError: oops\n", a="SUCCESS")
    assert problems(tmp_path, "auth/basic-cimd") == ["FAILED auth/basic-cimd: the program ended with ValueError: oops"]


def test_a_program_that_has_to_refuse(tmp_path: Path) -> None:
    wrote(tmp_path, "auth/iss-wrong-issuer", "Traceback …\ndovetail.errors.NotSignedIn: no\n", a="SUCCESS")
    assert problems(tmp_path, "auth/iss-wrong-issuer") == []


HEADERS = "http-standard-headers"


@pytest.mark.parametrize(("status", "fine"), [("SKIPPED", True), ("FAILURE", False), ("WARNING", False)])
def test_a_check_may_be_excused_for_one_status_alone(tmp_path: Path, status: str, fine: bool) -> None:
    wrote(tmp_path, HEADERS, **{"sep-2243-client-includes-standard-headers": status})
    bad = [problem for problem in problems(tmp_path, HEADERS) if not problem.startswith("PASSES")]
    assert (bad == []) is fine


def test_the_listing_leaves_servers_out() -> None:
    printed = (
        "Required for 2026-07-28:\n\nServer scenarios (test against a server):\n  - ping\n\n"
        "Client scenarios (test against a client):\n  - tools_call\n  - auth/basic-cimd [2025-11-25]\n\n"
        "Run and reported, but never scored:\n  extension (2):\n    - auth/dpop [client]\n    - caching [server]\n"
    )
    assert verdict.read_listing(printed, "client") == {"tools_call", "auth/basic-cimd", "auth/dpop"}
