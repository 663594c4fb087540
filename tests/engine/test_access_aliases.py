"""A rule holds for a thing, however its URI is spelled and by whatever path a file is reached."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from access_stage import ADMIN, NOBODY, READER, WRITER, CallerWire, is_admin
from dovetail import Context, Server
from dovetail.registry.guards import is_spelled_so, plainest
from wire import MODERN

RULES: list[dict[str, Any]] = [{"scopes": ["notes:write"]}, {"authorize": lambda principal: principal is WRITER}]


def new() -> Server:
    return Server("aliases", version="1.0.0")


async def read(server: Server, principal: Any, uri: str) -> dict[str, Any]:
    async with CallerWire(server, MODERN, principal) as wire:
        answer: dict[str, Any] = await wire.exchange(wire.request("resources/read", {"uri": uri}))
        return answer


async def listed(server: Server, principal: Any) -> list[str]:
    async with CallerWire(server, MODERN, principal) as wire:
        return [each["uri"] for each in (await wire.ask("resources/list"))["resources"]]


# ── functions ──

# the strict URI, the open template, and other ways to ask the template for the same
FUNCTIONS = [
    ("n://secret", "n://{name}", ["n://%73ecret", "n://%73%65cret", "n://secre%74"]),
    ("n://a(b)", "n://{name}", ["n://a%28b%29", "n://%61(b%29"]),
    ("n://a%28b%29", "n://{name}", ["n://a(b)", "n://a%28b)"]),
    ("n://%C3%A9", "n://{name}", ["n://é", "n://%c3%a9"]),
    ("n://é", "n://{name}", ["n://%C3%A9", "n://%c3%a9"]),
    ("n://a/b", "n://{+name}", ["n://a%2Fb", "n://a%2fb", "n://%61/b"]),
    ("n://x?a=1&b=2", "n://x{?a,b}", ["n://x?b=2&a=1", "n://x?b=%32&a=1"]),
    ("n://{a}/{b}", "n://{+name}", ["n://x%2Fy", "n://%78%2fy"]),
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("strict", "template", "aliases"), FUNCTIONS)
async def test_another_spelling_has_the_same_rule(strict: str, template: str, aliases: list[str], rule: Any) -> None:
    server = new()
    if "{" in strict:
        server.add_resource(strict, lambda a, b: "TREASURE", name="strict", cache=60, **rule)
    else:
        server.add_resource(strict, lambda: "TREASURE", name="strict", cache=60, **rule)
    if "?" in template:
        server.add_resource(template, lambda a="", b="": "SHADOWED", name="open", cache=60)
    else:
        server.add_resource(template, lambda name: "open" if "other" in name else "SHADOWED", name="open", cache=60)
    for alias in aliases:
        for principal, works in ((READER, False), (WRITER, True), (READER, False), (NOBODY, False)):  # kept meanwhile
            answer = await read(server, principal, alias)
            assert ("TREASURE" in repr(answer)) == works, alias
            assert "SHADOWED" not in repr(answer), alias


async def test_a_number_is_the_same_however_it_is_written() -> None:
    server = new()

    @server.resource("n://{number}")
    def by_number(number: float) -> str:
        return f"open {number}"

    server.add_resource("n://7.0", lambda: "TREASURE", name="strict", scopes=["notes:write"])
    for uri in ("n://7.0", "n://7", "n://7.00", "n://7e0", "n://%37"):
        assert "error" in await read(server, READER, uri), uri
    assert "open 8.0" in repr(await read(server, READER, "n://8.00"))


async def test_values_of_many_kinds_are_written_out() -> None:
    server = new()
    server.add_resource("n://guarded", lambda: "TREASURE", name="strict", scopes=["notes:write"])

    @server.resource("n://list{/numbers*}{?flag,limit,rest*}")
    def many(numbers: list[int], flag: bool = False, limit: float = 1.0, rest: dict[str, str] | None = None) -> str:
        return f"{numbers} {flag} {limit} {rest}"

    answer = await read(server, READER, "n://list/1/2?flag=true&limit=2&x=%20")
    assert "[1, 2] True 2.0 {'x': ' '}" in answer["result"]["contents"][0]["text"]


@pytest.mark.parametrize("uri", ["n://a%3Fb", "n://50%25", "n://%2573ecret2", "n://b%20c"])
async def test_what_is_no_alias_stays_open(uri: str) -> None:
    server = new()
    server.add_resource("n://secret", lambda: "TREASURE", name="strict", scopes=["notes:write"])
    server.add_resource("n://{name}", lambda name: f"open {name}", name="open")
    assert "open" in repr(await read(server, NOBODY, uri))


async def test_subscriptions_listening_completion_and_tools() -> None:
    server = new()
    server.add_resource("n://secret", lambda: "TREASURE", name="strict", scopes=["notes:write"])
    server.add_resource("n://{name}", lambda name: f"open {name}", name="open")

    @server.tool
    async def fetch(ctx: Context, uri: str) -> str:
        return str(await ctx.read_resource(uri))

    for principal, works in ((READER, False), (WRITER, True)):
        async with CallerWire(server, "2025-11-25", principal) as wire:
            answer = await wire.exchange(wire.request("resources/subscribe", {"uri": "n://%73ecret"}))
            assert ("result" in answer) == works
        async with CallerWire(server, MODERN, principal) as wire:
            answer = await wire.exchange(
                wire.request("tools/call", {"name": "fetch", "arguments": {"uri": "n://%73ecret"}})
            )
            assert ("TREASURE" in repr(answer)) == works
            asked = {"notifications": {"resourceSubscriptions": ["n://%73ecret", "n://else"]}}
            wire.send(wire.request("subscriptions/listen", asked))
            honoured = (await wire.receive())["params"]["notifications"]["resourceSubscriptions"]
            assert ("n://%73ecret" in honoured) == works
            assert "n://else" in honoured
    rule = server.engine.library.access_to("n://secret")
    assert rule is not None
    assert server.engine.choices("ref/resource", "n://%73ecret") == ({}, rule)


# ── files ──


def new_folder(root: Path) -> Path:
    (root / "private").mkdir()
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


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("uri", ["docs://x/secret%20%281%29.txt", "docs://x/secret%20(1).txt", "elsewhere://file"])
@pytest.mark.parametrize("first", ["file", "folder"])
async def test_a_strict_file_in_an_open_folder(tmp_path: Path, uri: str, rule: Any, first: str) -> None:
    root, server = new_folder(tmp_path), new()
    if first == "folder":
        server.add_directory(root, uri="docs://x", cache=60)
        server.remove_resource(uri)
    server.add_file(root / "secret (1).txt", uri=uri, **rule)
    if first == "file":
        server.add_directory(root, uri="docs://x", cache=60)
    for _ in range(2):  # as it was listed at first, and as it is listed later
        for alias in FILE_ALIASES:
            assert "TREASURE" not in repr(await read(server, READER, f"docs://x/{alias}")), alias
        assert "TREASURE" in repr(await read(server, WRITER, uri))
        assert "open" in repr(await read(server, READER, "docs://x/open.txt"))
        assert await listed(server, READER) == ["docs://x/open.txt", "docs://x/private/s.txt"]


@pytest.mark.parametrize("uri", ["docs://x/private", "elsewhere://folder"])
@pytest.mark.parametrize("strict_first", [True, False])
@pytest.mark.parametrize("outer", [{}, {"scopes": ["notes:read"]}])
async def test_a_strict_folder_in_another(tmp_path: Path, uri: str, strict_first: bool, outer: Any) -> None:
    root, server = new_folder(tmp_path), new()
    folders: list[tuple[Path, str, Any]] = [(root / "private", uri, RULES[0]), (root, "docs://x", outer)]
    for path, prefix, rule in folders if strict_first else reversed(folders):
        server.add_directory(path, uri=prefix, **rule)
    for alias in ("private/s.txt", "private%2Fs.txt", "%70rivate/s.txt", "private//s.txt", "folder-link/s.txt"):
        assert "TREASURE" not in repr(await read(server, READER, f"docs://x/{alias}")), alias
    assert "TREASURE" in repr(await read(server, WRITER, f"{uri}/s.txt"))
    assert not [each for each in await listed(server, READER) if "s.txt" in each]
    assert f"{uri}/s.txt" in await listed(server, WRITER)
    assert "open" in repr(await read(server, READER, "docs://x/open.txt"))


async def test_only_what_the_strict_folder_offers_is_its_own(tmp_path: Path) -> None:
    root, server = new_folder(tmp_path), new()
    (root / "private" / "readme.md").write_text("open")
    server.add_directory(root / "private", uri="keys://x", include=("*.txt",), authorize=is_admin)
    server.add_directory(root, uri="docs://x")
    assert "open" in repr(await read(server, READER, "docs://x/private/readme.md"))
    assert "error" in await read(server, READER, "docs://x/private/s.txt")
    assert "TREASURE" in repr(await read(server, ADMIN, "keys://x/s.txt"))


async def test_an_open_folder_in_a_strict_one_is_open(tmp_path: Path) -> None:
    root, server = new_folder(tmp_path), new()
    server.add_directory(root / "private", uri="docs://x/private")
    server.add_directory(root, uri="docs://x", scopes=["notes:write"])
    assert "TREASURE" in repr(await read(server, READER, "docs://x/private/s.txt"))
    assert "error" in await read(server, READER, "docs://x/open.txt")
    assert "error" in await read(server, READER, "docs://x/%6Fpen.txt")


async def test_a_file_that_was_replaced_is_still_guarded(tmp_path: Path) -> None:
    root, server = new_folder(tmp_path), new()
    server.add_file(root / "secret (1).txt", uri="elsewhere://file", scopes=["notes:write"])
    server.add_directory(root, uri="docs://x")
    (root / "new").write_text("TREASURE")
    os.replace(root / "new", root / "secret (1).txt")
    assert "TREASURE" not in repr(await read(server, READER, "docs://x/secret%20%281%29.txt"))


def test_a_guarded_file_is_not_watched_through_the_folder(tmp_path: Path) -> None:
    root, server = new_folder(tmp_path), new()
    server.add_directory(root, uri="docs://x")
    assert server.engine.library._path("docs://x/later.txt") is None
    (root / "later.txt").write_text("TREASURE")
    assert server.engine.library._path("docs://x/later.txt") == root / "later.txt"
    server.add_file(root / "later.txt", uri="elsewhere://file", scopes=["notes:write"])
    assert server.engine.library._path("docs://x/later.txt") is None


STEPS: list[dict[str, Any]] = [
    {},
    {"scopes": ["read"]},
    {"scopes": ["read", "admin"]},
    {"scopes": ["admin"], "authorize": is_admin},
]


@pytest.mark.parametrize("inner", range(4))
@pytest.mark.parametrize("outer", range(4))
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_folder_shows_what_others_guard_if_it_asks_for_as_much(
    tmp_path: Path, inner: int, outer: int, kind: str
) -> None:
    root, server = new_folder(tmp_path), new()
    if kind == "file":
        server.add_file(root / "private" / "s.txt", uri="x://secret", **STEPS[inner])
    else:
        server.add_directory(root / "private", uri="x://y", **STEPS[inner])
    server.add_directory(root, uri="docs://x", **STEPS[outer])
    directory = server.engine.library.folders()[-1].directory
    assert directory is not None
    shown = inner in {0: {0}, 1: {0, 1}, 2: {0, 1, 2}, 3: {0, 3}}[outer]
    assert (directory.path_of("docs://x/private/s.txt") is not None) == shown
    assert (server.engine.library.resources.get("docs://x/private/s.txt") is not None) == shown


@pytest.mark.parametrize("how", ["rename", "symlink"])
async def test_where_a_strict_folder_lies_is_looked_up_when_asked(tmp_path: Path, how: str) -> None:
    """It was elsewhere, or nowhere, when the open folder was first read."""
    (tmp_path / "open").mkdir()
    root, strict, server = new_folder(tmp_path / "open"), tmp_path / "strict", new()
    strict.mkdir()
    (strict / "s.txt").write_text("TREASURE")
    server.add_directory(strict, uri="keys://x", scopes=["notes:write"])
    server.add_directory(root, uri="docs://x")
    assert "open" in repr(await read(server, READER, "docs://x/open.txt"))
    if how == "rename":  # and the way that the folder was registered by leads to it still
        strict.rename(root / "moved")
        strict.symlink_to(root / "moved")
    else:
        (strict / "s.txt").unlink()
        strict.rmdir()
        (root / "moved").mkdir()
        (root / "moved" / "s.txt").write_text("TREASURE")
        strict.symlink_to(root / "moved")
    assert "TREASURE" not in repr(await read(server, READER, "docs://x/moved/s.txt"))
    assert not [uri for uri in await listed(server, READER) if "moved" in uri]


async def test_a_strict_folder_is_known_by_its_name_while_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, server = new_folder(tmp_path), new()
    server.add_directory(root / "private", uri="keys://x", scopes=["notes:write"])
    server.add_directory(root, uri="docs://x")
    monkeypatch.setattr("dovetail.registry.guards._identity", lambda path: None)
    assert "TREASURE" not in repr(await read(server, READER, "docs://x/private/s.txt"))


# ── the parts ──


def test_names_are_those_that_the_file_system_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Folder").mkdir()
    (tmp_path / "Folder" / "caf\u00e9.txt").write_text("")
    monkeypatch.setattr(os.path, "lexists", lambda path: True)  # as if it ignored case and accents
    assert is_spelled_so(tmp_path, ["Folder", "caf\u00e9.txt"])
    for wrong in (["folder"], ["Folder", "CAF\u00c9.txt"], ["Folder", "cafe\u0301.txt"]):
        assert not is_spelled_so(tmp_path, wrong)


@given(st.text(max_size=30))
def test_the_plainest_spelling_is_its_own(text: str) -> None:
    assert plainest(plainest(text)) == plainest(text)
    assert plainest("".join(f"%{byte:02x}" for byte in text.encode())) == plainest(text) or "%" in text


@pytest.mark.parametrize("junk", ["n://%FF", "n://\ud800", "%FF%41"])
def test_junk_is_no_spelling_of_anything_else(junk: str) -> None:
    assert plainest(junk) == junk
