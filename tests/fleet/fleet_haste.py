"""Time in workers for tests: with FLEET_HASTE=3 a dead worker is missed three times as soon, all proportions kept."""

import os

from dovetail.engine import member

PACE = ("LEASE_SECONDS", "BEAT_SECONDS")


def make_haste() -> None:
    for name in PACE:
        setattr(member, name, getattr(member, name) / float(os.environ.get("FLEET_HASTE", "1")))
