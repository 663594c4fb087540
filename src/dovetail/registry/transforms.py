"""`ToolTransform` and `ArgTransform`: a tool as clients shall see it, compiled at registration.

Clients get a new definition. Their arguments are renamed and hidden values are added; then the tool decodes them as
always. Problems are told in the client's names, and never show a hidden argument or its value.
"""

import re
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, TypedDict, Unpack

import msgspec
from msgspec import UNSET, Raw

from dovetail import schema as lazy_schema
from dovetail.errors import ArgumentError, SetupError
from dovetail.protocol.headers import header_parameters
from dovetail.protocol.jsonrpc import UNREADABLE
from dovetail.protocol.types import TAGS_KEY, Meta, ToolAnnotations, ToolDefinition
from dovetail.registry.arguments import MAX_LENIENT_BYTES
from dovetail.registry.catalog import check_name
from dovetail.registry.registration import KINDS, SWITCH, Kind, checked_options, convert_option, did_you_mean
from dovetail.registry.tools import Tool, closed_choices, definition_fields
from dovetail.schema.encode import OutputError, encode_json
from dovetail.schema.explain import DOES_NOT_FIT, INCOMPLETE, Budget, excerpt, listed, readable
from dovetail.schema.generate import JsonSchema, without_checked_formats
from dovetail.schema.validate import SchemaDocument, SchemaLimits, Validator

_ARGUMENT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")  # what every model accepts
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_SCOPE = frozenset({"$schema", "$id", "id", "$defs", "definitions", "properties"})  # what a property may refer to
# What a schema may have whose arguments are renamed or hidden: all else may name them, count them, or show their values
_PLAIN = _SCOPE | {"type", "required", "additionalProperties", "title", "description", "$comment"}
_members = msgspec.json.Decoder(dict[str, Raw] | None).decode
_parse = msgspec.json.Decoder().decode


class ArgTransformOptions(TypedDict, total=False):
    """Options of `ArgTransform`."""

    name: str
    description: str
    default: Any
    required: bool
    hide: bool


class ToolTransformOptions(TypedDict, total=False):
    """Options of `ToolTransform`."""

    name: str
    title: str
    description: str
    tags: Sequence[str] | Set[str]
    annotations: Mapping[str, Any] | ToolAnnotations
    meta: Meta
    arguments: "Mapping[str, ArgTransform]"


class ArgTransform:
    """Changes of one argument; with `hide` clients don't see it, and the tool gets the `default`, its own if none."""

    def __init__(self, **options: Unpack[ArgTransformOptions]) -> None:
        kinds: dict[str, Kind] = {**KINDS, "required": SWITCH, "hide": SWITCH}
        given = checked_options(options, ArgTransformOptions.__annotations__, "ArgTransform", kinds)
        self.name, self.description, self.required = given.get("name"), given.get("description"), given.get("required")
        self.default = given.get("default", UNSET)
        self.hide = given.get("hide", False)


class ToolTransform:
    """Changes of a tool: what is not given stays. `annotations` and `meta` are laid over those of the tool."""

    def __init__(self, **options: Unpack[ToolTransformOptions]) -> None:
        self.options = checked_options(options, ToolTransformOptions.__annotations__, "ToolTransform")
        self.name = self.options.get("name")
        self.arguments: Mapping[str, ArgTransform] = self.options.get("arguments") or {}
        if not isinstance(self.arguments, Mapping):
            raise SetupError(f"ToolTransform: arguments={self.arguments!r} must be a dict of ArgTransform by name")


