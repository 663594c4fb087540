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
    is_direct: bool = False  # an `async def` that takes its arguments by name, and nothing besides
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
        return cls(
            function=info.function,
            is_async=info.is_async,
            in_thread=not info.is_async and thread is not False,
            context_names=tuple(info.injected),
            by_name=by_name,
            is_direct=info.is_async and by_name and not info.injected,
            timeout=timeout,
        )


def called(function: Callable[..., Any]) -> str:
    """How an error names a function to the one who wrote it."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


class Passing(msgspec.Struct, frozen=True):
    """How a handler with a schema of its own takes its arguments."""

    by_name: bool
    names: frozenset[str] | None = None  # the only ones it takes; None for all
    needed: frozenset[str] = frozenset()  # those it can't do without, whatever the schema says


def passing(function: Callable[..., Any], schema: Mapping[str, Any], info: FunctionInfo) -> Passing:
    """All arguments as one mapping, or each by its name; raises SetupError if neither works.

    By name if it has `**kwargs` or if all its parameters are properties of the schema; otherwise one parameter
    of any other name takes the mapping.
    """
    parameters = {p.name: p for p in inspect.signature(function).parameters.values() if p.name not in info.injected}
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return Passing(by_name=True)
    properties: Mapping[str, Any] = schema.get("properties", {})
    if len(parameters) == 1 and not parameters.keys() & properties.keys():
        return Passing(by_name=False)
    needed = {name for name, p in parameters.items() if p.default is p.empty}
    if unknown := sorted(needed - properties.keys()):
        raise SetupError(
            f"{info.where}: the parameters {unknown} are not in input_schema; "
            "add them there, or take one parameter (a dict) for all arguments"
        )
    if missing := sorted(properties.keys() - parameters.keys()):
        raise SetupError(
            f"{info.where}: input_schema has {missing}, which the function does not take; "
            "add the parameters, or take one parameter (a dict) for all arguments"
        )
    return Passing(by_name=True, names=frozenset(parameters), needed=frozenset(needed))
