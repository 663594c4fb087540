"""The event loops that the benches of tests run on."""

import asyncio
import sys
from collections.abc import Callable

import pytest
from http_bench import Bench

Start = Callable[..., Bench]


def loop_kinds() -> list[object]:
    """Both in `make test`; in `make check` the one that a server has where there is a choice."""
    if sys.platform == "win32":
        return [asyncio.new_event_loop]
    import uvloop

    return [
        pytest.param(uvloop.new_event_loop, id="uvloop"),
        pytest.param(asyncio.new_event_loop, id="asyncio", marks=pytest.mark.slow),
    ]
