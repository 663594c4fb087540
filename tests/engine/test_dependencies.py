"""Dependencies at work: where they run, how long they live, what ends them, and how tests replace them."""

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Annotated, Any

import pytest

from dovetail import Client, Context, Depends, Server, ToolError, get_context
from dovetail.client import ElicitResult
from http_serving import until
from official import Witness

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates:DeprecationWarning")
REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
STYLES = ("async", "thread", "loop")  # how a tool runs
every_style = pytest.mark.parametrize("style", STYLES)


def register(server: Server, style: str, body: Callable[..., Any], **options: Any) -> None:
    """The same tool as an `async def`, as a `def` in a thread, and as a `def` on the loop."""
    if style == "async":

        @functools.wraps(body)
        async def tool(*values: Any, **named: Any) -> Any:
            return body(*values, **named)

        server.add_tool(tool, name="tool", **options)
    else:
        server.add_tool(body, name="tool", thread=style == "thread", **options)


class Stage:
    """Dependencies of all four kinds that need each other, and write down what happens to them."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.threads: dict[str, threading.Thread] = {}
        self.server = Server("stage", version="1.0.0")

    def note(self, event: str) -> None:
        self.events.append(event)
        self.threads[event] = threading.current_thread()

    async def settings(self) -> str:
        self.note("settings")
        return "s"

    def config(self) -> str:
        self.note("config")
        return "c"

    def pool(self, config: str) -> Iterator[str]:
        self.note("pool")
        try:
            yield config + "p"
        except BaseException as error:
            self.note(f"pool saw {type(error).__name__}")
            raise
        finally:
            self.note("pool closed")

    async def session(self, pool: str, settings: str) -> AsyncIterator[str]:
        self.note("session")
        try:
            yield pool + settings + "x"
        except BaseException as error:
            self.note(f"session saw {type(error).__name__}")
            raise
        finally:
            await asyncio.sleep(0)
            self.note("session closed")

    def wire(self) -> Callable[..., Any]:
        """`session`, which needs the others."""
        settings, config = self.settings, self.config
        pool, session = self.pool, self.session

        def open_pool(config: str = Depends(config)) -> Iterator[str]:
            yield from pool(config)

        async def open_session(
            pool: Annotated[str, Depends(open_pool)], settings: Annotated[str, Depends(settings)]
        ) -> AsyncIterator[str]:
            generator = session(pool, settings)
            value = await anext(generator)
            try:
                yield value
            except BaseException as error:
                await generator.athrow(error)
            else:
                await anext(generator, None)

        self.open_pool = open_pool
        return open_session


async def failure_of(server: Server) -> str:
    async with Client(server) as client:
        result = await client.call_tool("tool", raise_on_error=False)
        assert result.is_error
        return result.text


# ── where they run ──


@every_style
async def test_each_runs_where_it_belongs_and_all_are_left_in_reverse(style: str) -> None:
    stage = Stage()
    session = stage.wire()

    def tool(db: Annotated[str, Depends(session)], again: Annotated[str, Depends(stage.open_pool)]) -> str:
        stage.note("tool")
        return f"{db} {again}"

    register(stage.server, style, tool)
    async with Client(stage.server) as client:
        assert (await client.call_tool("tool")).text == "cpsx cp"
        early = ["settings", "config", "pool"] if style == "thread" else ["config", "pool", "settings"]
        assert stage.events == [*early, "session", "tool", "session closed", "pool closed"]
        here = threading.main_thread()
        loop = {event for event, thread in stage.threads.items() if thread is here}
        asynchronous = {"settings", "session", "session closed"}
        if style == "loop":
            assert loop == set(stage.events)
        elif style == "async":
            assert loop == {*asynchronous, "tool"}
        else:
            assert loop == asynchronous
            assert len({stage.threads[each] for each in ("config", "pool", "tool", "pool closed")}) == 1
        stage.events.clear()
        assert (await client.call_tool("tool")).text == "cpsx cp"
        assert stage.events.count("config") == stage.events.count("pool closed") == 1


@every_style
async def test_one_value_for_each_call_unless_it_is_not_to_be_shared(style: str) -> None:
    server, made = Server("shared"), iter(range(100))

    async def number() -> int:
        return next(made)

    async def other(own: Annotated[int, Depends(number, use_cache=False)], same: int = Depends(number)) -> list[int]:
        return [own, same]

    def tool(a: int = Depends(number), b: int = Depends(number), c: list[int] = Depends(other)) -> list[Any]:
        return [a, b, c]

    register(server, style, tool)
    async with Client(server) as client:
        assert (await client.call_tool("tool")).data == [0, 0, [1, 0]]
        assert (await client.call_tool("tool")).data == [2, 2, [3, 2]]


variable: ContextVar[str] = ContextVar("variable", default="unset")


@every_style
async def test_what_an_async_dependency_sets_is_seen_by_the_function(style: str) -> None:
    server = Server("variables")

    async def tenant() -> AsyncIterator[None]:
        token = variable.set("set")
        yield
        variable.reset(token)

    def tool(a: Annotated[None, Depends(tenant)]) -> str:
        return variable.get()

    register(server, style, tool)
    async with Client(server) as client:
        assert (await client.call_tool("tool")).text == "set"


async def test_a_coroutine_that_a_def_returns_is_awaited_before_the_end() -> None:
    """A decorator that is no `async def` makes such a function of an `async def`."""
    stage = Stage()

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*values: Any, **named: Any) -> Any:
            return function(*values, **named)

        return wrapper

    @decorated
    async def tool(db: Annotated[str, Depends(stage.wire())]) -> str:
        stage.note("tool")
        return db

    stage.server.add_tool(tool)
    stage.server.add_tool(tool, name="on_the_loop", thread=False)
    async with Client(stage.server) as client:
        for name in ("tool", "on_the_loop"):
            assert (await client.call_tool(name)).text == "cpsx"
            assert stage.events[-3:] == ["tool", "session closed", "pool closed"]


@every_style
async def test_a_coroutine_that_a_def_dependency_returns_is_awaited(style: str) -> None:
    """A decorator may have made a `def` of an `async def`."""
    stage = Stage()
    coroutine: Callable[[], Any] = functools.wraps(stage.settings)(lambda: stage.settings())

    def tool(a: Annotated[str, Depends(coroutine)]) -> str:
        return a

    register(stage.server, style, tool)
    async with Client(stage.server) as client:
        assert (await client.call_tool("tool")).text == "s"


@pytest.mark.parametrize(
    ("returns", "fails"),
    [(True, False), (False, False), (False, True)],
    ids=["in the end", "in the function", "after an end that failed"],
)
async def test_an_end_that_hangs_does_not_hold_a_call_that_timed_out(
    returns: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.engine.dependencies.LEAVE_TIMEOUT", 0.5)
    server, may_end, events = Server("hanging"), threading.Event(), list[str]()

    async def pool() -> AsyncIterator[str]:
        yield "pool"
        events.append("pool closed")

    def session(pool: Annotated[str, Depends(pool)]) -> Iterator[str]:
        try:
            yield pool
        finally:
            may_end.wait()
            events.append("session closed")

    def transaction(session: Annotated[str, Depends(session)]) -> Iterator[str]:
        try:
            yield session
        finally:
            if fails:
                raise ToolError("no rollback")

    @server.tool(timeout=0.05)
    async def tool(transaction: Annotated[str, Depends(transaction)]) -> str:
        if not returns:
            await asyncio.Event().wait()
        return transaction

    async with Client(server) as client, asyncio.timeout(20):
        text = (await client.call_tool("tool", raise_on_error=False)).text
        assert ("no rollback" if fails else "did not finish within 0.05 s") in text
        assert not events or events == ["pool closed"]
        assert server.engine.threads.stuck == 1  # it is told, and does not take a thread from other calls
        may_end.set()
        async with asyncio.timeout(10):
            while "session closed" not in events:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_no_end_runs_on_the_loop_because_threads_are_stuck() -> None:
    """It may hang as they do, and would stop the whole server."""
    server, may_open, opened, ends = Server("outage", max_threads=2), threading.Event(), list[str](), list[str]()
    may_return = asyncio.Event()

    def session() -> Iterator[None]:
        opened.append("session")
        if len(opened) > 1:
            may_open.wait()
        yield
        ends.append(threading.current_thread().name)

    @server.tool
    async def tool(session: Annotated[None, Depends(session)]) -> None:
        await may_return.wait()

    async with Client(server) as client:
        first = asyncio.create_task(client.call_tool("tool"))
        await until(lambda: len(opened) == 1)
        second = asyncio.create_task(client.call_tool("tool"))
        await until(lambda: len(opened) == 2)
        second.cancel()
        await until(lambda: server.engine.threads.stuck == 1)
        may_return.set()
        await first
        assert len(ends) == 1
        assert ends[0] != threading.current_thread().name
        may_open.set()
        await until(lambda: server.engine.threads.stuck == 0)


# ── failures ──


@every_style
async def test_a_failure_is_seen_by_all_and_keeps_its_line(style: str) -> None:
    stage = Stage()

    def tool(db: Annotated[str, Depends(stage.wire())]) -> str:
        raise LookupError(db)

    register(stage.server, style, tool)
    line = tool.__code__.co_firstlineno + 1
    text = f"The tool tool failed: LookupError: cpsx (test_dependencies.py, line {line})"
    found = await failure_of(stage.server)
    assert found == text or style == "async"  # there the wrapper's line comes first
    assert found.startswith("The tool tool failed: LookupError: cpsx (test_dependencies.py, line ")
    saw = ["session saw LookupError", "session closed", "pool saw LookupError", "pool closed"]
    assert stage.events[-4:] == saw


@every_style
async def test_what_was_entered_is_left_if_a_later_one_fails(style: str) -> None:
    stage = Stage()

    async def broken(db: Annotated[str, Depends(stage.wire())]) -> str:
        raise ToolError("no luck")

    def tool(x: Annotated[str, Depends(broken)]) -> str:
        return "never"

    register(stage.server, style, tool)
    assert await failure_of(stage.server) == "no luck"
    assert stage.events[-4:] == ["session saw ToolError", "session closed", "pool saw ToolError", "pool closed"]


def swallowing() -> Iterator[int]:
    with contextlib.suppress(ToolError):
        yield 1


def failing_at_the_end() -> Iterator[int]:
    try:
        yield 1
    finally:
        raise ToolError("the end failed")


async def failing_async() -> AsyncIterator[int]:
    yield 1
    raise ToolError("never: the exception passes by")


def empty() -> Iterator[int]:
    yield from ()


async def empty_async() -> AsyncIterator[int]:
    for each in ():
        yield each


def twice() -> Iterator[int]:
    yield 1
    yield 2


async def twice_async() -> AsyncIterator[int]:
    try:
        yield 1
    except ToolError:
        yield 2


@every_style
@pytest.mark.parametrize(
    ("dependency", "words"),
    [
        (swallowing, "the tool failed"),
        (failing_at_the_end, "the end failed"),
        (failing_async, "the tool failed"),
        (empty, "test_dependencies.empty ended without a yield; a dependency yields one value"),
        (empty_async, "test_dependencies.empty_async ended without a yield; a dependency yields one value"),
        (twice_async, "test_dependencies.twice_async yielded a second time; a dependency yields one value"),
    ],
)
async def test_the_end_of_a_generator(style: str, dependency: Callable[..., Any], words: str) -> None:
    stage = Stage()

    def first() -> Iterator[None]:
        yield
        stage.note("never: there was an exception")

    def last() -> Iterator[None]:
        try:
            yield
        finally:
            stage.note("left")

    def tool(a: None = Depends(last), x: int = Depends(dependency), b: None = Depends(first)) -> None:
        raise ToolError("the tool failed")

    register(stage.server, style, tool)
    assert words in await failure_of(stage.server)
    runs_first = style == "thread" and dependency is empty_async  # before there is a thread
    assert stage.events == ([] if runs_first else ["left"])


@every_style
async def test_an_end_that_fails_fails_the_call(style: str) -> None:
    server = Server("ends")

    def tool(x: int = Depends(twice)) -> int:
        return x

    register(server, style, tool)
    assert "twice yielded a second time" in await failure_of(server)


# ── cancellation and timeouts ──


@pytest.mark.parametrize("with_generator", [False, True])
async def test_no_dependency_begins_after_its_call_has_ended(with_generator: bool) -> None:
    server, events, may_go_on = Server("shop", version="1"), list[str](), threading.Event()

    def slow() -> None:
        may_go_on.wait(20)

    def charge(slow: Annotated[None, Depends(slow)]) -> None:
        events.append("charged")

    def generator() -> Iterator[None]:
        yield

    extra = generator if with_generator else lambda: None

    @server.tool(timeout=0.05)
    def tool(charge: Annotated[None, Depends(charge)], extra: Annotated[None, Depends(extra)]) -> None:
        events.append("called")

    async with Client(server) as client, asyncio.timeout(20):
        assert (await client.call_tool("tool", raise_on_error=False)).is_error
        assert server.engine.threads.stuck == 1
        may_go_on.set()
        await until(lambda: server.engine.threads.stuck == 0)
    assert events == []


def exits() -> Any:
    """An `async def` behind a plain decorator."""

    async def stop() -> None:
        raise SystemExit(3)

    return stop()


async def needs_thread(ready: Annotated[None, Depends(lambda: None)]) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize("dependency", [exits, needs_thread])
async def test_an_exit_in_a_dependency_ends_no_server(dependency: Callable[..., Any]) -> None:
    server = Server("shop", version="1")

    @server.tool
    def tool(never: Annotated[None, Depends(dependency)]) -> str:
        return "called"

    @server.tool
    def waits(ctx: Context) -> None:
        ctx.wait(exits())

    @server.tool
    async def steps(ctx: Context) -> None:
        await ctx.step("exit", exits)

    async with Client(server) as client:
        for name in ("tool", "waits", "steps"):
            assert (await client.call_tool(name, raise_on_error=False)).is_error


@pytest.mark.parametrize("way", ["cancelled", "timeout"])
@pytest.mark.parametrize("style", ["async", "thread"])
async def test_a_call_that_is_stopped_is_cleaned_up(style: str, way: str) -> None:
    stage = Stage()
    entered, released = threading.Event(), threading.Event()
    session = stage.wire()
    timeout = 0.05 if way == "timeout" else None

    if style == "async":

        @stage.server.tool(timeout=timeout, name="tool")
        async def wait(db: Annotated[str, Depends(session)]) -> None:
            entered.set()
            await asyncio.Event().wait()
    else:

        @stage.server.tool(timeout=timeout, name="tool")
        def block(db: Annotated[str, Depends(session)]) -> None:
            entered.set()
            released.wait(10)
            stage.note("tool ended")

    async with Client(stage.server) as client:
        call = asyncio.create_task(client.call_tool("tool", raise_on_error=False))
        await until(entered.is_set)
        if way == "cancelled":
            call.cancel()
        await asyncio.wait([call])
        if style == "thread":  # which can't be stopped: the session is open as long as it runs
            assert "session closed" not in stage.events
            released.set()
        await until(lambda: "pool closed" in stage.events)
        assert stage.threads["session closed"] is threading.main_thread()
        assert stage.threads["pool closed"] is not threading.main_thread()
        if style == "thread":
            saw = ["session saw CallEnded", "session closed", "pool saw CallEnded", "pool closed"]
            assert stage.events[-5:] == ["tool ended", *saw]  # a transaction is not committed
        else:
            saw = ["session saw CancelledError", "session closed", "pool saw CancelledError", "pool closed"]
            assert stage.events[-4:] == saw


async def test_what_another_needs_is_left_after_it_even_if_the_call_is_cancelled_meanwhile() -> None:
    """It runs in a thread, which can't be stopped."""
    stage = Stage()
    closing, released = threading.Event(), threading.Event()

    async def pool() -> AsyncIterator[str]:
        try:
            yield "p"
        finally:
            stage.note("pool closed")

    def session(pool: Annotated[str, Depends(pool)]) -> Iterator[str]:
        yield pool
        closing.set()
        released.wait(10)
        stage.note("session closed")

    @stage.server.tool
    async def uses(db: Annotated[str, Depends(session)]) -> str:
        return db

    async with Client(stage.server) as client:
        call = asyncio.create_task(client.call_tool("uses"))
        await until(closing.is_set)
        call.cancel()
        await asyncio.wait([call])
        await client.list_tools()  # the server has heard of it
        released.set()
        await until(lambda: len(stage.events) == 2)
    assert stage.events == ["session closed", "pool closed"]


