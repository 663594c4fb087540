"""`Handle[T]`: an id that a tool gives out and takes back; a foreign, an expired and an edited one are not found."""

import asyncio
import logging
import re
from dataclasses import dataclass, field
from typing import Annotated, Any

import pydantic
import pytest

import state_program
from dovetail import AuditEvent, Client, Context, Handle, Server, SetupError, StateError, StoreFull, ToolError
from http_serving import Clock, serving
from http_wire import HttpWire
from server_requests import asking_client, play
from state_program import SURE, Basket, create_server
from state_stage import WatchedState, identify, known, said

NOT_FOUND = "There is no Basket with this id: it has expired, was deleted, or was never given out to you; get a new one"
DAY = 86_400.0


def serving_tool(function: Any, **options: Any) -> Server:
    server = Server("handles", **options)
    server.add_tool(function, name="tool")
    return server


# ── as a type ──


@dataclass
class Shelf:
    first: Handle[Basket]
    others: list[Handle[Basket]] = field(default_factory=list)
    spare: Handle[Basket] | None = None


@dataclass
class Link:
    """One of a chain: its type is not complete where `Handle[Link]` stands."""

    text: str
    next: "Handle[Link] | None" = None


class Cart(pydantic.BaseModel):
    basket: Handle[Basket]
    more: list[Handle[Basket]] = []


async def test_a_field_of_a_pydantic_model() -> None:
    async def tool(cart: Cart) -> Cart:
        assert {type(each) for each in (cart.basket, *cart.more)} == {Handle[Basket]}
        await cart.basket.load()
        return cart

    server = create_server()
    server.add_tool(tool)
    async with Client(server) as client:
        id = (await client.call_tool("fill")).data
        cart = {"basket": id, "more": [id]}
        assert (await client.call_tool("tool", {"cart": cart})).data == cart
        schema = next(each.input_schema for each in await client.list_tools() if each.name == "tool")
    assert schema["properties"]["cart"]["properties"]["basket"]["type"] == "string"


async def test_a_value_may_hold_handles_of_its_own_type() -> None:
    async def tool(ctx: Context) -> list[str]:
        last = await ctx.new_handle(Link("last"))
        first = await (await ctx.new_handle(Link("first", last))).load()
        assert first.next is not None
        return [first.text, (await first.next.load()).text]

    async with Client(serving_tool(tool)) as client:
        assert (await client.call_tool("tool")).data == ["first", "last"]


async def test_a_handle_is_a_string_wherever_it_stands() -> None:
    async def tool(one: Handle[Basket], shelf: Shelf, ctx: Context, none: Handle[Basket] | None = None) -> Shelf:
        """Look.

        Args:
            one: The first basket.
        """
        found = [one, shelf.first, *shelf.others, shelf.spare]
        assert {type(each) for each in found} == {Handle[Basket]}
        assert none is None
        assert [(await each.load()).items for each in found if each] == [["a"]] * 4
        return Shelf(one, [await ctx.new_handle(Basket(["b"]))])

    server = serving_tool(tool)

    @server.tool
    async def fill(ctx: Context) -> Handle[Basket]:
        return await ctx.new_handle(Basket(["a"]))

    async with Client(server) as client:
        id = (await client.call_tool("fill")).data
        assert re.fullmatch(r"hdl_[\w-]{32}", id)
        arguments = {"one": id, "shelf": {"first": id, "others": [id], "spare": id}}
        shelf = (await client.call_tool("tool", arguments)).data
        assert shelf["first"] == id != shelf["others"][0]
        tools = {each.name: each for each in await client.list_tools()}
    schema = tools["tool"].input_schema["properties"]
    assert schema["one"] == {"type": "string", "description": "The first basket."}
    described = {"type": "string", "description": "The id of one Basket that this server has given out"}
    assert schema["shelf"]["properties"]["first"] == described
    assert schema["shelf"]["properties"]["others"]["items"] == described


def test_wrong_annotations_are_refused() -> None:
    def bare(basket: Handle) -> None:  # type: ignore[type-arg]
        """It does not say what it stands for."""

    with pytest.raises(SetupError, match=r"parameter basket: Handle has no JSON form; write .*Handle\[Basket\]"):
        serving_tool(bare)
    with pytest.raises(SetupError, match=r"Handle\['Basket'\]: give the type itself"):
        Handle["Basket"]

    def unreadable(server: Handle[Server] | None = None) -> None:
        """What it stands for has no JSON form."""

    def unwritable() -> Handle[Server]:
        raise NotImplementedError

    with pytest.raises(SetupError, match="parameter server: Server has no JSON form"):
        serving_tool(unreadable)
    with pytest.raises(SetupError, match="return annotation: Server has no JSON form"):
        serving_tool(unwritable)


