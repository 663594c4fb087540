"""Extensions of anybody: how they are declared, their methods and notifications, and what tools may require."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import pytest

from dovetail import Client, Context, Extension, Field, MissingCapability, Server, ServerError, SetupError, ToolError
from dovetail.errors import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, MISSING_CAPABILITY
from http_serving import hosted
from sdk import HANDSHAKES, MODERN, REVISIONS

ID = "com.example/notes"
FIND, SEEN = "com.example/notes/find", "notifications/com.example/notes/seen"
DECLARED = {ID: {"depth": 2}}
EVERYWHERE = pytest.mark.parametrize("revision", REVISIONS)


def find(word: Annotated[str, Field(min_length=2)], limit: int = 5) -> dict[str, Any]:
    return {"found": [word] * limit}


def returning(value: Any) -> Callable[[], Any]:
    return lambda: value


def print_nothing() -> None:
    """Receive a notification."""


def notes(**options: Any) -> Server:
    server = Server("notes", version="1.0.0")
    server.add_extension(Extension(ID, {"maxLength": 500}, methods={FIND: find}, **options))
    return server


@EVERYWHERE
@pytest.mark.rule("EXT-2", "EXT-3")
async def test_it_is_declared_in_every_revision_with_its_settings(revision: str) -> None:
    async with Client(notes(), protocol_version=revision) as client:
        assert client.capabilities["extensions"] == {ID: {"maxLength": 500}}
    async with Client(Server("plain"), protocol_version=revision) as client:
        assert "extensions" not in client.capabilities


@EVERYWHERE
async def test_a_method_is_a_function_of_its_params(revision: str) -> None:
    async with Client(notes(), protocol_version=revision) as client:
        result = await client.request(FIND, {"word": "cheese", "limit": 2, "since_version": 3})
        assert result["found"] == ["cheese", "cheese"]
        assert result.get("resultType") == ("complete" if revision == MODERN else None)
        with pytest.raises(ServerError, match="word: must have at least 2 characters") as refused:
            await client.request(FIND, {"word": "x"})
        assert refused.value.code == INVALID_PARAMS
        with pytest.raises(ServerError) as refused:
            await client.request("com.example/notes/lose", {})
        assert refused.value.code == METHOD_NOT_FOUND


async def test_over_http_headers_are_checked_and_an_unknown_method_is_404() -> None:
    async with hosted(notes().asgi()) as url, Client(url) as client:
        assert (await client.request(FIND, {"word": "tea"}))["found"] == ["tea"] * 5
        with pytest.raises(ServerError) as refused:
            await client.request("com.example/other", {})
        assert refused.value.code == METHOD_NOT_FOUND


@EVERYWHERE
@pytest.mark.rule("EXT-5", "EXT-6")
async def test_only_clients_that_declare_it_may_use_it(revision: str) -> None:
    server = notes(declared_only=True)
    async with Client(server, protocol_version=revision) as client:
        with pytest.raises(ServerError) as refused:
            await client.request(FIND, {"word": "cheese"})
        assert refused.value.code == (MISSING_CAPABILITY if revision == MODERN else INVALID_REQUEST)
        assert refused.value.data == {"requiredCapabilities": {"extensions": {ID: {}}}}
    async with Client(server, protocol_version=revision, extensions=DECLARED) as client:
        assert (await client.request(FIND, {"word": "cheese", "limit": 1}))["found"] == ["cheese"]


@EVERYWHERE
async def test_a_tool_requires_an_extension_and_sees_its_settings(revision: str) -> None:
    server = Server("notes")

    @server.tool(requires=[ID])
    def depth(ctx: Context) -> int:
        return ctx.client.extensions[ID]["depth"]

    async with Client(server, protocol_version=revision, extensions=DECLARED) as client:
        assert (await client.call_tool("depth")).text == "2"
    for declared in ({}, {"extensions": {ID: True}}, {"extensions": [ID]}, {"extensions": None}):
        async with Client(server, protocol_version=revision, capabilities=declared) as client:
            with pytest.raises((ToolError, ServerError), match=ID):
                await client.call_tool("depth")


def test_a_client_that_lacks_it_is_named_the_id() -> None:
    error = MissingCapability({"extensions": {ID: {}}})
    assert ID in error.message


@pytest.mark.parametrize("way", ["stdio", "http"])
@pytest.mark.parametrize("revision", [*HANDSHAKES[-1:], MODERN])
async def test_notifications_run_their_function(way: str, revision: str) -> None:
    seen = asyncio.Queue[str]()

    async def on_seen(word: str, ctx: Context) -> None:
        await seen.put(f"{word} for {ctx.client.name} in {ctx.protocol_version}")

    async def fail() -> None:
        await seen.put("failing")
        raise RuntimeError("never shown")

    server = Server("notes")
    server.add_extension(Extension(ID, notifications={SEEN: on_seen, f"{SEEN}/fail": fail}))

    async def use(client: Client) -> None:
        for params in ({"word": "tea"}, {"word": 3}, {}, {"word": "milk"}):
            await client.notify(SEEN, params)
        await client.notify(f"{SEEN}/fail")
        await client.notify("notifications/com.example/unknown")
        got = {await seen.get() for _ in range(3)}
        assert got == {f"tea for dovetail in {revision}", f"milk for dovetail in {revision}", "failing"}
        assert seen.empty()

    if way == "stdio":
        async with Client(server, protocol_version=revision) as client:
            await use(client)
    else:
        async with hosted(server.asgi()) as url, Client(url, protocol_version=revision) as client:
            await use(client)


BAD_IDS = ["notes", "/notes", "com.example/", "com..example/x", "1com/x", "com.example/x/y", "com.example/-x", "", 3]


@pytest.mark.rule("EXT-1", "EXT-2")
@pytest.mark.parametrize("id", BAD_IDS)
def test_an_id_has_a_prefix_and_a_name(id: Any) -> None:
    with pytest.raises(SetupError, match=r"com\.example/search"):
        Server("x").add_extension(Extension(id))
    with pytest.raises(SetupError, match=r"com\.example/search"):
        Client(Server("x"), extensions={id: {}})


@pytest.mark.rule("EXT-2", "EXT-12")
@pytest.mark.parametrize(
    ("extension", "words"),
    [
        (Extension(ID, True), "must be a JSON object"),  # type: ignore[arg-type]
        (Extension(ID, {"x": object()}), "must be a JSON object"),
        (Extension(ID, methods={"tools/call": find}), "a name of your own"),
        (Extension(ID, methods={SEEN: find}), "a name of your own"),
        (Extension(ID, methods={"rpc.find": find}), "a name of your own"),
        (Extension(ID, methods={3: find}), "a name of your own"),  # type: ignore[dict-item]
        (Extension(ID, methods={"com.example/suche/ä": find}), "printable ASCII without spaces"),
        (Extension(ID, methods={" find": find}), "printable ASCII without spaces"),
        (Extension(ID, notifications={FIND: find}), "notifications/com.example/changed"),
        (Extension(ID, methods=[find]), "dict of functions"),  # type: ignore[arg-type]
        (Extension(ID, methods={FIND: 3}), "method com.example/notes/find"),  # type: ignore[dict-item]
        (find, "give it an Extension"),
    ],
)
def test_what_can_not_work_is_refused(extension: Any, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        Server("x").add_extension(extension)


@pytest.mark.rule("EXT-12")
def test_an_id_and_a_method_belong_to_one_extension() -> None:
    server = notes()
    with pytest.raises(SetupError, match=f"already an extension {ID}"):
        server.add_extension(Extension(ID))
    with pytest.raises(SetupError, match=f"has the method {FIND} already"):
        server.add_extension(Extension("com.example/other", methods={FIND: find}))
    server.add_extension(Extension("com.example/seen", notifications={SEEN: print_nothing}))
    with pytest.raises(SetupError, match=f"has the method {SEEN} already"):
        server.add_extension(Extension("com.example/third", notifications={SEEN: print_nothing}))


@EVERYWHERE
async def test_a_result_is_an_object(revision: str) -> None:
    server = Server("notes")
    server.add_extension(Extension(ID, methods={FIND: lambda: 3, "com.example/none": lambda: None}))
    async with Client(server, protocol_version=revision) as client:
        with pytest.raises(ServerError, match="failed"):
            await client.request(FIND)
        assert "found" not in await client.request("com.example/none")


@EVERYWHERE
@pytest.mark.rule("EXT-9")
async def test_a_result_keeps_its_meta_and_has_no_type_of_its_own(revision: str) -> None:
    results: dict[str, Any] = {
        "com.example/meta": {"_meta": {"com.example/cost": 3}},
        "com.example/wrong": {"_meta": 3},
        "com.example/type": {"resultType": "task"},
    }
    methods = {name: returning(each) for name, each in results.items()}
    server = Server("notes")
    server.add_extension(Extension(ID, methods=methods))
    async with Client(server, protocol_version=revision) as client:
        assert (await client.request("com.example/meta"))["_meta"]["com.example/cost"] == 3
        with pytest.raises(ServerError, match="its _meta is an object"):
            await client.request("com.example/wrong")
        with pytest.raises(ServerError, match="resultType"):
            await client.request("com.example/type")


@EVERYWHERE
async def test_methods_and_notifications_count_towards_the_limit_of_the_server(revision: str) -> None:
    seen: list[str] = []
    server = Server("notes", rate_limit="2/hour")
    server.add_extension(Extension(ID, methods={FIND: find}, notifications={SEEN: lambda: seen.append("seen")}))
    async with Client(server, protocol_version=revision) as client:
        await client.request(FIND, {"word": "tea"})
        await client.request(FIND, {"word": "tea"})
        with pytest.raises(ServerError, match="2 requests"):
            await client.request(FIND, {"word": "tea"})
        await client.notify(SEEN)
    assert seen == []


@EVERYWHERE
async def test_audit_has_an_event_of_each_request_of_a_method(revision: str) -> None:
    events: list[Any] = []
    server = Server("notes", audit=events.append)
    server.add_extension(Extension(ID, methods={FIND: find}))
    async with Client(server, protocol_version=revision) as client:
        await client.request(FIND, {"word": "tea", "password": "secret"})
        with pytest.raises(ServerError):
            await client.request(FIND)
    assert [(event.method, event.outcome, event.code) for event in events] == [
        (FIND, "ok", None), (FIND, "error", INVALID_PARAMS),
    ]  # fmt: skip
    assert [event.arguments for event in events] == [{"word": "tea", "password": "[redacted]"}, {}]
