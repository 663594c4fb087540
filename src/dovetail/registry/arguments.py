"""The parameters of a function, or a raw JSON Schema, go in; a decoder from JSON text to keyword arguments comes out.

The plain reading is one typed decode. Only what fails is read a second time, more kindly; only what fails again is
explained. Both together cost no more than the arguments' budget, and what is too large gets neither.
"""

import collections
import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict

from dovetail import registry
from dovetail.errors import ArgumentError, SetupError
from dovetail.protocol.jsonrpc import UNREADABLE
from dovetail.registry.annotations import ShapeReader, nullable
from dovetail.registry.decode import TypeMaker, completing, refuse_misfit
from dovetail.registry.explain import MISFIT, SHOWN, UNSAID, Budget, line, misfits, readable
from dovetail.registry.fields import Constraints
from dovetail.registry.functions import FunctionInfo, Parameter
from dovetail.registry.schemas import JsonSchema, SchemaWriter, default_keyword
from dovetail.registry.shapes import Alternatives, Anything, Reference, Shape, is_null
from dovetail.registry.validate import Validator

Raw = bytes | msgspec.Raw

_MISFITS = (*UNREADABLE, ValueError, TypeError)  # TypeError: a list among the items of a set
_LARGEST = 64 * 1024  # bytes of arguments that are read a second time
_COPIED = (list, dict, set, bytearray, collections.deque)  # defaults that one call could spoil for the next


class Arguments:
    """Decodes the arguments of one function."""

    def __init__(self, info: FunctionInfo, *, lenient: bool) -> None:
        self.subject = info.name
        self.lenient = lenient
        reader = ShapeReader()
        shapes = {parameter.name: _shape(reader, parameter, info.where) for parameter in info.parameters}
        self.schema = _object_schema(SchemaWriter(info.where), shapes, info.parameters)
        self._maker = TypeMaker()
        self._types = {name: self._maker.make(shape) for name, shape in shapes.items()}
        self._read = completing(self._maker.decoder(_struct(info, self._types), info.where).decode, shapes)
        self._is_exact = self._maker.exact  # the types check all that the schema says
        checks = _object_schema(SchemaWriter(info.where, for_checks=True), shapes, info.parameters)
        self._validator = Validator(checks, where=info.where, lazy=self._is_exact)

    def decode(self, raw: Raw) -> dict[str, Any]:
        """Keyword arguments, with defaults; raises ArgumentError with all that is wrong."""
        try:
            arguments = asdict(self._read(raw))
        except _MISFITS as error:
            return self._second_reading(raw, error)
        if not self._is_exact and not self._validator.is_valid(_plain(raw, self.subject)):
            return self._second_reading(raw, None)
        return arguments

    def _second_reading(self, raw: Raw, error: Exception | None) -> dict[str, Any]:
        value = _plain(raw, self.subject)
        if value is None:  # some clients spell "no arguments" so
            return self.decode(b"{}")
        if len(raw) > _LARGEST:
            path, words = misfits(error)[0] if error else ("", MISFIT.text)
            raise ArgumentError(self.subject, [line(path, words, value), f"arguments: {UNSAID}"])
        try:
            budget = Budget(value)
            if not isinstance(value, dict):  # a string is not read as the object that it may hold
                raise ArgumentError(self.subject, self._validator.problems(value, budget=budget))
            kinder = registry.leniency.Leniency(self.schema, budget).reread(value, strings=self.lenient)
            arguments = self._reread(kinder) if kinder is not value else None
            if arguments is None:
                raise ArgumentError(self.subject, self._problems(kinder, budget))
            return arguments
        except RecursionError:
            raise _nested_too_deeply(self.subject) from None

    def _reread(self, value: Any) -> dict[str, Any] | None:
        try:
            arguments = asdict(self._read(msgspec.json.encode(value)))
        except _MISFITS:
            return None
        return arguments if self._is_exact or self._validator.is_valid(value) else None

    def _problems(self, value: dict[str, Any], budget: Budget) -> list[str]:
        """What the schema says is wrong, and what only the types know (a date that does not exist)."""
        lines = self._validator.problems(value, budget=budget)
        rest = [name for name in value if name in self._types and not any(_is_about(known, name) for known in lines)]
        told = [told for name in rest for told in self._misfits(name, value[name])]
        if told and not budget.is_explained:
            return told + lines[1:]
        return lines + told or ["arguments: they do not fit"]

    def _misfits(self, name: str, value: Any) -> list[str]:
        try:
            self._maker.convert(value, self._types[name])
        except _MISFITS as error:
            return [line(f".{name}{path}", words, {name: value}) for path, words in misfits(error)[:SHOWN]]
        return []