def test_a_result_for_all_callers_takes_no_handle() -> None:
    async def one(basket: Handle[Basket]) -> None: ...

    async def some(basket: Annotated[list[Handle[Basket]], "all"] | None = None) -> None: ...

    for function in (one, some):
        with pytest.raises(SetupError, match="depend on no caller; leave it out, or basket"):
            Server("handles").add_tool(function, cache=60, cache_shared=True)


class Marked(Basket):
    """A kind of Basket."""


async def test_a_handle_of_another_class_is_neither_read_nor_given_out(caplog: pytest.LogCaptureFixture) -> None:
    """Also if that has the same name, or is a subclass."""

    def other_basket() -> type:
        @dataclass
        class Basket:
            size: int = 0

        return Basket

    async def namesake(ctx: Context) -> str:
        return await ctx.new_handle(other_basket()())

    async def tool(ctx: Context) -> Handle[Basket] | None:
        return await ctx.new_handle(Marked())

    async def named(ctx: Context) -> Handle[Basket]:
        return await ctx.new_handle(Marked(["x"]), Basket)

    server = create_server()
    for function in (namesake, tool, named):
        server.add_tool(function)
    async with Client(server) as client:
        id = (await client.call_tool("namesake")).text
        looked = await client.call_tool("look", {"basket": id}, raise_on_error=False)
        assert looked.text == NOT_FOUND
        assert (await client.call_tool("tool", raise_on_error=False)).is_error
        assert "Handle[Marked] is returned as Handle[Basket]: give ctx.new_handle the type" in caplog.text
        id = (await client.call_tool("named")).text
        assert (await client.call_tool("look", {"basket": id})).text == "x"


async def test_logs_and_audit_events_do_not_show_an_id(caplog: pytest.LogCaptureFixture) -> None:
    events: list[AuditEvent] = []

    async def tool(basket: Handle[Basket]) -> None:
        logging.getLogger("dovetail").warning("lost %s", basket)

    server = create_server(audit=events.append, audit_arguments=True)
    server.add_tool(tool)
    async with Client(server) as client:
        id = (await client.call_tool("fill")).text
        await client.call_tool("tool", {"basket": id})
    assert events[-1].arguments == {"basket": "[redacted]"}
    assert "lost [redacted]" in caplog.text
    assert id not in caplog.text


async def test_outside_of_a_call_there_is_none() -> None:
    with pytest.raises(LookupError, match="no call runs here"):
        await Handle[Basket]("x").load()


# ── what is not found ──


async def test_cut_doubled_edited_foreign_and_expired_ones_are_not_found_in_the_same_words() -> None:
    clock = Clock()
    state = WatchedState(clock=clock)
    server = create_server(state_ttl=10 * DAY)

    @server.tool
    async def other_type(ctx: Context) -> Handle[Shelf]:
        return await ctx.new_handle(Shelf(Handle[Basket]("x")))

    async with serving(server, identify=identify, state=state) as app:
        ada, session = known(app, "ada"), await HttpWire.session(app)
        id, of_session, gone = await said(ada, "fill"), await said(session, "fill"), await said(ada, "fill")
        await said(ada, "empty", basket=gone)
        edited = id[:-1] + ("A" if id[-1] != "A" else "B")
        shelf = await said(ada, "other_type")
        changed = [id[:-1], id + id, edited, id.swapcase(), f" {id}", f"{id}\0", "", "x" * 100_000]
        for each in (*changed, gone, shelf, of_session):
            assert await said(ada, "look", basket=each) == NOT_FOUND
            assert await said(ada, "put", basket=each, item="x") == NOT_FOUND
            assert await said(ada, "empty", basket=each) == NOT_FOUND
        for stranger in (known(app, "bob"), session, await HttpWire.session(app), HttpWire(app)):
            assert await said(stranger, "look", basket=id) == NOT_FOUND
        assert await said(ada, "look", basket=id) == "first"
        clock.sleep(9 * DAY)
        assert await said(ada, "put", basket=id, item="x") == "first x"  # renewed
        clock.sleep(9 * DAY)
        assert await said(ada, "look", basket=id) == "first x"
        clock.sleep(1 * DAY)
        assert await said(ada, "look", basket=id) == NOT_FOUND
        id = await said(ada, "fill")
    twin = Server("twin")
    twin.add_tool(state_program.look)
    async with serving(twin, identify=identify, state=state) as app:
        assert await said(known(app, "ada"), "look", basket=id) == NOT_FOUND
    assert not any(each in name for name in state.ttls for each in (id, of_session))


