"""Transports of a server. Each is loaded when it is first used: a server on stdio never loads HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dovetail._lazy import lazy_modules

if TYPE_CHECKING:
    from dovetail.transports import http as http
    from dovetail.transports import serve as serve
    from dovetail.transports import stdio as stdio

__getattr__ = lazy_modules(__name__, "http", "serve", "stdio")

programs_being_imported: list[str] = []


@contextmanager
def importing(program: str) -> Iterator[None]:
    """While the `dovetail` command imports a program, `run()` is refused."""
    programs_being_imported.append(program)
    try:
        yield
    finally:
        programs_being_imported.pop()
