"""Files that come to a folder or go from it are announced by themselves: in every era, and on every transport."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from http_clients import RESOURCES, UPDATED, leave

from dovetail import Server
from http_serving import serving
from http_wire import HttpWire
from wire import MODERN, Wire

pytestmark = pytest.mark.slow  # a folder is listed at most once a second
PATIENCE = 20.0  # only ever used up by a failing test
ALL = {"notifications": {"resourcesListChanged": True}}
Hear = Callable[[], Any]  # the next message that the client hears unasked


def server_of(folder: Path, **options: Any) -> Server:
    server = Server("folders", version="1.0.0", **options)
    server.add_directory(folder, uri="docs://all")
    return server


@asynccontextmanager
async def listening_on_pipe(server: Server) -> AsyncIterator[Hear]:
    async with Wire(server, MODERN) as wire:
        wire.send(wire.request("subscriptions/listen", ALL, id=1))
        await wire.receive()
        yield lambda: wire.receive(PATIENCE)
        wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})


@asynccontextmanager
async def over_http(server: Server) -> AsyncIterator[Hear]:
    async with serving(server) as app:
        wire = await HttpWire.session(app)
        stream = await wire.get().started()
        yield lambda: stream.message(PATIENCE)
        await leave(stream)


@pytest.mark.parametrize("way", [listening_on_pipe, over_http])
async def test_a_file_that_comes_or_goes_is_announced(way: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    async with way(server_of(tmp_path)) as hear:
        (tmp_path / "b.txt").write_text("b")
        assert (await hear())["method"] == RESOURCES
        (tmp_path / "a.txt").unlink()
        assert (await hear())["method"] == RESOURCES


async def names(wire: Wire) -> list[str]:
    return [each["name"] for each in (await wire.ask("resources/list"))["resources"]]


def announcements(wire: Wire) -> int:
    return sum(message.get("method") == RESOURCES for message in wire.seen)


async def test_a_burst_is_one_announcement_and_changed_contents_are_none(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    async with Wire(server_of(tmp_path), "2025-11-25") as wire:
        for number in range(100):
            (tmp_path / f"{number:03}.txt").write_text("new")
        await wire.receive(PATIENCE)
        assert len(await names(wire)) == 101
        await wire.ask("resources/subscribe", {"uri": "docs://all/old.txt"})
        (tmp_path / ".hidden").write_text("not offered")
        (tmp_path / "old.txt").write_text("changed")
        assert (await wire.receive(PATIENCE))["method"] == UPDATED
        (tmp_path / "last.txt").write_text("last")
        await wire.receive(PATIENCE)
        assert announcements(wire) == 2
        assert "last.txt" in await names(wire)


def watching() -> bool:
    return any(task.get_name() == "dovetail.watch" for task in asyncio.all_tasks())


async def test_a_folder_is_watched_while_the_server_serves(tmp_path: Path) -> None:
    server = server_of(tmp_path)
    for _ in range(2):  # it may be started again
        async with Wire(server, MODERN):
            assert watching()
        assert not watching()
        async with serving(server):
            assert watching()
        assert not watching()
    async with Wire(server_of(tmp_path, list_changed=False), "2025-11-25"):
        assert not watching()


# ── completion ──


def completing(uri: str, value: str) -> dict[str, Any]:
    return {"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "path", "value": value}}


async def suggested(wire: Wire, uri: str, value: str) -> dict[str, Any]:
    return (await wire.ask("completion/complete", completing(uri, value)))["completion"]


@pytest.mark.rule("COMP-1", "COMP-6")
@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_the_path_of_a_folder_completes_to_its_files(version: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in ("README.md", "src/main.rs", "src/mäin 2.rs", ".secret", "notes.bak"):
        (tmp_path / name).write_text("x")
    server = Server("folders", version="1.0.0")
    server.add_directory(tmp_path, uri="docs://all", exclude=("*.bak",))
    async with Wire(server, version) as wire:
        if version != MODERN:
            assert wire.welcome["capabilities"]["completions"] == {}
        everything = ["README.md", "src/main.rs", "src/mäin 2.rs"]
        template = "docs://all/{+path}"
        assert await suggested(wire, template, "") == {"values": everything, "total": 3, "hasMore": False}
        assert (await suggested(wire, template, "src/"))["values"] == everything[1:]
        assert (await suggested(wire, template, "."))["values"] == []


async def test_what_a_caller_may_not_read_is_not_suggested(tmp_path: Path) -> None:
    for name in ("open.txt", "secret.txt"):
        (tmp_path / name).write_text("x")
    server = server_of(tmp_path)
    server.add_file(tmp_path / "secret.txt", uri="docs://secret", authorize=lambda _: False)
    server.add_directory(tmp_path, uri="closed://all", authorize=lambda _: False)
    async with Wire(server, "2025-11-25") as wire:
        assert (await suggested(wire, "docs://all/{+path}", ""))["values"] == await names(wire)
        closed = completing("closed://all/{+path}", "")
        assert (await wire.refusal("completion/complete", closed))["code"] == -32602
