"""Elicitation forms, compiled from a Python type, from choices or from a raw schema.

A type becomes JSON Schema like that of any argument, and each property is reduced to the keywords that forms have.
Other keywords (patterns, other formats) are not sent, but still checked in the content. Choices are sent as strings,
also those that stand for numbers, and an empty field means null.
"""

import copy
import enum
import functools
import re
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import NODEFAULT

from dovetail.errors import ArgumentError, QuestionFailed, SetupError
from dovetail.registry.arguments import Arguments
from dovetail.registry.functions import FunctionInfo, Parameter, bare_type
from dovetail.schema.constraints import default_of
from dovetail.schema.encode import OutputError, decode_json, encode_json
from dovetail.schema.explain import described, excerpt, listed
from dovetail.schema.generate import JsonSchema
from dovetail.schema.shapes import read_record
from dovetail.schema.validate import Validator

_MAX_TEXT_BYTES = 64 * 1024  # of a string in the content
_NUMBERS = (int, float)
_NOTES = ("title", "description")
_KINDS: dict[str, tuple[str, tuple[type, ...], tuple[str, ...]]] = {  # in words, Python types, keywords that are sent
    "string": ("a string", (str,), ("minLength", "maxLength")),
    "integer": ("an integer", _NUMBERS, ("minimum", "maximum")),  # 3.0 is one
    "number": ("a number", _NUMBERS, ("minimum", "maximum")),
    "boolean": ("true or false", (bool,), ()),
    "array": ("a list of choices", (list,), ()),
}
_SECRET_NAMES = frozenset({
    "password", "passwd", "pwd", "passphrase", "passcode", "secret", "clientsecret", "secretkey", "privatekey",
    "apikey", "apisecret", "apitoken", "token", "accesskey", "accesstoken", "refreshtoken", "authtoken", "bearertoken",
    "creditcard", "creditcardnumber", "cardnumber", "cvv", "cvc",
})  # fmt: skip
_BETWEEN_WORDS = re.compile(r"[\W\d_]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NULLS = {"anyOf": {"type": "null"}, "type": "null", "enum": None}  # how each keyword says null
_PARAMETER = "response_type"
_TYPE = f"ctx.elicit, parameter {_PARAMETER}"
_SCHEMA = "ctx.elicit, parameter schema"
_VALUE = "value"  # the name of the field of a form that is no object
_MAX_CACHED_FORMS = 256
_ROOT_KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "title", "description", "$schema", "$id", "$comment"}
)

FormContent = dict[str, Any]  # JSON values by the names of fields
Options = list[tuple[Any, str | None]]  # the values that may be chosen, with their titles


def _titles(annotation: Any) -> dict[Any, str]:
    """Titles for choices whose values are no strings: the names of Enum members, which the schema does not have."""
    annotation = bare_type(annotation, _TYPE)
    if isinstance(annotation, enum.Enum | enum.EnumType):  # one member in a Literal, or all of them
        members = [annotation] if isinstance(annotation, enum.Enum) else list(annotation)
        return {each.value: each.name for each in members if not isinstance(each.value, str)}
    return {value: name for inner in get_args(annotation) for value, name in _titles(inner).items()}


def _annotations(response_type: Any) -> dict[str, Any]:
    """The annotation of each field of a class, by its name in JSON."""
    cls = bare_type(response_type, _TYPE)
    fields = getattr(get_origin(cls) or cls, "__pydantic_fields__", None)
    if fields is not None:
        aliases = {name: info.validation_alias for name, info in fields.items()}
        return {alias if isinstance(alias, str) else name: fields[name].annotation for name, alias in aliases.items()}
    record = read_record(cls, _TYPE)
    return {} if record is None else {field.name: field.annotation for field in record.fields}


class FormField(msgspec.Struct, frozen=True, eq=False):
    """One property of a form."""

    name: str
    schema: JsonSchema  # as it is sent
    options: Mapping[str, Any] | None = None  # of a choice: its value for each string that is sent
    nullable: bool = False  # may be left empty, which means null

    def decode(self, given: Any) -> Any:
        """The JSON value of the field; raises QuestionFailed."""
        if isinstance(given, _NUMBERS) and not abs(given) <= sys.float_info.max:
            raise _form_error(f"{self.name}: is not a number of sensible size")
        words, types, _ = _KINDS[self.schema["type"]]
        if type(given) not in types:
            raise _form_error(f"{self.name}: expected {words}, got {described(given)}")
        if type(given) is list:
            if any(type(each) is not str for each in given):
                raise _form_error(f"{self.name}: each choice must be a string")
            return [self._decode_text(each) for each in dict.fromkeys(given)]
        if type(given) is str:
            return self._decode_text(given)
        return int(given) if self.schema["type"] == "integer" and given % 1 == 0 else given

    def _decode_text(self, given: str) -> Any:
        """The string itself, or the value of the choice."""
        if self.options is not None:
            if given in self.options:
                return self.options[given]
            choices = listed(map(excerpt, self.options))
            raise _form_error(f"{self.name}: must be one of {choices}, got {excerpt(given)}")
        if not given.isascii() and given.encode("utf-8", "replace").decode() != given:
            raise _form_error(f"{self.name}: holds half a surrogate pair, which is not a character")
        if len(given.encode()) > _MAX_TEXT_BYTES:
            raise _form_error(f"{self.name}: is longer than {_MAX_TEXT_BYTES // 1024} KiB")
        return given


