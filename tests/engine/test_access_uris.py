"""Access rules on resources: spellings of a URI, the order of what fits, and overlaps that are refused."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from access_stage import ADMIN, ANONYMOUS, READER, WRITER, CallerWire, is_admin
from dovetail import Context, Server, SetupError
from dovetail.protocol.uri_template import UriTemplate, is_template, normalize_uri
from wire import MODERN

RULE: dict[str, Any] = {"scopes": ["notes:write"]}
OTHER: dict[str, Any] = {"authorize": lambda principal: principal is WRITER}
OPEN: dict[str, Any] = {}


def new(*registered: tuple[str, dict[str, Any]]) -> Server:
    """A server whose resources give their own URI, and their values."""
    server = Server("rules", version="1.0.0")
    for uri, options in registered:
        add(server, uri, options)
    return server


def add(server: Server, uri: str, options: dict[str, Any]) -> None:
    def several(a: list[str]) -> str:
        return f"GOT {uri} a={a}"

    functions: dict[tuple[str, ...], Any] = {
        (): lambda: f"GOT {uri}",
        ("a",): lambda a="": f"GOT {uri} a={a}",
        ("b",): lambda b="": f"GOT {uri} b={b}",
        ("a", "b"): lambda a="", b="": f"GOT {uri} a={a} b={b}",
    }
    function = several if "*" in uri else functions[tuple(sorted(UriTemplate(uri).variables))]
    server.add_resource(uri, function, name="r", cache=60, **options)


async def read(server: Server, principal: Any, uri: str) -> str:
    """The text, or "" if there was an error."""
    async with CallerWire(server, MODERN, principal) as wire:
        answer = await wire.exchange(wire.request("resources/read", {"uri": uri}))
    return str(answer["result"]["contents"][0]["text"]) if "result" in answer else ""


async def listed(server: Server, principal: Any) -> list[str]:
    async with CallerWire(server, MODERN, principal) as wire:
        return [each["uri"] for each in (await wire.ask("resources/list"))["resources"]]


# ── one spelling of each URI ──

SPELLINGS = [
    ("n://secret", ["n://%73ecret", "n://%73%65cret", "N://secre%74", "n://secret"]),
    ("n://secret/{a}", ["n://%73ecret/7", "n://secret/x/../7", "n://secret/./7", "n://secret/%2E/7"]),
    ("n://secret/{a}", ["n://secret/%2e%2E/7"]),
    ("n://%C3%A9/{a}", ["n://é/7", "n://%c3%a9/7"]),
    ("n://é", ["n://%C3%A9", "n://%c3%A9"]),
    ("https://Example.org/s/{a}", ["https://EXAMPLE.org/%73/7", "HTTPS://example.org/s/7"]),
    ("https://Example.org/s/{a}", ["https://example.org/x/../s/7"]),
    ("https://u%41@Example.org/s", ["https://uA@EXAMPLE.ORG/s"]),
    ("n://x{?a,b}", ["n://x?b=2&a=1", "n://x?%61=1", "n://x"]),
]


@pytest.mark.parametrize("rule", [RULE, OTHER])
@pytest.mark.parametrize(("guarded", "spellings"), SPELLINGS)
async def test_every_spelling_has_the_rule(guarded: str, spellings: list[str], rule: Any) -> None:
    server = new((guarded, rule))
    for uri in spellings:
        for principal, works in (
            (READER, False),
            (WRITER, True),
            (READER, False),
            (ANONYMOUS, False),
        ):  # kept meanwhile
            assert (f"GOT {guarded}" in await read(server, principal, uri)) == works, uri


# what an attacker writes to reach n://x/secret/7 by the open n://x/open/{+a}, and the value that the function gets
ATTACKS = [
    ("n://x/open/../secret/7", None),  # leads to what has the rule
    ("n://x/open/%2e%2e/secret/7", None),
    ("n://x/open/y/../../secret/7", None),
    ("n://x/open/..%2Fsecret/7", None),  # no segment, but a value that leads out
    ("n://x/open/..%5Csecret", None),
    ("n://x/open/%252e%252e/secret/7", None),
    ("n://x/open//secret/7", None),
    ("n://x/y/../open/secret/7", "secret/7"),  # its own
    ("n://x/open/secret%2F7", "secret/7"),
    ("n://x/open/%2573ecret", "%73ecret"),  # escaped twice: decoded once
    ("N://x/open/SECRET", "SECRET"),
]


@pytest.mark.parametrize(("uri", "value"), ATTACKS)
async def test_no_spelling_leads_from_an_open_template_to_a_guarded_one(uri: str, value: str | None) -> None:
    server = new(("n://x/secret/{a}", RULE), ("n://x/open/{+a}", OPEN), ("n://{a}", RULE))
    assert await read(server, READER, uri) == ("" if value is None else f"GOT n://x/open/{{+a}} a={value}")


async def test_subscriptions_listening_completion_and_tools_see_the_same_rule() -> None:
    server = new(("n://secret", RULE), ("n://open/{a}", OPEN))

    @server.tool
    async def fetch(ctx: Context, uri: str) -> str:
        return str(await ctx.read_resource(uri))

    server.completion(resource="n://open/{a}", argument="a")(lambda value: [value])
    for principal, works in ((READER, False), (WRITER, True)):
        async with CallerWire(server, "2025-11-25", principal) as wire:
            answer = await wire.exchange(wire.request("resources/subscribe", {"uri": "n://%73ecret"}))
            assert ("result" in answer) == works
        async with CallerWire(server, MODERN, principal) as wire:
            given = {"name": "fetch", "arguments": {"uri": "n://%73ecret"}}
            assert ("GOT" in repr(await wire.exchange(wire.request("tools/call", given)))) == works
            ref = {"ref": {"type": "ref/resource", "uri": "n://%73ecret"}, "argument": {"name": "a", "value": ""}}
            assert ("result" in await wire.exchange(wire.request("completion/complete", ref))) == works
            asked = {"notifications": {"resourceSubscriptions": ["n://%73ecret", "n://open/1"]}}
            wire.send(wire.request("subscriptions/listen", asked))
            honoured = (await wire.receive())["params"]["notifications"]["resourceSubscriptions"]
            assert honoured == (["n://%73ecret", "n://open/1"] if works else ["n://open/1"])


async def test_another_spelling_is_neither_kept_nor_stale() -> None:
    server, texts = Server("kept", version="1.0.0"), ["new", "old"]
    server.add_resource("n://a", lambda: texts[-1], name="a", cache=60)
    assert [await read(server, READER, uri) for uri in ("n://%61", "n://a")] == ["old", "old"]
    texts.pop()
    assert await read(server, READER, "n://a") == "old"
    server.notify_resource_updated("n://%61")
    assert await read(server, READER, "n://a") == "new"


# ── the order ──

ORDERS = [
    (("n://x/{a}", "n://{b}/{a}"), "n://x/7", "n://x/{a}"),
    (("n://{+a}", "n://x/{a}"), "n://x/7", "n://x/{a}"),
    (("n://{+a}", "n://x"), "n://x", "n://x"),
    (("n://{a}.md", "n://{a}"), "n://7.md", "n://{a}.md"),
    (("n://{a}", "n://{b}"), "n://7", "n://{a}"),  # alike: the first
]


@pytest.mark.parametrize("rule", [OPEN, RULE])
@pytest.mark.parametrize(("uris", "uri", "found"), ORDERS)
async def test_an_exact_uri_then_most_literal_characters(uris: Any, uri: str, found: str, rule: Any) -> None:
    for each in (uris, uris[::-1]) if uris[0] != "n://{a}" else (uris,):
        assert f"GOT {found}" in await read(new(*((text, rule) for text in each)), WRITER, uri)


async def test_an_exact_uri_may_be_open_in_a_guarded_template() -> None:
    server = new(("n://{a}", RULE), ("n://open", OPEN))
    assert [await read(server, ANONYMOUS, uri) for uri in ("n://%6Fpen", "n://other")] == ["GOT n://open", ""]


# ── overlaps ──

OVERLAPS = [
    ("n://{+a}", "n://secret/{a}"), ("n://{a}/{b}", "n://secret/{a}"), ("n://{a}/7", "n://s/{a}"),
    ("n://{a}.md", "n://x{a}"), ("n://x{?a}", "n://x{?b}"), ("n://x{?a}", "n://x{;b}"), ("n://x{/a*}", "n://x/y/{b}"),
    ("n://{a}", "n://S%65cret{b}"), ("N://{a}", "n://secret{b}"), ("https://A.org/{a}", "https://a.org/s{b}"),
    ("{+a}", "n://s/{b}"), ("n://{a}", "n://secret"), ("n://{+a}", "n://a%2Fb"), ("n://x{?a,b}", "n://x?b=1"),
]  # fmt: skip
APART = [
    ("n://{a}", "n://secret/{b}"), ("n://{a}", "n://a/b"), ("n://{a}", "m://secret{b}"),
    ("n://open/{+a}", "n://secret/{b}"), ("n://{a}.md", "n://{b}.txt"), ("n://x{?a}", "n://y{?b}"),
    ("n://x/{a}", "n://x{?b}"),
]  # fmt: skip


@pytest.mark.parametrize("other", [OPEN, OTHER, {"scopes": ["notes:write", "more"]}])
@pytest.mark.parametrize(("one", "guarded"), OVERLAPS)
def test_an_overlap_under_another_rule_is_refused_and_names_both(one: str, guarded: str, other: Any) -> None:
    for first, second in (((one, other), (guarded, RULE)), ((guarded, RULE), (one, other))):
        server = new(first)
        with pytest.raises(SetupError) as caught:
            add(server, *second)
        assert repr(one) in str(caught.value)
        assert repr(guarded) in str(caught.value)
        add(new((one, RULE)), guarded, dict(RULE))  # the same rule


@pytest.mark.parametrize(("one", "guarded"), APART)
def test_what_can_not_meet_may_have_different_rules(one: str, guarded: str) -> None:
    new((one, OPEN), (guarded, RULE))
    new((guarded, RULE), (one, OTHER))


PIECES = st.lists(
    st.sampled_from(["/", "s", "x", ".", "{a}", "{+a}", "{/a}", "{?a}", "{b}", "{;b}"]), min_size=1, max_size=4
)


@given(
    st.lists(PIECES, min_size=2, max_size=4),
    st.lists(st.sampled_from(["/", "s", "x", ".", "?a=s", ";b=x", "%73", ".."]), max_size=5),
)
def test_all_that_fits_a_uri_has_the_same_rule(templates: list[list[str]], pieces: list[str]) -> None:
    """Of all rules that can be registered: no URI is a way round one."""
    server = new()
    for place, each in enumerate(templates):
        try:
            add(server, "n://" + "".join(each), RULE if place % 2 else OPEN)
        except SetupError:
            continue
    uri, resources = "n://" + "".join(pieces), server.engine.resources
    found = resources.get(uri)
    if found is not None and is_template(found.uri):
        fitting = [
            each for each in resources.templates.all() if each.template.match_normal(normalize_uri(uri)) is not None
        ]
        assert {each.access is None for each in fitting} == {found.access is None}


# ── files and folders ──


def new_folder(root: Path) -> Path:
    (root / "private").mkdir(parents=True)
    for name in ("secret (1).txt", "private/s.txt"):
        (root / name).write_text("TREASURE")
    (root / "open.txt").write_text("open")
    (root / "link.txt").symlink_to(root / "secret (1).txt")
    (root / "folder-link").symlink_to(root / "private")
    os.link(root / "secret (1).txt", root / "hard.txt")
    return root


FILE_ALIASES = [
    *("secret%20%281%29.txt", "secret%20(1).txt", "%73ecret%20%281%29.txt", "secret%20%281%29%2Etxt"),
    *("./secret%20%281%29.txt", "/secret%20%281%29.txt", "private/../secret%20%281%29.txt", ".%2Fsecret%20(1).txt"),
    *("SECRET%20(1).txt", "link.txt", "hard.txt", "%6Cink.txt", "private%5C..%5Csecret%20(1).txt"),
]


@pytest.mark.long
@pytest.mark.parametrize("rule", [RULE, OTHER])
@pytest.mark.parametrize("uri", ["docs://x/secret%20%281%29.txt", "docs://x/secret%20(1).txt", "elsewhere://file"])
@pytest.mark.parametrize("first", ["file", "folder"])
async def test_a_guarded_file_in_an_open_folder(tmp_path: Path, uri: str, rule: Any, first: str) -> None:
    root, server = new_folder(tmp_path / "root"), new()
    if first == "folder":
        server.add_directory(root, uri="docs://x", cache=60)
        server.remove_resource(uri)
    server.add_file(root / "secret (1).txt", uri=uri, **rule)
    if first == "file":
        server.add_directory(root, uri="docs://x", cache=60)
    for _ in range(2):  # as it was listed at first, and as it is listed later
        for alias in FILE_ALIASES:
            assert await read(server, READER, f"docs://x/{alias}") == "", alias
        assert await read(server, WRITER, uri) == "TREASURE"
        assert await read(server, READER, "docs://x/open.txt") == "open"
        assert await listed(server, READER) == ["docs://x/open.txt", "docs://x/private/s.txt"]
    os.replace(root / "open.txt", root / "secret (1).txt")  # another file in its place
    assert await read(server, READER, "docs://x/secret%20%281%29.txt") == ""


@pytest.mark.parametrize("uri", ["docs://x/private", "elsewhere://folder"])
@pytest.mark.parametrize("inner_first", [True, False])
@pytest.mark.parametrize("outer", [OPEN, {"scopes": ["notes:read"]}])
async def test_a_guarded_folder_in_another(tmp_path: Path, uri: str, inner_first: bool, outer: Any) -> None:
    root, server = new_folder(tmp_path / "root"), new()
    folders: list[tuple[Path, str, Any]] = [(root / "private", uri, RULE), (root, "docs://x", outer)]
    for path, prefix, rule in folders if inner_first else reversed(folders):
        server.add_directory(path, uri=prefix, **rule)
    for alias in ("private/s.txt", "private%2Fs.txt", "%70rivate/s.txt", "private//s.txt", "folder-link/s.txt"):
        assert await read(server, READER, f"docs://x/{alias}") == "", alias
    assert await read(server, WRITER, f"{uri}/s.txt") == "TREASURE"
    assert not [each for each in await listed(server, READER) if "s.txt" in each]
    assert f"{uri}/s.txt" in await listed(server, WRITER)
    assert await read(server, READER, "docs://x/open.txt") == "open"


async def test_all_in_a_guarded_folder_is_left_to_it(tmp_path: Path) -> None:
    root, server = new_folder(tmp_path / "root"), new()
    (root / "private" / "readme.md").write_text("open")
    server.add_directory(root / "private", uri="keys://x", include=("*.txt",), authorize=is_admin)
    server.add_directory(root, uri="docs://x")
    names = ("private/readme.md", "private/s.txt", "open.txt")
    assert [await read(server, READER, f"docs://x/{name}") for name in names] == ["", "", "open"]
    assert await read(server, ADMIN, "keys://x/s.txt") == "TREASURE"


def test_overlaps_of_folders(tmp_path: Path) -> None:
    """An open folder in a guarded one would never be reached, and a function's URI is no file."""
    root = new_folder(tmp_path / "root")
    folders: list[tuple[Path, str, Any]] = [(root, "docs://x", RULE), (root / "private", "docs://x/private", OPEN)]
    for (path, uri, rule), (late_path, late_uri, late_rule) in (folders, folders[::-1]):
        server = new()
        server.add_directory(path, uri=uri, **rule)
        with pytest.raises(SetupError, match=r"docs://x/private/\{\+path\}"):
            server.add_directory(late_path, uri=late_uri, **late_rule)
    for uri in ("docs://x/{a}", "docs://x/a.txt", "docs://{+a}"):
        with pytest.raises(SetupError, match=r"docs://x/\{\+path\}"):
            new((uri, RULE)).add_directory(root, uri="docs://x")


