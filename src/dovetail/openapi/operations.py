"""Operations of an OpenAPI document as definitions of tools, and what each needs to become a request."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec.structs import replace

from dovetail.errors import SetupError
from dovetail.openapi.document import BadReference, Document, as_list, as_object, origin_of, without_secrets
from dovetail.openapi.schemas import Schema, SchemaPart, Schemas, free_name
from dovetail.protocol.types import TAGS_KEY, ToolAnnotations, ToolDefinition
from dovetail.registry.registration import did_you_mean
from dovetail.schema.explain import excerpt

Names = Mapping[str, str] | Callable[[str | None, str, str], str] | None  # by operationId; or of it, method and path

MAX_INPUT = 32 * 1024  # bytes of an input schema
MAX_OUTPUT = 16 * 1024  # bytes of an output schema

METHODS = {  # hints on idempotence mean nothing where nothing is changed
    **dict.fromkeys(("get", "head", "options", "trace"), ToolAnnotations(read_only_hint=True, open_world_hint=True)),
    **dict.fromkeys(("post", "patch"), ToolAnnotations(open_world_hint=True)),
    "put": ToolAnnotations(idempotent_hint=True, open_world_hint=True),
    "delete": ToolAnnotations(destructive_hint=True, idempotent_hint=True, open_world_hint=True),
}
STYLES = {  # by place, the default first
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
RESERVED_HEADERS = re.compile(  # of the client, of connections and of proxies: never chosen by a model
    r"accept|accept-encoding|content-(type|length|encoding)|authorization|host|cookie2?|set-cookie|connection|keep-alive"
    r"|transfer-encoding|te|trailer|upgrade|expect|via|forwarded|origin|x-forwarded-.*|x-real-ip|proxy-.*|sec-.*"
    r"|x-http-method(-override)?|x-method-override",
    re.IGNORECASE,
)
_NO_LETTER = re.compile(r"[\W_]")
_JSON = re.compile(r"[^;]+[/+]json(;.*)?", re.IGNORECASE)
MEDIA = tuple(  # of bodies, the best first
    (kind, re.compile(pattern + r"(;[ -~]*)?", re.IGNORECASE))
    for kind, pattern in (
        ("json", r"application/json"),
        ("json", r"application/merge-patch\+json"),
        ("json", r"[\w.+-]+/([\w.-]+\+)?json|\*/\*|application/\*"),
        ("form", r"application/x-www-form-urlencoded"),
        ("multipart", r"multipart/form-data"),
        ("text", r"text/[\w.+*-]+"),
        ("binary", r"application/(octet-stream|zip|gzip|pdf|x-tar|x-gzip)|(image|audio|video)/[\w.+*-]+"),
    )
)
_SENT = {"json": "application/json", "text": "text/plain"}  # for a media type with a star
_CONTENT = {"text": {"type": "string"}, "binary": {"type": "string", "format": "binary"}}  # other kinds have a schema
_FLAT = {"type", "properties", "required", "description", "additionalProperties", "default", "deprecated"}

_PATH = re.compile(r"(/(?!\.{1,2}(/|#|$))[^/?#\s\\]*)+(#.*)?")  # a fragment tells paths apart, and is not sent
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(;[ -~]*)?")
_PLAIN_URL = re.compile(r"[^\s?#{}\\]+")
_TAGS = "a|b|blockquote|br|code|div|em|h[1-6]|hr|i|img|li|ol|p|pre|span|strong|table|tbody|td|th|thead|tr|ul"
_NOISE = (
    (re.compile(rf"<!--.*?-->|</?({_TAGS})\b[^<>]*>", re.DOTALL | re.IGNORECASE), " "),
    (re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*\)"), r"\1"),  # links and images
    (re.compile(r"^#+ +|\*\*|```\w*", re.MULTILINE), ""),
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r"\s*\n\s*"), "\n"),
)


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of an operation, and the argument of the tool that fills it."""

    argument: str  # of the tool
    name: str  # at the API
    place: str  # "path", "query" or "header"
    style: str = "form"  # simple, label, matrix, form, spaceDelimited, pipeDelimited or deepObject
    explode: bool = True
    is_json: bool = False  # it is described by `content`: its value is JSON text


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """How one property of a form or multipart body is written: OpenAPI's Encoding Object."""

    content_type: str | None = None
    style: str | None = None
    explode: bool = True
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
        tools = "1 tool" if self.tools == 1 else f"{self.tools} tools"
        lines = [", ".join([tools, *(f"{len(found)} {title}" for title, found in titles.items())])]
        for title, found in titles.items():
            lines += [f"{title}:", *(f"  {entry}" for entry in found)] if found else []
        return "\n".join(lines)


