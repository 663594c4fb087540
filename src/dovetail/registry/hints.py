"""Annotations as written go in, with their strings and type variables; types come out."""

import sys
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

from dovetail.errors import SetupError


def evaluate(annotation: Any, global_names: Mapping[str, Any], local_names: Mapping[str, Any]) -> Any:
    """`typing.get_type_hints` for a single annotation, so that an error can name its place; raises NameError."""

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    return typing.get_type_hints(holder, dict(global_names), dict(local_names), include_extras=True)["it"]


def class_hints(annotation: Any, cls: type, where: str) -> tuple[dict[str, Any], bool]:
    """The resolved hints with type variables filled in, and whether the class's own name had to be supplied."""
    needs_names = False
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError:
        needs_names = True
        try:
            hints = typing.get_type_hints(cls, localns={cls.__name__: cls}, include_extras=True)
        except Exception as error:
            raise SetupError(
                f"{where}: the annotations of {cls.__qualname__} can't be resolved ({error}); "
                "import or define that type at module level, not under TYPE_CHECKING or inside a function"
            ) from None
    variables = _type_variables(annotation, cls)
    wanted = {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar and hint is not ClassVar}
    return {name: substitute(hint, variables) for name, hint in wanted.items()}, needs_names


def _type_variables(annotation: Any, cls: type) -> dict[Any, Any]:
    """What the type variables of a generic class and of its generic bases stand for."""
    found: dict[Any, Any] = dict(zip(getattr(cls, "__parameters__", ()), get_args(annotation), strict=False))
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base)
        if isinstance(origin, type) and origin is not Generic:
            arguments = tuple(substitute(argument, found) for argument in get_args(base))
            generic: Any = origin
            found |= _type_variables(generic[arguments] if arguments else generic, origin)
    return found


def substitute(hint: Any, variables: Mapping[Any, Any]) -> Any:
    """Fill type variables in; those that stand for nothing remain."""
    if not variables:
        return hint
    if isinstance(hint, TypeVar):
        return variables.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(variables.get(parameter, parameter) for parameter in parameters)]


def is_alias(annotation: Any) -> bool:
    """Whether this is `type X = …` or a TypeAliasType, also with arguments."""
    return type(get_origin(annotation) or annotation).__name__ == "TypeAliasType"


def alias_value(annotation: Any, where: str) -> Any:
    """What a type alias stands for."""
    alias = get_origin(annotation) or annotation
    names = vars(sys.modules.get(alias.__module__, typing))
    try:
        value = evaluate(alias.__value__, names, {alias.__name__: alias})
    except NameError as error:
        raise SetupError(
            f"{where}: the alias {alias.__name__} can't be resolved ({error}); define it at module level"
        ) from None
    return substitute(value, dict(zip(alias.__type_params__, get_args(annotation), strict=False)))
