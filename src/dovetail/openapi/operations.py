"""Operations of an OpenAPI document as definitions of tools, and what each needs to become a request."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dovetail.protocol.types import ToolDefinition

Names = (
    Mapping[str, str] | Callable[[str | None, str, str], str] | None
)  # by operationId; or (operationId, method, path)


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of an operation, and the argument of the tool that fills it."""

    argument: str  # of the tool
    name: str  # at the API
    place: str  # "path", "query" or "header"
    required: bool = False
    style: str = "form"  # simple, label, matrix, form, spaceDelimited, pipeDelimited or deepObject
    explode: bool = True
    allow_reserved: bool = False
    is_json: bool = False  # it is described by `content`: its value is JSON text
    allow_empty: bool = False


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """How one property of a form or multipart body is written: OpenAPI's Encoding Object."""

    content_type: str | None = None
    style: str | None = None
    explode: bool = True
    allow_reserved: bool = False
    is_binary: bool = False  # the argument is base64; its bytes are sent as a file


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an operation's requests, and the arguments that fill it."""

    content_type: str  # as it is sent
    kind: str  # "json", "form", "multipart", "text" or "binary"
    properties: Mapping[str, str] | None = None  # by argument; None: one argument is the whole body
    argument: str = "body"  # that one
    required: bool = False
    parts: Mapping[str, Part] = {}  # by property


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of an API, as a tool."""

    name: str  # of the tool
    method: str  # in upper case
    path: str  # with {variables}
    base_url: str  # of its requests, without a slash at its end
    definition: ToolDefinition
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    security: tuple[Mapping[str, Sequence[str]], ...] = ()  # alternatives: scopes by scheme; () and {} need none


class Report(msgspec.Struct, kw_only=True):
    """What became of a document: each entry is a sentence that begins with its place, as `GET /pets: …`."""

    tools: int = 0
    cut: list[str] = []
    left_out: list[str] = []
    notes: list[str] = []

    def __str__(self) -> str:
        titles = {"cut": self.cut, "left out": self.left_out, "notes": self.notes}
        counts = ", ".join([f"{self.tools} tools", *(f"{len(entries)} {title}" for title, entries in titles.items())])
        sections = (
            "\n".join([f"{title}:", *(f"  {entry}" for entry in entries)])
            for title, entries in titles.items()
            if entries
        )
        return "\n".join([counts, *sections])
