"""Arguments of functions: from their parameters, or a raw JSON Schema, to a decoder of JSON text.

The plain reading is one typed decode. Only what fails is read a second time, more kindly; only what fails again is
explained. Both together cost no more than one budget, and what is too large gets neither.
"""

import collections
import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict

from dovetail import schema as lazy_schema
from dovetail.errors import ArgumentError, SetupError
from dovetail.protocol.jsonrpc import UNREADABLE
from dovetail.registry.functions import FunctionInfo, Parameter, argument_style
from dovetail.schema.annotations import Constraints
from dovetail.schema.decode import DecoderBuilder, completing, refuse_misfit
from dovetail.schema.explain import MISFIT, SHOWN, UNSAID, Budget, line, misfits
from dovetail.schema.generate import JsonSchema, SchemaWriter, default_keyword
from dovetail.schema.shapes import Alternatives, Anything, Reference, Shape, is_null
from dovetail.schema.types import ShapeBuilder, nullable
from dovetail.schema.validate import Validator

Raw = bytes | msgspec.Raw

_MISFITS = (*UNREADABLE, ValueError, TypeError)  # TypeError: a list among the items of a set
_LARGEST = 64 * 1024  # bytes of arguments that are read a second time
_COPIED = (list, dict, set, bytearray, collections.deque)  # defaults that one call could spoil for the next
_decode_any = msgspec.json.Decoder().decode


class _SecondReading:
    """What both kinds of arguments do with a value that did not fit."""

    subject: str
    schema: dict[str, Any]
    lenient: bool
    _validator: Validator

    def _accept(self, value: Any) -> dict[str, Any] | None:
        """The arguments that a value makes; None if it does not fit."""
        raise NotImplementedError

    def _problems(self, value: Any, budget: Budget) -> list[str]:
        return self._validator.problems(value, budget=budget)

    def _plain(self, raw: Raw, error: Exception | None = None) -> Any:
        """The JSON value; `error` is what a typed reading of it raised."""
        try:
            return _decode_any(raw)
        except RecursionError:
            raise ArgumentError(self.subject, ["arguments: nested too deeply"]) from None
        except msgspec.ValidationError:  # numbers that are JSON, but more than Python can take
            path, words = ("", "hold too large a number") if error is None else misfits(error)[0]
            raise ArgumentError(self.subject, [line(path, words, None)]) from None
        except UNREADABLE:
            raise ArgumentError(self.subject, ["arguments: not valid JSON in UTF-8"]) from None

    def _read_again(self, raw: Raw, error: Exception | None = None) -> dict[str, Any]:
        value = self._plain(raw, error)
        if len(raw) > _LARGEST:
            path, words = misfits(error)[0] if error else ("", MISFIT)
            raise ArgumentError(self.subject, [line(path, words, value), f"arguments: {UNSAID}"])
        budget = Budget()
        try:
            value = {} if value is None else value  # some clients spell "no arguments" so
            if isinstance(value, dict):  # a string is not read as the object that it may hold
                value = lazy_schema.coerce.Coercion(self.schema, budget).reread(value, strings=self.lenient)
                if (arguments := self._accept(value)) is not None:
                    return arguments
            raise ArgumentError(self.subject, self._problems(value, budget))
        except RecursionError:
            raise ArgumentError(self.subject, ["arguments: nested too deeply"]) from None


class Arguments(_SecondReading):
    """Decodes the arguments of one function."""

    by_name = True

    def __init__(self, info: FunctionInfo, *, lenient: bool = True) -> None:
        self.subject = info.name
        self.lenient = lenient
        reader = ShapeBuilder()
        shapes = {parameter.name: _shape(reader, parameter, info.where) for parameter in info.parameters}
        self.schema = _object_schema(SchemaWriter(info.where), shapes, info.parameters)
        self._maker = DecoderBuilder()
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
            return self._read_again(raw, error)
        if not self._is_exact and not self._validator.is_valid(self._plain(raw)):
            return self._read_again(raw)
        return arguments

    def decode_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The same for strings that are decoded already, such as the variables of a URI."""
        return self.decode(msgspec.json.encode(values))

    def kinds(self, name: str) -> frozenset[str]:
        """The kinds of JSON value that an argument takes beside the strings that hold them."""
        return lazy_schema.coerce.Coercion(self.schema, Budget()).kinds(name)

    def _accept(self, value: Any) -> dict[str, Any] | None:
        try:
            arguments = asdict(self._read(msgspec.json.encode(value)))
        except _MISFITS:
            return None
        return arguments if self._is_exact or self._validator.is_valid(value) else None

    def _problems(self, value: Any, budget: Budget) -> list[str]:
        """What the schema says is wrong, and what only the types know (a date that does not exist)."""
        lines = super()._problems(value, budget)
        names = [name for name in value if name in self._types] if isinstance(value, dict) else []
        rest = [name for name in names if not any(_is_about(known, name) for known in lines)]
        told = [told for name in rest for told in self._misfits(name, value[name])]
        if told:
            lines = [known for known in lines if known != f"arguments: {MISFIT}"]
        return lines + told or ["arguments: they do not fit"]

    def _misfits(self, name: str, value: Any) -> list[str]:
        try:
            self._maker.convert(value, self._types[name])
        except _MISFITS as error:
            return [line(f".{name}{path}", words, {name: value}) for path, words in misfits(error)[:SHOWN]]
        return []


def _is_about(problem: str, name: str) -> bool:
    return problem.startswith((f"{name}:", f"{name}.", f"{name}["))


def _shape(reader: ShapeBuilder, parameter: Parameter, where: str) -> Shape:
    here = f"{where}, parameter {parameter.name}"
    shape = reader.read(parameter.annotation, here)
    refuse_misfit(parameter.default, shape, here)
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


class RawArguments(_SecondReading):
    """Decodes arguments by a JSON Schema that the user wrote, which is passed through untouched."""

    def __init__(self, schema: Mapping[str, Any], *, where: str, info: FunctionInfo, lenient: bool = True) -> None:
        if not isinstance(schema, Mapping):
            raise SetupError(f"{where}: input_schema must be a dict, not {type(schema).__name__}")
        if schema.get("type") != "object":
            raise SetupError(f'{where}: input_schema must have "type": "object" at its root; add it')
        self.schema = dict(schema)
        self.subject = info.name
        self.lenient = lenient
        self._validator = Validator(self.schema, where=where)
        self.by_name, self._names = argument_style(info, self.schema)
        properties = self.schema.get("properties", {}).items()
        defaults = ((name, part) for name, part in properties if isinstance(part, Mapping) and "default" in part)
        self._defaults = {name: part["default"] for name, part in defaults}

    def decode(self, raw: Raw) -> dict[str, Any]:
        """The arguments as they came, with the schema's top-level defaults; raises ArgumentError."""
        arguments = self._accept(self._plain(raw))
        return self._read_again(raw) if arguments is None else arguments

    def _accept(self, value: Any) -> dict[str, Any] | None:
        if not self._validator.is_valid(value):
            return None
        arguments: dict[str, Any] = value
        for name, default in self._defaults.items():
            if name not in arguments:
                arguments[name] = copy.deepcopy(default)
        names = self._names  # the schema may take more than the function
        return arguments if names is None else {name: arguments[name] for name in arguments if name in names}
