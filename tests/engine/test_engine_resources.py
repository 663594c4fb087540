"""Resources end to end: cached contents, files and folders, watching, values that lead out, URIs that are too long."""

import asyncio
import enum
import os
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import pytest

from dovetail import Client, Context, Server, SetupError
from dovetail.engine.resources import Resources
from dovetail.protocol.results import CacheHint
from dovetail.protocol.types import MAX_URI_LENGTH
from http_serving import until
from sdk import every_revision
from wire import MODERN, Wire

ROOT = Path("/srv")


def new_server(**options: Any) -> Server:
    return Server("library", version="1.0.0", **options)


async def text(wire: Wire, uri: str) -> str:
    (contents,) = (await wire.ask("resources/read", {"uri": uri}))["contents"]
    return contents["text"]


async def listed(wire: Wire) -> list[dict[str, Any]]:
    wire.server.engine.resources.mark_files_stale()
    return (await wire.ask("resources/list"))["resources"]


async def uris(wire: Wire) -> list[str]:
    return [each["uri"] for each in await listed(wire)]


# ── cached contents ──


async def test_contents_are_cached_for_as_long_as_asked_and_go_with_their_function() -> None:
    server, reads = new_server(), list[str]()

    def counted(name: str = "cached") -> str:
        reads.append(name)
        return f"{name} {len(reads)}"

    server.add_resource("a://short", lambda: counted("short"), name="short", cache=0.01)
    server.add_resource("a://{name}", counted, cache=60)
    async with Wire(server, MODERN) as wire:
        assert [await text(wire, "a://b") for _ in range(3)] == ["b 1"] * 3
        server.notify_resource_updated("a://b")
        assert await text(wire, "a://b") == "b 2"
        server.add_resource("a://b", lambda: counted(), name="exact", cache=60)
        assert await text(wire, "a://b") == "cached 3"
        server.remove_resource("a://b")
        assert await text(wire, "a://b") == "b 4"
        server.remove_resource("a://{name}")
        assert (await wire.refusal("resources/read", {"uri": "a://b"}))["code"] == -32602
        assert await text(wire, "a://short") == "short 5"
        await asyncio.sleep(0.02)
        assert await text(wire, "a://short") == "short 6"


@pytest.mark.parametrize(("size", "cached"), [(1, 3), (40, 2), (100, 1)])
async def test_the_cached_contents_are_bounded_in_number_and_size(size: int, cached: int) -> None:
    server, reads = new_server(), list[Any]()
    server.add_resource("a://{id}", lambda id: id, name="t", cache=60)
    resources = Resources(server.engine.threads, CacheHint(), print, print, max_cached=3, max_cached_size=100)
    resources.add(server.engine.resources.templates.all()[0])

    async def call(_: Any, values: Any, __: str, to_result: Any) -> Any:
        reads.append(values["id"])
        return to_result("x" * size)

    for number in range(cached):
        await resources.read(f"a://{number}", call, call)
    await resources.read("a://0", call, call)
    assert reads == [str(number) for number in range(cached)]
    await resources.read("a://more", call, call)
    await resources.read("a://0", call, call)
    assert reads[cached:] == ["more", "0"]


# ── files ──


