"""`Depends`: parameters that other functions fill, compiled to the plan in which those run."""

import inspect
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import msgspec

from dovetail.errors import SetupError
from dovetail.registry.functions import bare_type, innermost, outermost, qualified_name, read_signature
from dovetail.schema.constraints import is_field


class Marker(msgspec.Struct, frozen=True, eq=False):
    """A `Depends(…)` in a signature; FastAPI's has these fields too."""

    dependency: Callable[..., Any] | None
    use_cache: bool = True


def Depends(dependency: Callable[..., Any] | None = None, *, use_cache: bool = True) -> Any:
    """Let a function fill a parameter, once for each call: `db: Annotated[Session, Depends(open_session)]`.

    The function is plain or async, or a generator that yields the value and cleans up afterwards. Without a function
    the annotated class is called. With `use_cache=False` this parameter gets a value of its own.
    """
    return Marker(dependency, use_cache)


Filled = tuple[tuple[str, int], ...]  # parameters, and the indices of the values they take
CONTEXT, ASYNC_CONTEXT = -1, -2  # the last values: the Context, and one that can wait where a `def` on the loop can't


class Node(msgspec.Struct, frozen=True, eq=False):
    """The function that fills a parameter, and its own parameters that are filled."""

    function: Callable[..., Any]
    name: str
    is_shared: bool  # its value, with all parameters of the call that name the function
    is_async: bool
    is_generator: bool
    context_names: tuple[str, ...]
    nodes: Mapping[str, "Node"]  # by parameter


class Dependency(msgspec.Struct, frozen=True, eq=False):
    """A node in its place in a plan."""

    node: Node
    index: int  # of its value
    is_early: bool  # async, as are all that it needs: it can run before a thread is there
    needs: Filled


class Plan(msgspec.Struct, frozen=True, eq=False):
    """The dependencies of a function, each after those that it needs."""

    nodes: Mapping[str, Node]
    dependencies: tuple[Dependency, ...]
    early: tuple[Dependency, ...]
    late: tuple[Dependency, ...]  # the others
    fills: Filled  # the parameters of the function itself
    takes_context: bool
    is_plain: bool  # the late ones are `def` functions, and none is a generator

    @classmethod
    def compile(cls, nodes: Mapping[str, Node]) -> "Plan":
        found: list[Dependency] = []
        shared: dict[Hashable, int] = {}
        fills = tuple((name, _add(node, found, shared)) for name, node in nodes.items())
        early = tuple(each for each in found if each.is_early)
        late = tuple(each for each in found if not each.is_early)
        takes_context = any(each.node.context_names for each in found)
        is_plain = not any(each.node.is_async or each.node.is_generator for each in late)
        return cls(nodes, tuple(found), early, late, fills, takes_context, is_plain)


def _add(node: Node, found: list[Dependency], shared: dict[Hashable, int]) -> int:
    """The index of a node's value; its dependency is added after those that it needs."""
    key = _key(node.function)
    if node.is_shared and key in shared:
        return shared[key]
    needs = tuple((name, _add(each, found, shared)) for name, each in node.nodes.items())
    index = len(found)
    is_early = node.is_async and all(found[each].is_early for _, each in needs)
    contexts = ((name, ASYNC_CONTEXT if node.is_async else CONTEXT) for name in node.context_names)
    found.append(Dependency(node, index, is_early, (*needs, *contexts)))
    if node.is_shared:
        shared[key] = index
    return index


def replaced(nodes: Mapping[str, Node], overrides: Mapping[Any, Any], where: str, injectable: type) -> dict[str, Node]:
    """The nodes with other functions in place of some; for tests, which replace them at any time."""
    made: dict[str, Node] = {}
    for name, node in nodes.items():
        key, others = _key(node.function), overrides
        if key in overrides:
            node = _read_node(overrides[key], node.is_shared, f"{where}, parameter {name}", injectable, ())
            others = {each: overrides[each] for each in overrides if each != key}  # it may need what it replaces
        made[name] = msgspec.structs.replace(node, nodes=replaced(node.nodes, others, where, injectable))
    return made


def _key(function: Any) -> Hashable:
    return function if isinstance(function, Hashable) else id(function)


def read_depends(
    found: list[Any], annotation: Any, where: str, injectable: type | None, chain: tuple[Any, ...]
) -> Node:
    """Read the one `Depends(…)` of a parameter; `chain` leads to it. Raises SetupError with the parameter and a fix."""
    given = found[0]
    if len(found) > 1:
        raise SetupError(f"{where}: it has Depends(…) twice; keep one")
    if not hasattr(given, "use_cache"):
        raise SetupError(f"{where}: Depends is not called; write Depends(function)")
    if getattr(given, "scopes", None):
        raise SetupError(f"{where}: the scopes of Security(…) are not checked here; name them in scopes= of the tool")
    if (function := given.dependency) is None:
        function = bare_type(annotation, where)
        if not inspect.isclass(function) or function is inspect.Parameter.empty:
            raise SetupError(f"{where}: Depends() needs a class as annotation; or name a function, Depends(function)")
    return _read_node(function, bool(given.use_cache), where, injectable, chain)


def _read_node(function: Any, is_shared: bool, where: str, injectable: type | None, chain: tuple[Any, ...]) -> Node:
    if not callable(function):
        raise SetupError(f"{where}: Depends({function!r}) can't be called; give it the function itself, without ()")
    name = qualified_name(innermost(function)[0])
    where = f"{where}: dependency {name}"
    if function in chain:
        raise SetupError(f"{where} depends on itself; break the cycle")
    signature = read_signature(function, where, injectable, chain=(*chain, function))
    for each, _, here in signature.others:
        if each.default is each.empty or is_field(each.default):
            fix = "is Context or Depends(…), or has a plain default; let the tool take what the client sends"
            raise SetupError(f"{here}: a parameter of a dependency {fix}")
    called, inner = outermost(function), outermost(innermost(function)[0])
    is_generator = inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called)
    if not is_generator and (inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)):
        fix = "give Depends the generator itself, without @contextmanager; or leave out functools.wraps"
        raise SetupError(f"{where} is a generator inside of a decorator that is none; {fix}")
    return Node(
        function=function,
        name=name,
        is_shared=is_shared,
        is_async=inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called),
        is_generator=is_generator,
        context_names=tuple(signature.injected),
        nodes=signature.depends,
    )
