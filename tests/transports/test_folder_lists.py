"""Files that come to a folder or go from it are announced by themselves: in every era, and on every transport."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from http_clients import (
    RESOURCES,
    UPDATED,
    View,
    leave,
)

from dovetail import Server
from http_serving import PausingState, serving, settle
from http_stage import HANDSHAKE
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
async def on_pipe(server: Server) -> AsyncIterator[Hear]:
    async with Wire(server, HANDSHAKE[-1]) as wire:
        yield lambda: wire.receive(PATIENCE)


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


@asynccontextmanager
async def listening_over_http(server: Server) -> AsyncIterator[Hear]:
    async with serving(server) as app:
        stream = HttpWire(app).start("subscriptions/listen", ALL)
        await stream.message()
        yield lambda: stream.message(PATIENCE)
        await leave(stream)


WAYS: dict[str, Callable[[Server], Any]] = {
    "pipe": on_pipe,
    "listen on a pipe": listening_on_pipe,
    "HTTP": over_http,
    "listen over HTTP": listening_over_http,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
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


async def until_watching(is_watching: bool) -> None:
    async with asyncio.timeout(PATIENCE):
        while watching() is not is_watching:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


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


async def test_a_folder_that_is_added_meanwhile_is_watched_and_a_removed_one_is_not(tmp_path: Path) -> None:
    server = Server("folders", version="1.0.0", declare=["resources"])

    @server.tool
    def offer() -> None:  # in a thread
        server.add_directory(tmp_path, uri="docs://all")

    async with Wire(server, "2025-11-25") as wire:
        assert not watching()
        await wire.ask("tools/call", {"name": "offer"})
        while announcements(wire) == 0:
            await wire.receive(PATIENCE)
        assert await names(wire) == []  # as a client does that was told
        assert watching()
        (tmp_path / "a.txt").write_text("a")
        while announcements(wire) == 1:
            await wire.receive(PATIENCE)
        assert server.remove_resource("docs://all/{+path}")
        (tmp_path / "b.txt").write_text("b")
        await until_watching(False)


async def test_each_worker_tells_of_the_files_that_it_finds_and_all_list_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = PausingState()
    apps = [server_of(tmp_path).asgi(state=View(store)) for _ in range(2)]
    for app in apps:
        await app.start()
    await settle(100)  # what was announced when they began to listen to each other
    streams = [HttpWire(app).start("subscriptions/listen", ALL) for app in apps]
    for stream in streams:
        await stream.message()
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
        for app, stream in zip(apps, streams, strict=True):
            listed: list[str] = []
            while name not in listed:  # also where the file was not found first
                assert (await stream.message(PATIENCE))["method"] == RESOURCES
                listed = [each["name"] for each in (await HttpWire(app).ask("resources/list"))["resources"]]
    await leave(*streams)
    for app in apps:
        await app.drain(1)
    assert "others do not have that" not in caplog.text


# ── completion ──


async def suggested(wire: Wire, uri: str, value: str) -> dict[str, Any]:
    params = {"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "path", "value": value}}
    return (await wire.ask("completion/complete", params))["completion"]


@pytest.mark.rule("COMP-1", "COMP-6")
@pytest.mark.parametrize("version", [*HANDSHAKE, MODERN])
async def test_the_path_of_a_folder_completes_to_its_files(version: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in ("README.md", "src/main.rs", "src/mäin 2.rs", ".secret", "notes.bak"):
        (tmp_path / name).write_text("x")
    server = Server("folders", version="1.0.0")
    server.add_directory(tmp_path, uri="docs://all", exclude=("*.bak",))
    async with Wire(server, version) as wire:
        if version not in ("2024-11-05", MODERN):
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
        params = {
            "ref": {"type": "ref/resource", "uri": "closed://all/{+path}"},
            "argument": {"name": "path", "value": ""},
        }
        assert (await wire.refusal("completion/complete", params))["code"] == -32602