def compile_arguments(info: FunctionInfo, *, lenient: bool = True) -> Arguments:
    """Schema and decoder for the parameters of a function; raises SetupError."""
    return Arguments(info, lenient=lenient)


def _is_about(problem: str, name: str) -> bool:
    return problem.startswith((f"{name}:", f"{name}.", f"{name}["))


def _shape(reader: ShapeReader, parameter: Parameter, where: str) -> Shape:
    shape = reader.read(parameter.annotation, f"{where}, parameter {parameter.name}")
    refuse_misfit(parameter, shape, where)
    return _described(_with_null(shape, parameter), parameter)


def _with_null(shape: Shape, parameter: Parameter) -> Shape:
    """`x: int = None` means that null is welcome, whatever the annotation forgot to say."""
    return shape if parameter.default is not None or _takes_null(shape) else nullable(shape)


def _takes_null(shape: Shape) -> bool:
    match shape:
        case Reference():
            return _takes_null(shape.definition.body)
        case Alternatives():
            return any(map(_takes_null, shape.members))
    return isinstance(shape, Anything) or is_null(shape)


def _described(shape: Shape, parameter: Parameter) -> Shape:
    """What stands beside the type goes before what the docstring says."""
    if shape.constraints.description is not None or parameter.description is None:
        return shape
    described: Constraints = msgspec.structs.replace(shape.constraints, description=parameter.description)
    return msgspec.structs.replace(shape, constraints=described)


def _object_schema(writer: SchemaWriter, shapes: Mapping[str, Shape], parameters: tuple[Parameter, ...]) -> JsonSchema:
    properties = {
        parameter.name: writer.write(shapes[parameter.name]) | default_keyword(parameter.default)
        for parameter in parameters
    }
    required = [parameter.name for parameter in parameters if parameter.required]
    schema: JsonSchema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return writer.finish(schema | {"additionalProperties": False})


def _struct(info: FunctionInfo, types: Mapping[str, Any]) -> Any:
    """A Struct with one field for each parameter: the fastest way from JSON text to keyword arguments."""
    fields: list[Any] = []
    for parameter in info.parameters:
        factory = parameter.default_factory or _copier(parameter.default)
        if parameter.required:
            fields.append((parameter.name, types[parameter.name]))
        elif factory is not None:
            fields.append((parameter.name, types[parameter.name], msgspec.field(default_factory=factory)))
        else:
            fields.append((parameter.name, types[parameter.name], msgspec.field(default=parameter.default)))
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, gc=False)


def _copier(default: Any) -> Callable[[], Any] | None:
    return functools.partial(copy.deepcopy, default) if isinstance(default, _COPIED) else None


# Raw schemas