def read_operations(
    document: Document,
    *,
    base_url: str | None = None,
    only: Collection[str] | None = None,
    names: Names = None,
    max_description_tokens: int = 200,
) -> tuple[list[Operation], Report]:
    """The operations of a document that `only` chooses, as tools, and the report. Raises SetupError."""
    given = {"base_url": base_url, "only": only, "names": names, "max_description_tokens": max_description_tokens}
    for option, (is_possible, what) in _OPTIONS.items():
        if not is_possible(given[option]):
            raise SetupError(f"OpenApi: {option}={excerpt(given[option])} is not possible; it must be {what}")
    report = Report()
    entries = _choose(_entries(document, report), [only] if isinstance(only, str) else only)
    reader = _Reader(document, report, base_url and _checked_url(base_url, "base_url="), max_description_tokens)
    named = _name_all(entries, names, report)
    operations = []
    for name, entry in named:
        try:
            operations.append(reader.read(entry, name))
        except (_Unusable, BadReference) as reason:
            report.left_out.append(f"{entry.place}: {reason}")
        except RecursionError:  # values of JSON, as in `enum`, that are compared
            report.left_out.append(f"{entry.place}: it is nested too deeply")
    if not operations:
        raise SetupError(f"the document has no operation that can be a tool. {' '.join(report.left_out[:3])}".strip())
    report.tools = len(operations)
    report.notes = list(dict.fromkeys(report.notes))  # requests and responses share broken references
    if reader.texts_cut:
        report.cut.append(f"components: {reader.texts_cut} descriptions in schemas, to {max_description_tokens} tokens")
    return operations, report


def _are_patterns(only: Any) -> bool:
    return isinstance(only, Collection) and bool(only) and all(isinstance(each, str) for each in only)


_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "base_url": (lambda value: value is None or isinstance(value, str), "a URL"),
    "only": (lambda value: value is None or _are_patterns(value), 'patterns such as "GET *" and "tag:orders"'),
    "names": (
        lambda value: value is None or isinstance(value, Mapping) or callable(value),
        "a dict by operationId, or a function of (operation_id, method, path)",
    ),
    "max_description_tokens": (lambda value: isinstance(value, int) and value >= 0, "a whole number, 0 or more"),
}


class _Unusable(Exception):
    """An operation that can't be a tool; says why."""


class _Entry(NamedTuple):
    """An operation where it stands in the document."""

    method: str
    path: str
    item: dict[str, Any]  # the path item
    node: dict[str, Any]  # the operation in it
    base: str  # the file of both

    @property
    def place(self) -> str:
        return f"{self.method.upper()} {self.path}"

    @property
    def id(self) -> str | None:
        given = self.node.get("operationId")
        return given if isinstance(given, str) and given else None

    @property
    def tags(self) -> list[str]:
        return [tag for tag in as_list(self.node.get("tags")) if isinstance(tag, str)]


def _entries(document: Document, report: Report) -> list[_Entry]:
    found = []
    for path, given in document.spec.get("paths", {}).items():
        try:
            item, base = document.follow(given, document.base)
        except BadReference as reason:
            report.left_out.append(f"paths.{path}: {reason}")
            continue
        methods = [method for method in METHODS if method in as_object(item)]
        if not isinstance(item, dict) or (methods and not _PATH.fullmatch(path)):
            report.left_out.append(f"paths.{path}: a path begins with / and has no query, no spaces and no dots alone")
            continue
        for method in methods:
            if isinstance(item[method], dict):
                found.append(_Entry(method, path, item, item[method], base))
            else:
                report.left_out.append(f"paths.{path}.{method}: it is no object")
    return found