def transform_tool(tool: Tool, transform: ToolTransform, where: str, prefix: str = "") -> Tool:
    """The tool as clients shall see it. Its `decode` takes their arguments; `rewriter` makes them those of `tool`.

    Its name begins with the prefix. Raises SetupError, with `where` to name the tool.
    """
    if not isinstance(transform, ToolTransform):
        raise SetupError(f"{where}: transform={transform!r} is not possible; write ToolTransform(name=…, …)")
    name = check_name(prefix + (tool.name if transform.name is None else transform.name), where)
    changed: dict[str, Any] = {"decode": partial(_decode_as, name, tool.decode)}
    schema = tool.input_schema
    if transform.arguments:
        rewriter = Rewriter(tool, name, _Changes(tool, transform.arguments, where))
        schema = rewriter.schema
        changed = {"decode": rewriter.decode, "rewriter": rewriter, "choices": closed_choices(schema)}
        changed["headers"] = header_parameters(schema, secrets=True)
    definition = _definition(tool.definition, transform.options, where, name, schema)
    if definition == msgspec.structs.replace(tool.definition, name=prefix + tool.name):
        raise SetupError(f"{where}: its ToolTransform changes nothing; leave it out, or say what shall be different")
    return msgspec.structs.replace(tool, definition=definition, label=f"tool {name}", **changed)


def _decode_as(subject: str, decode: Callable[[bytes | Raw], dict[str, Any]], raw: bytes | Raw) -> dict[str, Any]:
    try:
        return decode(raw)
    except ArgumentError as failure:
        raise ArgumentError(subject, failure.problems) from None


def _definition(
    old: ToolDefinition, options: ToolTransformOptions, where: str, name: str, schema: Mapping[str, Any]
) -> ToolDefinition:
    meta = {**(old.meta or {}), **options.get("meta", {})}
    if "tags" in options:
        meta.pop(TAGS_KEY, None)
    annotations = convert_option(options.get("annotations"), ToolAnnotations, where, "annotations")
    if annotations is not None:
        hints = msgspec.structs.asdict(annotations)
        given = {hint: value for hint, value in hints.items() if value is not None}
        annotations = msgspec.structs.replace(old.annotations or ToolAnnotations(), **given)
    kept = {"title": old.title, "icons": old.icons, **options, "meta": meta or None}
    fields = definition_fields(kept, where, name, old.description)
    return msgspec.structs.replace(old, input_schema=schema, annotations=annotations or old.annotations, **fields)


