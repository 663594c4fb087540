"""Files that come to a folder or go from it are announced by themselves: in every era, and on every transport."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from http_clients import RESOURCES, UPDATED, leave

from dovetail import Server
from http_serving import serving
from http_wire import HttpWire
from wire import MODERN, Wire

pytestmark = pytest.mark.slow  # a folder is listed at most once a second
NOTIFICATION_TIMEOUT = 20.0  # seconds, only ever used up by a failing test


def server_of(folder: Path, **options: Any) -> Server:
    server = Server("folders", version="1.0.0", **options)
    server.add_directory(folder, uri="docs://all", exclude=("*.bak",))
    return server


async def test_a_file_that_comes_or_goes_is_announced_over_http(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    async with serving(server_of(tmp_path)) as app:
        stream = await (await HttpWire.session(app)).get().started()
        (tmp_path / "b.txt").write_text("b")
        assert (await stream.message(NOTIFICATION_TIMEOUT))["method"] == RESOURCES
        (tmp_path / "a.txt").unlink()
        assert (await stream.message(NOTIFICATION_TIMEOUT))["method"] == RESOURCES
        await leave(stream)


async def names(wire: Wire) -> list[str]:
    return [each["name"] for each in (await wire.ask("resources/list"))["resources"]]


def announcements(wire: Wire) -> int:
    return sum(message.get("method") == RESOURCES for message in wire.seen)


async def test_a_burst_is_one_announcement_and_changed_contents_are_none(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    async with Wire(server_of(tmp_path), "2025-11-25") as wire:
        for number in range(100):
            (tmp_path / f"{number:03}.txt").write_text("new")
        await wire.receive(NOTIFICATION_TIMEOUT)
        assert len(await names(wire)) == 101
        await wire.ask("resources/subscribe", {"uri": "docs://all/old.txt"})
        (tmp_path / ".hidden").write_text("not offered")
        (tmp_path / "old.txt").write_text("changed")
        assert (await wire.receive(NOTIFICATION_TIMEOUT))["method"] == UPDATED
        (tmp_path / "last.txt").write_text("last")
        await wire.receive(NOTIFICATION_TIMEOUT)
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


def completing(uri: str, value: str = "") -> dict[str, Any]:
    return {"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "path", "value": value}}


@pytest.mark.rule("COMP-1", "COMP-6")
@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_the_path_of_a_folder_completes_to_the_files_that_a_caller_may_read(version: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in ("README.md", "src/main.rs", "src/mäin 2.rs", ".secret", "notes.bak", "secret.txt"):
        (tmp_path / name).write_text("x")
    server = server_of(tmp_path)
    server.add_file(tmp_path / "secret.txt", uri="docs://secret", authorize=lambda _: False)
    server.add_directory(tmp_path, uri="closed://all", authorize=lambda _: False)
    async with Wire(server, version) as wire:
        if version != MODERN:
            assert wire.welcome["capabilities"]["completions"] == {}
        everything = ["README.md", "src/main.rs", "src/mäin 2.rs"]
        for value, values in (("", everything), ("src/", everything[1:]), (".", [])):
            found = await wire.ask("completion/complete", completing("docs://all/{+path}", value))
            assert found["completion"] == {"values": values, "total": len(values), "hasMore": False}
        closed = completing("closed://all/{+path}")
        assert (await wire.refusal("completion/complete", closed))["code"] == -32602