def _form_error(*problems: str) -> QuestionFailed:
    return QuestionFailed("The answer does not fit the form: " + "; ".join(problems))


def _form_field(name: str, schema: JsonSchema, where: str, annotation: Any = None) -> FormField:
    body, nullable = _without_null(schema)
    several = body.get("type") == "array"
    options = _options(body.get("items") if several else body, where)
    if options is None:
        return FormField(name, _plain(name, body, where), None, nullable)
    titles = _titles(annotation)  # only for choices without a title of the author's own
    options = [(value, title or titles.get(value)) for value, title in options] if titles else options
    return FormField(name, *_choice(body, options, where, several=several), nullable)


def _without_null(schema: JsonSchema) -> tuple[JsonSchema, bool]:
    """The schema without null, and whether it accepted null."""
    for keyword, null in _NULLS.items():
        members = schema.get(keyword)
        if isinstance(members, list):
            kept = [member for member in members if member != null]
            others = {name: part for name, part in schema.items() if name != keyword}
            body: JsonSchema = {keyword: kept}
            if len(kept) == 1 and keyword != "enum":
                body = kept[0] if isinstance(kept[0], dict) else {keyword: kept[0]}
            return body | others, len(kept) < len(members)
    return schema, False


def _plain(name: str, body: JsonSchema, where: str) -> JsonSchema:
    kind = body.get("type")
    if not isinstance(kind, str) or kind not in _KINDS or kind == "array" or "contentEncoding" in body:
        kinds = "strings, numbers, booleans, dates and choices such as Literal['a', 'b'] or a list of them"
        fix = "put the fields of an object beside the others, or ask several times"
        raise SetupError(f"{where}: a form is flat and has {kinds}; {fix}")
    if kind != "boolean" and _asks_for_secret(name, body):
        fix = "send the user to a page of yours with ctx.elicit_url"
        raise SetupError(f"{where}: a form must not ask for secrets, which clients and models would see; {fix}")
    sent = {"type": kind} | {keyword: body[keyword] for keyword in (*_NOTES, *_KINDS[kind][2]) if keyword in body}
    if kind == "string" and body.get("format") in ("email", "uri", "date", "date-time"):
        sent["format"] = body["format"]
    default = body.get("default")
    if type(default) in _KINDS[kind][1] and ("format" not in sent or _format(sent["format"]).is_valid(default)):
        sent["default"] = default
    return sent


@functools.cache
def _format(name: str) -> Validator:
    return Validator({"format": name}, where="a form")


def _asks_for_secret(name: str, body: JsonSchema) -> bool:
    """Whether a name asks for a secret: true for `userPassword`, false for `password_hint`."""
    if body.get("format") == "password" or body.get("writeOnly") is True:
        return True
    texts = [text for text in (name, body.get("title")) if isinstance(text, str)]
    words = [_BETWEEN_WORDS.sub(" ", text).lower().split() for text in texts]
    return any("".join(each[-count:]) in _SECRET_NAMES for each in words for count in (1, 2, 3))  # none has more words


