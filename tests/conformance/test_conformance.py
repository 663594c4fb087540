"""The official suite: the legs of a server, and the scenarios of a client, all of those in the long run only."""

from pathlib import Path

import conformance_client as client_side
import conformance_verdict as verdict
import pytest

import conformance
import nodejs

FEW: list[tuple[str, str | None]] = [
    ("sse-retry", "2025-11-25"),
    ("elicitation-sep1034-client-defaults", "2025-11-25"),
    ("auth/metadata-default", "2025-11-25"),
    ("request-metadata", "2026-07-28"),
    ("auth/scope-step-up", "2026-07-28"),
    ("sep-2640-client-verify-frontmatter", None),
]
# In the long run only: other legs run all their scenarios too, in the same revision (extensions have none).
REPEATED = {
    "requirements-2026-07-28": ("all-2026-07-28", "all"),
    "requirements-2025-11-25": ("all-2025-11-25",),
}


@pytest.mark.timeout(conformance.SUITE_SECONDS)
@pytest.mark.parametrize(
    "leg",
    [
        *(pytest.param(leg, marks=pytest.mark.slow) for leg in conformance.NAMES if leg not in REPEATED),
        *(pytest.param(leg, marks=pytest.mark.soak) for leg in REPEATED),
        *(pytest.param(leg, marks=pytest.mark.soak) for leg in conformance.CLIENT_NAMES),
    ],
)
def test_leg(leg: str) -> None:
    nodejs.demand()
    result = conformance.run_leg(leg)
    assert not result.problems, "\n".join([str(result), *result.problems])


@pytest.mark.slow
@pytest.mark.parametrize("leg", REPEATED)
def test_a_leg_that_is_left_out_has_no_scenario_of_its_own(leg: str, tmp_path: Path) -> None:
    nodejs.demand()
    (own, *others) = (listed(name, tmp_path / "list.log") for name in (leg, *REPEATED[leg]))
    assert own
    assert own <= set().union(*others)


def listed(leg: str, log: Path) -> set[str]:
    return set(verdict.read_listing(conformance.run_suite("list", "--server", *conformance.LEGS[leg].listing, log=log)))


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "revision"), FEW)
def test_a_few_scenarios(scenario: str, revision: str | None, tmp_path: Path) -> None:
    nodejs.demand()
    assert client_side.judge_scenario(scenario, revision, tmp_path, conformance.run_suite) == []


# ── the judgement ──


def wrote(folder: Path, scenario: str, stderr: str = "", **statuses: str) -> None:
    place = folder / f"{scenario}-2026-10-28T09-30-00-123Z"
    place.mkdir(parents=True)
    checks = ", ".join(f'{{"id": "{id}", "status": "{status}"}}' for id, status in statuses.items())
    (place / "checks.json").write_text(f"[{checks}]")
    (place / "stderr.txt").write_text(stderr)


def problems(folder: Path, scenario: str) -> list[str]:
    return client_side.problems_of({scenario}, folder, "client-all")[0]


@pytest.mark.parametrize(
    ("scenario", "error", "expected"),
    [
        ("auth/basic-cimd", "ValueError: oops", ["FAILED auth/basic-cimd: the program ended with ValueError: oops"]),
        ("auth/iss-wrong-issuer", "dovetail.errors.NotSignedIn: no", []),  # it has to refuse
    ],
)
def test_a_program_that_fails_though_its_checks_pass(
    tmp_path: Path, scenario: str, error: str, expected: list[str]
) -> None:
    wrote(tmp_path, scenario, f"Traceback (most recent call last):\n  …\n{error}\n", a="SUCCESS")
    assert problems(tmp_path, scenario) == expected


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