class RawArguments:
    """Decodes arguments by a JSON Schema that the user wrote."""

    def __init__(self, schema: Mapping[str, Any], *, where: str, subject: str, lenient: bool) -> None:
        self.schema: dict[str, Any] = dict(schema)
        self.subject = subject
        self.lenient = lenient
        self._validator = Validator(self.schema, where=where)
        properties = self.schema.get("properties", {})
        self._defaults = {
            name: part["default"]
            for name, part in properties.items()
            if isinstance(part, Mapping) and "default" in part
        }

    def decode(self, raw: Raw) -> dict[str, Any]:
        """The arguments as they came, with the schema's top-level defaults; raises ArgumentError."""
        value = _plain(raw, self.subject)
        if not self._validator.is_valid(value):
            if len(raw) > _LARGEST:
                raise ArgumentError(self.subject, [f"arguments: {MISFIT.text}", f"arguments: {UNSAID}"])
            value = self._second_reading({} if value is None else value)
        for name, default in self._defaults.items():
            if name not in value:
                value[name] = copy.deepcopy(default)
        arguments: dict[str, Any] = value
        return arguments

    def _second_reading(self, value: Any) -> Any:
        try:
            budget = Budget(value)
            is_read = self.lenient and isinstance(value, dict)  # a string is not the object that it may hold
            leniency = registry.leniency.Leniency(self.schema, budget)
            kinder = leniency.reread(value, strings=True) if is_read else value
        except RecursionError:
            raise _nested_too_deeply(self.subject) from None
        problems = self._validator.problems(kinder, budget=budget)
        if problems:
            raise ArgumentError(self.subject, problems)
        return kinder


def compile_raw_arguments(schema: Mapping[str, Any], *, where: str, subject: str, lenient: bool = True) -> RawArguments:
    """A decoder for a raw JSON Schema, which is passed through untouched; raises SetupError."""
    if not isinstance(schema, Mapping):
        raise SetupError(f"{where}: input_schema must be a dict, not {type(schema).__name__}")
    if schema.get("type") != "object":
        raise SetupError(f'{where}: input_schema must have "type": "object" at its root; add it')
    return RawArguments(schema, where=where, subject=subject, lenient=lenient)


# Strings


class StringArgument(msgspec.Struct, frozen=True):
    """What a client is told about one argument."""

    name: str
    description: str | None
    required: bool


class StringArguments:
    """Decodes the arguments of a prompt: on the wire they are strings, whatever the parameters want."""

    def __init__(self, info: FunctionInfo) -> None:
        self._inner = Arguments(info, lenient=True)
        self.schema = self._inner.schema
        properties = self.schema["properties"]
        self.arguments = tuple(
            StringArgument(parameter.name, properties[parameter.name].get("description"), parameter.required)
            for parameter in info.parameters
        )

    def decode(self, raw: Raw) -> dict[str, Any]:
        """Keyword arguments of the parameters' types: a string where one is wanted, else the JSON that it holds."""
        return self._inner.decode(raw)

    def decode_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The same for strings that are decoded already, such as the variables of a URI."""
        return self._inner.decode(msgspec.json.encode(values))

    def kinds(self, name: str) -> frozenset[str]:
        """The kinds of JSON value that an argument takes beside the strings that hold them."""
        return registry.leniency.Leniency(self.schema, Budget(None)).kinds(name)


def compile_strings(info: FunctionInfo) -> StringArguments:
    """Decoder and argument list for a function whose arguments arrive as strings; raises SetupError."""
    return StringArguments(info)


def _plain(raw: Raw, subject: str) -> Any:
    try:
        return _ANY.decode(raw)
    except RecursionError:
        raise _nested_too_deeply(subject) from None
    except UNREADABLE:
        raise ArgumentError(subject, _numbers_too_large(raw) or ["arguments: not valid JSON in UTF-8"]) from None


_ANY = msgspec.json.Decoder()
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _numbers_too_large(raw: Raw) -> list[str]:
    """Which arguments hold a number that is JSON, but more than Python can take: 1e999, or thousands of digits."""
    lines: list[str] = []
    try:
        for name, part in _MEMBERS.decode(raw).items():
            try:
                _ANY.decode(part)
            except msgspec.ValidationError as error:  # the text is JSON, and nothing else can be wrong with it
                lines += [f"{readable((name,), 'arguments')}{path}: {words}" for path, words in misfits(error)]
    except UNREADABLE:
        return []
    return lines[:SHOWN]


def _nested_too_deeply(subject: str) -> ArgumentError:
    return ArgumentError(subject, ["arguments: nested too deeply"])