def _options(schema: Any, where: str) -> Options | None:
    """The choices of a schema: `const`, `enum`, `oneOf` or `anyOf`; None if it is no choice."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [(schema["const"], None)]
    values, titles = schema.get("enum"), schema.get("enumNames")
    if isinstance(values, list):
        if titles is not None and (not isinstance(titles, list) or [*map(type, titles)] != [str] * len(values)):
            raise SetupError(f"{where}: enumNames must hold one string for each value of enum")
        return list(zip(values, titles or [None] * len(values), strict=True))
    branches: Any = schema.get("oneOf", schema.get("anyOf", ()))
    found: Options = []
    for branch in branches:
        inner = _options(branch, where)
        if inner is None:
            return None
        found += [(branch["const"], branch.get("title"))] if "const" in branch else inner
    return found or None


def _choice(body: JsonSchema, options: Options, where: str, *, several: bool) -> tuple[JsonSchema, dict[str, Any]]:
    known = _by_text(options, where)
    values: JsonSchema = {"type": "string", "enum": list(known)}
    if any(title is not None for _, title in options):
        titled = [{"const": text, "title": title or text} for text, (_, title) in zip(known, options, strict=True)]
        if "enumNames" in body and not several:  # the older keyword, which every revision still has
            values["enumNames"] = [option["title"] for option in titled]
        else:
            values = {"anyOf": titled} if several else {"type": "string", "oneOf": titled}
    sent = {"type": "array", "items": values} if several else values
    sent |= {keyword: body[keyword] for keyword in (*_NOTES, "minItems", "maxItems") if keyword in body}
    default = body.get("default")
    chosen = default if several and isinstance(default, list) else [default]
    texts = {_text_of(value) for value in chosen}
    if default is not None and texts <= known.keys():
        in_order = [text for text in known if text in texts]  # the order of a set differs between processes
        if not several:
            sent["default"] = in_order[0]
        elif body.get("minItems", 0) <= len(in_order) <= body.get("maxItems", len(known)):
            sent["default"] = in_order
    return sent, known


def _by_text(options: Options, where: str) -> dict[str, Any]:
    """The value of each choice, by the string that is sent."""
    known: dict[str, Any] = {}
    for value, _ in options:
        if not isinstance(value, (str, int, float)):
            raise SetupError(f"{where}: {excerpt(value)} can't be a choice; use strings or numbers")
        text = _text_of(value)
        if text in known:
            raise SetupError(f"{where}: two choices are spelled {excerpt(text)}; keep one of them")
        known[text] = value
    if not known:
        raise SetupError(f"{where}: a choice needs something to choose from; add values")
    return known


def _text_of(value: Any) -> str:
    return str.__str__(value) if isinstance(value, str) else encode_json(value).decode()


class Form(msgspec.Struct, frozen=True, eq=False):
    """A form for the user. `schema` is the one of the newest revision."""

    schema: JsonSchema
    fields: tuple[FormField, ...]
    build: Callable[[FormContent], Any]  # from the fields that were filled in, among them all that are required
    nullable: Collection[str]  # required by the author's type, but may be null

    def decode(self, content: dict[str, Any]) -> Any:
        """A value of the author's type; raises QuestionFailed, which names the field."""
        required, filled, problems = self.schema.get("required", ()), dict[FormField, Any](), list[str]()
        for field in self.fields:  # others are ignored: a client may add its own
            given = content.get(field.name)
            if given is not None:
                filled[field] = given
            elif field.name in required and "default" not in field.schema:
                problems.append(f"{field.name}: is required, but missing")
        if problems:
            raise _form_error(*problems)
        decoded: FormContent = {}
        for field, given in filled.items():
            decoded[field.name] = field.decode(given)
        for name in self.nullable:
            decoded.setdefault(name, None)
        value = self.build(decoded)
        for field in filled:  # types check some formats less strictly, and others not at all
            if "format" in field.schema:
                problems += _format(field.schema["format"]).problems(decoded[field.name], root=field.name)
        if problems:
            raise _form_error(*problems)
        return value


def compile_form(response_type: Any) -> Form:
    """The form for a type, or for a list or dict of choices; None asks only for consent. Raises SetupError."""
    if response_type is None or response_type is type(None):
        return _form((), (), lambda _: None)
    if isinstance(response_type, (tuple, set, frozenset, str, bytes, int, float)):
        raise SetupError(f'{_TYPE}: it is a type such as str, or a list such as ["a", "b"], not {response_type!r}')
    try:
        if isinstance(response_type, (list, Mapping)):
            return _choice_form(response_type)
        try:  # cached by its repr too: Literal["a", "b"] equals Literal["b", "a"]
            return _type_form(response_type, repr(response_type))
        except TypeError:  # it can't be hashed, so it is not cached
            return _type_form.__wrapped__(response_type, "")
    except OutputError as error:
        raise SetupError(f"{_TYPE}: it can't be sent: {error}") from None


def compile_raw_form(schema: Mapping[str, Any]) -> Form:
    """The form for a JSON Schema that the author wrote; its values are dicts. Raises SetupError."""
    if not isinstance(schema, Mapping):
        raise SetupError(f"{_SCHEMA}: it is a class or a dict, not {type(schema).__name__}; choices are a {_PARAMETER}")
    try:
        return _raw_form(encode_json(schema))
    except OutputError as error:
        raise SetupError(f"{_SCHEMA}: it can't be sent: {error}") from None


