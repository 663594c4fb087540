"""What befalls a fleet while a storm of calls goes over it: nothing, the death of workers, or trouble with the store.

Each is `await weather(storm)`: it begins with the calls, and ends with them or soon after, with everything running.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet_storm import Storm

Weather = Callable[["Storm"], Coroutine[Any, Any, None]]

KILL_EVERY = (0.8, 1.6)  # seconds between the start of a worker and the end of the next
DOWN = (0.0, 0.5)  # seconds that a worker is gone
STORE_DOWN = (0.3, 1.5)  # seconds that the store is gone
STORE_STILL = 4.0  # seconds that it stands still: longer than its clients wait, and than a worker's lease lasts
TROUBLES_AT = (0.2, 0.5)  # when so much of all calls is done


async def calm(_storm: "Storm") -> None:
    """Nothing happens, so nothing may fail."""


async def deaths(storm: "Storm") -> None:
    """Workers are killed at random, one after the other, and started again."""
    while not storm.calm.is_set():
        await asyncio.sleep(storm.chance.uniform(*KILL_EVERY))
        victim = storm.fleet.kill_one(storm.chance)
        await asyncio.sleep(storm.chance.uniform(*DOWN))
        await asyncio.to_thread(victim.start)


async def store_troubles(storm: "Storm") -> None:
    """Once the store is killed and started again, once it stands still, in any order."""
    troubles = [_restart, _stand_still]
    storm.chance.shuffle(troubles)
    for trouble, share in zip(troubles, TROUBLES_AT, strict=True):
        while storm.share_made < share:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await trouble(storm)


async def _restart(storm: "Storm") -> None:
    """As `kill -9` does. It has written down all that it has confirmed, so nothing is forgotten."""
    store = storm.fleet.store
    assert store is not None
    await asyncio.to_thread(store.kill)
    await asyncio.sleep(storm.chance.uniform(*STORE_DOWN))
    await asyncio.to_thread(store.start)
    storm.troubles.append("the store was restarted")


async def _stand_still(storm: "Storm") -> None:
    store = storm.fleet.store
    assert store is not None
    store.pause()
    await asyncio.sleep(STORE_STILL)
    store.go_on()
    storm.troubles.append(f"the store stood still for {STORE_STILL:g} s")
