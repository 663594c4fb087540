"""`ToolTransform` and `ArgTransform`: a tool as clients shall see it, compiled at registration.

Clients get a new definition, and their arguments are checked by its schema. Then they are renamed, hidden values are
added, and the tool decodes them as always.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, Raw

from dovetail.errors import ArgumentError, SetupError
from dovetail.protocol.headers import header_parameters
from dovetail.registry.arguments import LenientDecoder
from dovetail.registry.catalog import check_name
from dovetail.registry.tools import Tool, closed_choices
from dovetail.schema.encode import OutputError, encode_json
from dovetail.schema.explain import DOES_NOT_FIT, excerpt, listed, readable
from dovetail.schema.generate import JsonSchema, without_checked_formats
from dovetail.schema.validate import Validator

# What a schema may have whose arguments are renamed or hidden: all else may name them, count them, or show their values
_PLAIN = {
    "$schema", "$defs", "definitions", "type", "properties", "required", "additionalProperties",
    "title", "description", "$comment",
}  # fmt: skip
_OTHER_REFERENCE = re.compile(rb'"\$(ref|dynamicRef|recursiveRef)":"(?!#/(\$defs|definitions)/)')
_REFERENCE = re.compile(r'"\$(?:ref|dynamicRef|recursiveRef)":"#/(\$defs|definitions)/([^/"]*)')
_members = msgspec.json.Decoder(dict[str, Raw]).decode


class ArgTransform(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of one argument; with `hide` clients don't see it, and the tool gets the `default`, its own if none."""

    name: str | None = None
    description: str | None = None
    default: Any = UNSET
    hide: bool = False


