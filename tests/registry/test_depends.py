"""`Depends` at registration: what a signature may say, what is refused and how, and what a client sees of it."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import fastapi
import pytest

from dovetail import Client, Context, Depends, RouteRequest, RouteResponse, Server, SetupError, ToolRegistry


class Session:
    """What dependencies give."""

    name = "session"


def open_session() -> Session:
    return Session()


def refusal(function: Callable[..., Any]) -> str:
    with pytest.raises(SetupError) as caught:
        Server("refusing").add_tool(function, name="tool")
    return str(caught.value)


# ── what a client sees ──


async def test_no_description_shows_a_dependency() -> None:
    server = Server("hidden", tools=(registry := ToolRegistry()))
    Db = Annotated[Session, Depends(open_session)]

    @server.tool
    def tool(text: str, db: Db) -> str:
        """Say it.

        Args:
            text: what to say
            db: where it lies
        """
        return f"{text} {db.name}"

    @server.prompt
    def greeting(text: str, db: Session = Depends(open_session)) -> str:
        return f"{text} {db.name}"

    @server.resource("note://one")
    def one(db: Db) -> str:
        return db.name

    @server.resource("note://{text}/more")
    async def more(text: str, db: Db) -> str:
        return f"{text} {db.name}"

    @server.completion(prompt="greeting", argument="text")
    def texts(value: str, db: Db) -> list[str]:
        return [value + db.name]

    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    def by_name(text: str, db: Db) -> str:
        return f"{text} {db.name}"

    def as_mapping(arguments: dict[str, Any], db: Db) -> str:
        return f"{arguments['text']} {db.name}"

    async def as_keywords(db: Db, **arguments: Any) -> str:
        return f"{arguments['text']} {db.name}"

    server.add_tool(by_name, input_schema=schema)
    server.add_tool(as_mapping, input_schema=schema)
    registry.register_tool("registered", "As keywords.", schema, as_keywords)
    async with Client(server) as client:
        for described in await client.list_tools():
            assert described.input_schema["properties"].keys() == {"text"}
            assert (await client.call_tool(described.name, {"text": "a"})).text == "a session"
            forged = await client.call_tool(described.name, {"text": "a", "db": "mine"}, raise_on_error=False)
            assert forged.is_error or forged.text == "a session"
        (described_prompt,) = await client.list_prompts()
        assert [argument.name for argument in described_prompt.arguments or ()] == ["text"]
        (message,) = (await client.get_prompt("greeting", {"text": "a"})).messages
        assert getattr(message.content, "text", None) == "a session"
        assert [each.text for each in await client.read_resource("note://one")] == ["session"]
        assert [each.text for each in await client.read_resource("note://a/more")] == ["a session"]
        assert (await client.complete(prompt="greeting", argument="text", value="a")).values == ["asession"]


# ── everything that can be called ──


class Pager:
    def __init__(self, size: int = 10, db: Session = Depends(open_session)) -> None:
        self.size, self.db = size, db

    def __call__(self, unknown: "NotThere" = None) -> "NotThere":  # type: ignore[name-defined]  # noqa: F821
        return f"{self.size} {self.db.name}"

    async def pages(self, *ignored: str, **options: str) -> str:
        return f"{self.size} of {self.db.name}"


def needs_text(text: str) -> str:
    return text


PAGER = Pager(5, Session())


@pytest.mark.parametrize(
    ("dependency", "value"),
    [
        (lambda: "3 session", "3 session"),
        (PAGER, "5 session"),
        (PAGER.pages, "5 of session"),
        (functools.partial(needs_text, text="7 session"), "7 session"),
        (functools.partial(Pager, size=7), Pager),
        (Pager, Pager),
        (None, Pager),
    ],
    ids=["lambda", "callable object", "bound method", "partial", "partial of a class", "class", "annotated class"],
)
async def test_a_dependency_is_anything_that_can_be_called(dependency: Any, value: Any) -> None:
    server = Server("callables")

    @server.tool
    async def tool(x: Annotated[Pager, Depends(dependency)]) -> str:
        assert x == value if isinstance(value, str) else type(x) is value and x.db.name == "session"
        return "right"

    async with Client(server) as client:
        assert (await client.call_tool("tool")).text == "right"


async def test_fastapi_s_documented_dependencies_work_unchanged() -> None:
    """Those of its tutorial that take no request parameters, with its own `Depends`."""
    closed: list[str] = []

    class DBSession:
        def close(self) -> None:
            closed.append("db")

    async def get_db() -> Any:
        db = DBSession()
        try:
            yield db
        finally:
            db.close()

    async def common_parameters(q: str | None = None, skip: int = 0, limit: int = 100) -> dict[str, Any]:
        return {"q": q, "skip": skip, "limit": limit}

    class CommonQueryParams:
        def __init__(self, q: str | None = None, skip: int = 0, limit: int = 100) -> None:
            self.q, self.skip, self.limit = q, skip, limit

    class FixedContentQueryChecker:
        def __init__(self, fixed_content: str) -> None:
            self.fixed_content = fixed_content

        def __call__(self, q: str = "") -> bool:
            return self.fixed_content in q if q else False

    async def dependency_a() -> Any:
        yield "a"
        closed.append("a")

    async def dependency_b(dep_a: Annotated[str, fastapi.Depends(dependency_a)]) -> Any:
        yield dep_a + "b"
        closed.append("b")

    async def dependency_c(dep_b: Annotated[str, fastapi.Depends(dependency_b)]) -> Any:
        yield dep_b + "c"
        closed.append("c")

    checker = FixedContentQueryChecker("bar")
    server = Server("fastapi")

    @server.tool
    async def read_items(
        commons: Annotated[dict[str, Any], fastapi.Depends(common_parameters)],
        params: Annotated[CommonQueryParams, fastapi.Depends()],
        fixed_content_included: Annotated[bool, fastapi.Depends(checker)],
        db: Annotated[DBSession, fastapi.Depends(get_db)],
        c: Annotated[str, fastapi.Depends(dependency_c, use_cache=False)],
        shortcut: CommonQueryParams = fastapi.Depends(),
    ) -> list[Any]:
        assert isinstance(db, DBSession)
        assert shortcut is params
        return [commons, params.limit, fixed_content_included, c, [*closed]]

    async with Client(server) as client:
        commons = {"q": None, "skip": 0, "limit": 100}
        assert (await client.call_tool("read_items")).data == [commons, 100, False, "abc", []]
    assert closed == ["c", "b", "a", "db"]


# ── refusals ──


def needs_header(token: str = fastapi.Header()) -> str:
    return token


def positional(ctx: Context, /) -> str:
    return ctx.protocol_version


@contextlib.contextmanager
def managed() -> Iterator[str]:
    yield "managed"


def chicken(egg: "Annotated[str, Depends(egg)]") -> str:
    return egg


def egg(chicken: "Annotated[str, Depends(chicken)]") -> str:
    return chicken


@pytest.mark.parametrize(
    ("annotation", "default", "words"),
    [
        (Annotated[str, Depends], ..., "parameter x: Depends is not called; write Depends(function)"),
        (str, Depends, "parameter x: Depends is not called; write Depends(function)"),
        (Annotated[str, fastapi.Depends], ..., "parameter x: Depends is not called; write Depends(function)"),
        (Annotated[str, Depends("open")], ..., "Depends('open') can't be called; give it the function itself"),
        (Annotated[str, Depends()], ..., "dependency builtins.str: its signature can't be read"),
        (Annotated[str | None, Depends()], ..., "Depends() needs a class as annotation; or name a function"),
        (Annotated[str, Depends(open_session)], Depends(open_session), "it has Depends(…) twice; keep one"),
        (Annotated[str, Depends(open_session)] | None, ..., "Depends(…) is for a whole parameter"),
        (list[Annotated[str, Depends(open_session)]], ..., "Depends(…) is for a whole parameter"),
        (Annotated[str, fastapi.Security(open_session, scopes=["a"])], ..., "name them in scopes= of the tool"),
        (Annotated[str, Depends(needs_text)], ..., "test_depends.needs_text, parameter text: a parameter of a depend"),
        (Annotated[str, Depends(needs_header)], ..., "test_depends.needs_header, parameter token: a parameter of a d"),
        (Annotated[str, Depends(positional)], ..., "parameter ctx: arguments are passed by name; remove the /"),
        (Annotated[str, Depends(managed)], ..., "managed is a generator inside of a decorator that is none"),
        (
            Annotated[str, Depends(chicken)],
            ...,
            "egg, parameter chicken: dependency tests.registry.test_depends.chicken depends on itself; break the cycle",
        ),
    ],
)
def test_a_wrong_dependency_is_refused(annotation: Any, default: Any, words: str) -> None:
    def tool(x, ctx: Context):  # type: ignore[no-untyped-def]
        return x

    tool.__annotations__["x"] = annotation
    if default is not ...:
        tool.__defaults__ = (default, None)
    text = refusal(tool)
    assert text.startswith(
        "tool tool (tests.registry.test_depends.test_a_wrong_dependency_is_refused.<locals>.tool), parameter x"
    )
    assert words in text


def test_a_page_has_no_dependencies() -> None:
    def page(request: RouteRequest, db: Session = Depends(open_session)) -> RouteResponse:
        return RouteResponse(db.name)

    with pytest.raises(SetupError, match="parameter db: a route gets the request and nothing else"):
        Server("pages").custom_route("/page")(page)
