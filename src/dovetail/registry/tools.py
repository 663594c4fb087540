"""`Tool`, compiled from a function, or from a raw schema and a handler."""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence, Set
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from dovetail import registry
from dovetail.errors import SetupError
from dovetail.protocol.elicitation import InputRequired
from dovetail.protocol.headers import HeaderParameter, header_parameters
from dovetail.protocol.results import EMPTY_RESULT, ToolResult
from dovetail.protocol.types import CONTENT_TYPES, TAGS_KEY, Content, Icon, Text, ToolAnnotations, ToolDefinition
from dovetail.registry import registration
from dovetail.registry.arguments import Arguments, RawArguments
from dovetail.registry.catalog import check_name
from dovetail.registry.functions import FunctionInfo, Invocation, inspect_function
from dovetail.registry.outputs import Output, ToResult, bound_result, compile_output, compile_raw_output, mark_untrusted
from dovetail.schema.encode import PLAIN_TYPES, OutputError, encode_json, to_jsonable

if TYPE_CHECKING:
    from dovetail.registry.mounts import Mounted
    from dovetail.registry.transforms import Rewriter, ToolTransform


class CommonToolOptions(registration.CommonOptions, total=False):
    """Options of every tool, registered by a decorator or in a `ToolRegistry`."""

    annotations: Mapping[str, Any] | ToolAnnotations
    max_concurrency: int
    rate_limit: str | Sequence[str]
    requires: Sequence[str]
    output: registration.OutputPolicy
    structured_output: bool
    output_schema: Mapping[str, Any]
    untrusted_output: registration.UntrustedOutput
    max_result_bytes: int
    idempotency: bool | registration.Idempotency
    cache: float
    cache_shared: bool
    task: bool | registration.TaskConfig
    transform: "ToolTransform"
    always_visible: bool


class ToolOptions(CommonToolOptions, total=False):
    """Options of `@server.tool`."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    ui: str  # these two become a part of `meta` in extensions/apps.py
    visibility: Sequence[Literal["model", "app"]]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One compiled tool."""

    definition: ToolDefinition
    invocation: Invocation
    decode: Callable[[bytes | Raw], dict[str, Any]]
    to_result: Callable[[Any], ToolResult]
    label: str  # for the log
    lenient: bool = True  # whether strings are taken for the values that they hold
    access: registration.AccessRule | None = None  # None: every caller may call it
    requires: frozenset[str] = frozenset()
    is_limited: bool = False  # whether a call needs more than one of the server's slots
    max_concurrency: int | None = None
    rates: tuple[registration.Rate, ...] = ()
    route: "registration.Reuse | Mounted | None" = None  # how a call gets its result, if not simply by a run
    task: registration.TaskConfig | None = None  # None: its calls never become tasks
    headers: tuple[HeaderParameter, ...] = ()
    choices: Mapping[str, Sequence[str]] = {}  # arguments whose values are a closed set, for completion
    rewriter: "Rewriter | None" = None  # makes a client's arguments those of the tool that a mount calls
    always_visible: bool = False  # whether lists show it where callers have to search for others

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def title(self) -> str | None:
        return self.definition.title

    @property
    def description(self) -> str | None:
        return self.definition.description

    @property
    def input_schema(self) -> Mapping[str, Any]:
        return self.definition.input_schema

    @property
    def argument_names(self) -> list[str]:
        return list(self.input_schema.get("properties", ()))

    @property
    def output_schema(self) -> Mapping[str, Any] | None:
        return self.definition.output_schema

    @property
    def annotations(self) -> ToolAnnotations | None:
        return self.definition.annotations

    @property
    def handler(self) -> Callable[..., Any]:
        return self.invocation.function


