"""Signing in: a name, a password and where they come from come in; a user goes out, or a refusal. Guessing is slow.

Whoever has no tries left takes no place in the line, and whoever finds it full has not tried. Every try is counted
before the password is looked at, for its network and everybody, for the name from this network, and for the name. The
network comes first: with it all tries of a stranger are over, and names that are invented then are not even counted.
So a stranger with one network keeps nobody out who comes from elsewhere. One with very many can use up what there is
for all; but not for a user at a browser where that user has signed in before.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.authserver.allowances import Allowance
from dovetail.authserver.marks import Marks
from dovetail.authserver.networks import customer_of
from dovetail.authserver.refusals import OAuthRefusal
from dovetail.authserver.users import Users

WINDOW = 900.0  # seconds
TRIES, WORDS = "tries", "tries to sign in"
FROM_STRANGERS = Allowance(TRIES, WORDS, WINDOW, per_network=50, per_customer=200, for_all=3000)
PER_NAME_AND_NETWORK = 5
PER_NAME_AND_CUSTOMER = 25
PER_NAME = 200
AT_KNOWN_BROWSERS = 20  # of one user, before they are counted as everybody else

log = logging.getLogger("dovetail.authserver")


class SignIns:
    """Counts in the state, for all workers."""

    def __init__(self, users: Users, marks: Marks) -> None:
        self._users = users
        self._marks = marks

    async def accepts(self, name: str, password: str, network: str, *, is_known_browser: bool = False) -> bool:
        """Raises OAuthRefusal after too many tries. `is_known_browser`: this user has signed in there before."""
        if is_known_browser:
            mine = f"known {name}"
            with self._users.place(is_known_browser=True) as turn:
                if await self._marks.count(TRIES, mine, WINDOW) <= AT_KNOWN_BROWSERS:
                    return await self._is_right(name, password, network, turn, mine)
        mine = f"both {network} {name}"
        with _told(network):
            await FROM_STRANGERS.check(self._marks, network)
        with self._users.place() as turn:
            with _told(network):
                await self._count(network, name, mine)
            return await self._is_right(name, password, network, turn, mine)

    async def _is_right(self, name: str, password: str, network: str, turn: asyncio.Semaphore, mine: str) -> bool:
        """`mine`: what was counted of this user's own tries, which is forgotten if it is."""
        if not await self._users.accepts(name, password, turn):
            log.info("somebody at %s could not sign in", network)
            return False
        await self._marks.forget(TRIES, mine)  # and no more: who has one account may try to guess another
        return True

    async def _count(self, network: str, name: str, mine: str) -> None:
        limits = {mine: PER_NAME_AND_NETWORK, f"name {name}": PER_NAME}
        customer = customer_of(network)
        if customer is not None:
            limits = {f"both {customer} {name}": PER_NAME_AND_CUSTOMER, **limits}
        await FROM_STRANGERS.take(self._marks, network)
        for counted, most in limits.items():
            if await self._marks.count(TRIES, counted, WINDOW) > most:
                raise OAuthRefusal.too_many(WORDS, await self._marks.left(TRIES, counted))


@contextmanager
def _told(network: str) -> Iterator[None]:
    try:
        yield
    except OAuthRefusal:
        log.warning("too many tries to sign in from %s", network)  # some type their password as the name
        raise