async def test_a_file_is_listed_with_its_facts_and_read(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("# Hi")
    os.utime(path, (0, 1_700_000_000))
    server = new_server()
    server.add_file(path, uri="docs://notes", title="Notes", annotations={"priority": 1.0}, timeout=5)
    server.add_file(path)
    async with Wire(server, "2025-11-25") as wire:
        first, second = await listed(wire)
        annotations = {"priority": 1.0, "lastModified": "2023-11-14T22:13:20Z"}
        assert first == {
            "uri": "docs://notes", "name": "notes.md", "title": "Notes", "mimeType": "text/markdown", "size": 4,
            "annotations": annotations,
        }  # fmt: skip
        assert second["uri"] == path.as_uri()
        assert await text(wire, "docs://notes") == "# Hi"
        path.write_text("longer text")
        assert (await listed(wire))[0]["size"] == 11
        path.unlink()
        assert (await wire.refusal("resources/read", {"uri": "docs://notes"}))["code"] == -32002
        assert len(await uris(wire)) == 2


async def test_a_folder_is_listed_read_and_kept_up_to_date(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "ö x.txt").write_text("deep")
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "pic.png").write_bytes(b"\x89PNG")
    server = new_server()
    server.add_directory(tmp_path, uri="docs://all", exclude=("b",), description="All of it")
    async with Wire(server, "2025-11-25") as wire:
        expected = ["docs://all/a", "docs://all/c", "docs://all/pic.png", "docs://all/sub/%C3%B6%20x.txt"]
        assert await uris(wire) == expected
        (template,) = (await wire.ask("resources/templates/list"))["resourceTemplates"]
        assert (template["uriTemplate"], template["description"]) == ("docs://all/{+path}", "All of it")
        assert await text(wire, "docs://all/sub/%C3%B6%20x.txt") == "deep"
        (picture,) = (await wire.ask("resources/read", {"uri": "docs://all/pic.png"}))["contents"]
        assert (picture["mimeType"], picture["blob"]) == ("image/png", "iVBORw==")
        (tmp_path / "new.txt").write_text("new")
        (tmp_path / "a").unlink()
        assert await text(wire, "docs://all/new.txt") == "new"  # readable before it is listed
        assert await uris(wire) == [*expected[1:], "docs://all/new.txt"]
        assert (await wire.receive())["method"] == "notifications/resources/list_changed"
        await wire.quiet(0.02)
        assert server.remove_resource("docs://all/{+path}") is True
        assert server.remove_resource("docs://all/{+path}") is False
        assert await uris(wire) == []
        assert (await wire.refusal("resources/read", {"uri": "docs://all/c"}))["code"] == -32002


@pytest.mark.seed("S2-73")
@pytest.mark.rule("RES-9", "RES-10")
async def test_nothing_outside_of_a_folder_can_be_reached(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("secret")
    (root / "fine.txt").write_text("fine")
    (root / ".hidden").write_text("hidden")
    (root / "excluded").write_text("excluded")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "out").symlink_to(tmp_path)
    server = new_server()
    server.add_directory(root, uri="docs://r", exclude=("excluded",))
    async with Wire(server, "2025-11-25") as wire:
        assert await uris(wire) == ["docs://r/fine.txt"]
        for path in (
            "../secret", "%2e%2e/secret", "..%2Fsecret", "link", "out/secret", ".hidden", "excluded", "EXCLUDED", "",
            "fine.txt/../../secret", str(tmp_path / "secret"), "%00", "fine.txt%00", "//secret", "fine.txt/",
            "a" * 5000,
        ):  # fmt: skip
            error = await wire.refusal("resources/read", {"uri": f"docs://r/{path}"})
            assert error["code"] == -32002, path
            assert str(tmp_path) not in error["message"] or str(tmp_path) in path
        for path in ("fine.txt", "./fine.txt", "../fine.txt", "%2e%2e/r/../fine.txt"):  # never above the root
            assert await text(wire, f"docs://r/{path}") == "fine"


@pytest.mark.parametrize(
    "options", [{"size": 5}, {"thread": False}, {"includ": ("a",)}, {"cache": 0}, {"unsafe": ["path"]}]
)
def test_options_that_files_do_not_take(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "a").write_text("a")
    for add, path in ((new_server().add_file, tmp_path / "a"), (new_server().add_directory, tmp_path)):
        with pytest.raises(SetupError, match=next(iter(options))):
            add(path, uri="docs://r", **options)  # type: ignore[operator]
        with pytest.raises(SetupError, match="no"):
            add(tmp_path / "nowhere")  # type: ignore[operator]


# ── watching ──


def watching_server() -> Server:
    server = new_server()
    server.engine.resources.watch_options = {"poll_seconds": 0.02, "use_watchfiles": False}
    return server


