"""Decoders of a call's arguments, compiled from a function's parameters or from a raw JSON Schema.

Arguments are decoded once, by type. Only if that fails they are decoded again, leniently; only if that fails too the
problems are explained. Both share one budget, and arguments above a size limit get neither.
"""

import collections
import copy
import functools
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict

from dovetail import schema as lazy_schema
from dovetail.errors import ArgumentError, SetupError
from dovetail.protocol.jsonrpc import UNREADABLE
from dovetail.registry.functions import FunctionInfo, Parameter, argument_style
from dovetail.schema.decode import DecoderBuilder, check_default, with_class_defaults
from dovetail.schema.explain import DOES_NOT_FIT, INCOMPLETE, MAX_SHOWN, Budget, problem_line, problems_in
from dovetail.schema.generate import JsonSchema, SchemaWriter, default_keyword
from dovetail.schema.shapes import Alternatives, Anything, Reference, Shape, is_null
from dovetail.schema.types import ShapeBuilder, nullable
from dovetail.schema.validate import Validator

Raw = bytes | msgspec.Raw

_DECODE_ERRORS = (*UNREADABLE, ValueError, TypeError)  # TypeError: a list among the items of a set
MAX_LENIENT_BYTES = 64 * 1024  # of arguments that are decoded a second time
_MUTABLE = (list, dict, set, bytearray, collections.deque)  # each call gets its own copy of such a default
_decode_any = msgspec.json.Decoder().decode


class LenientDecoder:
    """The second, lenient decoding of arguments that did not fit, and the explanation if they still do not fit."""

    subject: str
    schema: dict[str, Any]
    lenient: bool
    _validator: Validator

    def _from_value(self, value: Any) -> dict[str, Any] | None:
        """The keyword arguments for a JSON value; None if it does not fit."""
        raise NotImplementedError

    def _problems(self, value: Any, budget: Budget) -> list[str]:
        return self._validator.problems(value, budget=budget)

    def _parse(self, raw: Raw, error: Exception | None = None) -> Any:
        """The JSON value; `error` is what the typed decoder raised for it."""
        try:
            return _decode_any(raw)
        except RecursionError:
            raise ArgumentError(self.subject, ["arguments: nested too deeply"]) from None
        except msgspec.ValidationError:  # numbers that are valid JSON, but too large for Python
            path, words = ("", "hold too large a number") if error is None else problems_in(error)[0]
            raise ArgumentError(self.subject, [problem_line(path, words, None)]) from None
        except UNREADABLE:
            raise ArgumentError(self.subject, ["arguments: not valid JSON in UTF-8"]) from None

    def _decode_again(self, raw: Raw, error: Exception | None = None) -> dict[str, Any]:
        value = self._parse(raw, error)
        if len(raw) > MAX_LENIENT_BYTES:
            path, words = problems_in(error)[0] if error else ("", DOES_NOT_FIT)
            raise ArgumentError(self.subject, [problem_line(path, words, value), f"arguments: {INCOMPLETE}"])
        budget = Budget()
        try:
            value = {} if value is None else value  # some clients send null for "no arguments"
            if isinstance(value, dict):  # a string is not parsed, even if it holds an object
                value = lazy_schema.coerce.Coercion(self.schema, budget).coerce(value, strings=self.lenient)
                if (arguments := self._from_value(value)) is not None:
                    return arguments
            raise ArgumentError(self.subject, self._problems(value, budget))
        except RecursionError:
            raise ArgumentError(self.subject, ["arguments: nested too deeply"]) from None


