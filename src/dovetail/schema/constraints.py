"""Constraints in `Annotated[…]`, and resolved type hints.

Four dialects are read: our own `Field(…)`, msgspec's `Meta(…)`, pydantic's `Field(…)` and `annotated_types`. Each
constraint is honoured or refused with a SetupError, never dropped. pydantic and annotated_types are looked up in
`sys.modules`: an author who uses them has imported them.
"""

import math
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET

from dovetail.errors import SetupError


class Constraints(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Limits on a value, and notes for the reader of its schema."""

    default: Any = UNSET
    # limits
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    multiple_of: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    tz: bool | None = None
    # notes
    title: str | None = None
    description: str | None = None
    examples: list[Any] | None = None
    format: str | None = None
    header: str | None = None
    deprecated: bool | None = None
    extra: dict[str, Any] | None = None

    def __hash__(self) -> int:  # `Annotated[…] | None` needs one; examples and extra may have none
        return hash((self.title, self.description, *self.limits().values()))

    def limits(self) -> dict[str, Any]:
        """The limits that are set, by name."""
        return {name: value for name in LIMITS if (value := getattr(self, name)) is not None}

    def only(self, names: Iterable[str]) -> "Constraints":
        return Constraints(**{name: getattr(self, name) for name in names})

    def without(self, names: Iterable[str]) -> "Constraints":
        return msgspec.structs.replace(self, **dict.fromkeys(names))


LIMITS = ("ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern", "tz")
LABELS = ("title", "description", "examples", "header", "deprecated")  # they belong to the place, not to the type
NO_CONSTRAINTS = Constraints()

_TIGHTER: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("ge", "gt", "min_length"), max),
    **dict.fromkeys(("le", "lt", "max_length"), min),
}
_LATEST_WINS = frozenset({"default", "title", "description", "examples", "deprecated"})


def Field(
    default: Any = ...,
    *,
    description: str | None = None,
    title: str | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    multiple_of: float | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    pattern: str | None = None,
    format: str | None = None,
    examples: Sequence[Any] | None = None,
    header: str | None = None,
    deprecated: bool | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Any:
    """Constrain or describe a value: `Annotated[int, Field(ge=1)]`, or as a default, `x: int = Field(5, ge=1)`.

    `header="Region"` mirrors a top-level argument into an HTTP header; `extra` is merged into the JSON Schema.
    Declared to return Any, so that type checkers accept it as a default value.
    """
    return Constraints(
        default=UNSET if default is ... else default,
        description=description,
        title=title,
        ge=ge,
        gt=gt,
        le=le,
        lt=lt,
        multiple_of=multiple_of,
        min_length=min_length,
        max_length=max_length,
        pattern=pattern,
        format=format,
        examples=None if examples is None else list(examples),
        header=header,
        deprecated=deprecated,
        extra=None if extra is None else dict(extra),
    )


def is_field(value: Any) -> bool:
    """Whether a default value is really a `Field(…)`, ours or pydantic's."""
    return isinstance(value, Constraints) or _is_pydantic_field(value)


def is_depends(value: Any) -> bool:
    """Whether metadata or a default value is a `Depends(…)`, ours or FastAPI's, or one that was not called."""
    is_called = hasattr(value, "dependency") and hasattr(value, "use_cache")
    return is_called or getattr(value, "__name__", None) == "Depends"


def default_of(metadata: Iterable[Any], where: str) -> tuple[Any, Callable[[], Any] | None]:
    """The default value (or NODEFAULT) and the default factory in the metadata of `Annotated[…]`."""
    default: Any = NODEFAULT
    factory = None
    for item in metadata:
        if isinstance(item, Constraints) and item.default is not UNSET:
            default, factory = item.default, None
        elif _is_pydantic_field(item) and item.default_factory is not None:
            if item.default_factory_takes_validated_data:
                raise SetupError(
                    f"{where}: its default_factory wants values that are not there yet; give it no parameter"
                )
            default, factory = NODEFAULT, item.default_factory
        elif _is_pydantic_field(item) and not item.is_required():
            default, factory = item.default, None
    return default, factory


def read_metadata(metadata: Iterable[Any], where: str) -> Constraints:
    """The metadata of `Annotated[…]` as one record."""
    merged = NO_CONSTRAINTS
    for item in metadata:
        for found in _translate(item, where):
            merged = merge(merged, found, where)
    _check_limits(merged, where)
    return merged


def only_meta(metadata: Iterable[Any]) -> bool:
    """Whether msgspec reads every limit in the metadata itself."""
    return not any(item for item in metadata if not isinstance(item, (msgspec.Meta, str)))


def merge(first: Constraints, second: Constraints, where: str) -> Constraints:
    """Both together: the tighter limit and the later note. Raises SetupError if they contradict each other."""
    changes: dict[str, Any] = {}
    for name in Constraints.__struct_fields__:
        old, new = getattr(first, name), getattr(second, name)
        if new is (UNSET if name == "default" else None):
            continue
        if old is None or old == new or name in _LATEST_WINS:
            changes[name] = new
        elif name in _TIGHTER:
            changes[name] = _TIGHTER[name](old, new)
        elif name == "extra":
            changes[name] = {**old, **new}
        else:
            raise SetupError(f"{where}: {name} is given twice, as {old!r} and {new!r}; keep one")
    return msgspec.structs.replace(first, **changes) if changes else first


def _translate(item: Any, where: str, inside: str = "") -> Iterator[Constraints]:
    """The constraints of one item; `inside` names what the author wrote if the item is a part of it."""
    if item is None:
        return
    if isinstance(item, Constraints):
        yield item
    elif isinstance(item, str):
        yield Constraints(description=item)
    elif isinstance(item, msgspec.Meta):
        yield _from_meta(item)
    elif isinstance(getattr(item, "documentation", None), str):  # typing_extensions.Doc
        yield Constraints(description=item.documentation)
    elif _is_pydantic_field(item):
        yield _from_pydantic_field(item, where)
        for inner in item.metadata:
            yield from _translate(inner, where, "pydantic's Field")
    elif _is_instance(item, "annotated_types", "GroupedMetadata"):
        for inner in item:
            yield from _translate(inner, where, inside or type(item).__name__)
    elif _is_instance(item, "annotated_types", "Timezone"):
        raise _refused("Timezone(…)", where)
    elif _is_instance(item, "annotated_types", "BaseMetadata"):
        yield _from_annotated_types(item, where, inside)
    elif _belongs_to_pydantic(item) and not _is_instance(item, "pydantic.types", "AllowInfNan"):
        raise _refused(f"{inside or type(item).__name__}(…)", where)


_NOTES = ("title", "description", "examples")  # that msgspec's Meta and pydantic's Field call as we do


def _from_meta(meta: msgspec.Meta) -> Constraints:
    same = {name: getattr(meta, name) for name in (*LIMITS, *_NOTES)}
    return Constraints(**same, extra=meta.extra_json_schema)


_RENAME = "an argument is called by its parameter's name; rename the parameter"
_PYDANTIC_REFUSED = dict.fromkeys(("alias", "validation_alias", "serialization_alias"), _RENAME)
_PYDANTIC_REFUSED["discriminator"] = "it works on unions of pydantic models only"


def _from_pydantic_field(field: Any, where: str) -> Constraints:
    for name, fix in _PYDANTIC_REFUSED.items():
        if getattr(field, name, None) is not None:
            raise SetupError(f"{where}: pydantic's Field({name}=…) can't be honoured here; {fix}")
    extra = field.json_schema_extra
    if callable(extra):
        raise SetupError(f"{where}: json_schema_extra must be a dict here, not a function")
    same = {name: getattr(field, name) for name in _NOTES}
    return Constraints(**same, deprecated=True if field.deprecated else None, extra=extra)


def _from_annotated_types(item: Any, where: str, inside: str) -> Constraints:
    """The limits of Ge, MaxLen, pydantic's own metadata …: each attribute is one of our limits, or is refused."""
    names = vars(item) if hasattr(item, "__dict__") else getattr(item, "__dataclass_fields__", {})
    found: dict[str, Any] = {}
    for name in names:
        value = getattr(item, name)
        if value is None or value is False or name == "allow_inf_nan":  # JSON has neither infinity nor NaN
            continue
        if name not in LIMITS:
            written = inside or type(item).__name__
            shown = f"{name}=…" if written.startswith("_") else f"{written}({name}=…)"  # not pydantic's private class
            raise _refused(shown, where, _LENIENT if name == "strict" else _CHECK)
        found[name] = value.pattern if isinstance(value, re.Pattern) else value
    return Constraints(**found)


_CHECK = "check it inside the function, or put it into a pydantic model"
_LENIENT = "use lenient_arguments=False on the server"


def _refused(shown: str, where: str, fix: str = _CHECK) -> SetupError:
    return SetupError(f"{where}: {shown} can't be honoured here; {fix}")


def _is_pydantic_field(item: Any) -> bool:
    return _is_instance(item, "pydantic.fields", "FieldInfo")


def _is_instance(item: Any, module: str, name: str) -> bool:
    """isinstance for a class of a module that may not be loaded."""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(item, cls)


def _belongs_to_pydantic(item: Any) -> bool:
    kind = item if isinstance(item, type) else type(item)
    return kind.__module__.partition(".")[0] == "pydantic" or hasattr(kind, "__get_pydantic_core_schema__")


def _check_limits(constraints: Constraints, where: str) -> None:
    for name, value in constraints.limits().items():
        expected, fits = _LIMIT_CHECKS[name]
        if isinstance(value, bool) != (name == "tz") or not fits(value):
            raise SetupError(f"{where}: {name} must be {expected}, not {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


_LIMIT_CHECKS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("ge", "gt", "le", "lt"), ("a number", _is_number)),
    "multiple_of": ("a number above 0", lambda value: _is_number(value) and value > 0),
    **dict.fromkeys(
        ("min_length", "max_length"), ("an integer of at least 0", lambda value: isinstance(value, int) and value >= 0)
    ),
    "pattern": ("a string", lambda value: isinstance(value, str)),
    "tz": ("True or False", lambda value: isinstance(value, bool)),
}


