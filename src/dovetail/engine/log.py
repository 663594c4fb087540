"""Our own loggers: what may not be told is blacked out on all of them, whatever handlers they have."""

import logging
from collections.abc import Iterable

from dovetail.engine.redaction import RedactingFilter, Redactor

OURS = (
    "dovetail",
    "dovetail.access",
    "dovetail.auth",
    "dovetail.authserver",
    "dovetail.client",
    "dovetail.files",
    "dovetail.http",
    "dovetail.state",
    "dovetail.threads",
    "dovetail.watch",
)

_extra_keys: set[str] = set()


def guard_loggers(secret_keys: Iterable[str] = ()) -> None:
    """Redact every record of ours. Keys that one server calls secret are secret for the whole process."""
    _extra_keys.update(secret_keys)
    guard = RedactingFilter(Redactor(_extra_keys))
    for name in OURS:
        logger = logging.getLogger(name)
        for earlier in [each for each in logger.filters if isinstance(each, RedactingFilter)]:
            logger.removeFilter(earlier)
        logger.addFilter(guard)