def compile_tool(
    function: Callable[..., Any],
    options: ToolOptions,
    *,
    injectable: type | None = None,
    output: registration.OutputPolicy = "auto",
    lenient: bool = True,
) -> Tool:
    """Compile all that is known before the first call; raises SetupError."""
    raw_schema = options.get("input_schema")
    info = inspect_function(
        function, kind="tool", injectable=injectable, name=options.get("name"), open_ended=raw_schema is not None
    )
    options = registration.checked_options(options, ToolOptions.__optional_keys__, info.where)
    name = check_name(info.name, info.where)
    transform = options.get("transform")
    arguments: Arguments | RawArguments
    if raw_schema is None:
        arguments = Arguments(info, lenient=lenient)
    else:
        arguments = RawArguments(raw_schema, where=f"{info.where}, input_schema", info=info, lenient=lenient)
    try:
        headers = header_parameters(arguments.schema)
    except SetupError as problem:
        raise SetupError(f"{info.where}: {problem}") from None
    arguments.subject = shown = getattr(transform, "name", None) or name  # as clients know it
    policy = options.get("output", "text" if options.get("structured_output") is False else output)
    output_schema, to_result = _compile_result(info, policy, options.get("output_schema"))
    if (most := options.get("max_result_bytes")) is not None:
        to_result = functools.partial(bound_result, to_result, most, shown)
    rates = registration.parse_rates(options["rate_limit"], info.where) if "rate_limit" in options else ()
    untrusted = options.get("untrusted_output", False)
    annotations = _annotations(options, info.where)
    reuse = _reuse(options, info, annotations)
    if isinstance(reuse, registration.Idempotency):  # how a client knows that it may repeat a call
        options = {**options, "meta": {**(options.get("meta") or {}), **reuse.mark}}
    task = _task(options, reuse, info.where)
    tool = Tool(
        definition=ToolDefinition(
            input_schema=arguments.schema,
            output_schema=output_schema,
            annotations=annotations,
            execution=None if task is None else {"taskSupport": task.mode},
            **definition_fields(options, info.where, name, info.summary),
        ),
        invocation=Invocation.from_info(info, options, by_name=arguments.by_name),
        decode=arguments.decode,
        to_result=mark_untrusted(to_result, untrusted) if untrusted else to_result,
        label=f"tool {name}",
        lenient=lenient,
        access=registration.access_rule(options, info.where),
        requires=frozenset(options.get("requires", ())),
        is_limited=bool(rates) or options.get("max_concurrency") is not None or bool(reuse or task),
        max_concurrency=options.get("max_concurrency"),
        rates=rates,
        headers=headers,
        choices=closed_choices(arguments.schema),
        route=reuse,
        task=task,
        always_visible=options.get("always_visible", False),
    )
    return tool if transform is None else registry.transforms.transform_tool(tool, transform, info.where)


def _reuse(options: ToolOptions, info: FunctionInfo, annotations: ToolAnnotations | None) -> registration.Reuse | None:
    """Which results of a tool are given again; raises SetupError if they could be wrong then."""
    idempotency, seconds, shared = options.get("idempotency"), options.get("cache"), options.get("cache_shared", False)
    destroys = annotations is not None and annotations.destructive_hint
    handles = (each.name for each in info.parameters if _holds_handle(each.annotation))
    own = min((*info.supplied, *handles), default=None)  # a parameter for the Context, with Depends, or a Handle
    problems = {
        "cache_shared=True shares what is cached; add cache=, its seconds": shared and seconds is None,
        "a tool with cache= has no effect to repeat; leave out cache= or idempotency=": seconds and idempotency,
        "a call answered from a cache destroys nothing; leave out cache= or destructiveHint": seconds and destroys,
        f"cache_shared=True is for results that depend on no caller; leave it out, or {own}": shared and own,
    }
    for problem in (text for text, is_met in problems.items() if is_met):
        raise SetupError(f"{info.where}: {problem}")
    if idempotency:
        return msgspec.convert({} if idempotency is True else idempotency, registration.Idempotency)
    return None if seconds is None else registration.Caching(seconds, shared)