class _Changes:
    """The arguments of a tool in the client's names: their schema, and what is added to those that a client sends."""

    def __init__(self, tool: Tool, arguments: Mapping[str, ArgTransform], where: str) -> None:
        self._arguments, self._where = arguments, where
        Validator(tool.input_schema, where=where)  # raises SetupError if it is no JSON Schema
        self._document = SchemaDocument(tool.input_schema, where, SchemaLimits())
        self._root: JsonSchema = self._document.root  # a copy
        self._properties: JsonSchema = self._root.get("properties", {})
        for own, change in arguments.items():
            if problem := self._problem(own, change):
                raise SetupError(f"{where}, argument {own!r}: {problem}")
        self.hidden = {own for own, change in arguments.items() if change.hide}
        visible = [own for own in self._properties if own not in self.hidden]
        self.names = {own: (own in arguments and arguments[own].name) or own for own in visible}  # the client's
        self._check_names({own: name for own, name in self.names.items() if own != name})
        given = {own: change.default for own, change in arguments.items() if change.default is not UNSET}
        self.added = {own: self._encode(tool, own, value) for own, value in given.items()}  # unless the client sends it
        self.schema = self._write()

    def _problem(self, own: str, change: Any) -> str | None:
        if own not in self._properties:
            hint = did_you_mean(str(own), self._properties) or f"; it has {listed(self._properties) or 'none'}"
            return f"the tool has no such argument{hint}"
        if not isinstance(change, ArgTransform):
            return "its change is no ArgTransform; write ArgTransform(name=…, description=…, …)"
        words = [word for word in ("name", "description", "required") if getattr(change, word) is not None]
        has_default = change.default is not UNSET
        needs_default = own in self._root.get("required", ()) and not has_default
        illegal = change.name is not None and not _ARGUMENT_NAME.match(change.name)
        problems = {
            "its ArgTransform changes nothing; leave it out": not (words or change.hide or has_default),
            f"clients see no {words and words[0]}= of a hidden argument; leave it or hide= out": change.hide and words,
            "it is required; hide it with default=, the value for every call": change.hide and needs_default,
            "required=False needs default=, for calls without it": change.required is False and needs_default,
            "with required=True there is no use for default=; leave one of them out": change.required and has_default,
            f"the name {change.name!r} is not allowed; use 1 to 64 of A-Z a-z 0-9 _ - .": illegal,
        }
        return next((text for text, is_met in problems.items() if is_met), None)

    def _check_names(self, renamed: Mapping[str, str]) -> None:
        """Raises SetupError for a name that is used twice, and where other keywords may depend on a changed name."""
        taken = {own: own for own in self._properties if own not in renamed}
        for own, name in renamed.items():
            if name in taken:
                problem = f"the name {name!r} is taken by the argument {taken[name]!r}; use another one"
                raise SetupError(f"{self._where}, argument {own!r}: {problem}")
            taken[name] = own
        references = [(part, part[word]) for part in self._document.parts for word in _REFERENCES if word in part]
        found = sorted(self._root.keys() - _PLAIN)
        if any(text.startswith("#/p") or self._document.target(part, text) is self._root for part, text in references):
            found.append("a reference to itself or to its properties")
        for own in (*renamed, *self.hidden) if found else ():
            problem = f"the input schema has {found[0]}, which may depend on it; change its description or default only"
            raise SetupError(f"{self._where}, argument {own!r}: {problem}, or wrap the tool in a function of your own")

    def _encode(self, tool: Tool, own: str, value: Any) -> Raw:
        """A default as JSON; raises SetupError, without the value, if it does not fit."""
        alone = {word: part for word, part in self._root.items() if word in _SCOPE}
        fits = False
        try:
            encoded = encode_json({own: value})
            fits = Validator(without_checked_formats(alone), where=self._where).is_valid(_parse(encoded))
            tool.decode(encoded)
        except OutputError:  # it is no JSON
            pass
        except ArgumentError as error:  # which may be about other arguments, as they are missing
            fits = fits and not any(_is_about(own, line) for line in error.problems)
        if not fits:
            problem = f"its default does not fit; it takes {excerpt(self._properties[own])}"
            raise SetupError(f"{self._where}, argument {own!r}: {problem}")
        return Raw(encode_json(_parse(encoded)[own]))

    def _write(self) -> JsonSchema:
        now = {own for own, change in self._arguments.items() if change.required}
        free = self.hidden | self.added.keys() | now
        required = [self.names.get(own, own) for own in self._root.get("required", ()) if own not in free]
        required += [self.names[own] for own in self._properties if own in now]
        schema = {word: part for word, part in self._root.items() if word != "required"}
        schema["properties"] = {name: self._property(own) for own, name in self.names.items()}
        schema |= {"required": required} if required else {}
        return _without_unused(schema, self._where) if self.hidden else schema

    def _property(self, own: str) -> Any:
        change, part = self._arguments.get(own), self._properties[own]
        if change is None:
            return part
        part = dict(part) if isinstance(part, dict) else {} if part else {"not": {}}
        if change.required:
            part.pop("default", None)
        description = {} if change.description is None else {"description": change.description}
        return part | description | ({"default": _parse(self.added[own])} if own in self.added else {})


def _without_unused(schema: JsonSchema, where: str) -> JsonSchema:
    """The schema without the definitions that only hidden arguments needed."""
    document = SchemaDocument(schema, where, SchemaLimits())
    used = {id(part) for part in document.reach(document.root, inside=True)}
    for word in ("$defs", "definitions"):
        for name, part in [*document.root.get(word, {}).items()]:
            if isinstance(part, dict) and used.isdisjoint(map(id, document.reach(part, inside=True))):
                del document.root[word][name]
    return {word: part for word, part in document.root.items() if part or word not in ("$defs", "definitions")}


