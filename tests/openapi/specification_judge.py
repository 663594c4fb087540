"""Requests as they arrived, and an independent validator's opinion of each: openapi-core.

Security is cut out of the specification: requests are made without credentials.
"""

import json
import re
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from socket import socket
from typing import Any
from urllib.parse import parse_qsl, unquote

from aiohttp import web
from jsonschema.exceptions import UnknownType
from openapi_core import Config, OpenAPI
from openapi_core.casting.schemas import oas30_write_schema_casters_factory, oas31_schema_casters_factory
from openapi_core.datatypes import RequestParameters
from openapi_core.deserializing.styles import StyleDeserializersFactory, style_deserializers
from werkzeug.datastructures import Headers, ImmutableMultiDict

# OpenAPI: `readOnly` is said of properties, not of parameters, and a parameter that is called Accept is to be ignored
NOT_OF_PARAMETERS = re.compile(r"Invalid (path|query|header) parameter: .*read-only|Invalid header parameter: Accept:")
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
Spec = dict[str, Any]


@dataclass(frozen=True)
class Arrived:
    """An HTTP request, as a server got it."""

    method: str
    target: str  # path and query, encoded
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")


@asynccontextmanager
async def recording(listener: socket) -> AsyncIterator[list[Arrived]]:
    """A server that notes every request, and has no content to answer with."""
    seen: list[Arrived] = []

    async def note(request: web.BaseRequest) -> web.Response:
        seen.append(Arrived(request.method, request.raw_path, list(request.headers.items()), await request.read()))
        return web.Response(status=204)

    runner = web.ServerRunner(web.Server(note))
    await runner.setup()
    await web.SockSite(runner, listener.dup()).start()
    try:
        yield seen
    finally:
        await runner.cleanup()


def read(text: bytes) -> Spec:
    """A specification. Types in 3.1 become unions: openapi-core does not read a list of types in a parameter.

    Codat says `nullable` in 3.1, where there is no such word any more, and means it.
    """
    spec: Spec = json.loads(text)
    return spec if spec["openapi"].startswith("3.0") else json.loads(text, object_hook=_union_of_types)


def _union_of_types(schema: Spec) -> Spec:
    kinds = schema.get("type")
    if schema.get("nullable") is True and isinstance(kinds, str):
        kinds = [kinds, "null"]
    elif schema.get("nullable") is True and "$ref" in schema:
        return {"anyOf": [{"$ref": schema["$ref"]}, {"type": "null"}]}
    if not isinstance(kinds, list) or "anyOf" in schema:
        return schema
    return {
        **{key: value for key, value in schema.items() if key != "type"},
        "anyOf": [{"type": kind} for kind in kinds],
    }


def operations(spec: Spec) -> Iterator[tuple[str, str]]:
    """Method and path of each operation."""
    for path, item in spec["paths"].items():
        yield from ((method, path) for method in METHODS if method in item)


@dataclass
class JudgedRequest:
    """A request in the form that openapi-core takes."""

    arrived: Arrived
    path_pattern: str
    host_url: str = "http://127.0.0.1"
    parameters: RequestParameters = field(init=False)

    def __post_init__(self) -> None:
        raw_path, _, query = self.arrived.target.partition("?")
        cookies: ImmutableMultiDict[str, str] = ImmutableMultiDict()
        self.path = raw_path
        self.method = self.arrived.method.lower()
        self.body = self.arrived.body
        self.content_type = self.arrived.header("content-type")
        self.parameters = RequestParameters(
            query=ImmutableMultiDict(parse_qsl(query, keep_blank_values=True)),
            header=Headers(self.arrived.headers),
            cookie=cookies,
            path=path_values(self.path_pattern.partition("#")[0], raw_path),  # a fragment is never sent
        )


def path_values(template: str, path: str) -> dict[str, str]:
    """The values of the variables of a path. Raises AssertionError if it is another path."""
    names = re.findall(r"\{([^{}]+)\}", template)
    literals = re.split(r"\{[^{}]+\}", template)
    found = re.fullmatch("([^/]+)".join(map(re.escape, literals)), path)
    assert found, f"{path} is not {template}"
    return dict(zip(names, map(unquote, found.groups()), strict=True))


def problems(spec: Spec, path: str, arrived: Arrived) -> list[str]:
    """What openapi-core has against a request."""
    method = arrived.method.lower()
    item = spec["paths"][path]
    operation = {key: value for key, value in item[method].items() if key not in ("security", "servers")}
    cut = {
        **{key: value for key, value in spec.items() if key not in ("security", "webhooks")},
        "servers": [{"url": JudgedRequest.host_url}],
        "paths": {**spec["paths"], path: {**item, "servers": [], method: operation}},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of whatever is deprecated in a specification
        judge = OpenAPI.from_dict(cut, config=_config(spec["openapi"], arrived.header("content-type")))
        try:
            found = [_in_words(error) for error in judge.iter_request_errors(JudgedRequest(arrived, path))]
        except (AssertionError, UnknownType) as error:  # a body that is no form, a schema that is none
            return [f"openapi-core can't read it: {error!r:.300}"]
    return [words for words in found if not NOT_OF_PARAMETERS.match(words)]


def _in_words(error: BaseException | None) -> str:
    words = []
    while error is not None:
        details = getattr(error, "schema_errors", None)
        words.append(f"{error}" + "".join(f" [{each.message:.200}]" for each in details or ()))
        error = error.__cause__
    return ": ".join(words)[:1500]


# ── what openapi-core has to be taught, at the places that it has for that ──


def _config(version: str, content_type: str) -> Config:
    """It reads JSON in `application/json` alone, and `deepObject` in one level of objects alone."""
    media_type = content_type.partition(";")[0]
    is_json = media_type.endswith("json")
    casters = oas30_write_schema_casters_factory if version.startswith("3.0") else oas31_schema_casters_factory
    styles = {**style_deserializers, "deepObject": _read_deep_object}
    return Config(
        spec_validator_cls=None,
        style_deserializers_factory=StyleDeserializersFactory(casters, styles),
        extra_media_type_deserializers={media_type: _read_json, "*/*": _read_json} if is_json else {},
    )


def _read_json(value: bytes, **_parameters: str) -> Any:
    return json.loads(value)


def _read_deep_object(_explode: bool, name: str, _type: str, location: Any) -> Any:
    """`a[b][0]=c` as `{"b": ["c"]}`: objects and lists of any depth, or the plain value of `a=c`."""
    if name in location:
        return location[name]
    tree: dict[str, Any] = {}
    for key, value in location.items(multi=True):
        if re.fullmatch(re.escape(name) + r"(\[[^\[\]]*\])+", key):
            *steps, last = re.findall(r"\[([^\[\]]*)\]", key)
            inner = tree
            for step in steps:
                inner = inner.setdefault(step, {})
            inner[last or f"{len(inner)}"] = value
    if not tree:
        raise KeyError(name)
    return _lists(tree)


def _lists(tree: Any) -> Any:
    """Objects whose keys are 0, 1, 2 … are lists."""
    if not isinstance(tree, dict):
        return tree
    if list(tree) == [str(number) for number in range(len(tree))]:
        return [_lists(value) for value in tree.values()]
    return {key: _lists(value) for key, value in tree.items()}