@pytest.mark.parametrize("kind", ["generator", "function"])
@pytest.mark.parametrize("style", ["async", "thread"])
async def test_what_is_opened_after_the_end_of_a_call_is_left_at_once(style: str, kind: str) -> None:
    """And the function, which waited for it, does not run."""
    stage = Stage()
    entered, released = threading.Event(), threading.Event()

    def slow() -> Iterator[str]:
        entered.set()
        released.wait(10)
        try:
            yield "opened"
        except BaseException as error:
            stage.note(f"saw {type(error).__name__}")
            raise

    def slow_function() -> str:
        entered.set()
        released.wait(10)
        return "opened"

    def last() -> Iterator[None]:
        try:
            yield
        finally:
            stage.note("left")

    dependency = slow if kind == "generator" else slow_function

    def tool(a: Annotated[None, Depends(last)], db: Annotated[str, Depends(dependency)]) -> None:
        stage.note("never")

    register(stage.server, style, tool)
    async with Client(stage.server) as client:
        call = asyncio.create_task(client.call_tool("tool"))
        await until(entered.is_set)
        call.cancel()
        await asyncio.wait([call])
        await client.list_tools()  # the server has heard of it
        released.set()
        ends = ["left", "saw CallEnded"] if kind == "generator" else ["left"]
        await until(lambda: sorted(stage.events) == ends)
        await until(lambda: stage.server.engine.threads.stuck == 0)
    assert sorted(stage.events) == ends