def _is_about(name: str, line: str) -> bool:
    place = readable((name,), "arguments")
    return line.startswith((f"{place}:", f"{place}.", f"{place}["))


class Rewriter:
    """Makes a client's arguments those of the tool; raises ArgumentError in the client's words."""

    def __init__(self, tool: Tool, subject: str, changes: _Changes) -> None:
        self._decode, self._subject, self.schema = tool.decode, subject, changes.schema
        self._names, self._added = changes.names, changes.added
        self.own_names = {name: own for own, name in self._names.items()}
        self._hidden = {own: value for own, value in self._added.items() if own in changes.hidden}
        self._unusable = (changes.hidden | self._names.keys()) - self.own_names.keys()  # names of the tool alone
        self._required = frozenset(self.schema.get("required", ()))
        self._validator = Validator(without_checked_formats(dict(self.schema)), where=tool.label)

    def decode(self, raw: bytes | Raw) -> dict[str, Any]:
        return self._decoded(self._read(raw))

    def rewrite(self, raw: bytes | Raw) -> Raw:
        """The arguments as JSON in the names of the tool. They are checked here: what gets them uses other words."""
        members = self._read(raw)
        self._decoded(members)
        if not self._validator.is_valid(value := self._value(members)):
            value = lazy_schema.coerce.Coercion(self.schema, Budget()).coerce(value, strings=True)
            if not self._validator.is_valid(value):
                raise self._explained(members, [])
            members = {name: Raw(encode_json(part)) for name, part in value.items()}
        return Raw(self._renamed(members))

    def _read(self, raw: bytes | Raw) -> dict[str, Raw]:
        try:
            members = _members(raw) or {}
        except UNREADABLE:
            raise ArgumentError(self._subject, ["arguments: expected an object"]) from None
        if not self._unusable.isdisjoint(members) or not self._required <= members.keys():
            raise self._explained(members, [])
        return members

    def _renamed(self, members: Mapping[str, Raw]) -> bytes:
        own = {self.own_names.get(name, name): part for name, part in members.items()}
        return msgspec.json.encode({**self._added, **own, **self._hidden})

    def _decoded(self, members: Mapping[str, Raw]) -> dict[str, Any]:
        try:
            return self._decode(self._renamed(members))
        except ArgumentError as error:
            raise self._explained(members, error.problems) from None

    def _value(self, members: Mapping[str, Raw]) -> Any:
        """The value of arguments; UNSET, which fits no schema, if they hold too large a number."""
        try:
            return {name: _parse(part) for name, part in members.items()}
        except UNREADABLE:
            return UNSET

    def _explained(self, members: Mapping[str, Raw], own_lines: list[str]) -> ArgumentError:
        """The problems by the schema that the client knows, and those that only the tool has found."""
        is_large, budget = sum(map(len, members.values())) > MAX_LENIENT_BYTES, Budget()
        lines: list[str] = []
        if not is_large and (value := self._value(members)) is not UNSET:
            value = lazy_schema.coerce.Coercion(self.schema, budget).coerce(value, strings=True)
            lines = self._validator.problems(value, budget=budget)
        unknown = f": unknown argument (known: {listed(self.own_names)})"
        more = [readable((name,), "arguments") + unknown for name in members if name in self._unusable]
        for own, name in self._names.items():
            if not any(_is_about(name, line) for line in lines):
                rests = [line[len(readable((own,), "arguments")) :] for line in own_lines if _is_about(own, line)]
                more += [readable((name,), "arguments") + rest for rest in rests]
        lines += [line for line in more if line not in lines]
        lines = lines or [f"arguments: {DOES_NOT_FIT}"]
        return ArgumentError(self._subject, [*lines, f"arguments: {INCOMPLETE}"] if is_large else lines)
