"""A class with fields goes in (dataclass, TypedDict, NamedTuple, attrs, msgspec Struct); its fields come out."""

import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NotRequired, Required, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET

from dovetail.errors import SetupError
from dovetail.registry.fields import is_field
from dovetail.registry.hints import class_hints


class RecordField(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a class."""

    name: str  # how JSON calls it
    keyword: str  # how the constructor calls it
    annotation: Any
    default: Any = UNSET
    required: bool = True
    is_input: bool = True  # False: computed by the class itself


class RecordClass(msgspec.Struct, frozen=True, kw_only=True):
    """What the class of a record says about it."""

    cls: Any
    annotation: Any = None  # the class, or `Class[int]`
    fields: tuple[RecordField, ...]
    construct: Callable[..., Any]
    by_constructor: bool = False  # msgspec would not build it the way its constructor does
    is_array: bool = False
    closed: bool = False  # unknown keys are refused
    tag: tuple[str, str | int] | None = None
    description: str | None = None


def read_record(annotation: Any, where: str) -> RecordClass | None:
    """The fields of a class, in declared order; None if it is no class with fields."""
    cls = get_origin(annotation) or annotation
    if not isinstance(cls, type):
        return None
    for is_kind, read in _KINDS:
        if is_kind(cls):
            hints, needs_names = class_hints(annotation, cls, where)
            record = read(cls, hints, where)
            _refuse_field_defaults(record, where)
            return msgspec.structs.replace(
                record,
                annotation=annotation,
                description=class_description(cls),
                by_constructor=record.by_constructor or needs_names,
            )
    return None


# One reader for each kind of class


def _read_struct(cls: Any, hints: Mapping[str, Any], _: str) -> RecordClass:
    config = cls.__struct_config__
    fields = tuple(
        RecordField(
            name=field.encode_name,
            keyword=field.name,
            annotation=hints[field.name],
            default=UNSET if field.default is NODEFAULT else field.default,
            required=field.required,
        )
        for field in msgspec.structs.fields(cls)
    )
    return RecordClass(
        cls=cls,
        fields=fields,
        construct=cls,
        is_array=config.array_like,
        closed=config.forbid_unknown_fields,
        tag=None if config.tag is None else (config.tag_field, config.tag),
    )


def _read_dataclass(cls: Any, hints: Mapping[str, Any], where: str) -> RecordClass:
    import dataclasses  # which is loaded if there is such a class

    for name, pseudo in cls.__dataclass_fields__.items():
        if isinstance(pseudo.type, dataclasses.InitVar):
            raise SetupError(f"{where}: {cls.__name__}.{name} is an InitVar, which JSON can't carry; make it a field")
    fields = []
    for field in dataclasses.fields(cls):
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        fields.append(
            RecordField(
                name=field.name,
                keyword=field.name,
                annotation=hints[field.name],
                default=UNSET if field.default is dataclasses.MISSING else field.default,
                required=not optional and field.init,
                is_input=field.init,
            )
        )
    computed = any(not field.is_input for field in fields)
    return RecordClass(cls=cls, fields=tuple(fields), construct=cls, by_constructor=computed)


def _read_attrs(cls: Any, hints: Mapping[str, Any], _: str) -> RecordClass:
    attr = sys.modules["attr"]
    fields = []
    special = False
    for field in cls.__attrs_attrs__:
        is_factory = isinstance(field.default, attr.Factory)
        special |= bool(field.converter or not field.init or field.alias != field.name)
        special |= is_factory and field.default.takes_self
        fields.append(
            RecordField(
                name=field.name,
                keyword=field.alias,
                annotation=hints.get(field.name, Any),
                default=UNSET if field.default is attr.NOTHING or is_factory else field.default,
                required=field.default is attr.NOTHING and field.init,
                is_input=field.init,
            )
        )
    return RecordClass(cls=cls, fields=tuple(fields), construct=cls, by_constructor=special)


def _read_typed_dict(cls: Any, hints: Mapping[str, Any], _: str) -> RecordClass:
    fields = []
    for name, hint in hints.items():
        annotation, required = _unqualified(hint, name in cls.__required_keys__)
        fields.append(RecordField(name=name, keyword=name, annotation=annotation, required=required))
    return RecordClass(cls=cls, fields=tuple(fields), construct=dict)


def _unqualified(hint: Any, required: bool) -> tuple[Any, bool]:
    """Strip Required, NotRequired and ReadOnly, also from inside Annotated."""
    origin = get_origin(hint)
    if origin is Required or origin is NotRequired:
        return _unqualified(get_args(hint)[0], origin is Required)
    if getattr(origin, "_name", None) == "ReadOnly":
        return _unqualified(get_args(hint)[0], required)
    if origin is Annotated:
        inner, required = _unqualified(hint.__origin__, required)
        return Annotated[(inner, *hint.__metadata__)], required
    return hint, required


def _read_named_tuple(cls: Any, hints: Mapping[str, Any], _: str) -> RecordClass:
    fields = tuple(
        RecordField(
            name=name,
            keyword=name,
            annotation=hints.get(name, Any),
            default=cls._field_defaults.get(name, UNSET),
            required=name not in cls._field_defaults,
        )
        for name in cls._fields
    )
    return RecordClass(cls=cls, fields=fields, construct=cls, is_array=True)


_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[Any, Mapping[str, Any], str], RecordClass]], ...] = (
    (lambda cls: issubclass(cls, msgspec.Struct), _read_struct),
    (lambda cls: hasattr(cls, "__dataclass_fields__"), _read_dataclass),
    (lambda cls: hasattr(cls, "__attrs_attrs__"), _read_attrs),
    (lambda cls: issubclass(cls, dict) and hasattr(cls, "__required_keys__"), _read_typed_dict),
    (lambda cls: issubclass(cls, tuple) and hasattr(cls, "_field_defaults"), _read_named_tuple),
)


def _refuse_field_defaults(record: RecordClass, where: str) -> None:
    for field in record.fields:
        if is_field(field.default):
            raise SetupError(
                f"{where}: {record.cls.__name__}.{field.name} has a Field(…) as its default, which its class does not "
                "understand; write Annotated[type, Field(…)] and a plain default"
            )


def class_description(cls: Any) -> str | None:
    """The class's own docstring, unless its decorator made it up."""
    text = vars(cls).get("__doc__")
    if not isinstance(text, str) or text.startswith(f"{cls.__name__}("):
        return None
    return " ".join(text.split()) or None
