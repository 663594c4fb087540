"""The official conformance suite, one test for each leg."""

import pytest

import conformance
import nodejs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(conformance.SUITE_SECONDS)]


@pytest.mark.parametrize("leg", conformance.NAMES)
def test_leg(leg: str) -> None:
    nodejs.demand()
    result = conformance.run_leg(leg)
    assert not result.problems, "\n".join([str(result), *result.problems])
