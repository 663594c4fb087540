"""Callables: signatures, hints, docstrings, and what is refused."""

from __future__ import annotations

import functools
import inspect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import pydantic
import pytest
from msgspec import NODEFAULT

from dovetail.errors import SetupError
from dovetail.registry.functions import Invocation, Parameter, inspect_function, split_docstring
from dovetail.schema.constraints import Field
from stable_ids import stable

if TYPE_CHECKING:
    from decimal import Decimal

T = TypeVar("T")


class Context(Generic[T]):
    """Stands for the engine's."""


class SpecialContext(Context[int]):
    pass


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: The first.
    """
    return a + b


async def fetch(url: str, ctx: Context) -> str:
    return url


class Shop:
    def buy(self, item: str) -> str:
        """Buy an item."""
        return item

    @classmethod
    def close(cls, hour: int) -> None: ...

    @staticmethod
    def open_(hour: int) -> None: ...


class Greeter:
    """Says hello."""

    async def __call__(self, name: str) -> str:
        return name


def traced(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def test_a_plain_function() -> None:
    info = inspect_function(add)
    assert (info.name, info.where, info.summary) == ("add", f"tool add ({__name__}.add)", "Add two numbers.")
    assert info.parameters == (Parameter("a", int, NODEFAULT, "The first."), Parameter("b", int, 2))
    assert [parameter.required for parameter in info.parameters] == [True, False]
    assert (info.returns, info.injected, info.is_async) == (int, (), False)
    assert info.function is add


def test_an_async_function_with_an_injected_parameter() -> None:
    info = inspect_function(fetch, kind="resource", injectable=Context)
    assert info.is_async
    assert info.where.startswith("resource fetch (")
    assert info.injected == ("ctx",)
    assert [parameter.name for parameter in info.parameters] == ["url"]


@pytest.mark.parametrize(
    ("function", "name", "parameters", "is_async"),
    [
        pytest.param(Shop().buy, "buy", ["item"], False, id="bound method"),
        pytest.param(Shop.close, "close", ["hour"], False, id="classmethod"),
        pytest.param(Shop.open_, "open_", ["hour"], False, id="staticmethod"),
        pytest.param(Greeter(), "Greeter", ["name"], True, id="callable object"),
        pytest.param(functools.partial(add, b=5), "add", ["a"], False, id="partial by name"),
        pytest.param(functools.partial(add, 1), "add", ["b"], False, id="partial by position"),
        pytest.param(traced(add), "add", ["a", "b"], False, id="wrapped"),
    ],
)
def test_callables(function: Any, name: str, parameters: list[str], is_async: bool) -> None:
    info = inspect_function(function)
    assert (info.name, info.is_async) == (name, is_async)
    assert [parameter.name for parameter in info.parameters] == parameters
    assert all(parameter.annotation in (int, str) for parameter in info.parameters)


def test_names_and_descriptions() -> None:
    assert inspect_function(Greeter()).summary == "Says hello."
    assert inspect_function(Shop().buy).summary == "Buy an item."
    assert inspect_function(lambda: 1, name="one").name == "one"
    assert inspect_function(add, name="sum").where == f"tool sum ({__name__}.add)"


def test_no_annotation_means_anything() -> None:
    def loose(value, other=1): ...  # type: ignore[no-untyped-def]

    info = inspect_function(loose)
    assert [parameter.annotation for parameter in info.parameters] == [Any, Any]
    assert info.returns is inspect.Signature.empty


def test_types_that_are_local_to_the_defining_function() -> None:
    @dataclass
    class Local:
        x: int

    def register(function: Any) -> Any:
        return inspect_function(function)

    @register
    def use(value: Local, many: list[Local] | None = None) -> Local: ...

    assert [parameter.annotation for parameter in use.parameters] == [Local, list[Local] | None]
    assert use.returns is Local


def test_types_in_a_closure_are_found_later() -> None:
    def make() -> Any:
        class Local:
            pass

        def use(value: Local) -> str:
            return Local.__name__

        return use, Local

    function, local = make()
    assert inspect_function(function).parameters[0].annotation is local


@pytest.mark.parametrize(
    "annotation", [Context, Context | None, Annotated[Context, "the context"], Context[int], SpecialContext], ids=stable
)
def test_injection(annotation: Any) -> None:
    def tool(x: int, ctx=None): ...  # type: ignore[no-untyped-def]

    tool.__annotations__["ctx"] = annotation
    info = inspect_function(tool, injectable=Context)
    assert info.injected == ("ctx",)
    assert [parameter.name for parameter in info.parameters] == ["x"]


def test_fields_as_defaults() -> None:
    def tool(
        a: int = Field(5, ge=1),
        b: int = Field(ge=1),
        c: Annotated[int, Field(7)] = 8,
        d: Annotated[int, Field(9)] = ...,  # type: ignore[assignment]
        e: list[int] = pydantic.Field(default_factory=list),  # noqa: B008
        f: int = pydantic.Field(3, le=4),
        *,
        g: Annotated[int, Field(9)],
    ) -> None: ...

    a, b, c, d, e, f, g = inspect_function(tool).parameters
    assert (a.default, a.required, a.annotation) == (5, False, Annotated[int, Field(5, ge=1)])
    assert (b.default, b.required) == (NODEFAULT, True)
    assert c.default == 8
    assert d.default is ...
    assert (e.default, e.default_factory, e.required) == (NODEFAULT, list, False)
    assert (f.default, g.default) == (3, 9)


def many(*values: int) -> None: ...
def options(**values: int) -> None: ...
def positional(a: int, /) -> None: ...
def yields() -> Any:
    yield 1


async def yields_later() -> Any:
    yield 1


def hidden(amount: Decimal) -> None: ...
def hidden_return() -> Decimal: ...
def forgotten(ctx, x: int) -> None: ...  # type: ignore[no-untyped-def]
def mixed(value: Context | int) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        pytest.param(many, ["parameter values", "*args", "name each parameter"], id="*args"),
        pytest.param(options, ["parameter values", "**kwargs", "name each parameter"], id="**kwargs"),
        pytest.param(positional, ["parameter a", "remove the /"], id="positional-only"),
        pytest.param(yields, ["generators", "return a list"], id="generator"),
        pytest.param(yields_later, ["generators", "return a list"], id="async generator"),
        pytest.param(traced(yields), ["generators", "return a list"], id="wrapped generator"),
        pytest.param(lambda x: x, ["lambda", "name="], id="lambda"),
        pytest.param(Shop, ["Shop", "a class is not a function"], id="class"),
        pytest.param(Shop(), ["Shop", "can't be called"], id="object"),
        pytest.param(Shop.buy, ["parameter self", "register the bound method"], id="unbound method"),
        pytest.param(Shop.__dict__["close"], ["classmethod", "Class.method"], id="bare classmethod"),
        pytest.param(hidden, ["parameter amount", "Decimal", "module level"], id="TYPE_CHECKING"),
        pytest.param(hidden_return, ["return annotation", "Decimal", "module level"], id="return type"),
        pytest.param(forgotten, ["parameter ctx", "ctx: Context"], id="context without annotation"),
        pytest.param(mixed, ["parameter value", "Context", "its own"], id="context in a union"),
        pytest.param(str.upper, ["str.upper)", "wrap it in a def with annotations"], id="method of a builtin"),
        pytest.param(math.sqrt, ["sqrt (math.sqrt)", "wrap it in a def with annotations"], id="builtin function"),
    ],
)
def test_refused(function: Any, words: list[str]) -> None:
    with pytest.raises(SetupError) as caught:
        inspect_function(function, injectable=Context)
    message = str(caught.value)
    assert message.startswith("tool ")
    assert [word for word in words if word not in message] == []


async def wait(url: str) -> str:
    return url


@pytest.mark.parametrize(
    ("function", "options", "expected"),
    [
        (add, {}, {"in_thread"}), (add, {"thread": True, "cache_shared": False}, {"in_thread"}),
        (add, {"thread": False}, set()), (add, {"cache_shared": True}, {"in_thread", "is_shared"}),
        (wait, {"thread": False}, {"is_async", "is_direct"}), (fetch, {}, {"is_async"}),
    ],
)  # fmt: skip
def test_the_way_in_which_a_function_is_called(function: Any, options: dict[str, Any], expected: set[str]) -> None:
    info = inspect_function(function, injectable=Context)
    found = Invocation.from_info(info, options)
    assert {way for way in ("is_async", "in_thread", "is_direct", "is_shared") if getattr(found, way)} == expected
    assert not Invocation.from_info(info, options, by_name=False).is_direct


FOUND = "Find notes.\n\nLooks in every folder."
SAID = {"text": "What to look for: words or a phrase.", "limit": "How many at most."}
GOOGLE = """Find notes.

    Looks in every folder.

    Args:
        text (str, optional): What to look for:
            words or a phrase.
        limit: How many at most.

        *folders: Where to look.

    Returns:
        The notes.

    Raises:
        KeyError: Never.

    Example:
        find("milk")
    """
NUMPY = """Find notes.

    Looks in every folder.

    Parameters
    ----------
    text : str, optional
        What to look for:
        words or a phrase.
    limit, most
        How many at most.

    Returns
    -------
    list
        The notes.

    Notes
    -----
    Slow.
    """
SPHINX = """Find notes.

    Looks in every folder.

    :param str text: What to look for:
        words or a phrase.
    :param limit: How many at most.
    :type limit: int
    :returns: The notes,
        sorted.
    :raises KeyError: Never.

    Slow.
    """


@pytest.mark.parametrize(
    ("text", "summary", "descriptions"),
    [
        pytest.param("", None, {}, id="nothing"),
        pytest.param("Add.", "Add.", {}, id="one line"),
        pytest.param("\n    Args:\n        a: One.", None, {"a": "One."}, id="arguments only"),
        pytest.param("Add.\n\nArgs:\n    a: One.\nMore.", "Add.\n\nMore.", {"a": "One."}, id="text after a section"),
        pytest.param("Add.\n\nArgs: none at all.", "Add.\n\nArgs: none at all.", {}, id="no heading"),
        pytest.param("Add.\n\nArgs:\n    a:\n        One.\n    b: 2.", "Add.", {"a": "One.", "b": "2."}, id="below"),
        pytest.param("Time is 10:30 now.\n:wave: hello", "Time is 10:30 now.\n:wave: hello", {}, id="colons"),
        pytest.param(
            GOOGLE, FOUND + '\n\nExample:\n    find("milk")', {**SAID, "folders": "Where to look."}, id="google"
        ),
        pytest.param(NUMPY, FOUND + "\n\nNotes\n-----\nSlow.", {**SAID, "most": "How many at most."}, id="numpy"),
        pytest.param(r":argument \*rest: All.", None, {"rest": "All."}, id="sphinx, escaped"),
        pytest.param(":parameter x_x: A.\n:key \\**x: B.", None, {"x_x": "A.", "x": "B."}, id="sphinx, kinds"),
        pytest.param("Add.\n\nYields:\n    One.\n\nExceptions\n----\nAny.", "Add.", {}, id="dropped"),
        pytest.param(SPHINX, FOUND + "\n\nSlow.", SAID, id="sphinx"),
    ],
)
def test_styles(text: str, summary: str | None, descriptions: dict[str, str]) -> None:
    assert split_docstring(inspect.cleandoc(text)) == (summary, descriptions)


def test_every_heading_and_field() -> None:
    arguments = "Args, Arguments, Parameters, Params, Keyword Args, Keyword Arguments, Other Parameters"
    dropped = "Returns, Return, Yields, Yield, Raises, Raise, Except, Exceptions"
    for heading in (*arguments.split(", "), *dropped.split(", ")):
        described = {"a": "One."} if heading in arguments.split(", ") else {}
        assert split_docstring(f"Add.\n\n{heading}:\n    a: One.") == ("Add.", described), heading
        assert split_docstring(f"Add.\n\n{heading}\n----\na : int\n    One.") == ("Add.", described), heading
    for field in ("param", "parameter", "arg", "argument", "key", "keyword"):
        assert split_docstring(f"Add.\n\n:{field} int a: One.") == ("Add.", {"a": "One."}), field
    for field in ("type", "return", "returns", "rtype", "raises", "raise", "except", "exception", "yields"):
        assert split_docstring(f"Add.\n\n:{field} a: One.") == ("Add.", {}), field
