"""Signature, type hints and docstring of a callable, and how the engine calls it."""

import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET, UnsetType

from dovetail import registry
from dovetail.errors import SetupError
from dovetail.schema.constraints import alias_value, default_of, evaluate, is_alias, is_depends, is_field

if TYPE_CHECKING:
    from dovetail.registry.dependencies import Node, Plan

_ARGUMENTS = ("args", "arguments", "parameters", "params", "keyword args", "keyword arguments", "other parameters")
_DROPPED = ("returns", "return", "yields", "yield", "raises", "raise", "except", "exceptions")
_TITLE = rf"^(?P<title>{'|'.join((*_ARGUMENTS, *_DROPPED))})"
_RULE = r"\n[ \t]*-{3,}[ \t]*\n"
_GOOGLE_SECTION = rf"{_TITLE}:[ \t]*\n(?P<body>(?:[ \t]*\n|[ \t][^\n]*\n)*)"  # up to the next line that is not indented
_NUMPY_SECTION = rf"{_TITLE}:?[ \t]*{_RULE}(?P<body>(?:(?!\S[^\n]*{_RULE})[^\n]*\n)*)"  # up to the next underlined one
_GOOGLE_ENTRY = r"\*{0,2}(?P<name>\w+) *(?:\([^)]*\))? *:(?: +|$)(?P<text>.*)"
_NUMPY_ENTRY = r"(?P<names>\*{0,2}\w+(?: *, *\*{0,2}\w+)*) *(?::.*)?$"
_SPHINX_FIELD = r":(?P<kind>\w+)(?: +(?P<about>[^:]+))?:(?: +|$)(?P<text>.*)"
_SPHINX_ARGUMENTS = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})
_SPHINX_DROPPED = frozenset({"type", "return", "returns", "rtype", "raises", "raise", "except", "exception", "yields"})


def split_docstring(text: str) -> tuple[str | None, dict[str, str]]:
    """The prose (None if there is none) and the description of each parameter."""
    descriptions: dict[str, str] = {}

    def take(section: re.Match[str]) -> str:
        if section["title"].lower() in _ARGUMENTS:
            descriptions.update(_section_entries(section["body"].splitlines()))
        return ""

    text += "\n"
    for pattern in (_NUMPY_SECTION, _GOOGLE_SECTION):
        text = re.sub(pattern, take, text, flags=re.MULTILINE | re.IGNORECASE)
    prose = "\n".join(_without_sphinx_fields(text.splitlines(), descriptions))
    return re.sub(r"\n{3,}", "\n\n", prose).strip() or None, descriptions


def _section_entries(lines: list[str]) -> dict[str, str]:
    """The entries of an argument section: `name (type): text`, or `name : type` with the text indented below."""
    filled = [line for line in lines if line.strip()]
    margin = min((len(line) - len(line.lstrip()) for line in filled), default=0)
    texts: dict[str, list[str]] = {}
    current: list[str] = []
    for line in filled:
        if len(line) - len(line.lstrip()) > margin:
            current.append(line.strip())
            continue
        current = []
        if margin == 0 and (match := re.match(_NUMPY_ENTRY, line.strip())):
            texts.update((name.strip(" *"), current) for name in match["names"].split(","))
        elif margin and (match := re.match(_GOOGLE_ENTRY, line.strip())):
            current.append(match["text"].strip())
            texts[match["name"]] = current
    return {name: joined for name, parts in texts.items() if (joined := " ".join(parts).strip())}


def _without_sphinx_fields(lines: list[str], descriptions: dict[str, str]) -> Iterator[str]:
    """The lines without fields such as `:param x:`, whose texts are added to `descriptions`."""
    inside, name = False, ""
    for line in lines:
        match = re.match(_SPHINX_FIELD, line) if line.startswith(":") else None
        kind = match["kind"] if match else ""
        if match and kind in _SPHINX_ARGUMENTS and match["about"]:
            inside, name = True, match["about"].split()[-1].lstrip("*\\")
            descriptions[name] = match["text"].strip()
        elif match and kind in _SPHINX_DROPPED:
            inside, name = True, ""
        elif inside and line[:1].isspace() and line.strip():
            if name:
                descriptions[name] = f"{descriptions[name]} {line.strip()}".strip()
        else:
            inside = False
            yield line


_MAX_FRAMES = 64  # searched upward for the function that defines a local type


