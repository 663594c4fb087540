"""The official conformance suite, strict, against fleets: processes behind nginx, and workers of one parent."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_processes import fleet

import conformance
import nodejs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(conformance.SUITE_SECONDS)]
SHORT = ["all-2025-11-25"]  # in `make test`
SHAPES = {  # processes behind nginx, workers of each, where their state lives
    "redis": {"workers": 2, "processes": 1, "store": "redis"},
    "sqlite": {"workers": 1, "processes": 2, "store": "sqlite"},
    "own": {"workers": 1, "processes": 2, "store": None},  # what `--workers 2` makes by itself
}


@pytest.fixture(
    scope="module", params=["redis", *(pytest.param(each, marks=pytest.mark.soak) for each in ("sqlite", "own"))]
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The name of a fleet, and its URL; one for all legs, which run one after the other."""
    nodejs.demand()
    program = conformance.SERVER / "server.py"
    with fleet(tmp_path_factory.mktemp(request.param), program=program, **SHAPES[request.param]) as running:
        yield request.param, running.url
        running.assert_clean()


@pytest.mark.parametrize(
    "leg", [*SHORT, *(pytest.param(each, marks=pytest.mark.soak) for each in conformance.NAMES if each not in SHORT)]
)
def test_a_leg_against_a_fleet(served: tuple[str, str], leg: str) -> None:
    name, url = served
    result = conformance.run_leg(leg, url=url, folder=conformance.OUTPUT / f"fleet-{name}" / leg)
    assert not result.problems, "\n".join([str(result), *result.problems])


@pytest.mark.parametrize("name", ["nginx.conf", "kubernetes.yaml"])
def test_the_file_that_is_used_is_the_one_that_is_shown(name: str) -> None:
    docs = Path(conformance.__file__).parent.parent / "docs"
    assert f"\n{(docs / 'deploy' / name).read_text()}```\n" in (docs / "deploy.md").read_text()
