"""Who listens to what in this process, seen from a store far away: changes of interest go out, wake-ups come in.

Every publication has a number, and numbers only grow. A topic that somebody begins to listen to is not yet subscribed
at the store, and meanwhile something may be published. So the store keeps the number of each topic's last publication
for a moment, and is asked for it when the subscription stands. Whichever way the news comes, by message or by asking,
each publication is told once; and none that is known to be older than the listening.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from dovetail.state.base import Topics


class Changes(NamedTuple):
    """What has changed since last time."""

    come: list[str]
    gone: list[str]
    since: float  # the earliest of them, on the monotonic clock


class Hearing:
    """Told by `Topics` who comes and goes, and by the link what the store says. No input, no output, no waiting."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.topics = Topics(self._wanted)
        self._tell_link = changed
        self._told: dict[str, int] = {}  # topic -> the publication that its listeners know of; each topic has one
        self._newest = 0  # all publications up to here were made before now
        self._changed: dict[str, None] = {}
        self._since = 0.0
        self._subscribed: set[str] = set()
        self._connected = False

    def begin(self) -> None:
        """A new connection: nothing is subscribed, and the store may have lost its numbers."""
        self._newest = 0
        self._told = dict.fromkeys(self._told, 0)
        self._subscribed.clear()
        self._changed = dict.fromkeys(self._told)
        self._since = time.monotonic()
        self._connected = True

    def end(self) -> None:
        """The connection is gone. Changes need not be remembered: the next one begins with all topics."""
        self._connected = False
        self._subscribed.clear()
        self._changed.clear()

    def take_changes(self) -> Changes:
        """What to subscribe and what to end, which counts as done from now on."""
        names, self._changed = self._changed, {}
        come = [name for name in names if name in self._told and name not in self._subscribed]
        gone = [name for name in names if name not in self._told and name in self._subscribed]
        self._subscribed.update(come)
        self._subscribed.difference_update(gone)
        return Changes(come, gone, self._since)

    def reached(self, number: int) -> None:
        """The store has come so far."""
        self._newest = max(self._newest, number)

    def news(self, topic: str, number: int) -> None:
        """A topic's last publication has this number; 0 if the store could not say, and it must be told."""
        known = self._told.get(topic)
        if known is None or 0 < number <= known:
            return
        self._told[topic] = max(known, number)
        self.reached(number)
        self.topics.tell(topic)

    def _wanted(self, name: str, wanted: bool) -> None:
        if wanted:
            self._told[name] = self._newest
        else:
            self._told.pop(name, None)
        if self._connected:
            if not self._changed:
                self._since = time.monotonic()
            self._changed[name] = None
        self._tell_link()
