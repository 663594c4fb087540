"""FastMCP's tools, resources and prompts as objects, what their functions return, transforms and providers."""

import functools
import inspect
import json
import operator
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from dovetail import compat, registry
from dovetail.compat import no_equal
from dovetail.compat.fastmcp_context import PAGE, ResourceContent, ResourceResult, fitting
from dovetail.compat.shared import given
from dovetail.engine.context import request_of
from dovetail.engine.current_context import get_context as native_context
from dovetail.protocol import results, types
from dovetail.protocol.session import VisibilityRule
from dovetail.registry.functions import members, outermost
from dovetail.registry.mounts import rename_uri
from dovetail.registry.tools import Tool as CompiledTool
from dovetail.registry.tools import shape_unstructured
from dovetail.registry.transforms import ArgTransform as ArgTransform
from dovetail.registry.transforms import ToolTransform as ToolTransformConfig
from dovetail.registry.visibility import texts
from dovetail.schema.encode import encode_json, to_jsonable

MARK = "__fastmcp__"  # the attribute of functions that the standalone decorators have marked


# ── what functions return ──


def _peers(base: type, fields: Callable[..., dict[str, Any]]) -> Any:
    """A subclass of a struct, whose constructor takes the peer's arguments."""
    kind: Any = type(base)

    def construct(cls: Any, *args: Any, **named: Any) -> Any:
        return kind.__call__(cls, **fields(*args, **named))

    made = type(kind)(f"PeersArguments{base.__name__}", (kind,), {"__call__": construct})
    return made(base.__name__, (base,), {"__module__": __name__}, frozen=True)