@pytest.mark.parametrize("fails", [False, True])
async def test_the_end_of_a_def_generator_runs_even_if_no_thread_can_be_had(fails: bool) -> None:
    stage = Stage()

    def tool(db: Annotated[str, Depends(stage.wire())]) -> str:
        stage.server.engine.threads.close()  # as at the end of a server, while this call still runs
        if fails:
            raise ToolError("the tool failed")
        return db

    register(stage.server, "async", tool)
    async with Client(stage.server) as client:
        text = (await client.call_tool("tool", raise_on_error=False)).text
    assert text == ("the tool failed" if fails else "cpsx")
    assert stage.events[-1] == "pool closed"


# ── questions ──


async def ask_roots(ctx: Context) -> str:
    return ",".join(root.name or "" for root in await ctx.list_roots())


def ask_in_thread(ctx: Context) -> str:
    return ctx.wait(ask_roots(ctx))


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize(
    ("style", "dependency"),
    [(style, ask_roots) for style in STYLES] + [("async", ask_in_thread), ("thread", ask_in_thread)],
)
async def test_a_dependency_asks_on_every_revision(
    style: str, dependency: Callable[..., Any], revision: str, witness: Witness
) -> None:
    stage = Stage()

    async def transaction() -> AsyncIterator[None]:
        try:
            yield
        except Exception:
            stage.note("never: a question is no failure")
        finally:
            stage.note("left")

    def tool(word: str, a: Annotated[None, Depends(transaction)], roots: Annotated[str, Depends(dependency)]) -> str:
        return f"{word} {roots}"

    register(stage.server, style, tool)
    roots = [{"uri": "file:///home", "name": "home"}]
    async with Client(stage.server, protocol_version=revision, roots=roots, transcript=witness.see) as client:
        assert (await client.call_tool("tool", {"word": "my"})).text == "my home"
    assert stage.events == ["left"] * (2 if revision == "2026-07-28" else 1)  # rounds