def _choose(entries: list[_Entry], only: Collection[str] | None) -> list[_Entry]:
    """The entries that fit one of the patterns, all if there are none; raises SetupError for one that fits nothing."""
    chosen: set[int] = set()
    for pattern in only or ():
        fitting = [number for number, entry in enumerate(entries) if _fits(entry, pattern)]
        if not fitting:
            known = [(each.place, each.path, each.id or "", *map("tag:{}".format, each.tags)) for each in entries]
            raise SetupError(f"only={pattern!r} fits no operation{did_you_mean(pattern, chain.from_iterable(known))}")
        chosen.update(fitting)
    return [entries[number] for number in sorted(chosen)] if only else entries


def _fits(entry: _Entry, pattern: str) -> bool:
    method, _, path = pattern.partition(" ")
    if path:
        return fnmatchcase(entry.method.upper(), method.upper()) and fnmatchcase(entry.path, path.strip())
    if pattern.startswith("tag:"):
        return any(fnmatchcase(tag, pattern[4:]) for tag in entry.tags)
    return fnmatchcase(entry.path if pattern.startswith("/") else entry.id or "", pattern)


def _name_all(entries: list[_Entry], names: Names, report: Report) -> list[tuple[str, _Entry]]:
    """The entries with the names of their tools. Raises SetupError for a given name that can't be used."""
    ids = [entry.id for entry in entries if entry.id]
    if isinstance(names, Mapping) and (unknown := names.keys() - {*ids}):
        word = min(map(str, unknown))
        raise SetupError(f"names= has {word!r}, and no operation has this operationId{did_you_mean(word, ids)}")
    given: list[Any] = [_given_name(entry, names) for entry in entries]
    taken = Counter(filter(None, given))
    named, changed = [], []
    for name, entry in zip(given, entries, strict=True):
        if name is None:
            wanted = _default_name(entry)
            name = free_name(wanted, taken, taken[wanted] + 1)
            if name != wanted:
                report.notes.append(f"{entry.place}: its tool is called {name}, because {wanted} is taken")
            elif entry.id not in (None, name):
                changed.append((name, entry))
            taken.update({name, wanted})
        elif not isinstance(name, str) or taken[name] > 1 or not _NAME.fullmatch(name):
            allowed = "1 to 64 letters, digits, _ or -, and each name once"
            raise SetupError(f"names= gives {name!r} to {entry.place}; use {allowed}")
        named.append((name, entry))
    for name, entry in changed[:1]:  # often they are all of a document
        more = f"; {len(changed) - 1} others are changed alike" if len(changed) > 1 else ""
        why = f"because {excerpt(entry.id)} is no name of a tool{more}"
        report.notes.append(f"{entry.place}: its tool is called {name}, {why}")
    return named


def _given_name(entry: _Entry, names: Names) -> str | None:
    if callable(names):
        return names(entry.id, entry.method.upper(), entry.path)
    return names.get(entry.id or "") if names else None