def _task(options: ToolOptions, reuse: registration.Reuse | None, where: str) -> registration.TaskConfig | None:
    if not (given := options.get("task")):
        return None
    if reuse is not None:
        name = "idempotency" if isinstance(reuse, registration.Idempotency) else "cache"
        raise SetupError(f"{where}: a call can't be a task and use a result again; leave out task= or {name}=")
    return registration.TaskConfig() if given is True else given


def _holds_handle(annotation: Any) -> bool:
    return hasattr(annotation, "__json_string__") or any(map(_holds_handle, get_args(annotation)))


def _annotations(options: ToolOptions, where: str) -> ToolAnnotations | None:
    declared = options.get("annotations")
    given: ToolAnnotations | None = registration.convert_option(declared, ToolAnnotations, where, "annotations")
    if not options.get("untrusted_output"):
        return given
    annotations = given or ToolAnnotations()
    return replace(annotations, open_world_hint=annotations.open_world_hint is not False)


def definition_fields(options: Mapping[str, Any], where: str, name: str, summary: str | None) -> dict[str, Any]:
    """The fields of all definitions. Tags are in `_meta`, where middleware and hosts see them; a set is sorted."""
    meta, tags = options.get("meta"), options.get("tags", ())
    return {
        "name": name,
        "title": options.get("title"),
        "description": options.get("description", summary),
        "icons": registration.convert_option(options.get("icons"), list[Icon], where, "icons"),
        "meta": {**(meta or {}), TAGS_KEY: sorted(tags) if isinstance(tags, Set) else list(tags)} if tags else meta,
    }


