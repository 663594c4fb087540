"""While the `dovetail` command imports a program to serve what is in it, that program may not serve by itself.

In: the name of the program, for the time of its import. Out: SetupError where it calls `run()` at that time.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.errors import SetupError

_being_loaded: list[str] = []


@contextmanager
def loading(program: str) -> Iterator[None]:
    _being_loaded.append(program)
    try:
        yield
    finally:
        _being_loaded.pop()


def refuse_while_loading() -> None:
    if _being_loaded:
        raise SetupError(
            f"{_being_loaded[-1]} calls run() while it is imported, but the dovetail command serves it: "
            'put that call under `if __name__ == "__main__":`'
        )