async def test_a_folder_lists_what_its_template_would_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("file")
    (tmp_path / "b.txt").write_text("file")
    server = new(("docs://x/a{a}", RULE), ("docs://x/c.txt", RULE))
    server.add_directory(tmp_path, uri="docs://x", **RULE)
    assert await listed(server, WRITER) == ["docs://x/c.txt", "docs://x/b.txt"]
    assert [await read(server, WRITER, f"docs://x/{name}.txt") for name in "ab"] == ["GOT docs://x/a{a} a=.txt", "file"]


STEPS: list[dict[str, Any]] = [
    {}, {"scopes": ["read"]}, {"scopes": ["read", "admin"]}, {"scopes": ["admin"], "authorize": is_admin},
]  # fmt: skip
SHOWN = {0: {0}, 1: {0, 1}, 2: {0, 1, 2}, 3: {0, 3}}  # which inner steps by an outer one


@pytest.mark.parametrize("inner", range(4))
@pytest.mark.parametrize("outer", range(4))
@pytest.mark.parametrize("is_file", [True, False])
async def test_a_folder_shows_what_others_guard_if_it_asks_for_as_much(
    tmp_path: Path, inner: int, outer: int, is_file: bool
) -> None:
    root, server = new_folder(tmp_path / "root"), new()
    if is_file:
        server.add_file(root / "private" / "s.txt", uri="x://secret", **STEPS[inner])
    else:
        server.add_directory(root / "private", uri="x://y", **STEPS[inner])
    server.add_directory(root, uri="docs://x", **STEPS[outer])
    shown = inner in SHOWN[outer]
    assert ("docs://x/private/s.txt" in [each.uri for each in server.engine.resources.direct.all()]) == shown


@pytest.mark.parametrize("how", ["rename", "symlink"])
async def test_where_a_guarded_folder_lies_is_looked_up_when_asked(tmp_path: Path, how: str) -> None:
    """It was elsewhere, or nowhere, when the open folder was first read."""
    root, strict, server = new_folder(tmp_path / "open"), tmp_path / "strict", new()
    strict.mkdir()
    (strict / "s.txt").write_text("TREASURE")
    server.add_directory(strict, uri="keys://x", **RULE)
    server.add_directory(root, uri="docs://x")
    assert await read(server, READER, "docs://x/open.txt") == "open"
    if how == "rename":  # and the way that the folder was registered by leads to it still
        strict.rename(root / "moved")
    else:
        (strict / "s.txt").unlink()
        strict.rmdir()
        (root / "moved").mkdir()
        (root / "moved" / "s.txt").write_text("TREASURE")
    strict.symlink_to(root / "moved")
    assert await read(server, READER, "docs://x/moved/s.txt") == ""
    assert not [uri for uri in await listed(server, READER) if "moved" in uri]