class Parameter(msgspec.Struct, frozen=True):
    """One argument that a client may send."""

    name: str
    annotation: Any
    default: Any  # NODEFAULT if there is none
    description: str | None = None
    default_factory: Callable[[], Any] | None = None

    @property
    def required(self) -> bool:
        return self.default is NODEFAULT and self.default_factory is None


class FunctionInfo(msgspec.Struct, frozen=True):
    """A callable, inspected."""

    function: Callable[..., Any]
    name: str
    where: str  # for error messages: "tool add (mymodule.add)"
    summary: str | None
    is_async: bool
    parameters: tuple[Parameter, ...]
    injected: tuple[str, ...]  # the parameters that take the injectable class
    returns: Any = inspect.Signature.empty
    dependencies: "Plan | None" = None

    @property
    def supplied(self) -> frozenset[str]:
        """The parameters that the engine fills, not the client."""
        return frozenset(self.injected).union(self.dependencies.nodes if self.dependencies else ())


def inspect_function(
    function: Callable[..., Any],
    *,
    kind: str = "tool",
    injectable: type | None = None,
    name: str | None = None,
    open_ended: bool = False,
) -> FunctionInfo:
    """Inspect a callable; raises SetupError, which names the function, the parameter and the fix.

    With `open_ended`, `*args` and `**kwargs` are allowed: a raw schema describes the arguments.
    """
    inner, _ = innermost(function)
    shown = name or str(getattr(inner, "__name__", None) or type(inner).__name__)
    where = f"{kind} {shown} ({qualified_name(inner)})"
    _refuse_uncallable(function, inner, where)
    if shown == "<lambda>":
        raise SetupError(f'{where}: a lambda has no name; pass name="…", or write a def')
    summary, descriptions = split_docstring(inspect.getdoc(_documented(inner)) or "")
    signature = read_signature(function, where, injectable, open_ended=open_ended)
    return FunctionInfo(
        function=function,
        name=shown,
        where=where,
        summary=summary,
        is_async=inspect.iscoroutinefunction(outermost(function)),
        parameters=tuple(_parameter(*each, descriptions) for each in signature.others),
        injected=tuple(signature.injected),
        returns=signature.returns,
        dependencies=registry.dependencies.Plan.compile(signature.depends) if signature.depends else None,
    )


class Signature(msgspec.Struct):
    """The parameters of a function, by who fills them."""

    injected: list[str] = []
    depends: "dict[str, Node]" = {}
    others: list[tuple[inspect.Parameter, Any, str]] = []  # with their annotations, and for error messages
    returns: Any = inspect.Signature.empty


def read_signature(
    function: Any, where: str, injectable: type | None, *, open_ended: bool = False, chain: tuple[Any, ...] = ()
) -> Signature:
    """Read a signature; that of a dependency if there is a `chain`, of functions that lead to it and itself."""
    inner, bound = innermost(function)
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError, NameError) as error:
        raise SetupError(f"{where}: its signature can't be read ({error}); wrap it in a def with annotations") from None
    namespace = _Namespace(inner.__init__ if inspect.isclass(inner) else inner)
    read = Signature()
    for declared in signature.parameters.values():
        if declared.name in bound or ((open_ended or chain) and declared.kind in _OPEN_KINDS):
            continue
        here = f"{where}, parameter {declared.name}"
        _refuse_kind(declared, inner, here)
        annotation: Any = declared.empty  # of a class of another library, which does without the parameter
        with suppress(SetupError) if chain and declared.default is not declared.empty else nullcontext():
            annotation = namespace.resolve(declared.annotation, here)
        if found := _find_depends(annotation, declared.default, here):
            read.depends[declared.name] = registry.dependencies.read_depends(found, annotation, here, injectable, chain)
        elif injectable is not None and _is_injected(annotation, injectable, here):
            read.injected.append(declared.name)
        elif injectable is not None and declared.name == "ctx" and annotation is inspect.Parameter.empty:
            raise SetupError(f"{here}: write ctx: {injectable.__name__} to have it passed in, or rename the parameter")
        else:
            read.others.append((declared, annotation, here))
    if not chain:
        read.returns = namespace.resolve(signature.return_annotation, f"{where}, return annotation")
    return read


def _find_depends(annotation: Any, default: Any, where: str) -> list[Any]:
    """The `Depends(…)` of a parameter, in its annotation and as its default."""
    while is_alias(annotation):
        annotation = alias_value(annotation, where)
    metadata = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    return [each for each in (*metadata, default) if is_depends(each)]