def _default_name(entry: _Entry) -> str:
    names = (re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_") for text in (entry.id or "", entry.method + entry.path))
    name = next(filter(None, names))
    return (name if re.match(r"[A-Za-z_]", name) else f"{entry.method}_{name}")[:64].rstrip("_")


class _Arguments:
    """The arguments of a tool: all parameters and the properties of the body in one object."""

    def __init__(self) -> None:
        self.properties: dict[str, SchemaPart] = {}
        self.required: list[str] = []

    def add(self, name: str, place: str, part: SchemaPart, *, required: bool) -> str:
        """Add one; returns its name, which differs from the API's if that is taken or not for a tool."""
        argument = name
        if not _ARGUMENT.fullmatch(name):
            argument = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_")[:64] or "argument"
        if argument in self.properties:
            argument = free_name(f"{argument[: 63 - len(place)]}_{place}", self.properties, len(self.properties))
        self.properties[argument] = part
        self.required += [argument] if required else []
        return argument

    @property
    def outline(self) -> Schema:
        required = {"required": self.required} if self.required else {}
        return {"type": "object", "properties": self.properties, **required, "additionalProperties": False}


class _Reader:
    """Reads the operations of one document."""

    def __init__(self, document: Document, report: Report, base_url: str | None, tokens: int) -> None:
        self._document = document
        self._report = report
        self._base_url = base_url
        self._bytes = 4 * tokens
        self.texts_cut = 0
        self._requests = Schemas(document, self._describe, report.notes)
        self._responses = Schemas(document, _first_line, report.notes, is_response=True)
        keys = [each for each in document.security_schemes.values() if each.get("type") == "apiKey"]
        self._keys = {(str(each.get("in")), str(each.get("name")).lower()) for each in keys}

    def _describe(self, text: str) -> str:
        shortened = shorten(text, self._bytes)
        self.texts_cut += shortened.endswith("…")
        return shortened

    def read(self, entry: _Entry, name: str) -> Operation:
        """The operation of an entry. Raises _Unusable, BadReference."""
        base_url = self._base_url or self._server(entry)
        arguments = _Arguments()
        parameters = tuple(self._parameters(entry, arguments))
        body = self._body(entry, arguments)
        built = self._requests.build(arguments.outline, MAX_INPUT)
        if built is None:
            raise _Unusable(f"its arguments need more than {MAX_INPUT:,} bytes of JSON Schema")
        if built[1]:
            self._report.cut.append(f"{entry.place}: deeper levels of its arguments, which may be anything now")
        if entry.node.get("deprecated") is True:
            self._note(entry, "it is deprecated")
        definition = ToolDefinition(
            name=name,
            title=_title(entry.node.get("summary")),
            description=self._description(entry),
            input_schema=built[0],
            output_schema=self._output(entry),
            annotations=METHODS[entry.method],
            meta={TAGS_KEY: tags} if (tags := entry.tags) else None,
        )
        return Operation(
            name=name,
            method=entry.method.upper(),
            path=entry.path.partition("#")[0],
            base_url=base_url,
            definition=definition,
            parameters=parameters,
            body=body,
            security=self._security(entry),
        )

    def _description(self, entry: _Entry) -> str:
        summary, text = (str(entry.node.get(key) or "").strip() for key in ("summary", "description"))
        words, name = (_NO_LETTER.sub("", str(each)).lower() for each in (summary, entry.node.get("operationId")))
        is_repeated = text.startswith(summary.rstrip(".")) or (text and name.startswith(words))  # as FastAPI's are
        whole = text if is_repeated else f"{summary}\n{text}"
        shortened = shorten(whole, self._bytes)
        if shortened.endswith("…"):
            self._report.cut.append(f"{entry.place}: its description of {len(whole) // 4:,} tokens")
        return shortened or entry.place

    def _security(self, entry: _Entry) -> tuple[Mapping[str, Sequence[str]], ...]:
        holder = entry.node if "security" in entry.node else self._document.spec
        given = [each for each in as_list(holder.get("security")) if isinstance(each, dict)]
        return tuple({name: as_list(scopes) for name, scopes in each.items()} for each in given)

    def _server(self, entry: _Entry) -> str:
        """The URL of the server of an operation. Raises SetupError if the whole document has none."""
        holders = (entry.node, entry.item, self._document.spec)
        holder = next((holder for holder in holders if holder.get("servers")), self._document.spec)
        origin = self._document.origin
        try:
            url = urljoin(origin or "", _filled(holder.get("servers")))
            if origin and origin_of(url) != origin_of(origin):
                raise _Unusable(f"its server {without_secrets(url)[:200]} is at another origin than the document")
            return _checked_url(url, "servers")
        except (_Unusable, SetupError, ValueError) as problem:
            if holder is self._document.spec:
                raise SetupError(f"{problem}; name the server by base_url=") from None
            raise _Unusable(str(problem)) from None

    def _parameters(self, entry: _Entry, arguments: _Arguments) -> Iterator[Parameter]:
        variables = dict.fromkeys(re.findall(r"\{([^{}]+)\}", entry.path.partition("#")[0]))
        found = self._found_parameters(entry)
        for name in variables:
            found.setdefault(("path", name), ({"name": name, "in": "path", "schema": {"type": "string"}}, entry.base))
        for place in STYLES:
            for (_, key), (node, base) in found.items():
                if node["in"] != place or (place, key.lower()) in self._keys:
                    continue  # of another place, or filled by `auth=`
                if place == "cookie" or (place == "header" and RESERVED_HEADERS.fullmatch(key)):
                    if node.get("required") is True:
                        self._note(entry, f"it requires the {place} {node['name']}, which is never an argument")
                elif place != "path" or key in variables:
                    yield self._parameter(node, base, arguments)

    def _note(self, entry: _Entry, text: str) -> None:
        self._report.notes.append(f"{entry.place}: {text}")

    def _found_parameters(self, entry: _Entry) -> dict[tuple[str, str], tuple[Schema, str]]:
        """The parameters by place and name, with their files; those of the operation replace those of its path."""
        found = {}
        for holder, where in ((entry.item, f"paths.{entry.path}"), (entry.node, f"paths.{entry.path}.{entry.method}")):
            given = [] if holder.get("parameters") is None else holder["parameters"]
            if not isinstance(given, list):
                raise _Unusable(f"{where}.parameters: it is no list")
            for index, each in enumerate(given):
                node, base = self._document.follow(each, entry.base)
                name, place = as_object(node).get("name"), as_object(node).get("in")
                if not isinstance(name, str) or not name or place not in [*STYLES]:
                    wrong = f'it has no "name", or "in" is none of {", ".join(STYLES)}'
                    raise _Unusable(f"{where}.parameters[{index}]: {wrong}")
                found[place, name.lower() if place == "header" else name] = (node, base)
        return found

    def _parameter(self, node: Schema, base: str, arguments: _Arguments) -> Parameter:
        name, place = node["name"], node["in"]
        media, content = next(iter(as_object(node.get("content")).items()), ("", {}))
        schema: SchemaPart = ((as_object(content).get("schema") if media else node.get("schema"), base),)
        if not self._requests.read(schema).keys() & {"type", "enum", "const", "anyOf", "allOf"}:
            schema += (({"type": "string"}, base),)
        if "description" in node:
            schema += (({"description": node["description"]}, base),)
        required = place == "path" or node.get("required") is True
        style = next((style for style in STYLES[place] if style == node.get("style")), STYLES[place][0])
        return Parameter(
            argument=arguments.add(name, place, schema, required=required),
            name=name,
            place=place,
            style=style,
            explode=node["explode"] if isinstance(node.get("explode"), bool) else style == "form",
            is_json=bool(_JSON.fullmatch(media)),
        )

    def _body(self, entry: _Entry, arguments: _Arguments) -> Body | None:
        given, base = self._document.follow(entry.node.get("requestBody"), entry.base)
        content = as_object(as_object(given).get("content"))
        if not content:
            return None
        required = given.get("required") is True
        if entry.method in ("get", "head", "trace"):
            if required:
                self._note(entry, f"its body is not sent, as {entry.method.upper()} has none")
            return None
        kind, media = _chosen_media(content)
        node = as_object(content[media])
        part: SchemaPart = ((_CONTENT.get(kind) or node.get("schema"), base),)
        schema = self._requests.read(part)
        if kind in ("form", "multipart") and "type" not in schema:
            part += (({"type": "object"}, base),)
        sent = _SENT.get(kind, "application/octet-stream") if "*" in media else media
        body = Body(content_type=sent, kind=kind, required=required)
        needed = schema.get("required", ())
        if not _is_flat(schema) or (needed and not required):  # an optional body is given as a whole, or not at all
            if "description" in given:
                part += (({"description": given["description"]}, base),)
            return replace(body, argument=arguments.add("body", "body", part, required=required))
        if schema.get("additionalProperties"):
            self._note(entry, "further properties of its body can't be given")
        shown = schema["properties"]
        by_argument = {arguments.add(name, "body", part, required=name in needed): name for name, part in shown.items()}
        return replace(body, properties=by_argument, parts=self._parts(node, shown))

    def _parts(self, media: Schema, properties: dict[str, SchemaPart]) -> dict[str, Part]:
        """How the properties of a form or multipart body are written, where that is not as usual."""
        parts = {}
        for name, schema in properties.items():
            encoding = as_object(as_object(media.get("encoding")).get(name))
            is_binary = self._is_binary(schema)
            if encoding or is_binary:
                style, explode = encoding.get("style"), encoding.get("explode")
                media_type = str(encoding.get("contentType")).partition(",")[0].strip()
                parts[name] = Part(
                    content_type=media_type if _MEDIA_TYPE.fullmatch(media_type) else None,
                    style=style if style in STYLES["query"] else None,
                    explode=explode if isinstance(explode, bool) else style in (None, "form"),
                    is_binary=is_binary,
                )
        return parts

    def _is_binary(self, part: SchemaPart) -> bool:
        schema = self._requests.read(part)
        items = self._requests.read(schema["items"]) if "items" in schema else {}
        return "binary" in (schema.get("format"), items.get("format"))

    def _output(self, entry: _Entry) -> Schema | None:
        """The schema of the results: of all successful responses, if it is one object; else None."""
        try:
            found = [self._response(each, entry.base) for each in _successful(as_object(entry.node.get("responses")))]
        except BadReference as reason:
            self._note(entry, f"its results are not described: {reason}")
            return None
        if entry.method == "head" or not found or not found[0] or any(each != found[0] for each in found):
            return None
        schema = self._responses.read((found[0],))
        if "object" not in schema.get("type", ()) or not schema.get("properties"):
            return None
        built = self._responses.build({**schema, "type": "object"}, MAX_OUTPUT)
        if built and not built[1]:
            return built[0]
        self._report.cut.append(f"{entry.place}: its output schema, which is larger than {MAX_OUTPUT:,} bytes")
        return None

    def _response(self, given: Any, base: str) -> tuple[Any, str] | None:
        node, base = self._document.follow(given, base)
        content = as_object(as_object(node).get("content"))
        media = next((media for media in content if _JSON.fullmatch(media)), None)
        schema = as_object(content.get(media)).get("schema") if media else None
        return None if schema is None else (schema, base)


def _successful(responses: dict[str, Any]) -> list[Any]:
    """The responses of 2xx; the default one if there are none."""
    found = [responses[status] for status in sorted(responses) if re.fullmatch("2(XX|xx|[0-9]{2})", status)]
    return found or [responses[status] for status in ("default",) if status in responses]


def _is_flat(schema: Schema) -> bool:
    """Whether the properties of a body can be arguments of their own, and nothing of the schema is lost."""
    is_object = schema.get("type") in ("object", ["object", "null"])
    return is_object and bool(schema.get("properties")) and not schema.keys() - _FLAT


def _chosen_media(content: dict[str, Any]) -> tuple[str, str]:
    for kind, pattern in MEDIA:
        for media in content:
            if pattern.fullmatch(media):
                return kind, media
    raise _Unusable(f"its body can't be made: {', '.join(content)[:200]}")


def _filled(servers: Any) -> str:
    """The URL of the first server, with the defaults of its variables."""
    server = as_object(servers[0]) if isinstance(servers, list) and servers else {"url": "/"}
    url, variables = str(server.get("url", "/")), as_object(server.get("variables"))
    return re.sub(r"\{([^{}]*)\}", lambda match: str(as_object(variables.get(match[1])).get("default", match[0])), url)


def _checked_url(url: str, where: str) -> str:
    """A URL that requests can be sent to, without a slash at its end. Raises SetupError."""
    try:
        parts = urlsplit(url)
        is_fine = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.username
    except ValueError:
        is_fine = False
    if not is_fine or not _PLAIN_URL.fullmatch(url):
        shown = without_secrets(url)[:200]
        raise SetupError(f"{where}: {shown!r} is no http or https URL with a host, without user, query and variables")
    return url.rstrip("/")


def _title(summary: Any) -> str | None:
    text = shorten(summary, 400) if isinstance(summary, str) else ""
    return text if 0 < len(text) <= 80 and "\n" not in text else None


def _first_line(text: str) -> str:
    return shorten(text.strip().partition("\n")[0], 100)


def shorten(text: str, most: int) -> str:
    """A description without HTML, links and empty lines, cut at the end of a sentence or word; then it ends with …"""
    text = text[: 8 * most + 200]
    for pattern, replacement in _NOISE:
        text = pattern.sub(replacement, text)
    text = text.strip()
    if len(text.encode()) <= most:
        return text
    text = text.encode()[: max(most - 4, 0)].decode(errors="ignore")
    ends = [match.end() for match in re.finditer(r"[.!?](?=\s)|\n", text)]
    end = ends[-1] if ends and ends[-1] > len(text) // 2 else text.rfind(" ")
    return (text[:end] if end > 0 else text).rstrip() + " …"
