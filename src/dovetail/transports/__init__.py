"""Transports of a server. Each is loaded when it is first used: a server on stdio never loads HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dovetail._lazy import lazy_modules
from dovetail.errors import SetupError

if TYPE_CHECKING:
    from dovetail.transports import serve as serve
    from dovetail.transports import stdio as stdio

__getattr__ = lazy_modules(__name__, "serve", "stdio")

_being_imported: list[str] = []


@contextmanager
def importing(program: str) -> Iterator[None]:
    """While the `dovetail` command imports a program, its `run()` is refused."""
    _being_imported.append(program)
    try:
        yield
    finally:
        _being_imported.pop()


def refuse_while_importing() -> None:
    if _being_imported:
        raise SetupError(
            f"{_being_imported[-1]} calls run() while it is imported, but the dovetail command serves it: "
            'put that call under `if __name__ == "__main__":`'
        )