def _message(content: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": content if isinstance(content, str) else blocks(content)[0]}


def _prompt_result(messages: Any, description: str | None = None, meta: Any = None) -> dict[str, Any]:
    listed = messages if isinstance(messages, list | tuple) else [messages]
    made = [each if isinstance(each, types.Message) else types.Message(**_message(each)) for each in listed]
    return {"messages": made, "description": description, "meta": meta}


def _tool_result(content: Any = None, structured_content: Any = None, meta: Any = None, is_error: bool = False) -> Any:
    if content is None and structured_content is None:
        raise ValueError("Either content or structured_content must be provided")
    plain = UNSET if structured_content is None else to_jsonable(structured_content)
    shown = blocks(plain if content is None else content)
    return {"content": shown, "structured": plain, "meta": meta, "is_error": is_error}


def _media(path: Any = None, data: Any = None, format: Any = None, annotations: Any = None) -> Any:
    return given(data=data, path=path, format=format, annotations=annotations)


Message = _peers(types.Message, _message)  # Message(content, role="user")
PromptResult = _peers(results.PromptResult, _prompt_result)  # PromptResult(messages, description, meta)
ToolResult = _peers(results.ToolResult, _tool_result)  # ToolResult(content, structured_content, meta)
Image, Audio = _peers(types.Image, _media), _peers(types.Audio, _media)  # Image(path), Audio(data=…, format="wav")


def blocks(value: Any) -> tuple[types.Content, ...]:
    """Content for a value: none for None, JSON for what is neither text nor content."""
    if value is None or value == []:
        return ()
    if isinstance(value, bytes):
        return (types.Text(value.decode(errors="replace")),)
    if isinstance(value, Mapping):  # also one that looks like a result
        return (types.Text(encode_json(value).decode()),)
    return tuple(shape_unstructured(value).content)


def peer_tool(tool: CompiledTool) -> CompiledTool:
    """The tool with FastMCP's results: {"result": value} in every revision, and values that do not fit as they are."""
    schema = tool.definition.output_schema
    wraps = schema is not None and schema.get("type") != "object" and "properties" not in schema
    if wraps and schema is not None:
        inner = {key: each for key, each in schema.items() if key != "$defs"}
        whole: dict[str, Any] = {"type": "object", "properties": {"result": inner}, "required": ["result"]}
        whole["x-fastmcp-wrap-result"] = True
        whole |= {"$defs": schema["$defs"]} if "$defs" in schema else {}
        meta = {**(tool.definition.meta or {}), types.WRAPPED_KEY: True}
        tool = changed(tool, output_schema=whole, meta=meta)

    def to_result(value: Any) -> results.ToolResult:
        if isinstance(value, results.ToolResult) or is_content(value):
            return shape_unstructured(value)
        plain = UNSET if isinstance(value, bytes) else to_jsonable(value)
        structured = {"result": plain} if wraps else plain if isinstance(plain, dict) else UNSET
        return results.ToolResult(content=blocks(value), structured=structured, text_copy=False)

    return replace(tool, to_result=to_result)


def is_content(value: Any) -> bool:
    """Whether a value is content, a list with content, or a result of mcp_types."""
    if isinstance(value, list | tuple):
        return any(map(is_content, value))
    return isinstance(value, types.CONTENT_TYPES) or type(value).__module__.startswith("mcp_types")


def resource_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with results that Dovetail knows; others are JSON text, of the resource's own type."""

    def convert(value: Any) -> Any:
        if isinstance(value, str | bytes | types.ResourceContents) or is_content(value):
            return value
        if isinstance(value, ResourceContent | ResourceResult):
            _, context = request_of(native_context())
            listed = value.contents if isinstance(value, ResourceResult) else [value]
            return [each.at(context.request.params.uri) for each in listed]
        return json.dumps(to_jsonable(value))

    return returning(function, convert)


def asking_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with an `InputRequiredResult` of mcp_types as Dovetail's; its annotation is without it."""
    signature = inspect.signature(function)
    if "InputRequiredResult" not in str(signature.return_annotation):
        return function
    returns = members(inspect.signature(function, eval_str=True).return_annotation)
    kept = [each for each in returns if each.__name__ != "InputRequiredResult"]

    def convert(value: Any) -> Any:
        return compat.mcp_context.to_input_required(value) if type(value).__name__ == "InputRequiredResult" else value

    made: Any = returning(function, convert)
    made.__signature__ = signature.replace(return_annotation=functools.reduce(operator.or_, kept or [None]))
    return made  # type: ignore[no-any-return]


def returning(function: Callable[..., Any], convert: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function, with converted values."""

    async def finish(value: Any) -> Any:
        return convert(await value)

    def call(*args: Any, **named: Any) -> Any:
        value = function(*args, **named)
        return finish(value) if inspect.isawaitable(value) else convert(value)

    async def call_async(*args: Any, **named: Any) -> Any:
        return await call(*args, **named)

    is_async = inspect.iscoroutinefunction(outermost(function))
    return functools.update_wrapper(call_async if is_async else call, function)


# ── components ──


class Component:
    """A function with the options of its registration."""

    kind = ""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.fn, self.options = function, options
        self.name = str(options.get("name") or getattr(function, "__name__", type(function).__name__))
        self.description: str | None = options.get("description") or inspect.getdoc(function)
        self.tags: set[str] = set(options.get("tags") or ())

    @classmethod
    def from_function(cls, fn: Callable[..., Any], **options: Any) -> Any:
        return cls(fn, **options)


class Prompt(Component):
    kind = "prompt"


class Tool(Component):
    kind = "tool"

    @classmethod
    def from_tool(
        cls, tool: Any, *, name: str | None = None, transform_args: Mapping[str, ArgTransform] | None = None,
        transform_fn: Any = None, **options: Any,
    ) -> "Tool":  # fmt: skip
        """Another tool of the same function."""
        if transform_fn is not None:
            raise no_equal("Tool.from_tool(transform_fn=)", PAGE, "write a tool that calls the function")
        base = component(tool, Tool)
        transform = ToolTransformConfig(name=name, arguments=transform_args or {})
        own = {**base.options, "name": base.name, "description": base.description, **options}
        return cls(base.fn, **own, transform=transform)


class Resource(Component):
    kind = "resource"

    def __init__(
        self, function: Callable[..., Any], *, uri: Any = None, uri_template: Any = None, **options: Any
    ) -> None:
        self.uri = str(uri or uri_template)
        super().__init__(function, **options)


ResourceTemplate = FunctionResource = Resource
FunctionTool, FunctionPrompt = Tool, Prompt


def _decorator(kind: type[Component], first: str) -> Callable[..., Any]:
    """A standalone decorator: it marks a function for `add_tool`, `add_resource`, `add_prompt` and folders."""

    def decorate(given: Any = None, **options: Any) -> Any:
        def mark(function: Any) -> Any:
            named = {} if given is function or given is None else {first: given}
            setattr(function, MARK, (kind, {**options, **named}))
            return function

        return mark(given) if callable(given) else mark

    return decorate


tool, prompt, resource = _decorator(Tool, "name"), _decorator(Prompt, "name"), _decorator(Resource, "uri")


def component(given: Any, kind: type[Component]) -> Component:
    """What is added: a component, or a function with the options of its decorator."""
    if isinstance(given, Component):
        return given
    kind, options = getattr(given, MARK, (kind, {}))
    return kind(given, **options)


# ── transforms ──


def changed(item: Any, **fields: Any) -> Any:
    """An item with another definition."""
    label = {"label": f"tool {fields['name']}"} if isinstance(item, CompiledTool) and "name" in fields else {}
    return replace(item, definition=replace(item.definition, **fields), **label)


class Namespace:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def apply(self, item: Any) -> Any:
        if not hasattr(item, "uri"):
            return changed(item, name=f"{self.prefix}_{item.name}")
        uri = rename_uri(item.uri, self.prefix)
        if not hasattr(item, "template"):
            return changed(item, uri=uri)
        return replace(changed(item, uri_template=uri), template=type(item.template)(uri, item.template.wholes))


class ToolTransform:
    def __init__(self, transforms: Mapping[str, Any]) -> None:
        self.transforms = transforms

    def apply(self, item: Any) -> Any:
        config = self.transforms.get(getattr(item, "name", "")) if isinstance(item, CompiledTool) else None
        if config is None:
            return item
        return registry.transforms.transform_tool(item, config, f"the transform of {item.name}")


class Visibility:
    def __init__(self, enabled: bool, **chosen: Any) -> None:
        self.enabled, self.chosen = enabled, chosen


def choice(enabled: bool, chosen: Mapping[str, Any], only: bool = False) -> list[VisibilityRule]:
    """The rules of `enable` and `disable`; unlike Dovetail's own, also where nothing has these names or tags."""
    given = fitting(chosen)
    tags, names = (texts(given.get(each, ()), f"{each} of enable, disable") for each in ("tags", "names"))
    rule = VisibilityRule(enabled, tags, names)
    return [VisibilityRule(False), rule] if only else [rule]