def _parameter(declared: inspect.Parameter, annotation: Any, where: str, descriptions: Mapping[str, str]) -> Parameter:
    """One parameter; `x: int = Field(5, ge=1)` means the same as `x: Annotated[int, Field(ge=1)] = 5`."""
    annotation = Any if annotation is inspect.Parameter.empty else annotation
    default: Any = NODEFAULT if declared.default is inspect.Parameter.empty else declared.default
    factory = None
    if is_field(default):
        annotation = Annotated[annotation, default]
        default = NODEFAULT
    if default is NODEFAULT and get_origin(annotation) is Annotated:
        default, factory = default_of(annotation.__metadata__, where)
    return Parameter(declared.name, annotation, default, descriptions.get(declared.name), factory)


def innermost(function: Any) -> tuple[Any, frozenset[str]]:
    """The function without wrappers and partials, and the parameters that a `functools.partial` has filled by name."""
    bound: set[str] = set()
    while isinstance(function, functools.partial):
        bound.update(function.keywords)
        function = function.func
    return inspect.unwrap(function) if callable(function) else function, frozenset(bound)


def outermost(function: Any) -> Any:
    """The function that a call runs: that of a partial, or the `__call__` of a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _documented(function: Any) -> Any:
    """The object whose docstring counts: the function; for a callable object its `__call__`, or else its class."""
    if inspect.isroutine(function):
        return function
    call = type(function).__call__
    return call if call.__doc__ else type(function)


def _refuse_uncallable(function: Any, inner: Any, where: str) -> None:
    if isinstance(function, classmethod):
        raise SetupError(f"{where}: a classmethod can't be called from inside its class; register Class.method instead")
    if inspect.isclass(function):
        raise SetupError(f"{where}: a class is not a function; register a function, or an object with __call__")
    if not callable(function):
        raise SetupError(f"{where}: {type(function).__name__} can't be called; register a function")
    for each in (inner, outermost(inner), outermost(function)):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise SetupError(f"{where}: generators are not supported; return a list instead of using yield")


_OPEN_KINDS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_REFUSED_KINDS = {
    inspect.Parameter.VAR_POSITIONAL: "*args can't be described to a caller; name each parameter",
    inspect.Parameter.VAR_KEYWORD: "**kwargs can't be described to a caller; name each parameter, or take one dict",
    inspect.Parameter.POSITIONAL_ONLY: "arguments are passed by name; remove the / from the signature",
}


def _refuse_kind(declared: inspect.Parameter, function: Any, where: str) -> None:
    is_builtin = inspect.isbuiltin(function) or inspect.ismethoddescriptor(function)
    if declared.kind is inspect.Parameter.POSITIONAL_ONLY and is_builtin:
        raise SetupError(f"{where}: a builtin does not take it by name; wrap it in a def with annotations")
    if declared.kind in _REFUSED_KINDS:
        raise SetupError(f"{where}: {_REFUSED_KINDS[declared.kind]}")
    if declared.name in ("self", "cls") and declared.annotation is inspect.Parameter.empty:
        owner = getattr(function, "__qualname__", "").rpartition(".")[0]
        if owner and not owner.endswith("<locals>"):
            raise SetupError(f"{where}: this is a method without its object; register the bound method, object.method")


def _is_injected(annotation: Any, injectable: type, where: str) -> bool:
    """Whether it is `Context`, `Context | None` or `Annotated[Context, …]`."""
    classes = [get_origin(member) or member for member in members(annotation) if member is not type(None)]
    found = any(isinstance(cls, type) and issubclass(cls, injectable) for cls in classes)
    if found and len(classes) > 1:
        raise SetupError(f"{where}: {injectable.__name__} can't share a parameter with other types; give it its own")
    return found


def bare_type(annotation: Any, where: str) -> Any:
    """The type behind aliases and `Annotated`."""
    while is_alias(annotation) or get_origin(annotation) is Annotated:
        annotation = alias_value(annotation, where) if is_alias(annotation) else annotation.__origin__
    return annotation


def members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, else the type itself; without `Annotated`."""
    while get_origin(annotation) is Annotated:
        annotation = annotation.__origin__
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(member for part in get_args(annotation) for member in members(part))
    return (annotation,)


