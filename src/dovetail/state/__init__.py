"""State backends for records that outlast a request, loaded late: most servers need one at most."""

from typing import TYPE_CHECKING

from dovetail._lazy import lazy_modules

if TYPE_CHECKING:
    from dovetail.state import base as base
    from dovetail.state import memory as memory
    from dovetail.state import redis as redis
    from dovetail.state import sqlite as sqlite

__getattr__ = lazy_modules(__name__, "base", "memory", "redis", "sqlite")