async def test_clients_of_both_eras_are_notified_of_a_watched_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("one")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("one")
    server = watching_server()
    server.add_file(path, uri="docs://notes", cache=60)
    server.add_directory(tmp_path / "folder", uri="docs://f")
    async with Wire(server, "2025-11-25") as old, Wire(server, MODERN) as new:
        assert await text(old, "docs://notes") == "one"
        await old.ask("resources/subscribe", {"uri": "docs://notes"})
        filter = {"notifications": {"resourceSubscriptions": ["docs://notes", "docs://f/a"]}}
        new.send(new.request("subscriptions/listen", filter, id=1))
        await new.receive()
        path.write_text("two and more")
        for wire in (old, new):
            message = await wire.receive()
            assert (message["method"], message["params"]["uri"]) == ("notifications/resources/updated", "docs://notes")
        assert await text(old, "docs://notes") == "two and more"
        (tmp_path / "folder" / "a").write_text("two and more")
        assert (await new.receive())["params"]["uri"] == "docs://f/a"
        await old.quiet(0.1)
        await old.ask("resources/unsubscribe", {"uri": "docs://notes"})
        new.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await until(lambda: server.engine.hub.uri_subscriptions == 0)
        path.write_text("three")
        await old.quiet(0.1)
        await new.quiet(0.01)


async def test_a_file_that_is_gone_is_no_longer_watched_after_the_last_subscription(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    server = watching_server()
    server.add_directory(tmp_path, uri="docs://f")
    async with Wire(server, "2025-11-25") as wire:
        await wire.ask("resources/subscribe", {"uri": "docs://f/a"})
        (tmp_path / "a").unlink()
        found = {message["method"]: message.get("params") for message in (await wire.receive(), await wire.receive())}
        assert found == {
            "notifications/resources/updated": {"uri": "docs://f/a"},
            "notifications/resources/list_changed": None,
        }
        server.remove_resource("docs://f/{+path}")
        await wire.ask("resources/unsubscribe", {"uri": "docs://f/a"})
        await uris(wire)  # which brings the watched folders up to date
        await until(lambda: all(task.get_name() != "dovetail.watch" for task in asyncio.all_tasks()))


# ── values that lead out of a folder ──

LEADING_OUT = [
    "..", "a/..", "..%2Fetc", "%2e%2e%2fetc", "%252e%252e%252fetc", "%25252e%25252e/etc", "..%5Cetc",
    "a%5C..%5C..%5Cetc", "..%255Cetc", "/etc/passwd", "//host/share", "%2Fetc/passwd", "%252Fetc/passwd", "%5Cetc",
    "%5C%5Chost%5Cshare", "C:/Windows", "c:%5CWindows", "C%3A%5CWindows", "C%253A/Windows", "C:boot.ini", "a%00.txt",
    "a%2500.txt", "%2525252525252e./etc", "%2%35%32%65./etc",
    f"%{'25' * 40}41",  # which no honest client writes
]  # fmt: skip
HARMLESS = ["a", "a/b.txt", ".env", "...", "a..b", "HEAD~3..HEAD", "v1..v2/x", "..a", "a../b", "50%25", "aa:b", "ä/ö"]


@pytest.mark.rule("RES-9")
@pytest.mark.parametrize("version", ["2024-11-05", MODERN])
@pytest.mark.parametrize("value", LEADING_OUT)
async def test_values_that_lead_out_of_a_folder_are_not_found(value: str, version: str) -> None:
    server, seen = new_server(), list[str]()
    server.add_resource("files://x/{+path}", lambda path: seen.append(path), name="files")
    async with Wire(server, version) as wire:
        refused = await wire.refusal("resources/read", {"uri": f"files://x/{value}"})
    assert refused["code"] == (-32602 if version == MODERN else -32002)
    assert refused["data"] == {"uri": f"files://x/{value}"}
    assert seen == []


DOTTED = [("../etc/passwd", "etc/passwd"), ("a/../../etc", "etc"), ("a/../b", "b"), ("%2E%2E/x", "x"), ("a/./b", "a/b")]


@pytest.mark.rule("RES-9")
@pytest.mark.parametrize(("value", "path"), DOTTED + [(value, unquote(value)) for value in HARMLESS])
async def test_a_function_never_sees_dot_segments_and_gets_what_only_looks_like_it(value: str, path: str) -> None:
    server = new_server()
    server.add_resource("files://x/{+path}", lambda path: f"read {path}", name="files")
    async with Wire(server, MODERN) as wire:
        assert await text(wire, f"files://x/{value}") == f"read {path}"


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("notes://{id}", "notes://.."),
        ("notes://{id}", "notes://..%5Cx"),
        ("notes://{id}/x{.kind}", "notes://../x.md"),
        ("notes://a{/path*}", "notes://a/b/..%5Cc"),
        ("notes://a{/path*}", "notes://a/b/%2Fetc"),
        ("notes://a{?path,other}", "notes://a?path=../x"),
        ("notes://a{?path*}", "notes://a?key=../x"),
        ("notes://a{?path*}", "notes://a?..=x"),
        ("notes://a{?file}", "notes://a?file=/etc/passwd"),
    ],
)
async def test_every_variable_of_every_template_is_looked_at(template: str, uri: str) -> None:
    server, seen = new_server(), list[Any]()

    def read(
        id: str = "", kind: str = "", path: list[str] | dict[str, str] | str = "/", other: str = "", file: Path = ROOT
    ) -> str:
        seen.append((id, kind, path, other, file))
        return "read"

    server.add_resource(template, read)
    async with Wire(server, MODERN) as wire:
        assert (await wire.refusal("resources/read", {"uri": uri}))["code"] == -32602
        assert seen == []
        if "{?" in template:
            assert await text(wire, "notes://a") == "read"  # the default is the author's own


