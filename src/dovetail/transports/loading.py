"""Refusal of `run()` in a program that the `dovetail` command imports; light, for the command's `--help` loads it."""

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
