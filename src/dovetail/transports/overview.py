"""What a page may know of the app that it is shown in: one of these comes with its scope (`OVERVIEW`)."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dovetail.engine.core import Engine
from dovetail.engine.sessions import Sessions
from dovetail.protocol.session import Session
from dovetail.state.base import StateBackend
from dovetail.transports.options import HttpOptions
from dovetail.transports.traffic import Traffic


class SeenSession(NamedTuple):
    """A session, and how long it has been known to this process."""

    record: Session
    since: float  # when it was first met here, in seconds since 1970
    idle: float  # seconds since it was used


class Overview:
    """Looks and changes nothing. Of several workers each knows its own traffic, and the sessions that came by."""

    def __init__(
        self, engine: Engine, options: HttpOptions, state: StateBackend, traffic: Traffic, sessions: Sessions
    ) -> None:
        self.endpoint = options.path  # below where the app is mounted
        hosts = options.allowed_hosts
        # else a name that points here by accident, or by somebody's design, is believed
        self.knows_its_hosts = hosts is not None and not any(host.partition(":")[0] == "*" for host in hosts)
        self.state = type(state).__name__.removesuffix("State").lower()
        self._engine = engine
        self._traffic = traffic
        self._sessions = sessions

    @property
    def streams(self) -> int:
        """Those that are held open, a page's own too."""
        return self._traffic.open_streams

    @property
    def subscriptions(self) -> int:
        """To resources, by sessions and by listens."""
        return self._engine.hub.wishes

    async def sessions(self, most: int) -> tuple[int, list[SeenSession]]:
        """How many there are, and those that were used last."""
        total, last = self._sessions.glance(most)
        held = await asyncio.gather(*(self._sessions.hold(id) for id, _, _ in last))
        now = time.time()
        seen = zip(held, last, strict=True)
        return total, [SeenSession(each.record, now - met, idle) for each, (_, met, idle) in seen if each is not None]

    @contextmanager
    def stream(self, end: Callable[[], object]) -> Iterator[None]:
        """A page that goes on and on: it counts as a stream, and is told to end when the server stops."""
        key = object()
        self._traffic.open_stream(key, lambda _: end(), end, "pages")
        try:
            yield
        finally:
            self._traffic.close_stream(key)
