"""How often strangers may do what takes room or time: a network comes in; nothing goes out, or a refusal.

The network is counted, then the many that may be one customer's, then everybody: so no network uses up what all others
have. Whoever is refused leaves no counter behind: who has networks without number can't fill the store with them.
"""

from typing import NamedTuple

from dovetail.authserver.marks import Marks
from dovetail.authserver.networks import customer_of
from dovetail.authserver.refusals import OAuthRefusal


class Allowance(NamedTuple):
    """So many in so many seconds, since the first of them."""

    kind: str  # of the marks
    words: str  # what there were too many of
    seconds: float
    per_network: int
    per_customer: int
    for_all: int

    async def take(self, marks: Marks, network: str) -> None:
        """Raises OAuthRefusal if there is none left."""
        new: list[str] = []
        for name, most in self._limits(network):
            number = await marks.count(self.kind, name, self.seconds)
            if number == 1:
                new.append(name)
            if number > most:
                seconds = await marks.left(self.kind, name)
                for each in new:  # nobody gets past the limit that ended this, so no count is lost that matters
                    await marks.forget(self.kind, each)
                raise OAuthRefusal.too_many(self.words, seconds)

    async def check(self, marks: Marks, network: str) -> None:
        """The same without taking any: for what comes before the taking, and must not be held up by those refused."""
        for name, most in self._limits(network):
            if int(await marks.get(self.kind, name) or 0) >= most:
                raise OAuthRefusal.too_many(self.words, await marks.left(self.kind, name))

    def _limits(self, network: str) -> list[tuple[str, int]]:
        customer = customer_of(network)
        of_customer = [] if customer is None else [(f"customer {customer}", self.per_customer)]
        return [(f"network {network}", self.per_network), *of_customer, ("everybody", self.for_all)]
