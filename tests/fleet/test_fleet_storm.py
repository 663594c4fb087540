"""Four workers behind nginx lose nothing while they are killed: no session, no event, no call."""

import random
from pathlib import Path

import pytest
from fleet_processes import fleet
from fleet_storm import Storm

from sdk import HANDSHAKE, MODERN, deprecations_are_expected

WORKERS, STORE, KILLS = 4, "redis", True
SIZES = [
    pytest.param(1_000, marks=[pytest.mark.slow, pytest.mark.timeout(180)]),
    pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
]

pytestmark = deprecations_are_expected


@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
@pytest.mark.parametrize("calls", SIZES)
async def test_nothing_is_lost_in_a_storm(tmp_path: Path, revision: str, calls: int) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}, {tmp_path}")  # noqa: T201
    with fleet(tmp_path, workers=WORKERS, store=STORE) as running:
        ledger = await Storm(running, tmp_path, revision, calls, seed=seed, kills=KILLS).run()
        ledger.assert_right(calls)
        assert running.kills >= (3 if KILLS else 0)
        running.assert_clean()
