"""Pydantic types: their schemas and their validation. No other module calls pydantic.

It is imported only when an annotation contains one of its types, that is when the author has imported it.
"""

import functools
from typing import Annotated, Any, get_args

import msgspec

from dovetail.errors import SetupError
from dovetail.schema.constraints import Constraints, class_hints
from dovetail.schema.explain import UNEXPLAINED, ValidationProblem
from dovetail.schema.validate import SchemaDocument, SchemaLimits, Validator

_MAX_UNCHECKED = 8 * 1024  # bytes that pydantic validates without a check against the schema first
_MAX_ERRORS = 50  # beyond them none is explained


class PydanticType:
    """A pydantic type, or a union of them, with its own validation and its own schema."""

    def __init__(self, annotation: Any, where: str) -> None:
        import pydantic

        _refuse_ignored(annotation, where, set())
        self.annotation, self.where, self._refusal = annotation, where, pydantic.ValidationError
        try:
            self._adapter: Any = pydantic.TypeAdapter(annotation)
            self._strict = not _coerces(self._adapter.core_schema)
        except Exception as error:
            raise SetupError(f"{where}: pydantic can't read {annotation!r}: {error}") from None

    def schema(self, *, for_output: bool, as_tried: bool = False) -> dict[str, Any]:
        """pydantic's JSON Schema without generated titles; `as_tried` keeps alternatives that are equal in JSON."""
        from pydantic import errors, json_schema

        class Untitled(json_schema.GenerateJsonSchema):
            def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
                return False

            def get_flattened_anyof(self, schemas: Any) -> Any:
                return {"anyOf": schemas} if as_tried else super().get_flattened_anyof(schemas)

        mode = "serialization" if for_output else "validation"
        try:
            schema: dict[str, Any] = self._adapter.json_schema(mode=mode, by_alias=True, schema_generator=Untitled)
        except errors.PydanticInvalidForJsonSchema as error:
            raise SetupError(f"{self.where}: pydantic has no JSON Schema for {self.annotation!r}: {error}") from None
        for name, part in ((getattr(self.annotation, "__name__", ""), schema), *schema.get("$defs", {}).items()):
            if name.endswith(part.get("title", "\0")):
                del part["title"]
        return schema

    def refuse_doubling(self) -> None:
        """Raises SetupError for a union with two members that contain it: pydantic tries both at each level."""
        document = SchemaDocument(self.schema(for_output=False, as_tried=True), self.where, SchemaLimits())
        for part in document.parts:
            again = [each for each in part.get("anyOf", ()) if document.leads_to(each, part)]
            kinds = [{one.get("type") for one in document.reach(each, inside=False)} for each in again]
            if any(sum(name in kind for kind in kinds) > 1 for name in ("object", "array")):
                raise SetupError(
                    f"{self.where}: a union of pydantic models or of arrays of them that lead back to it takes too "
                    'long to read; keep one array, tell models apart with a Literal field and Field(discriminator="…")'
                )

    @functools.cached_property
    def _validator(self) -> Validator:
        return Validator(self.schema(for_output=False), where=self.where)

    def read(self, value: Any) -> Any:
        """The validated value, strict unless the author's validators coerce. Raises ValidationProblem."""
        raw = msgspec.json.encode(value)
        if len(raw) > _MAX_UNCHECKED and (lines := self._validator.problems(value, root="")):
            raise ValidationProblem([("", line) for line in lines])  # cheaper: pydantic collects every error
        try:
            return self._adapter.validate_json(raw, strict=self._strict)
        except self._refusal as error:
            errors = error.errors(include_url=False, include_input=False) if error.error_count() <= _MAX_ERRORS else []
        raise ValidationProblem([(_path(one["loc"]), _words(one)) for one in errors] or [("", UNEXPLAINED)])


def dump_model(value: Any) -> Any:
    import pydantic_core

    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    return pydantic_core.to_jsonable_python(value, by_alias=True)


def _coerces(core_schema: Any) -> bool:
    """Whether a validator of the author changes values before the check; its result need not be strictly typed."""
    text = repr(core_schema)
    return any(kind in text for kind in ("function-before", "function-wrap", "function-plain"))


def _refuse_ignored(annotation: Any, where: str, seen: set[int]) -> None:
    """Raises SetupError for limits in another dialect, which pydantic would silently ignore."""
    if id(annotation) in seen:
        return
    seen.add(id(annotation))
    for item in getattr(annotation, "__metadata__", ()):
        if (isinstance(item, Constraints) and item.limits()) or isinstance(item, msgspec.Meta):
            raise SetupError(f"{where}: pydantic does not read {item!r}; use pydantic's Field inside its models")
    for name, field in getattr(annotation, "model_fields", {}).items():
        whole = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        _refuse_ignored(whole, f"{where}, field {name} of {annotation.__name__}", seen)
    for argument in get_args(annotation):
        _refuse_ignored(argument, where, seen)
    if isinstance(annotation, type) and hasattr(annotation, "__dataclass_fields__"):
        for name, hint in class_hints(annotation, annotation, where)[0].items():
            _refuse_ignored(hint, f"{where}, field {name} of {annotation.__name__}", seen)


def _path(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)


def _words(error: Any) -> str:
    """The text of an error: that of the author's exception if a validator raised one, otherwise pydantic's."""
    own = error.get("ctx", {}).get("error")
    text = str(own) if isinstance(own, Exception) and str(own) else str(error["msg"])
    return text[:1].lower() + text[1:] if own is None else text
