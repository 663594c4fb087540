"""Other people's functions: they may be `def` or `async def`."""

import inspect
from collections.abc import Callable
from typing import Any


async def outcome_of(function: Callable[..., Any], *arguments: Any) -> Any:
    outcome = function(*arguments)
    return await outcome if inspect.isawaitable(outcome) else outcome
