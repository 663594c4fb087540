"""Several workers behind nginx lose nothing in any weather: no session, no event, no call."""

import random
from collections.abc import Collection
from itertools import product
from pathlib import Path

import pytest
from fleet_processes import fleet
from fleet_storm import Storm, Weather, calm, deaths, store_outages

from sdk import HANDSHAKE, MODERN, deprecations_are_expected

WORKERS = 3
REVISIONS = (HANDSHAKE, MODERN)
STORES = ("redis", "sqlite")
SHORT = [pytest.mark.slow, pytest.mark.timeout(180)]
LONG = [pytest.mark.soak, pytest.mark.timeout(1800)]

pytestmark = deprecations_are_expected


def storms(*short: tuple[str, str, int], long: int, stores: Collection[str]) -> pytest.MarkDecorator:
    """These few in `make test`; in `make soak` `long` calls in each era on each store."""
    few = [pytest.param(*case, marks=SHORT) for case in short]
    many = [pytest.param(*case, long, marks=LONG) for case in product(REVISIONS, stores)]
    return pytest.mark.parametrize(("revision", "store", "calls"), [*few, *many])


async def weathered(folder: Path, revision: str, store: str, calls: int, weather: Weather, **more: str) -> Storm:
    """A storm that is over, with nothing wrong in its books."""
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}, {folder}")  # noqa: T201
    with fleet(folder, workers=WORKERS, store=store, **more) as running:
        storm = Storm(running, folder, revision, calls, seed=seed, weather=weather, is_short=calls < 1_000)
        (await storm.run()).assert_right(calls)
        running.assert_clean()
    return storm


@storms((HANDSHAKE, "redis", 150), (MODERN, "sqlite", 150), long=10_000, stores=STORES)
async def test_nothing_is_lost_while_workers_die(tmp_path: Path, revision: str, store: str, calls: int) -> None:
    haste = {"FLEET_HASTE": "3"} if calls < 1_000 else {}  # so that calls of the dead fail soon
    storm = await weathered(tmp_path, revision, store, calls, deaths, **haste)
    assert storm.incidents


@storms(long=1_000, stores=STORES)
async def test_nothing_fails_while_nothing_happens(tmp_path: Path, revision: str, store: str, calls: int) -> None:
    """Not even loudly: no worker is taken for lost because it is busy, and no store for away because it is slow."""
    storm = await weathered(tmp_path, revision, store, calls, calm)
    assert not storm.ledger.loud, storm.ledger


@storms((HANDSHAKE, "redis", 200), long=5_000, stores=["redis"])
async def test_nothing_is_lost_while_the_store_has_outages(
    tmp_path: Path, revision: str, store: str, calls: int
) -> None:
    """Workers hold events back for longer than that takes; since 2026-07-28 no call needs the store at all."""
    storm = await weathered(tmp_path, revision, store, calls, store_outages)
    assert len(storm.incidents) == 2
    assert not [why for why in storm.ledger.loud if "worker" in why and "lost" in why], "no worker died"
    if revision == MODERN:
        assert not storm.ledger.loud, storm.ledger
