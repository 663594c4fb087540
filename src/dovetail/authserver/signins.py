"""Signing in: a name, a password and an address come in; a user goes out, or a refusal. Guessing is slow.

Every try is counted before the password is looked at, for the address, for the name from this address, and for the
name: so a stranger can't keep a user out who comes from elsewhere, and can't try much either. The address comes first:
with it all tries of a stranger are over, and names that are invented then are not even counted.
"""

import logging

from dovetail.authserver.marks import Marks
from dovetail.authserver.refusals import OAuthRefusal
from dovetail.authserver.users import Users

WINDOW = 900.0  # seconds
PER_NAME_AND_ADDRESS = 5
PER_ADDRESS = 50
PER_NAME = 200

log = logging.getLogger("dovetail.authserver")


class SignIns:
    """Counts in the state, for all workers."""

    def __init__(self, users: Users, marks: Marks) -> None:
        self._users = users
        self._marks = marks

    async def accepts(self, name: str, password: str, address: str) -> bool:
        """Raises OAuthRefusal after too many tries."""
        both = f"both {address} {name}"
        limits = {f"address {address}": PER_ADDRESS, both: PER_NAME_AND_ADDRESS, f"name {name}": PER_NAME}
        for counted, most in limits.items():
            if await self._marks.count("tries", counted, WINDOW) > most:
                log.warning("too many tries to sign in from %s", address)  # some type their password as the name
                raise OAuthRefusal.too_many("tries to sign in", await self._marks.left("tries", counted))
        if not await self._users.accepts(name, password):
            log.info("somebody at %s could not sign in", address)
            return False
        await self._marks.forget("tries", both)  # and no more: who has one account may try to guess another
        return True