def closed_choices(schema: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """The arguments with a closed set of values, which can be completed without a function of the author's."""
    found = {name: _choices(part) for name, part in schema.get("properties", {}).items()}
    return {name: choices for name, choices in found.items() if choices}


def _choices(schema: Any) -> list[str] | None:
    """All values of a schema except null; None if they are not a closed set of strings."""
    if not isinstance(schema, Mapping):
        return None
    if schema.get("type") in ("boolean", "null"):
        return ["true", "false"] if schema["type"] == "boolean" else []
    if "enum" in schema:
        values = [value for value in schema["enum"] if value is not None]
        return values if all(isinstance(value, str) for value in values) else None
    members = [_choices(member) for member in schema.get("anyOf", ())]
    if not members or None in members:
        return None
    return [value for member in members for value in member or ()]


def _compile_result(
    info: FunctionInfo, policy: registration.OutputPolicy, raw: Mapping[str, Any] | None
) -> tuple[dict[str, Any] | None, ToResult]:
    output = _output_for(info, policy, raw)
    if output is None:
        return None, shape_as_text if policy == "text" else shape_unstructured
    empty = replace(EMPTY_RESULT, wrap=not output.is_object, text_copy=policy != "structured")
    plain = PLAIN_TYPES if raw is None else PLAIN_TYPES - {dict}
    encode = output.encode
    handles = [each for each in (info.returns, *get_args(info.returns)) if hasattr(each, "__json_string__")]

    def to_result(value: Any) -> ToolResult:
        if type(value) in plain or (whole := explicit(value)) is None:
            return replace(empty, structured=Raw(encode(value)))
        return whole

    def explicit(value: Any) -> ToolResult | None:
        value = registration.from_official(value)
        if raw is not None and _is_wire_result(value):
            value = _wire_result(value)
        if handles and hasattr(value, "__json_string__") and type(value) not in handles:
            wrong, right = type(value).__name__, handles[0].__name__
            raise OutputError(f"{wrong} is returned as {right}: give ctx.new_handle the type, beside the value")
        if isinstance(value, CONTENT_TYPES):
            raise OutputError(f"{info.where} declares structured output but returned only content")
        if not isinstance(value, ToolResult):
            return None
        result = _complete(value)
        if result.is_error:
            return result
        if result.structured is UNSET:
            raise OutputError("a ToolResult without structured content, although an output schema is declared")
        structured = Raw(encode(result.structured))
        return replace(result, structured=structured, wrap=empty.wrap, text_copy=empty.text_copy)

    return output.schema, to_result


def _output_for(info: FunctionInfo, policy: registration.OutputPolicy, raw: Mapping[str, Any] | None) -> Output | None:
    if policy == "text":
        return None
    if raw is not None:
        return compile_raw_output(raw, where=f"{info.where}, output_schema")
    unstructured = (*CONTENT_TYPES, ToolResult)
    returns = _without_input_required(info.returns)
    output = compile_output(returns, where=info.where, unstructured=unstructured)
    if output is None and policy in ("structured", "both") and returns is str:
        return compile_raw_output({"type": "string"}, where=info.where)
    return output


def _without_input_required(returns: Any) -> Any:
    """The return annotation without `InputRequired`, which asks the client and is no output."""
    if returns is InputRequired:
        return None
    if get_origin(returns) not in (Union, UnionType) or InputRequired not in get_args(returns):
        return returns
    return functools.reduce(operator.or_, (member for member in get_args(returns) if member is not InputRequired))


def shape_unstructured(value: Any) -> ToolResult:
    """A value without an output schema, as content."""
    if isinstance(value, str):
        return replace(EMPTY_RESULT, content=(_text(value),))
    if value is None:
        return replace(EMPTY_RESULT, content=(Text(""),))  # some clients need at least one item
    given, value = value, registration.from_official(value)
    if isinstance(value, ToolResult):
        return _complete(value)
    if isinstance(value, CONTENT_TYPES):
        return replace(EMPTY_RESULT, content=(value,))
    if isinstance(value, (list, tuple)) and value and any(isinstance(item, CONTENT_TYPES) for item in value):
        return replace(EMPTY_RESULT, content=content_blocks(value))
    if _is_wire_result(value):
        return _wire_result(value)
    return replace(EMPTY_RESULT, content=(_as_content(given),))


def shape_as_text(value: Any) -> ToolResult:
    """Like `shape_unstructured`, without structured content even if the function returns some."""
    result = shape_unstructured(value)
    if result.structured is UNSET:
        return result
    content = result.content or (_as_content(result.structured),)
    return replace(result, content=content, structured=UNSET)


def _complete(result: ToolResult) -> ToolResult:
    """The author's `ToolResult` with all its parts as JSON types and content blocks; raises OutputError."""
    meta = None if result.meta is None else to_jsonable(result.meta)
    if meta is not None and not isinstance(meta, dict):
        raise OutputError("the meta of a result must be a dict")
    structured = UNSET if result.structured is UNSET else to_jsonable(result.structured)
    return replace(result, content=content_blocks(result.content), structured=structured, meta=meta)


def content_blocks(content: Any) -> tuple[Content, ...]:
    """The content of a result as blocks, also if it is a single one, or holds strings or JSON; raises OutputError."""
    return tuple(map(_as_content, (content,) if isinstance(content, (str, *CONTENT_TYPES)) else content))


def _as_content(item: Any) -> Content:
    if isinstance(item, CONTENT_TYPES):
        return item  # type: ignore[return-value]
    return _text(item) if isinstance(item, str) else Text(encode_json(item).decode())


def _text(value: str) -> Text:
    if not value.isascii():
        encode_json(value)  # raises for lone surrogates, which file names may hold
    return Text(value)


def _is_wire_result(value: Any) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("content"), (list, tuple)):
        return False
    blocks = value["content"]
    return all(isinstance(each, CONTENT_TYPES) or (isinstance(each, Mapping) and "type" in each) for each in blocks)


def _wire_result(value: Mapping[str, Any]) -> ToolResult:
    """A result in the form of the wire: `{"content": [...], "isError": …}`."""
    try:
        content = msgspec.convert(to_jsonable(value["content"]), list[Content])
    except msgspec.ValidationError as failure:
        raise OutputError(f"the returned content is not right: {failure}") from None
    structured, is_error = value.get("structuredContent", UNSET), value.get("isError") is True
    return _complete(
        ToolResult(content=content or (Text(""),), structured=structured, is_error=is_error, meta=value.get("_meta"))
    )
