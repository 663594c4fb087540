"""A Python type, a list of choices or a raw schema goes in; a form comes out, and a reader of its answers.

A type is written as JSON Schema like that of any argument, and each property is cut down to what forms know. What has
no place there (patterns, other formats) is not sent, but still checked in the answer.
"""

import copy
import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, get_origin

import msgspec
from msgspec import NODEFAULT

from dovetail.errors import ArgumentError, SetupError
from dovetail.registry.arguments import Arguments, compile_arguments
from dovetail.registry.explain import Budget, excerpt, listed
from dovetail.registry.fields import default_of
from dovetail.registry.form_fields import FormField, Option, choice_field, form_field, unfit
from dovetail.registry.form_origins import NO_ORIGIN, FieldOrigin, origins
from dovetail.registry.functions import FunctionInfo, Parameter
from dovetail.registry.jsonable import OutputError, decode_json, encode_json
from dovetail.registry.leniency import Leniency
from dovetail.registry.schemas import JsonSchema
from dovetail.registry.validate import Validator

Answer = dict[str, Any]  # JSON values by the names of fields

_ASKER = "ctx.elicit"
_PARAMETER = "response_type"
_TYPE = f"{_ASKER}, parameter {_PARAMETER}"
_SCHEMA = f"{_ASKER}, parameter schema"
_ALONE = "value"  # the only field of a form that asks for one thing
_REMEMBERED = 256  # forms
_ROOT_KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "title", "description", "$schema", "$id", "$comment"}
)


class Form(msgspec.Struct, frozen=True, eq=False):
    """What a user is asked to fill in. `schema` is spelled as the newest revision does."""

    schema: JsonSchema
    fields: tuple[FormField, ...]
    build: Callable[[Answer], Any]  # from the fields that were filled in, among them all that are required

    def decode(self, content: dict[str, Any]) -> Any:
        """The value that the author asked for; raises QuestionFailed, which names the field."""
        answer = {
            field.name: field.read(given)
            for field in self.fields  # and no others: a client may add its own
            if (given := content.get(field.name)) is not None
        }
        known = answer.keys() | {field.name for field in self.fields if "default" in field.schema}
        missing = [name for name in self.schema.get("required", ()) if name not in known]
        if missing:
            raise unfit([f"{name}: is required, but missing" for name in missing])
        value = self.build(answer)
        misformed = [
            line for field in self.fields if field.name in answer for line in field.misformed(answer[field.name])
        ]
        if misformed:  # types read some formats less narrowly, and others not at all
            raise unfit(misformed)
        return value


def compile_form(response_type: Any) -> Form:
    """The form for a type, or for a list or dict of choices; None only asks for consent. Raises SetupError."""
    if response_type is None or response_type is type(None):
        return _CONSENT
    _refuse_value(response_type)
    try:
        if isinstance(response_type, (list, Mapping)):
            return _choice_form(response_type)
        if isinstance(response_type, type):
            return _remembered(response_type, "")
        if _is_hashable(response_type):  # the spelling counts too: Literal["a", "b"] equals Literal["b", "a"]
            return _remembered(response_type, repr(response_type))
        return _type_form(response_type)
    except OutputError as error:
        raise SetupError(f"{_TYPE}: it can't be sent: {error}") from None


def _refuse_value(response_type: Any) -> None:
    """What is easily taken for a type, or for choices."""
    if isinstance(response_type, (tuple, set, frozenset)):
        raise SetupError(f'{_TYPE}: choices are a list, such as ["red", "blue"], not a {type(response_type).__name__}')
    if isinstance(response_type, (str, bytes, int, float)):
        raise SetupError(f"{_TYPE}: it is a type, such as str, or a list of choices, not {response_type!r}")


def compile_raw_form(schema: Mapping[str, Any]) -> Form:
    """The form for a JSON Schema that the author wrote; its answers are dicts. Raises SetupError."""
    if not isinstance(schema, Mapping):
        raise SetupError(f"{_SCHEMA}: it must be a dict, not {type(schema).__name__}")
    try:
        return _raw_form(encode_json(schema))
    except OutputError as error:
        raise SetupError(f"{_SCHEMA}: it can't be sent: {error}") from None


def _form(fields: Iterable[FormField], required: Iterable[str], build: Callable[[Answer], Any]) -> Form:
    fields, demanded = tuple(fields), set(required)
    schema: JsonSchema = {"type": "object", "properties": {field.name: field.schema for field in fields}}
    names = [field.name for field in fields if field.name in demanded and not field.nullable]
    return Form(schema | ({"required": names} if names else {}), fields, build)


def _left_empty(fields: Iterable[FormField], required: Iterable[str]) -> Answer:
    """What the author wants to find, and may be null."""
    demanded = set(required)
    return {field.name: None for field in fields if field.nullable and field.name in demanded}


_CONSENT = _form((), (), lambda _: None)


# Types