def _form(fields: Collection[FormField], required: Collection[str], build: Callable[[FormContent], Any]) -> Form:
    schema: JsonSchema = {"type": "object", "properties": {field.name: field.schema for field in fields}}
    wanted = [field for field in fields if field.name in required]
    if names := [field.name for field in wanted if not field.nullable]:
        schema["required"] = names
    return Form(schema, tuple(fields), build, [field.name for field in wanted if field.nullable])


@functools.lru_cache(_MAX_CACHED_FORMS)
def _type_form(response_type: Any, _repr: str) -> Form:
    default, factory = NODEFAULT, None
    if get_origin(response_type) is Annotated:
        default, factory = default_of(response_type.__metadata__, _TYPE)
    parameter = Parameter(_PARAMETER, response_type, default, None, factory)
    info = FunctionInfo(_type_form, "the form", "ctx.elicit", None, False, (parameter,), ())
    arguments = Arguments(info, lenient=False)
    schema = arguments.schema["properties"][_PARAMETER]
    if schema.get("type") == "object" and "properties" in schema:
        config = getattr(get_origin(response_type) or response_type, "__struct_config__", None)
        # The tag of a tagged Struct is not for the user to fill in.
        tag = {} if config is None or config.tag is None else {config.tag_field: config.tag}
        parts = {name: part for name, part in schema["properties"].items() if name not in tag}
        fields = _fields(parts, _TYPE, _annotations(response_type))
        required = schema.get("required", ())
        return _form(fields, required, lambda content: _decode(arguments, {_PARAMETER: tag | content}, "answer"))
    fields = [_form_field(_VALUE, schema, _TYPE, response_type)]
    required = [_VALUE] if parameter.required else []
    return _form(
        fields, required, lambda given: _decode(arguments, {_PARAMETER: given[_VALUE]} if given else {}, _VALUE)
    )


def _fields(parts: Mapping[str, JsonSchema], where: str, annotations: Mapping[str, Any]) -> list[FormField]:
    return [_form_field(name, part, f"{where}, field {name}", annotations.get(name)) for name, part in parts.items()]


def _decode(arguments: Arguments, given: FormContent, root: str) -> Any:
    """The content, decoded like the argument of a function; `root` is its name in problems."""
    try:
        return arguments.decode(msgspec.json.encode(given))[_PARAMETER]
    except ArgumentError as error:
        places = [line.removeprefix(_PARAMETER) for line in error.problems]
        raise _form_error(*(place[1:] if place.startswith(".") else root + place for place in places)) from None


@functools.lru_cache(_MAX_CACHED_FORMS)
def _raw_form(text: bytes) -> Form:
    schema = decode_json(text)
    if unknown := sorted(schema.keys() - _ROOT_KEYWORDS):
        raise SetupError(f"{_SCHEMA}: a form is a flat object, where {listed(unknown)} has no place; remove it")
    properties, required = schema.get("properties"), schema.get("required", [])
    parts = properties.values() if isinstance(properties, dict) else [None]
    if schema.get("type") != "object" or not all(isinstance(part, dict) for part in parts):
        raise SetupError(f'{_SCHEMA}: it must be flat: {{"type": "object", "properties": {{"name": {{…}}}}}}')
    if not isinstance(required, list) or not all(name in [*properties] for name in required):
        raise SetupError(f"{_SCHEMA}: required must list names of its properties, not {excerpt(required)}")
    validator = Validator({"type": "object", "properties": properties}, where=_SCHEMA)
    fields = _fields(properties, _SCHEMA, {})
    defaults = {name: part["default"] for name, part in properties.items() if part.get("default") is not None}
    if wrong := validator.problems(defaults, root="default"):
        raise SetupError(f"{_SCHEMA}: its defaults do not fit: {'; '.join(wrong)}")

    def build(content: FormContent) -> FormContent:
        filled = {name: value for name, value in content.items() if value is not None}
        if problems := validator.problems(filled, root="answer"):
            raise _form_error(*problems)
        return content | copy.deepcopy(defaults) | filled

    return _form(fields, required, build)


def _choice_form(choices: list[Any] | Mapping[Any, Any]) -> Form:
    several = isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], (list, Mapping))
    given = choices[0] if several else choices
    titles: list[Any] = [None] * len(given)
    if isinstance(given, Mapping):
        titles = [each.get("title") if isinstance(each, Mapping) else each for each in given.values()]
        if wrong := [title for title in titles if not isinstance(title, str)]:
            raise SetupError(f'{_TYPE}: the title {wrong[0]!r} must be a string, as in {{"low": "Low priority"}}')
    options = list(zip(given, titles, strict=True))
    field = FormField(_VALUE, *_choice({}, options, _TYPE, several=several))
    encode_json(field.schema)  # raises OutputError if it can't be sent
    return _form([field], [_VALUE], lambda content: content[_VALUE])
