"""FastMCP's tools, resources and prompts as objects, their results, transforms and providers."""

import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import msgspec

from dovetail import registry
from dovetail.compat import no_equal
from dovetail.compat.fastmcp_auth import PAGE
from dovetail.compat.fastmcp_context import ResourceContent, ResourceResult
from dovetail.engine.current_context import get_context
from dovetail.engine.context import request_of
from dovetail.protocol import results, types
from dovetail.protocol.results import Shaper
from dovetail.registry.functions import outermost
from dovetail.registry.mounts import rename_uri
from dovetail.registry.tools import Tool as CompiledTool
from dovetail.registry.tools import shape_unstructured
from dovetail.schema.encode import to_jsonable

MARK = "__fastmcp__"  # the attribute of functions of the standalone decorators: their kind and options
NOT_SET: Any = object()


# ── results ──


class _Call(type(types.Message)):  # type: ignore[misc]
    """Classes whose constructors are FastMCP's, of structs that are Dovetail's."""

    def __call__(cls, *args: Any, **named: Any) -> Any:
        return super().__call__(**cls.fields(*args, **named))  # type: ignore[attr-defined]


class Message(types.Message, frozen=True, metaclass=_Call):
    """`Message(content, role="user")`."""

    @staticmethod
    def fields(content: Any, role: str = "user") -> dict[str, Any]:
        return {"role": role, "content": content if isinstance(content, str) else shape_unstructured(content).content[0]}