async def test_a_variable_that_the_author_calls_unsafe_is_not_looked_at() -> None:
    server = new_server()
    server.add_resource("files://{host}/{+path}", lambda host, path: f"{host} {path}", name="f", unsafe=["path"])
    async with Wire(server, MODERN) as wire:
        assert await text(wire, "files://a/b%2F../c") == "a b/../c"
        assert await text(wire, "files://a//etc/passwd") == "a /etc/passwd"
        assert (await wire.refusal("resources/read", {"uri": "files://../c"}))["code"] == -32602
        (listed,) = (await wire.ask("resources/templates/list"))["resourceTemplates"]
        assert listed["_meta"] == {"dovetail/unsafe": ["path"]}


class Place(enum.Enum):
    HOME = "/home"
    WINDOWS = "C:"


@pytest.mark.parametrize("kind", [Literal["/home", "C:"], Place, Place | None])
async def test_a_value_that_the_author_listed_is_read(kind: Any) -> None:
    def read(place: Any) -> str:
        return f"at {place}"

    read.__annotations__["place"] = kind
    server = new_server()
    server.add_resource("places://x/{+place}", read)
    async with Wire(server, MODERN) as wire:
        ref = {"type": "ref/resource", "uri": "places://x/{+place}"}
        given = {"ref": ref, "argument": {"name": "place", "value": ""}}
        offered = (await wire.ask("completion/complete", given))["completion"]["values"]
        assert offered == ["/home", "C:"]
        for value in offered:
            assert (await text(wire, f"places://x/{value}")).startswith("at ")
        assert (await wire.refusal("resources/read", {"uri": "places://x//etc"}))["code"] == -32602