def evaluate(annotation: Any, global_names: Mapping[str, Any], local_names: Mapping[str, Any]) -> Any:
    """`typing.get_type_hints` for one annotation, so that an error can name it. Raises NameError."""

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    return typing.get_type_hints(holder, dict(global_names), dict(local_names), include_extras=True)["it"]


def class_hints(annotation: Any, cls: type, where: str) -> tuple[dict[str, Any], bool]:
    """The hints with type variables filled in, and whether the class's own name was needed to resolve them."""
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
    """The arguments of a generic class and of its generic bases, by type variable."""
    found: dict[Any, Any] = dict(zip(getattr(cls, "__parameters__", ()), get_args(annotation), strict=False))
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base)
        if isinstance(origin, type) and origin is not Generic:
            arguments = tuple(substitute(argument, found) for argument in get_args(base))
            generic: Any = origin
            found |= _type_variables(generic[arguments] if arguments else generic, origin)
    return found


def substitute(hint: Any, variables: Mapping[Any, Any]) -> Any:
    """The hint with type variables filled in; unknown ones remain."""
    if not variables:
        return hint
    if isinstance(hint, TypeVar):
        return variables.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(variables.get(parameter, parameter) for parameter in parameters)]


def is_model(annotation: Any) -> bool:
    """Whether pydantic defines the type or its validation."""
    if "pydantic" not in sys.modules:
        return False
    if isinstance(annotation, type) and not hasattr(annotation, "__json_string__"):  # ours, which fits into models too
        return hasattr(annotation, "__get_pydantic_core_schema__") or hasattr(annotation, "__pydantic_validator__")
    return type(annotation).__name__ == "TypeAliasType" and str(annotation.__module__).startswith("pydantic.")


def is_alias(annotation: Any) -> bool:
    """Whether it is `type X = …` or a TypeAliasType, with or without arguments."""
    return type(get_origin(annotation) or annotation).__name__ == "TypeAliasType"


def alias_value(annotation: Any, where: str) -> Any:
    """The type behind an alias."""
    alias = get_origin(annotation) or annotation
    names = vars(sys.modules.get(alias.__module__, typing))
    try:
        value = evaluate(alias.__value__, names, {alias.__name__: alias})
    except NameError as error:
        raise SetupError(
            f"{where}: the alias {alias.__name__} can't be resolved ({error}); define it at module level"
        ) from None
    return substitute(value, dict(zip(alias.__type_params__, get_args(annotation), strict=False)))
