"""How a registered function is to be called: with what, where, and for how long."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dovetail.errors import SetupError
from dovetail.registry.functions import FunctionInfo


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """A function and the way to call it; the engine does the calling."""

    function: Callable[..., Any]
    is_async: bool
    in_thread: bool
    context_names: tuple[str, ...] = ()  # the parameters that take the injected context
    by_name: bool = True  # arguments as keywords, or all of them as one mapping
    timeout: float | msgspec.UnsetType | None = msgspec.UNSET  # UNSET: the server's own

    @classmethod
    def of(
        cls,
        info: FunctionInfo,
        *,
        by_name: bool = True,
        thread: bool | None = None,
        timeout: float | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> "Invocation":
        if info.is_async and thread:
            raise SetupError(f"{info.where}: thread=True makes no sense on an async def; remove it")
        if isinstance(timeout, (int, float)) and timeout <= 0:
            raise SetupError(f"{info.where}: timeout={timeout!r} must be more than 0 seconds, or None for no limit")
        return cls(
            function=info.function,
            is_async=info.is_async,
            in_thread=not info.is_async and thread is not False,
            context_names=tuple(info.injected),
            by_name=by_name,
            timeout=timeout,
        )


def called_with_mapping(function: Callable[..., Any], schema: Mapping[str, Any], info: FunctionInfo) -> bool:
    """Whether a handler with a raw schema takes all arguments as one mapping, or each by its name.

    By name if it has `**kwargs` or if all its parameters are properties of the schema; otherwise one parameter
    of any other name takes the mapping.
    """
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in info.injected]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return False
    names = {p.name for p in parameters}
    properties = set(schema.get("properties", {}))
    if len(names) == 1 and not names & properties:
        return True
    unknown = {p.name for p in parameters if p.name not in properties and p.default is p.empty}
    if unknown:
        raise SetupError(
            f"{info.where}: the parameters {sorted(unknown)} are not in input_schema; "
            "add them there, or take one parameter (a dict) for all arguments"
        )
    missing = properties - names
    if missing:
        raise SetupError(
            f"{info.where}: input_schema has {sorted(missing)}, which the function does not take; "
            "add the parameters, or take one parameter (a dict) for all arguments"
        )
    return False
