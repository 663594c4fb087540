"""Asking a store that may be out of reach: a question goes in, and what the store says comes out, sooner or later."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from dovetail.state.base import StoreTrouble

AGAIN_SECONDS = 0.5  # between two tries

T = TypeVar("T")


async def until_answered(ask: Callable[[], Awaitable[T]], still: Callable[[], bool]) -> T:
    """Asks again and again while there is trouble and `still()` holds; then it is StoreTrouble that comes out.

    Only for what does no harm if it happens twice: to read, to touch, to put.
    """
    while True:
        try:
            return await ask()
        except StoreTrouble:
            if not still():
                raise
        await asyncio.sleep(AGAIN_SECONDS)