async def test_a_cached_result_shows_no_value_to_other_callers() -> None:
    server = create_server()

    async def cached(basket: Handle[Basket]) -> list[str]:
        return (await basket.load()).items

    async def shared(basket: str) -> list[str]:
        return (await Handle[Basket](basket).load()).items

    server.add_tool(cached, cache=60)
    server.add_tool(shared, cache=60, cache_shared=True)
    async with serving(server, identify=identify) as app:
        id = await said(known(app, "ada"), "fill")
        assert "first" in await said(known(app, "ada"), "cached", basket=id)
        assert await said(known(app, "bob"), "cached", basket=id) == NOT_FOUND
        for user in ("ada", "bob"):  # a handle needs a caller, and there is none
            assert "failed" in await said(known(app, user), "shared", basket=id)


async def test_an_unknown_callers_handle_is_for_each_that_has_it() -> None:
    async with serving(create_server(), identify=identify) as app:
        id = await said(HttpWire(app), "fill")
        assert await said(HttpWire(app), "put", basket=id, item="second") == "first second"
        assert await said(known(app, "ada"), "look", basket=id) == "first second"


async def test_a_value_of_another_deploys_type_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    state = WatchedState()

    def deploy(cls: type, value: Any) -> Server:
        server = Server("deployed")
        cls.__name__ = cls.__qualname__ = "Order"

        async def give(ctx: Context) -> Any:
            return str(await ctx.new_handle(value))

        async def take(order: Any) -> str:
            return str(await order.load())

        take.__annotations__["order"] = Handle[cls]
        server.add_tool(give)
        server.add_tool(take)
        return server

    @dataclass
    class Old:
        count: int

    @dataclass
    class New:
        amount: float

    async with serving(deploy(Old, Old(1)), identify=identify, state=state) as app:
        id = await said(known(app, "ada"), "give")
    async with serving(deploy(New, New(1.0)), identify=identify, state=state) as app:
        text = await said(known(app, "ada"), "take", order=id)
    assert text == "The tool take failed. The details are in the server's log."
    assert "the value of a handle can't be read as Order" in caplog.text


# ── values, bounds and steps ──


async def test_the_type_may_be_given_and_bounds_hold() -> None:
    async def tool(ctx: Context) -> list[str]:
        words = await ctx.new_handle(["a"], list[str], ttl=60)
        assert await words.update(lambda held: [*held, "b"]) == ["a", "b"]
        for wrong in (0, -1.0, float("nan"), 1e12, "5", True):
            with pytest.raises(SetupError, match=r"ctx\.new_handle: ttl=.* seconds above 0, at most"):
                await ctx.new_handle("x", ttl=wrong)  # type: ignore[arg-type]
        for bare in ([], {}, (), set[str](), frozenset[str]()):
            with pytest.raises(SetupError, match=r"ctx\.new_handle: give the type of what it holds, .*list\[str\]"):
                await ctx.new_handle(bare)
        with pytest.raises(StateError, match=r"ctx\.new_handle: the value can't be read as list\[int\]"):
            await ctx.new_handle(["a"], list[int])  # type: ignore[list-item]
        with pytest.raises(SetupError, match="Lock has no JSON form"):
            await ctx.new_handle(1, asyncio.Lock)  # type: ignore[arg-type]
        with pytest.raises(StateError, match="can't be stored"):
            await ctx.new_handle(asyncio.Lock())
        with pytest.raises(StoreFull, match="the quota is 1000"):
            await ctx.new_handle("x" * 1000)
        with pytest.raises(StoreFull, match="the quota is 1000"):
            await words.update(lambda held: ["x" * 1000])
        with pytest.raises(StateError, match="What the function returns for"):
            await words.update(lambda held: held.append("c"))  # type: ignore[arg-type,func-returns-value]
        with pytest.raises(SetupError, match="plain"):
            await words.update(asyncio.sleep)  # type: ignore[arg-type]
        return await words.load()

    async with Client(serving_tool(tool, state_quota=1000)) as client:
        assert (await client.call_tool("tool")).data == ["a", "b"]


async def test_a_replayed_call_makes_changes_and_deletes_once() -> None:
    given: list[str] = []

    async def tool(ctx: Context) -> str:
        basket = await ctx.new_handle(Basket())
        given.append(basket)
        items = (await basket.update(lambda held: held.put("x"))).items
        await basket.delete()
        await ctx.elicit(SURE, bool)
        with pytest.raises(ToolError, match="There is no Basket"):
            await basket.load()
        return " ".join(items)

    async with asking_client(serving_tool(tool)) as client:
        assert (await play(client, "tool", {SURE: True})).text == "x"
    assert len(given) == 2
    assert len(set(given)) == 1