class Arguments(LenientDecoder):
    """Decodes the arguments of one function, by the types of its parameters."""

    by_name = True

    def __init__(self, info: FunctionInfo, *, lenient: bool = True) -> None:
        self.subject = info.name
        self.lenient = lenient
        builder = ShapeBuilder()
        shapes = {parameter.name: _shape(builder, parameter, info.where) for parameter in info.parameters}
        self.schema = _object_schema(SchemaWriter(info.where), shapes, info.parameters)
        self._builder = DecoderBuilder()
        self._types = {name: self._builder.make(shape) for name, shape in shapes.items()}
        self._decode = with_class_defaults(self._builder.decoder(_struct(info, self._types), info.where).decode, shapes)
        self._is_exact = self._builder.exact  # the types check all that the schema says
        checks = _object_schema(SchemaWriter(info.where, for_checks=True), shapes, info.parameters)
        self._validator = Validator(checks, where=info.where, lazy=self._is_exact)

    def decode(self, raw: Raw) -> dict[str, Any]:
        """Keyword arguments, with defaults; raises ArgumentError with all problems."""
        try:
            arguments = asdict(self._decode(raw))
        except _DECODE_ERRORS as error:
            return self._decode_again(raw, error)
        if not self._is_exact and not self._validator.is_valid(self._parse(raw)):
            return self._decode_again(raw)
        return arguments

    def decode_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments from values that are no JSON text, such as the variables of a URI; else like `decode`."""
        return self.decode(msgspec.json.encode(values))

    def kinds(self, name: str) -> frozenset[str]:
        """The kinds of JSON value that an argument takes, beside strings that are coerced to them."""
        return lazy_schema.coerce.Coercion(self.schema, Budget()).kinds(name)

    def _from_value(self, value: Any) -> dict[str, Any] | None:
        try:
            arguments = asdict(self._decode(msgspec.json.encode(value)))
        except _DECODE_ERRORS:
            return None
        return arguments if self._is_exact or self._validator.is_valid(value) else None

    def _problems(self, value: Any, budget: Budget) -> list[str]:
        """The problems that the schema finds, and those that only the types find (a date that does not exist)."""
        problems = super()._problems(value, budget)
        names = [name for name in value if name in self._types] if isinstance(value, dict) else []
        unexplained = [
            name
            for name in names
            if not any(each.startswith((f"{name}:", f"{name}.", f"{name}[")) for each in problems)
        ]
        more: list[str] = []
        for name in unexplained:
            try:
                self._builder.convert(value[name], self._types[name])
            except _DECODE_ERRORS as error:
                found = problems_in(error)[:MAX_SHOWN]
                more += [problem_line(f".{name}{path}", words, {name: value[name]}) for path, words in found]
        specific = [problem for problem in problems if not more or problem != f"arguments: {DOES_NOT_FIT}"]
        return specific + more or ["arguments: they do not fit"]


def _shape(builder: ShapeBuilder, parameter: Parameter, where: str) -> Shape:
    here = f"{where}, parameter {parameter.name}"
    shape = builder.read(parameter.annotation, here)
    check_default(parameter.default, shape, here)
    if parameter.default is None and not _takes_null(shape):  # `x: int = None` accepts null too
        shape = nullable(shape)
    if shape.constraints.description is None and parameter.description is not None:  # Field() precedes the docstring
        constraints = msgspec.structs.replace(shape.constraints, description=parameter.description)
        shape = msgspec.structs.replace(shape, constraints=constraints)
    return shape


def _takes_null(shape: Shape) -> bool:
    if isinstance(shape, Reference):
        return _takes_null(shape.definition.body)
    if isinstance(shape, Alternatives):
        return any(map(_takes_null, shape.members))
    return isinstance(shape, Anything) or is_null(shape)


def _object_schema(writer: SchemaWriter, shapes: Mapping[str, Shape], parameters: tuple[Parameter, ...]) -> JsonSchema:
    properties = {
        parameter.name: writer.write(shapes[parameter.name]) | default_keyword(parameter.default)
        for parameter in parameters
    }
    names = [parameter.name for parameter in parameters if parameter.required]
    required = {"required": names} if names else {}
    return writer.finish({"type": "object", "properties": properties, **required, "additionalProperties": False})


def _struct(info: FunctionInfo, types: Mapping[str, Any]) -> Any:
    """A Struct with one field for each parameter: the fastest way from JSON text to keyword arguments."""
    fields: list[Any] = []
    for parameter in info.parameters:
        factory = parameter.default_factory
        if isinstance(parameter.default, _MUTABLE):
            factory = functools.partial(copy.deepcopy, parameter.default)
        field = msgspec.field(default=parameter.default) if factory is None else msgspec.field(default_factory=factory)
        fields.append((parameter.name, types[parameter.name], field))
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, gc=False)


class RawArguments(LenientDecoder):
    """Decodes arguments by a JSON Schema that the author wrote; clients get it unchanged."""

    def __init__(self, schema: Mapping[str, Any], *, where: str, info: FunctionInfo, lenient: bool = True) -> None:
        if not isinstance(schema, Mapping):
            raise SetupError(f"{where}: input_schema must be a dict, not {type(schema).__name__}")
        if schema.get("type") != "object":
            raise SetupError(f'{where}: input_schema must have "type": "object" at its root; add it')
        self.schema = dict(schema)
        self.subject = info.name
        self.lenient = lenient
        self._validator = Validator(self.schema, where=where)
        self.by_name, self._names = argument_style(info, self.schema)  # None: all arguments
        properties = self.schema.get("properties", {}).items()
        self._defaults = {
            name: part["default"] for name, part in properties if isinstance(part, Mapping) and "default" in part
        }

    def decode(self, raw: Raw) -> dict[str, Any]:
        """The arguments as the client sent them, with the schema's top-level defaults; raises ArgumentError."""
        arguments = self._from_value(self._parse(raw))
        return self._decode_again(raw) if arguments is None else arguments

    def _from_value(self, value: Any) -> dict[str, Any] | None:
        if not self._validator.is_valid(value):
            return None
        arguments: dict[str, Any] = value
        for name, default in self._defaults.items():
            if name not in arguments:
                arguments[name] = copy.deepcopy(default)
        names = self._names  # the schema may have more properties than the function has parameters
        return arguments if names is None else {name: arguments[name] for name in arguments if name in names}
