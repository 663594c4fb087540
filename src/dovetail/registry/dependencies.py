"""`Depends`: parameters that other functions fill, compiled to the plan in which those run."""

import inspect
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import msgspec

from dovetail.errors import SetupError
from dovetail.registry.functions import (
    OPEN_KINDS,
    Namespace,
    bare_type,
    find_depends,
    innermost,
    is_injected,
    outermost,
    qualified_name,
)
from dovetail.schema.constraints import is_field

MAX_DEPENDENCIES = 100  # of one function, with all that they need themselves


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


class Dependency(msgspec.Struct, frozen=True, eq=False):
    """A function that fills parameters."""

    function: Callable[..., Any]
    name: str
    index: int  # of its value
    is_async: bool
    is_generator: bool
    is_early: bool  # async, as are all that it needs: it can run before a thread is there
    context_names: tuple[str, ...]
    needs: tuple[tuple[str, int], ...]  # parameters, and the values they take


class Signature(msgspec.Struct, frozen=True):
    """The parameters of a dependency that are filled."""

    context_names: tuple[str, ...]
    depends: Mapping[str, Marker]


class Plan(msgspec.Struct, frozen=True, eq=False):
    """The dependencies of a function, each after those that it needs."""

    dependencies: tuple[Dependency, ...]
    early: tuple[Dependency, ...]
    late: tuple[Dependency, ...]  # the others
    names: Mapping[str, int]  # the function's own parameters, and the values they take
    depends: Mapping[str, Marker]
    takes_context: bool
    where: str
    injectable: type | None
    signatures: dict[Hashable, Signature]

    @classmethod
    def compile(
        cls, depends: Mapping[str, Marker], where: str, injectable: type | None,
        signatures: Mapping[Hashable, Signature] | None = None, overrides: Mapping[Any, Any] | None = None,
    ) -> "Plan":  # fmt: skip
        """Compile the plan of a function. Raises SetupError, with the dependency, its parameter and the fix."""
        compiler = _Compiler(injectable, dict(signatures or {}), overrides or {})
        names = {name: compiler.add(each, f"{where}, parameter {name}", ()) for name, each in depends.items()}
        found = tuple(compiler.dependencies)
        return cls(
            dependencies=found,
            early=tuple(each for each in found if each.is_early),
            late=tuple(each for each in found if not each.is_early),
            names=names,
            depends=depends,
            takes_context=any(each.context_names for each in found),
            where=where,
            injectable=injectable,
            signatures=compiler.signatures,
        )

    def overridden(self, overrides: Mapping[Any, Any]) -> "Plan":
        """The plan with other functions in place of some; for tests, which replace them at any time."""
        return Plan.compile(self.depends, self.where, self.injectable, self.signatures, overrides)


class _Compiler:
    """Collects the dependencies of one function, and what is known of their signatures."""

    def __init__(
        self, injectable: type | None, signatures: dict[Hashable, Signature], overrides: Mapping[Any, Any]
    ) -> None:
        self.dependencies: list[Dependency] = []
        self.signatures = signatures
        self._injectable = injectable
        self._overrides = overrides
        self._shared: dict[Hashable, int] = {}  # indexes by function

    def add(self, marker: Marker, where: str, chain: tuple[Any, ...]) -> int:
        """The index of a dependency, which is added after those that it needs; `chain` leads to it."""
        function: Any = self._overrides.get(_key(marker.dependency), marker.dependency)
        key = _key(function)
        if marker.use_cache and key in self._shared:
            return self._shared[key]
        name = qualified_name(innermost(function)[0])
        here = f"{where}: dependency {name}"
        links = " → ".join((*(qualified_name(innermost(each)[0]) for each in chain), name))
        if key in map(_key, chain):
            raise SetupError(f"{here} depends on itself: {links}; break the cycle")
        if max(len(chain), len(self.dependencies)) >= MAX_DEPENDENCIES:
            raise SetupError(f"{here} is one too many: a function has at most {MAX_DEPENDENCIES} dependencies in all")
        if key not in self.signatures:
            self.signatures[key] = _read_signature(function, here, self._injectable)
        signature = self.signatures[key]
        needs = tuple((each, self.add(found, where, (*chain, function))) for each, found in signature.depends.items())
        called = outermost(function)
        is_async = inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)
        dependency = Dependency(
            function=function,
            name=name,
            index=len(self.dependencies),
            is_async=is_async,
            is_generator=inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called),
            is_early=is_async and all(self.dependencies[index].is_early for _, index in needs),
            context_names=signature.context_names,
            needs=needs,
        )
        self.dependencies.append(dependency)
        if marker.use_cache:
            self._shared[key] = dependency.index
        return dependency.index


def _key(function: Any) -> Hashable:
    return function if isinstance(function, Hashable) else id(function)


def read_depends(found: list[Any], annotation: Any, where: str) -> Marker:
    """The one `Depends(…)` of a parameter, with its function. Raises SetupError."""
    given = found[0]
    if len(found) > 1:
        raise SetupError(f"{where}: it has Depends(…) twice; keep one")
    if not hasattr(given, "use_cache"):
        raise SetupError(f"{where}: Depends is not called; write Depends(function)")
    if getattr(given, "scopes", None):
        raise SetupError(f"{where}: the scopes of Security(…) are not checked here; name them in scopes= of the tool")
    function = given.dependency
    if function is None:
        function = bare_type(annotation, where)
        if not inspect.isclass(function) or function is inspect.Parameter.empty:
            raise SetupError(f"{where}: Depends() needs a class as annotation; or name a function, Depends(function)")
    if not callable(function):
        raise SetupError(f"{where}: Depends({function!r}) can't be called; give it the function itself, without ()")
    return Marker(function, bool(given.use_cache))


def _read_signature(function: Any, where: str, injectable: type | None) -> Signature:
    if not callable(function):
        raise SetupError(f"{where} can't be called; dependency_overrides takes functions")
    try:
        declared = inspect.signature(function).parameters.values()
    except (ValueError, TypeError, NameError) as error:
        raise SetupError(f"{where}: its signature can't be read ({error}); wrap it in a def") from None
    inner, bound = innermost(function)
    namespace = Namespace(inner.__init__ if inspect.isclass(inner) else inner)
    context_names, depends = [], {}
    for each in declared:
        if each.name in bound or each.kind in OPEN_KINDS:
            continue
        here = f"{where}, parameter {each.name}"
        has_default = each.default is not each.empty
        try:
            annotation = namespace.resolve(each.annotation, here)
        except SetupError:
            if not has_default:
                raise
            annotation = each.empty
        if found := find_depends(annotation, each.default, here):
            depends[each.name] = read_depends(found, annotation, here)
        elif injectable is not None and is_injected(annotation, injectable, here):
            context_names.append(each.name)
        elif not has_default or is_field(each.default):
            fix = "is Context or Depends(…), or has a plain default; let the tool take what the client sends"
            raise SetupError(f"{here}: a parameter of a dependency {fix}")
        else:
            continue
        if each.kind is each.POSITIONAL_ONLY:
            raise SetupError(f"{here}: it is passed by name; remove the / from the signature")
    return Signature(tuple(context_names), depends)
