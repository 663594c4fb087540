"""A Python type goes in; what JSON Schema does not say of its fields, but a form would like to, comes out."""

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import msgspec

from dovetail.registry.functions import alias_value, is_alias
from dovetail.registry.schemas import JsonSchema, default_keyword
from dovetail.registry.shapes import read_record


class FieldOrigin(NamedTuple):
    """What stands behind a field of a form."""

    annotation: Any = None
    factory: Callable[[], Any] | None = None  # of its default

    def titles(self, where: str) -> dict[Any, str]:
        """The names of those members of an Enum whose values say nothing to a person."""
        return {
            member.value: member.name
            for member in _members(self.annotation, where)
            if not isinstance(member.value, str)
        }

    def default(self) -> JsonSchema:
        """`{"default": …}` with what the factory makes now, if it makes anything that JSON can carry."""
        if self.factory is None:
            return {}
        try:
            made = self.factory()
        except Exception:  # it may want what is there only when an answer comes
            return {}
        return default_keyword(made)


NO_ORIGIN = FieldOrigin()


def origins(response_type: Any, where: str) -> dict[str, FieldOrigin]:
    """The origin of each field of a class, by its name in JSON."""
    annotation = _bare(response_type, where)
    cls = get_origin(annotation) or annotation
    if hasattr(cls, "__pydantic_fields__"):
        fields = cls.__pydantic_fields__.items()
        return {_alias(info) or name: FieldOrigin(info.annotation, _factory(info)) for name, info in fields}
    record = read_record(annotation, where)
    if record is None:
        return {}
    factories = {getattr(source, "alias", source.name): _factory(source) for source in _sources(cls)}
    return {field.name: FieldOrigin(field.annotation, factories.get(field.keyword)) for field in record.fields}


def _alias(info: Any) -> str | None:
    return info.validation_alias if isinstance(info.validation_alias, str) else None


def _sources(cls: Any) -> Iterable[Any]:
    """The fields as their library describes them."""
    if issubclass(cls, msgspec.Struct):
        return msgspec.structs.fields(cls)
    return getattr(cls, "__attrs_attrs__", None) or getattr(cls, "__dataclass_fields__", {}).values()


def _factory(source: Any) -> Callable[[], Any] | None:
    """All libraries have a `default_factory`, with a sign of their own for none, but attrs, where it is a default."""
    found = source.default_factory if hasattr(source, "default_factory") else getattr(source.default, "factory", None)
    return found if callable(found) else None


def _members(annotation: Any, where: str) -> Iterator[enum.Enum]:
    """The members of all that is an Enum in an annotation, or just those that a Literal names."""
    annotation = _bare(annotation, where)
    if isinstance(annotation, enum.Enum):
        yield annotation
    elif isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        yield from annotation
    else:
        for inner in get_args(annotation):
            yield from _members(inner, where)


def _bare(annotation: Any, where: str) -> Any:
    """What an alias or an annotated type is about."""
    while is_alias(annotation) or get_origin(annotation) is Annotated:
        annotation = alias_value(annotation, where) if is_alias(annotation) else annotation.__origin__
    return annotation
