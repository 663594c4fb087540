"""From functions to resources and templates: what is listed, what is read, what is refused."""

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from dovetail import Context, Depends, NotFound, ResourceContents, Server, SetupError
from wire import MODERN, Wire


def new_server(**options: Any) -> Server:
    return Server("resources", version="1.0.0", **options)


async def read(server: Server, uri: str, version: str = "2025-11-25") -> list[dict[str, Any]]:
    async with Wire(server, version) as wire:
        return (await wire.ask("resources/read", {"uri": uri}))["contents"]


def refused(uri: str, function: Any, **options: Any) -> str:
    server = new_server()
    with pytest.raises(SetupError) as caught:
        server.add_resource(uri, function, **options)
    assert not server.engine.resources.direct.all()
    assert not server.engine.resources.templates.all()
    return str(caught.value)


# ── what is returned ──


@pytest.mark.rule("RES-11", "RES-18")
@pytest.mark.parametrize(
    ("value", "mime_type", "contents"),
    [
        ("text", None, [{"uri": "a://b", "mimeType": "text/plain", "text": "text"}]),
        ("", "text/html", [{"uri": "a://b", "mimeType": "text/html", "text": ""}]),
        (b"\xff\x00", None, [{"uri": "a://b", "mimeType": "application/octet-stream", "blob": "/wA="}]),
        (bytearray(b"x"), "image/png", [{"uri": "a://b", "mimeType": "image/png", "blob": "eA=="}]),
        ({"a": 1}, None, [{"uri": "a://b", "mimeType": "application/json", "text": '{"a":1}'}]),
        ([1, 2], None, [{"uri": "a://b", "mimeType": "application/json", "text": "[1,2]"}]),
        ([], None, [{"uri": "a://b", "mimeType": "application/json", "text": "[]"}]),
        (None, None, [{"uri": "a://b", "mimeType": "application/json", "text": "null"}]),
        (ResourceContents("a://c", text="t"), None, [{"uri": "a://c", "text": "t"}]),
        (
            [ResourceContents("a://c", text="t"), ResourceContents("a://d", "x/y", blob=b"1", meta={"e/f": 1})],
            None,
            [{"uri": "a://c", "text": "t"}, {"uri": "a://d", "mimeType": "x/y", "blob": "MQ==", "_meta": {"e/f": 1}}],
        ),
    ],
)
async def test_what_a_function_returns_becomes_contents(value: Any, mime_type: str | None, contents: Any) -> None:
    server = new_server()
    server.add_resource("a://b", lambda: value, name="r", mime_type=mime_type)
    assert await read(server, "a://b") == contents