class ToolTransform(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a tool: what is not given stays."""

    name: str | None = None
    description: str | None = None
    arguments: Mapping[str, ArgTransform] = {}
    always_visible: bool | None = None


def transform_tool(tool: Tool, transform: ToolTransform, where: str, prefix: str = "") -> Tool:
    """The tool as clients shall see it, with a name that begins with the prefix. Raises SetupError."""
    if not isinstance(transform, ToolTransform):
        raise SetupError(f"{where}: transform={transform!r} is not possible; write ToolTransform(name=…, …)")
    name = check_name(prefix + (tool.name if transform.name is None else transform.name), where)
    description = tool.description if transform.description is None else transform.description
    definition = msgspec.structs.replace(tool.definition, name=name, description=description)
    is_visible = tool.always_visible if transform.always_visible is None else transform.always_visible
    tool = msgspec.structs.replace(tool, definition=definition, label=f"tool {name}", always_visible=is_visible)
    if not transform.arguments:
        return tool
    rewriter = Rewriter(tool, transform.arguments, where)
    return msgspec.structs.replace(
        tool,
        definition=msgspec.structs.replace(definition, input_schema=rewriter.schema),
        decode=rewriter.decode,
        rewriter=rewriter,
        choices=closed_choices(rewriter.schema),
        headers=header_parameters(rewriter.schema, secrets=True),
    )


class Rewriter(LenientDecoder):
    """Checks a client's arguments by the schema that it knows, and makes them those of the tool."""

    def __init__(self, tool: Tool, arguments: Mapping[str, ArgTransform], where: str) -> None:
        self.subject, self.lenient, self._decode = tool.name, tool.lenient, tool.decode
        changes = _Changes(tool, arguments, where)
        self.schema, self.own_names, self._added = changes.schema, changes.own_names, changes.added
        self._validator = Validator(without_checked_formats(self.schema), where=where)

    def decode(self, raw: bytes | Raw) -> dict[str, Any]:
        return self._decoded(self._renamed(raw))

    def rewrite(self, raw: bytes | Raw) -> Raw:
        """The arguments as JSON in the names of the tool; decoded too, since what gets them uses other words."""
        own = self._renamed(raw)
        self._decoded(own)
        return Raw(own)

    def _renamed(self, raw: bytes | Raw) -> bytes:
        fits = self._validator.is_valid(self._parse(raw))
        arguments = _members(raw) if fits else self._decode_again(raw)
        own = {self.own_names.get(name, name): value for name, value in arguments.items()}
        return msgspec.json.encode({**self._added, **own})

    def _from_value(self, value: Any) -> dict[str, Any] | None:
        return value if self._validator.is_valid(value) else None

    def _decoded(self, arguments: bytes) -> dict[str, Any]:
        try:
            return self._decode(arguments)
        except ArgumentError as error:  # which may be about a hidden argument, or show all names
            lines = [
                _place(name) + line[len(_place(own)) :]
                for name, own in self.own_names.items()
                for line in error.problems
                if _is_about(own, line)
            ]
            raise ArgumentError(self.subject, lines or [f"arguments: {DOES_NOT_FIT}"]) from None


def _place(name: str) -> str:
    return readable((name,), "arguments")


def _is_about(name: str, line: str) -> bool:
    return line.startswith(tuple(_place(name) + mark for mark in ":.["))


def _drop_unused_definitions(schema: JsonSchema) -> None:
    known = {word: schema.pop(word) for word in ("$defs", "definitions") if word in schema}
    parts = [schema["properties"]]
    for part in parts:  # which grow by what they refer to
        for word, step in _REFERENCE.findall(encode_json(part).decode()):
            name, kept = unquote(step).replace("~1", "/").replace("~0", "~"), schema.setdefault(word, {})
            if name not in kept and name in known.get(word, ()):
                kept[name] = known[word][name]
                parts.append(kept[name])


class _Changes:
    """The arguments of a tool in the client's names: their schema, and what is added to those that a client sends."""

    def __init__(self, tool: Tool, arguments: Mapping[str, ArgTransform], where: str) -> None:
        self._tool, self._arguments, self._where = tool, arguments, where
        Validator(tool.input_schema, where=where)  # raises SetupError if it is no JSON Schema
        self._properties: Mapping[str, Any] = tool.input_schema.get("properties", {})
        self._in_the_way = sorted(tool.input_schema.keys() - _PLAIN)
        if _OTHER_REFERENCE.search(encode_json(tool.input_schema)):
            self._in_the_way.append("a reference to something else than its $defs")
        self.own_names: dict[str, str] = {}  # by the client's
        self.added: dict[str, Raw] = {}  # unless the client sends it
        for own, change in arguments.items():
            self._check(own, change)
        for own in self._properties:
            change = arguments.get(own, ArgTransform())
            name = change.name or own
            if not change.hide and (other := self.own_names.setdefault(name, own)) != own:
                raise self._refusal(own, f"the name {name!r} is taken by the argument {other!r}; use another one")
            if change.default is not UNSET:
                self.added[own] = self._encoded(own, change.default)
        self.schema = self._write()

    def _refusal(self, own: str, problem: str) -> SetupError:
        return SetupError(f"{self._where}, argument {own!r}: {problem}")

    def _check(self, own: str, change: ArgTransform) -> None:
        if own not in self._properties:
            raise self._refusal(own, f"the tool has no such argument; it has {listed(self._properties) or 'none'}")
        if not isinstance(change, ArgTransform):
            raise self._refusal(own, "its change is no ArgTransform; write ArgTransform(name=…, description=…, …)")
        if change.hide and (change.name or change.description):
            raise self._refusal(own, "clients see no name= or description= of a hidden argument; leave it or hide= out")
        if change.hide and change.default is UNSET and own in self._tool.input_schema.get("required", ()):
            raise self._refusal(own, "it is required; hide it with default=, the value for every call")
        if (change.hide or change.name) and self._in_the_way:
            problem = f"the input schema has {self._in_the_way[0]}, which may depend on it"
            raise self._refusal(own, f"{problem}; change its description or default only, or wrap the tool")

    def _encoded(self, own: str, value: Any) -> Raw:
        """A default as JSON; raises SetupError, without the value, if it does not fit."""
        optional = {word: part for word, part in self._tool.input_schema.items() if word != "required"}
        validator = Validator(without_checked_formats(optional), where=self._where)
        problems: list[str] = []
        try:
            encoded = encode_json({own: value})
            problems = validator.problems(msgspec.json.decode(encoded))
            self._tool.decode(encoded)
        except OutputError:
            problems = [f"{_place(own)}: it is no JSON"]
        except ArgumentError as error:
            problems += error.problems  # which may be about other arguments, as they are missing
        if any(_is_about(own, line) for line in problems):
            raise self._refusal(own, f"its default does not fit; it takes {excerpt(self._properties[own])}")
        return _members(encoded)[own]

    def _write(self) -> JsonSchema:
        names = {own: name for name, own in self.own_names.items()}
        schema = {**self._tool.input_schema, "properties": {name: self._property(own) for own, name in names.items()}}
        needed = [names.get(own, own) for own in schema.pop("required", ()) if own not in self.added]
        schema |= {"required": needed} if needed else {}
        if any(change.hide or change.name for change in self._arguments.values()):
            schema["additionalProperties"] = False  # no client may send an argument by its own name
        if any(change.hide for change in self._arguments.values()):
            _drop_unused_definitions(schema)  # which may tell of a hidden argument
        return schema

    def _property(self, own: str) -> Any:
        part, change = self._properties[own], self._arguments.get(own, ArgTransform())
        changed: JsonSchema = {} if change.description is None else {"description": change.description}
        if own in self.added:
            changed["default"] = msgspec.json.decode(self.added[own])
        return {**(part if isinstance(part, Mapping) else {}), **changed} if changed else part