@pytest.mark.parametrize(
    ("unsafe", "words"),
    [
        (["paht"], r"unsafe=\['paht'\] is not possible; 'files://{\+path}' has \['path'\]"),
        ("path", "unsafe='path' is not possible; it must be a list of strings"),
        ([7], r"unsafe=\[7\] is not possible"),
    ],
)
def test_unsafe_names_variables(unsafe: Any, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        new_server().add_resource("files://{+path}", lambda path: path, name="files", unsafe=unsafe)
    with pytest.raises(SetupError, match="unsafe= is for the variables of a template, and 'files://all' has none"):
        new_server().add_resource("files://all", lambda: "all", name="files", unsafe=["path"])


async def test_a_template_that_refuses_a_value_leaves_it_to_no_other() -> None:
    server = new_server()
    server.add_resource("files://x/{+path}", lambda path: "first", name="first")
    server.add_resource("files://{+rest}", lambda rest: "second", name="second", unsafe=["rest"])
    async with Wire(server, MODERN) as wire:
        assert (await wire.refusal("resources/read", {"uri": "files://x/..%2Fy"}))["code"] == -32602
        assert await text(wire, "files://z/..%2Fy") == "second"


# ── lists of files ──


async def test_the_paths_of_a_folder_are_completed(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    server = new_server()
    server.add_directory(tmp_path, uri="docs://x")
    server.add_resource("docs://y/{path}", lambda path: path, name="no folder")
    async with Wire(server, MODERN) as wire:
        for uri, value, paths in (
            ("docs://x/{+path}", "", ["a.txt", "b.txt"]),
            ("docs://x/{+path}", "b", ["b.txt"]),
            ("docs://y/{path}", "", []),
        ):
            given = {"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "path", "value": value}}
            assert (await wire.ask("completion/complete", given))["completion"]["values"] == paths


async def test_a_listing_of_files_is_good_for_a_while(tmp_path: Path) -> None:
    server = new_server()
    server.add_directory(tmp_path, uri="docs://x")
    resources = Resources(server.engine.threads, CacheHint(), lambda _: None, lambda: None, listed=60)
    resources.add_folder(server.engine.resources.templates.all()[0])
    await resources.refresh_files()
    (tmp_path / "late.txt").write_text("")
    await resources.refresh_files()
    assert resources.direct.all() == []
    resources.mark_files_stale()
    await resources.refresh_files()
    assert [each.uri for each in resources.direct.all()] == ["docs://x/late.txt"]
    await resources.close()


# ── URIs that are too long to be looked at ──

LONGEST = "n://" + "a" * (MAX_URI_LENGTH - 4)
TOO_LONG = ["n://" + "%C3%A9" * 2_000, LONGEST + "a", "é" * (MAX_URI_LENGTH + 1)]


@pytest.mark.parametrize("uri", TOO_LONG)
async def test_a_uri_that_is_too_long_is_neither_found_nor_echoed(uri: str) -> None:
    server = new_server()
    server.add_resource("n://{+path}", lambda path: str(len(path)), name="all")

    @server.tool
    async def fetch(ctx: Context, uri: str) -> str:
        return str(await ctx.read_resource(uri))

    reference = {"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "x", "value": ""}}
    async with Wire(server, MODERN) as new, Wire(server, "2025-11-25") as old:
        for wire, method, params in (
            (new, "resources/read", {"uri": uri}),
            (new, "completion/complete", reference),
            (old, "resources/read", {"uri": uri}),
            (old, "resources/subscribe", {"uri": uri}),
        ):
            assert len(repr(await wire.refusal(method, params))) < 1_000, "no echo"
        failed = await new.ask("tools/call", {"name": "fetch", "arguments": {"uri": uri}})
        assert failed["isError"]
        assert "longer than 8,192 characters" in repr(failed)
        new.send(new.request("subscriptions/listen", {"notifications": {"resourceSubscriptions": [uri]}}))
        assert (await new.receive())["params"]["notifications"] == {}
        assert await old.ask("resources/unsubscribe", {"uri": uri}) == {}
        assert await text(new, LONGEST) == str(MAX_URI_LENGTH - 4)
        server.engine.hub.end_all()


@every_revision
async def test_a_uri_in_another_script_is_answered_as_a_uri(revision: str) -> None:
    """A client may ask by an IRI; what it gets names a URI, as the schema wants it."""
    server = Server("notes")
    server.add_resource("notes://{name}", lambda name: name, name="note")
    async with Client(server, protocol_version=revision) as client:
        (contents,) = await client.read_resource("notes://sevβen")
        assert (contents.uri, contents.text) == ("notes://sev%CE%B2en", "sevβen")