@pytest.mark.rule("RES-6")
@pytest.mark.parametrize("value", [object(), float("nan"), RuntimeError("secret 42"), SystemExit("secret 42")])
async def test_failures_are_internal_errors_that_say_nothing(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = new_server()

    @server.resource("a://b")
    async def give() -> Any:
        if isinstance(value, BaseException):
            raise value
        return value

    for version in ("2025-11-25", MODERN):
        async with Wire(server, version) as wire:
            error = await wire.refusal("resources/read", {"uri": "a://b"})
            assert error["code"] == -32603
            assert "secret" not in str(error)
    assert caplog.text


@pytest.mark.rule("RES-5", "RES-7", "RES-8", "BASE-16")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25", MODERN])
async def test_what_is_not_found(version: str) -> None:
    server = new_server()

    @server.resource("a://{id}")
    async def one(id: str) -> str:
        raise NotFound("No such note") if id == "7" else NotFound

    code = -32602 if version == MODERN else -32002
    async with Wire(server, version) as wire:
        for uri, words in (("a://7", "No such note"), ("a://8", "not found"), ("x://", "not found"), ("", "")):
            error = await wire.refusal("resources/read", {"uri": uri})
            assert (error["code"], error["data"]) == (code, {"uri": uri})
            assert words in error["message"]
        for params in ({}, {"uri": None}, {"uri": 5}):
            assert (await wire.refusal("resources/read", params))["code"] == -32602


# ── lists ──


@pytest.mark.rule("RES-19", "RES-2")
async def test_everything_that_can_be_said_is_listed() -> None:
    server = new_server()
    said: dict[str, Any] = {
        "title": "T",
        "description": "D",
        "mime_type": "text/plain",
        "annotations": {"audience": ["user"], "priority": 0.5, "lastModified": "2026-01-01T00:00:00Z"},
        "icons": [{"src": "https://example.org/i.png"}],
        "meta": {"e/f": 1},
        "tags": ["x"],
    }
    server.add_resource("a://b", lambda: "", name="r", size=5, **said)
    server.add_resource("a://{id}", lambda id: "", name="t", **said)
    async with Wire(server, MODERN) as wire:
        resource = (await wire.ask("resources/list"))["resources"][0]
        template = (await wire.ask("resources/templates/list"))["resourceTemplates"][0]
    assert (resource["uri"], resource["name"], resource["size"]) == ("a://b", "r", 5)
    assert (template["uriTemplate"], template["name"]) == ("a://{id}", "t")
    for each in (resource, template):
        assert (each["title"], each["description"], each["mimeType"]) == ("T", "D", "text/plain")
        assert each["_meta"] == {"e/f": 1, "dovetail/tags": ["x"]}
        assert (each["annotations"], each["icons"]) == (said["annotations"], said["icons"])


Level = StrEnum("Level", {"LOW": "low"})
BINARY = "application/octet-stream"
PAGE = ResourceContents("a://all", "text/markdown", text="# a")


def returning(annotation: Any, value: Any) -> Any:
    def function():
        return value

    if annotation is not ...:
        function.__annotations__["return"] = annotation
    return function


text, data, value, unsaid = returning(str, ""), returning(bytes, b""), returning(dict, {}), returning(..., b"")
JSON, PLAIN, MARKDOWN = "application/json", "text/plain", "text/markdown"


@pytest.mark.parametrize(
    ("uri", "function", "options", "listed", "contents"),
    [
        ("a://all", text, {}, PLAIN, PLAIN),
        ("a://all", data, {}, BINARY, BINARY),
        ("a://all", value, {}, JSON, JSON),
        ("a://all", unsaid, {}, PLAIN, BINARY),
        ("a://all", returning(Annotated[bytes | None, "kept"], b"a"), {}, BINARY, BINARY),
        ("a://all", returning(Level, Level.LOW), {}, PLAIN, PLAIN),
        ("a://all", returning(memoryview, memoryview(b"a")), {}, BINARY, BINARY),
        ("a://all", returning(list[int] | None, [1]), {}, JSON, JSON),
        ("a://all", returning(Sequence[ResourceContents] | None, [PAGE]), {}, PLAIN, MARKDOWN),
        ("a://all", returning(ResourceContents, PAGE), {}, PLAIN, MARKDOWN),
        ("a://all", returning(str | dict[str, int], {}), {}, PLAIN, JSON),
        ("a://all", returning(Literal["a", "b"], "a"), {}, PLAIN, PLAIN),
        ("a://all", returning(Any, 1), {}, PLAIN, JSON),
        ("a://all", returning(object, b"a"), {}, PLAIN, BINARY),
        ("a://all/config.json", returning(str | None, "a"), {}, JSON, JSON),
        ("a://readme.MD?raw=a.txt#b.txt", text, {}, MARKDOWN, MARKDOWN),
        ("a://logo.png", data, {"mime_type": "x/y"}, "x/y", "x/y"),
        ("a://v1.2", text, {}, PLAIN, PLAIN),
        ("lang://go", value, {}, JSON, JSON),
        ("a://host.md/all", text, {}, PLAIN, PLAIN),
    ],
)
async def test_a_listed_resource_has_a_type(
    uri: str, function: Any, options: dict[str, Any], listed: str, contents: str
) -> None:
    server = new_server()
    server.add_resource(uri, function, **options)
    async with Wire(server, MODERN) as wire:
        (found,) = (await wire.ask("resources/list"))["resources"]
        assert found["mimeType"] == listed
        (read_contents,) = (await wire.ask("resources/read", {"uri": uri}))["contents"]
        assert read_contents["mimeType"] == contents


async def test_the_ending_of_a_template_is_the_type_of_what_it_gives() -> None:
    server = new_server()
    server.add_resource("a://{name}.md", lambda name: f"# {name}", name="pages")
    (contents,) = await read(server, "a://b.md")
    async with Wire(server, MODERN) as wire:
        (listed,) = (await wire.ask("resources/templates/list"))["resourceTemplates"]
    assert contents["mimeType"] == listed["mimeType"] == MARKDOWN


async def test_the_type_that_a_folder_is_given_is_that_of_all_its_files(tmp_path: Path) -> None:
    server = new_server()
    (tmp_path / "early.txt").write_text("a")
    server.add_directory(tmp_path, uri="a://all", mime_type="text/x-log")
    (tmp_path / "late.txt").write_text("a")
    found = [*await read(server, "a://all/late.txt"), *await read(server, "a://all/early.txt")]
    async with Wire(server, MODERN) as wire:
        found += (await wire.ask("resources/list"))["resources"]
    assert {each["mimeType"] for each in found} == {"text/x-log"}


# ── templates ──


@pytest.mark.rule("RES-15")
async def test_variables_are_converted() -> None:
    server = new_server()

    @server.resource("a://{id}/{kind}{?limit,tags*}")
    async def one(
        ctx: Context, id: int, kind: Literal["x", "y"], limit: float = 1.5, tags: list[str] | None = None
    ) -> dict[str, Any]:
        return {"id": id, "kind": kind, "limit": limit, "tags": tags, "version": ctx.protocol_version}

    (contents,) = await read(server, "a://7/x?limit=2")
    assert contents["text"] == '{"id":7,"kind":"x","limit":2.0,"tags":null,"version":"2025-11-25"}'
    assert contents["uri"] == "a://7/x?limit=2"
    async with Wire(server, "2025-11-25") as wire:
        for wrong in ("a://seven/x", "a://7/z", "a://7/x?limit=many", "a://7", "a://7/x/y", "a://%2F/x"):
            error = await wire.refusal("resources/read", {"uri": wrong})
            assert (error["code"], error["data"]) == (-32002, {"uri": wrong}), wrong


def with_x(annotation: Any) -> Any:
    def function(x=None):
        return {"x": x}

    function.__annotations__["x"] = annotation
    return function


@pytest.mark.parametrize(
    ("uri", "annotation", "given", "expected"),
    [
        ("a://{/x*}", list[str], "a:///b/c", ["b", "c"]),
        ("a://{/x*}", Any, "a:///b/c", ["b", "c"]),
        ("a://{x*}", list[int], "a://1,2", [1, 2]),
        ("a://b{?x*}", list[str] | None, "a://b?x=1&x=2", ["1", "2"]),
    ],
)
async def test_a_variable_that_gives_a_list(uri: str, annotation: Any, given: str, expected: Any) -> None:
    server = new_server()
    server.add_resource(uri, with_x(annotation))
    (contents,) = await read(server, given)
    assert json.loads(contents["text"]) == {"x": expected}


@pytest.mark.parametrize("annotation", [str, str | None, Path])
async def test_an_exploded_variable_is_a_text_with_slashes_for_a_parameter_that_takes_text(annotation: Any) -> None:
    server, parent = new_server(), new_server()
    server.add_resource("a://{owner}/{x*}/page{?lines}", with_path(annotation))
    parent.mount(server, namespace="docs")
    for given, expected in (("a://me/b/c/page", "me b/c 1"), ("a://me/b%2Fc.d/page?lines=3", "me b/c.d 3")):
        (contents,) = await read(server, given)
        assert contents["text"] == expected
        (contents,) = await read(parent, given.replace("a://", "a://docs/"))
        assert contents["text"] == expected
    async with Wire(server, MODERN) as wire:
        (template,) = (await wire.ask("resources/templates/list"))["resourceTemplates"]
        assert template["uriTemplate"] == "a://{owner}/{x*}/page{?lines}"
        for escaping in ("a://me/b/..%2F..%2Fc/page", "a://me//etc/page", "a://me/page"):
            assert (await wire.refusal("resources/read", {"uri": escaping}))["code"] == -32602


def with_path(annotation: Any) -> Any:
    def function(owner: str, x=None, lines: int = 1) -> str:
        return f"{owner} {x} {lines}"

    function.__annotations__["x"] = annotation
    return function


# ── what is refused ──


@pytest.mark.parametrize(
    ("uri", "annotation"),
    [
        ("a://{/x*}", str),
        ("a://{x*}", int),
        ("a://b{?x*}", str),
        ("a://b{?x*}", int | None),
        ("a://{/x*}", dict),
    ],
)
def test_a_variable_that_gives_a_list_needs_a_parameter_that_takes_one(uri: str, annotation: Any) -> None:
    assert re.match(r"resource function .*\['x'\].*drop the \*", refused(uri, with_x(annotation)))


def takes_nothing() -> str:
    return ""


def takes_id(id: str) -> str:
    return id


@pytest.mark.parametrize(
    ("uri", "function", "words"),
    [
        ("no scheme", takes_nothing, "not a URI"), ("", takes_nothing, "not a URI"), ("a://b", takes_id, "id"),
        ("a://{other}", takes_id, "other"), ("a://{id}{other}", takes_id, "takes_id"),
        ("a://{id", takes_id, "malformed"), ("a://{?id}", takes_id, "default"), ("a://{id}", takes_nothing, "id"),
    ],
)  # fmt: skip
def test_uris_and_functions_that_do_not_fit(uri: str, function: Any, words: str) -> None:
    message = refused(uri, function)
    assert words in message
    assert function.__name__ in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cache": 0}, "cache=0"), ({"ttl_ms": -1}, "ttl_ms=-1"), ({"ttl_ms": 1.5}, "ttl_ms=1.5"),
        ({"cache_scope": "all"}, "cache_scope='all'"), ({"size": -1}, "size=-1"), ({"mimetype": "x"}, "mimetype"),
        ({"annotations": {"audience": ["robot"]}}, "annotations"), ({"annotations": {"prio": 1}}, "prio"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    message = refused("a://b", takes_nothing, **options)
    assert words in message
    assert "takes_nothing" in message


@pytest.mark.parametrize("uri", ["me://profile", "me://{name}"])
@pytest.mark.parametrize("annotation", [Context, Annotated[str, Depends(takes_nothing)]], ids=["Context", "Depends"])
def test_what_is_cached_for_all_callers_may_not_depend_on_one(uri: str, annotation: Any) -> None:
    def profile(caller, name=""):  # type: ignore[no-untyped-def]
        return str(caller)

    profile.__annotations__["caller"] = annotation
    words = "cache= is for contents that depend on no caller; leave out cache= or caller"
    assert words in refused(uri, profile, cache=60)


def test_the_uri_is_needed_and_taken_once() -> None:
    server = new_server()
    with pytest.raises(SetupError, match="needs the URI"):
        server.resource(takes_nothing)  # type: ignore[arg-type]
    server.add_resource("a://b", takes_nothing)
    with pytest.raises(SetupError, match="already a resource 'a://b'"):
        server.add_resource("a://b", takes_nothing)
    server.add_resource("a://{id}", takes_id)
    with pytest.raises(SetupError, match="already a resource template"):
        server.add_resource("a://{id}", takes_id)


@pytest.mark.rule("RES-16", "CACHE-1", "CACHE-3")
async def test_cache_hints_of_a_resource() -> None:
    server = new_server(ttl_ms=5)
    server.add_resource("a://own", takes_nothing, ttl_ms=100, cache_scope="public")
    server.add_resource("a://plain", takes_nothing)
    server.add_resource("t://{id}", takes_id, ttl_ms=7)
    async with Wire(server, MODERN) as wire:
        hints = {}
        for uri in ("a://own", "a://plain", "t://1"):
            result = await wire.ask("resources/read", {"uri": uri})
            hints[uri] = (result["ttlMs"], result["cacheScope"])
    assert hints == {"a://own": (100, "public"), "a://plain": (5, "private"), "t://1": (7, "private")}