class PromptResult(results.PromptResult, frozen=True, metaclass=_Call):
    """Messages with `meta`."""

    meta: Mapping[str, Any] | None = None

    @staticmethod
    def fields(messages: Any, description: str | None = None, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
        listed = messages if isinstance(messages, list | tuple) else [messages]
        made = [each if isinstance(each, types.Message) else Message(each) for each in listed]
        return {"messages": made, "description": description, "meta": meta}

    def encode(self, shaper: Shaper) -> bytes:
        encoded = super().encode(shaper)
        if not self.meta:
            return encoded
        return msgspec.json.encode({**msgspec.json.decode(encoded), "_meta": self.meta})


class ToolResult(results.ToolResult, frozen=True, kw_only=True, metaclass=_Call):
    """`ToolResult(content, structured_content)`; without content that is the structured content as JSON."""

    @staticmethod
    def fields(
        content: Any = None, structured_content: Any = None, meta: Mapping[str, Any] | None = None, is_error: bool = False
    ) -> dict[str, Any]:
        if content is None and structured_content is None:
            raise ValueError("Either content or structured_content must be provided")
        plain = None if structured_content is None else to_jsonable(structured_content)
        shown = shape_unstructured(plain if content is None else content).content
        fields = {"content": shown if content != [] else (), "meta": meta, "is_error": is_error}
        return fields if plain is None else {**fields, "structured": plain}


def peer_result(tool: CompiledTool) -> CompiledTool:
    """The tool with FastMCP's results where nothing is declared: no content for None, structured content for a dict."""
    to_result, has_schema = tool.to_result, tool.definition.output_schema is not None

    def convert(value: Any) -> results.ToolResult:
        if has_schema:
            return to_result(value)
        if value is None:
            return results.ToolResult(content=())
        found = to_result(value)
        is_plain = found.structured is msgspec.UNSET and not isinstance(value, str | results.ToolResult | list | tuple)
        if is_plain and not isinstance(value, types.CONTENT_TYPES) and isinstance(plain := to_jsonable(value), dict):
            return msgspec.structs.replace(found, structured=plain)
        return found

    return msgspec.structs.replace(tool, to_result=convert)


def resource_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with results as FastMCP reads them: JSON has the type of the resource, too."""

    def convert(value: Any) -> Any:
        if isinstance(value, str | bytes | types.ResourceContents | results.ReadResourceResult):
            return value
        if isinstance(value, ResourceContent):
            value = ResourceResult([value])
        if isinstance(value, ResourceResult):
            _, context = request_of(get_context())
            return [each.at(context.request.params.uri) for each in value.contents]
        if isinstance(value, list) and value and isinstance(value[0], types.ResourceContents):
            return value
        return json.dumps(to_jsonable(value))


    return returning(function, convert)


def returning(function: Callable[..., Any], convert: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function, with converted values."""
    if inspect.iscoroutinefunction(outermost(function)):

        async def call(*args: Any, **named: Any) -> Any:
            return convert(await function(*args, **named))

    else:

        def call(*args: Any, **named: Any) -> Any:
            return convert(function(*args, **named))

    return functools.update_wrapper(call, function)


# ── components ──


class Component:
    """A function, or what a subclass makes of itself, with the options of its registration."""

    kind = ""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.fn = function
        self.options = options
        self.name: str = options.get("name") or function.__name__
        self.description: str | None = options.get("description") or inspect.getdoc(function)
        self.tags: set[str] = set(options.get("tags") or ())
        self.version: str | None = options.get("version")

    @classmethod
    def from_function(cls, fn: Callable[..., Any], **options: Any) -> Any:
        return cls(fn, **options)


class Tool(Component):
    kind = "tool"

    @classmethod
    def from_tool(
        cls, tool: Any, *, name: str | None = None, description: Any = NOT_SET, transform_args: Any = None,
        transform_fn: Callable[..., Any] | None = None, **options: Any,
    ) -> "Tool":  # fmt: skip
        """Another tool of the same function, with other names; `transform_fn` calls it by `forward`."""
        base = component(tool, Tool)
        changes = {each: change for each, change in (transform_args or {}).items()}
        own = {**base.options, "name": base.name, "description": base.description, **options}
        own |= {} if description is NOT_SET else {"description": description}
        if transform_fn is None:
            transform = registry.transforms.ToolTransform(name=name, arguments=changes)
            return cls(base.fn, **own, transform=transform)
        names = {change.name or each: each for each, change in changes.items()}

        async def call(*args: Any, **named: Any) -> Any:
            _parent.append((base.fn, names))
            try:
                value = transform_fn(*args, **named)
                return await value if inspect.isawaitable(value) else value
            finally:
                _parent.pop()

        call.__annotations__ = {}
        functools.update_wrapper(call, transform_fn)
        returns = inspect.signature(base.fn).return_annotation
        signature = inspect.signature(transform_fn)
        if signature.return_annotation is signature.empty:
            signature = signature.replace(return_annotation=returns)
        call.__signature__ = signature  # type: ignore[attr-defined]
        return cls(call, **{**own, "name": name or base.name})


_parent: list[tuple[Callable[..., Any], Mapping[str, str]]] = []


async def forward(**arguments: Any) -> Any:
    """In a `transform_fn`: call the tool that it stands before, with the names of the client."""
    function, names = _parent[-1]
    value = function(**{names.get(name, name): each for name, each in arguments.items()})
    return await value if inspect.isawaitable(value) else value


class Prompt(Component):
    kind = "prompt"


class Resource(Component):
    kind = "resource"

    def __init__(self, function: Callable[..., Any] | None = None, *, uri: Any, **options: Any) -> None:
        self.uri = str(uri)
        named = {"name": options.get("name") or self.uri, **options}
        super().__init__(self.read if function is None else function, **named)

    @classmethod
    def from_function(cls, fn: Callable[..., Any], uri: Any = None, **options: Any) -> "Resource":
        uri = uri or options.pop("uri_template")
        return cls(fn, uri=uri, **{"name": fn.__name__, **options})

    async def read(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__}.read")


class TextResource(Resource):
    def __init__(self, *, text: str, **options: Any) -> None:
        super().__init__(lambda: text, **options)


class BinaryResource(Resource):
    def __init__(self, *, data: bytes, **options: Any) -> None:
        super().__init__(lambda: data, **options)


class FileResource(Resource):
    def __init__(self, *, path: Any, is_binary: bool | None = None, **options: Any) -> None:
        is_text = not is_binary and (options.get("mime_type") or "text/plain").startswith("text/")
        super().__init__(Path(path).read_text if is_text else Path(path).read_bytes, **options)
        self.fn = lambda: Path(path).read_text() if is_text else Path(path).read_bytes()


class DirectoryResource(Resource):
    """A JSON list of the files below a folder."""

    def __init__(self, *, path: Any, recursive: bool = False, pattern: str | None = None, **options: Any) -> None:
        def files() -> dict[str, list[str]]:
            find = Path(path).rglob if recursive else Path(path).glob
            return {"files": [str(each.relative_to(path)) for each in sorted(find(pattern or "*")) if each.is_file()]}

        super().__init__(files, **{"mime_type": "application/json", **options})


class HttpResource(Resource):
    """The text at a URL."""

    def __init__(self, *, url: Any, **options: Any) -> None:
        async def fetch() -> str:
            import aiohttp

            async with aiohttp.request("GET", str(url), raise_for_status=True) as answer:
                return await answer.text()

        super().__init__(fetch, **options)


class ResourceTemplate(Resource):
    pass


def _decorator(kind: type[Component], takes_uri: bool = False) -> Callable[..., Any]:
    """`@tool`, `@tool(…)`, `@tool("name")`: marks a function for `add_tool`."""

    def decorate(given: Any = None, **options: Any) -> Any:
        def mark(function: Any) -> Any:
            setattr(function, MARK, (kind, options))
            return function

        if isinstance(given, str):
            options["uri" if takes_uri else "name"] = given
        return mark(given) if callable(given) else mark

    return decorate


tool, prompt, resource = _decorator(Tool), _decorator(Prompt), _decorator(Resource, takes_uri=True)


def component(given: Any, kind: type[Component]) -> Component:
    """What is added: a component, or a function with the options of its decorator."""
    if isinstance(given, Component):
        return given
    marked_as, options = getattr(given, MARK, (kind, {}))
    return marked_as.from_function(given, **options)  # type: ignore[no-any-return]


# ── transforms ──


class ArgTransform(registry.transforms.ArgTransform, frozen=True, kw_only=True):
    """Also with a `type` and `required`, which are refused."""

    type: Any = None
    required: Any = None


class ToolTransformConfig(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    title: str | None = None
    description: str | None = None
    tags: Any = None
    meta: Any = None
    enabled: bool = True
    arguments: Mapping[str, Any] = {}


class Transform:
    """Changes of what a server offers."""

    def apply(self, item: Any, where: str) -> Any:
        """The item as clients shall see it."""
        raise no_equal(type(self).__name__, PAGE, "mount(…, transforms=) and middleware change what a server offers")


class Namespace(Transform):
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def apply(self, item: Any, where: str) -> Any:
        del where
        if isinstance(item, CompiledTool | registry.prompts.Prompt):
            return renamed(item, name=f"{self.prefix}_{item.name}")
        uri = rename_uri(item.uri, self.prefix)
        if isinstance(item, registry.resources.Resource):
            return renamed(item, uri=uri)
        return msgspec.structs.replace(renamed(item, uri_template=uri), template=type(item.template)(uri))


class ToolTransform(Transform):
    def __init__(self, transforms: Mapping[str, Any]) -> None:
        self.transforms = transforms

    def apply(self, item: Any, where: str) -> Any:
        if not isinstance(item, CompiledTool) or (config := self.transforms.get(item.name)) is None:
            return item
        changed = registry.transforms.transform_tool(item, native_transform(config), where)
        title = {} if getattr(config, "title", None) is None else {"title": config.title}
        return renamed(changed, **title)


def native_transform(config: Any) -> Any:
    return registry.transforms.ToolTransform(
        name=config.name, description=config.description, arguments=dict(config.arguments)
    )


def renamed(item: Any, **fields: Any) -> Any:
    label = {"label": f"tool {fields['name']}"} if isinstance(item, CompiledTool) and "name" in fields else {}
    return msgspec.structs.replace(item, definition=msgspec.structs.replace(item.definition, **fields), **label)


class Visibility(Transform):
    def __init__(self, enabled: bool, **chosen: Any) -> None:
        self.enabled, self.chosen = enabled, chosen


class ResourceSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """Which variables of a template are not screened."""

    reject_path_traversal: bool = True
    reject_absolute_paths: bool = True
    reject_null_bytes: bool = True
    exempt_params: Any = frozenset()


class AppConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The view of a tool."""

    resource_uri: str | None = None
    visibility: Sequence[str] | None = None
    csp: Any = None
    permissions: Any = None
    domain: str | None = None
    prefers_border: bool | None = None


class ResourceCSP(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    connect_domains: Sequence[str] | None = None
    resource_domains: Sequence[str] | None = None
    frame_domains: Sequence[str] | None = None
    base_uri_domains: Sequence[str] | None = None


class ResourcePermissions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    camera: Any = None
    microphone: Any = None
    geolocation: Any = None
    clipboard_write: Any = None


def functions_below(root: Path) -> list[Any]:
    """The functions of the standalone decorators in the Python files of a folder."""
    found = []
    for path in sorted(root.rglob("*.py")):
        if path.name.startswith("__"):
            continue
        spec = spec_from_file_location(f"fastmcp_components_{abs(hash(path))}", path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(module)
        found += [each for each in vars(module).values() if callable(each) and hasattr(each, MARK)]
    return found