class _Namespace:
    """The names that a function's annotations may use."""

    def __init__(self, function: Any) -> None:
        function = outermost(function)
        self.function = inspect.unwrap(getattr(function, "__func__", function))
        self.globals: dict[str, Any] = getattr(self.function, "__globals__", {})

    def resolve(self, annotation: Any, where: str) -> Any:
        if annotation is inspect.Parameter.empty:
            return annotation
        failure: NameError | None = None
        for local_names in (self._closure, self._defining_frame):
            try:
                return evaluate(annotation, self.globals, local_names())
            except NameError as error:
                failure = error
            except Exception as error:
                raise SetupError(f"{where}: the annotation {annotation!r} can't be read: {error}") from None
        fix = "import or define that type at module level, not under TYPE_CHECKING or inside a function"
        raise SetupError(f"{where}: the annotation {annotation!r} can't be resolved ({failure}); {fix}")

    def _closure(self) -> dict[str, Any]:
        names = getattr(getattr(self.function, "__code__", None), "co_freevars", ())
        found = {p.__name__: p for p in getattr(self.function, "__type_params__", ())}
        for name, cell in zip(names, getattr(self.function, "__closure__", None) or (), strict=False):
            with suppress(ValueError):  # not assigned yet
                found[name] = cell.cell_contents
        return found

    def _defining_frame(self) -> Mapping[str, Any]:
        """The locals of the function that defines this one, if it still runs (a decorator runs inside it)."""
        enclosing, inside, _ = getattr(self.function, "__qualname__", "").rpartition(".<locals>.")
        frame = sys._getframe() if inside else None
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            if frame.f_globals is self.globals and frame.f_code.co_name == enclosing.rpartition(".")[2]:
                return {**frame.f_locals, **self._closure()}
            frame = frame.f_back
        return {}


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """A function and the way in which the engine calls it."""

    function: Callable[..., Any]
    is_async: bool
    in_thread: bool
    context_names: tuple[str, ...] = ()  # the parameters that take the injected context
    by_name: bool = True  # arguments as keywords, or all of them as one mapping
    is_direct: bool = False  # an `async def` that takes its arguments by name, and nothing else
    dependencies: "Plan | None" = None
    timeout: float | UnsetType | None = UNSET  # UNSET: that of the server
    is_shared: bool = False  # its results are for all callers: `get_context` would give it one of them

    @classmethod
    def from_info(cls, info: FunctionInfo, options: Mapping[str, Any], *, by_name: bool = True) -> "Invocation":
        """`options` may hold `thread`, `timeout` and `cache_shared`."""
        thread = options.get("thread")
        if info.is_async and thread:
            raise SetupError(f"{info.where}: thread=True makes no sense on an async def; remove it")
        return cls(
            function=info.function,
            is_async=info.is_async,
            in_thread=not info.is_async and thread is not False,
            context_names=info.injected,
            by_name=by_name,
            is_direct=info.is_async and by_name and not info.supplied,
            dependencies=info.dependencies,
            timeout=options.get("timeout", UNSET),
            is_shared=options.get("cache_shared", False),
        )


def qualified_name(function: Callable[..., Any]) -> str:
    """Module and name of a function, for messages to its author."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def argument_style(info: FunctionInfo, schema: Mapping[str, Any]) -> tuple[bool, frozenset[str] | None]:
    """Whether a handler with a raw schema takes its arguments by name, and their names (None: all that are sent).

    By name if it has `**kwargs` or if all its parameters are properties of the schema; otherwise one parameter
    of any other name takes all arguments as a mapping. Raises SetupError if neither works.
    """
    declared = inspect.signature(info.function).parameters.values()
    parameters = {each.name: each for each in declared if each.name not in info.supplied}
    properties: Mapping[str, Any] = schema.get("properties", {})
    if any(each.kind is each.VAR_KEYWORD for each in declared):
        return True, None
    if len(parameters) == 1 and not parameters.keys() & properties.keys():
        return False, None
    defaults = {name for name, part in properties.items() if isinstance(part, Mapping) and "default" in part}
    required = {name for name, each in parameters.items() if each.default is each.empty}
    if uncertain := sorted(required - defaults.union(schema.get("required", ()))):
        raise SetupError(
            f"{info.where}: input_schema does not require {uncertain}, without which the function can't be called; "
            "require them there, give them defaults, or take one parameter (a dict) for all arguments"
        )
    if missing := sorted(properties.keys() - parameters.keys()):
        fix = "add the parameters, or take one parameter (a dict) for all arguments"
        raise SetupError(f"{info.where}: input_schema has {missing}, which the function does not take; {fix}")
    return True, frozenset(parameters)
