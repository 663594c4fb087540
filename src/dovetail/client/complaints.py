"""What a server says that makes no sense: it comes in as often as the server likes, and goes to the log a few times."""

import logging

MOST = 5  # that are told of one by one

log = logging.getLogger("dovetail.client")


class Complaints:
    """Those of one conversation."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, words: str, detail: object) -> None:
        self._count += 1
        if self._count <= MOST:
            log.warning(words, detail)
        if self._count == MOST:
            log.warning("what else the server says in vain is only counted")

    def sum_up(self) -> None:
        """At the end."""
        if self._count > MOST:
            log.warning("the server sent %d messages that made no sense", self._count)
        self._count = 0