@pytest.mark.parametrize("revision", REVISIONS[2:])
async def test_two_questions_and_a_step_in_dependencies(revision: str) -> None:
    server, bought = Server("steps"), list[str]()

    async def size(ctx: Context) -> str:
        return str((await ctx.elicit("Which size?", str)).data)

    async def hat(ctx: Context, size: Annotated[str, Depends(size)]) -> str:
        def buy() -> str:
            bought.append(size)
            return f"hat {size}"

        return await ctx.step("buy", buy)

    @server.tool
    async def wrap(hat: Annotated[str, Depends(hat)], size: Annotated[str, Depends(size)], ctx: Context) -> str:
        colour = (await ctx.elicit("Which colour?", str)).data
        return f"{hat} in {colour} ({size})"

    answers = {"Which size?": "L", "Which colour?": "red"}
    handler = lambda request: ElicitResult("accept", {"value": answers[request.message]})  # noqa: E731
    async with Client(server, protocol_version=revision, elicitation_handler=handler) as client:
        assert (await client.call_tool("wrap")).text == "hat L in red (L)"
    assert bought == ["L"]


# ── overrides ──


@every_style
async def test_tests_replace_dependencies_of_any_depth(style: str) -> None:
    stage = Stage()
    session = stage.wire()

    def tool(db: Annotated[str, Depends(session)]) -> str:
        return db

    async def fake_settings(ctx: Context, session: Annotated[str, Depends(stage.config)]) -> str:
        return f"({session} {ctx.protocol_version[:2]} {get_context().protocol_version[:2]})"

    register(stage.server, style, tool)
    async with Client(stage.server) as client:
        stage.server.dependency_overrides[stage.settings] = fake_settings
        assert (await client.call_tool("tool")).text == "cp(c 20 20)x"
        stage.server.dependency_overrides[session] = lambda: "fake"
        assert (await client.call_tool("tool")).text == "fake"

        def wrapper(real: Annotated[str, Depends(session)]) -> str:
            return f"wrapped {real}"

        stage.server.dependency_overrides[session] = wrapper
        assert (await client.call_tool("tool")).text == "wrapped cp(c 20 20)x"
        stage.server.dependency_overrides[session] = lambda needed: "fake"
        text = (await client.call_tool("tool", raise_on_error=False)).text
        assert "SetupError: tool tool" in text
        assert "<lambda>, parameter needed: a parameter of a dependency is Context or Depends" in text
        stage.server.dependency_overrides.clear()
        assert (await client.call_tool("tool")).text == "cpsx"
