"""What something costs, in counts that are the same on every machine: frames, functions, tasks."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import dovetail

PACKAGE = str(Path(dovetail.__file__).parent)
GET_CONTEXT = str(Path(PACKAGE, "engine", "current_context.py"))  # of all calls, once a test has imported it


def is_own(code: CodeType) -> bool:
    return code.co_filename.startswith(PACKAGE) and code.co_filename != GET_CONTEXT


def own_frames(frame: FrameType | None) -> list[str]:
    """The functions of our package on the stack, outermost first."""
    names: list[str] = []
    while frame is not None:
        if is_own(frame.f_code):
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names[::-1]


@contextmanager
def functions_called() -> Iterator[list[str]]:
    """The names of all Python functions of ours that run meanwhile."""
    called: list[str] = []
    with _profiled(lambda code: called.append(code.co_name)):
        yield called


@contextmanager
def places_visited() -> Iterator[set[tuple[str, str, int]]]:
    """The Python functions of ours that run meanwhile, each once: its file, its name and its line."""
    visited: set[tuple[str, str, int]] = set()
    with _profiled(lambda code: visited.add((code.co_filename, code.co_name, code.co_firstlineno))):
        yield visited


@contextmanager
def _profiled(note: Callable[[CodeType], None]) -> Iterator[None]:
    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and is_own(frame.f_code):
            note(frame.f_code)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


@contextmanager
def tasks_made() -> Iterator[list[Any]]:
    """The coroutines that got a task of their own meanwhile, by way of the loop."""
    made: list[Any] = []

    def make(loop: Any, coroutine: Any, **options: Any) -> Any:
        made.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **options)

    loop = asyncio.get_running_loop()
    loop.set_task_factory(make)
    try:
        yield made
    finally:
        loop.set_task_factory(None)