def _type_form(response_type: Any) -> Form:
    default, factory = NODEFAULT, None
    if get_origin(response_type) is Annotated:
        default, factory = default_of(response_type.__metadata__, _TYPE)
    parameter = Parameter(_PARAMETER, response_type, default, None, factory)
    info = FunctionInfo(_type_form, "the form", _ASKER, None, False, (parameter,), {})
    arguments = compile_arguments(info, lenient=False)
    schema = arguments.schema["properties"][_PARAMETER]
    if schema.get("type") == "object" and "properties" in schema:
        return _record_form(schema, arguments, response_type)
    required = [_ALONE] if parameter.required else []
    fields = [form_field(_ALONE, schema, _TYPE, origin=FieldOrigin(response_type, factory))]
    empty = {_PARAMETER: None} if _left_empty(fields, required) else {}

    def build(answer: Answer) -> Any:
        return _read(arguments, {_PARAMETER: answer[_ALONE]} if answer else empty, _ALONE)

    return _form(fields, required, build)


@functools.lru_cache(_REMEMBERED)
def _remembered(response_type: Any, _: str) -> Form:
    return _type_form(response_type)


def _is_hashable(response_type: Any) -> bool:
    try:
        hash(response_type)
    except TypeError:
        return False
    return True


def _record_form(schema: JsonSchema, arguments: Arguments, response_type: Any) -> Form:
    required, tag, known = schema.get("required", ()), _tag(response_type), origins(response_type, _TYPE)
    fields = [
        form_field(name, part, f"{_TYPE}, field {name}", origin=known.get(name, NO_ORIGIN))
        for name, part in schema["properties"].items()
        if name not in tag
    ]
    empty = tag | _left_empty(fields, required)
    return _form(fields, required, lambda answer: _read(arguments, {_PARAMETER: empty | answer}, "answer"))


def _tag(response_type: Any) -> Answer:
    """What tells a Struct from others, which is not for the user to fill in."""
    config = getattr(get_origin(response_type) or response_type, "__struct_config__", None)
    return {} if config is None or config.tag is None else {config.tag_field: config.tag}


def _read(arguments: Arguments, given: Answer, root: str) -> Any:
    """An answer is read as the argument of a function would be; `root` is its name in what is wrong with it."""
    try:
        return arguments.decode(msgspec.json.encode(given))[_PARAMETER]
    except ArgumentError as error:
        places = [line.removeprefix(_PARAMETER) for line in error.problems]
        raise unfit([place[1:] if place.startswith(".") else root + place for place in places]) from None


# Lists and dicts of choices


def _choice_form(choices: list[Any] | Mapping[Any, Any]) -> Form:
    several = isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], (list, Mapping))
    given = choices[0] if several else choices
    titles = map(_title, given.values()) if isinstance(given, Mapping) else [None] * len(given)
    form = _form(
        [choice_field(_ALONE, list(map(Option, given, titles)), _TYPE, several=several)],
        [_ALONE],
        operator.itemgetter(_ALONE),
    )
    encode_json(form.schema)
    return form


def _title(given: Any) -> str:
    title = given.get("title") if isinstance(given, Mapping) else given
    if not isinstance(title, str):
        raise SetupError(f'{_TYPE}: the title {title!r} must be a string, as in {{"low": "Low priority"}}')
    return title


# Raw schemas


@functools.lru_cache(_REMEMBERED)
def _raw_form(text: bytes) -> Form:
    properties, required, checked = _flat_parts(decode_json(text))
    validator = Validator(checked, where=_SCHEMA)
    fields = [form_field(name, part, f"{_SCHEMA}, field {name}", strict=True) for name, part in properties.items()]
    defaults = {name: part["default"] for name, part in properties.items() if part.get("default") is not None}
    wrong = validator.problems(defaults, root="default")
    if wrong:
        raise SetupError(f"{_SCHEMA}: its defaults do not fit: {'; '.join(wrong)}")
    absent = _left_empty(fields, required) | defaults

    def build(answer: Answer) -> Answer:
        budget = Budget(answer)
        answer = Leniency(checked, budget).reread(answer, strings=False)
        problems = validator.problems(answer, root="answer", budget=budget)
        if problems:
            raise unfit(problems)
        return copy.deepcopy(absent) | answer

    return _form(fields, required, build)


def _flat_parts(schema: JsonSchema) -> tuple[dict[str, JsonSchema], list[str], JsonSchema]:
    """The properties, the names of those that are required, and what is left to check if none is."""
    unknown = sorted(schema.keys() - _ROOT_KEYWORDS)
    if unknown:
        raise SetupError(f"{_SCHEMA}: a form is a flat object, where {listed(unknown)} has no place; remove it")
    properties, required = schema.get("properties"), schema.get("required", [])
    if schema.get("type") != "object" or not isinstance(properties, dict):
        raise SetupError(f'{_SCHEMA}: it must be flat: {{"type": "object", "properties": {{…}}}}')
    for name, part in properties.items():
        if not isinstance(part, dict):
            raise SetupError(f'{_SCHEMA}, field {name}: it must be a schema such as {{"type": "string"}}')
    if not isinstance(required, list) or not all(isinstance(name, str) and name in properties for name in required):
        raise SetupError(f"{_SCHEMA}: required must list names of its properties, not {excerpt(required)}")
    left = {keyword: part for keyword, part in schema.items() if keyword in ("$schema", "type", "properties")}
    return properties, required, left
