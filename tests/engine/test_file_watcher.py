"""Watching files by polling, and folders with watchfiles (which must do it there, as polling is too slow)."""

import asyncio
import importlib.util
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.engine.file_watcher import Watcher, stat_path
from dovetail.errors import Busy
from http_serving import until

TIME_LIMIT = 20.0  # only ever used up by a failing test
URI = "file:///watched"
needs_watchfiles = pytest.mark.skipif(importlib.util.find_spec("watchfiles") is None, reason="is not installed")


class Changes:
    """What a watcher reported, in order."""

    def __init__(self) -> None:
        self.uris: list[str] = []
        self._arrived = asyncio.Event()

    def __call__(self, uri: str) -> None:
        self.uris.append(uri)
        self._arrived.set()

    async def wait_for(self, uri: str = URI) -> None:
        """Until this URI has been reported; then forget everything."""
        async with asyncio.timeout(TIME_LIMIT):
            while uri not in self.uris:
                self._arrived.clear()
                await self._arrived.wait()
        self.uris.clear()

    async def stay_silent(self, seconds: float = 0.15) -> None:
        await asyncio.sleep(seconds)
        assert self.uris == []


@pytest.fixture
def changes() -> Changes:
    return Changes()


def polling(changes: Any, **options: Any) -> Watcher:
    return Watcher(changes, poll_seconds=0.02, use_watchfiles=False, quiet=0.02, **options)


@pytest.fixture
async def watcher(changes: Changes) -> AsyncIterator[Watcher]:
    watcher = polling(changes)
    yield watcher
    await watcher.close()
    assert watching_tasks() == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file.txt").write_text("old")
    return tmp_path / "file.txt"


def watching_tasks() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "dovetail.watch"]


def append(path: Path) -> None:
    with path.open("a") as stream:
        stream.write("more")


async def keep_writing(path: Path, changes: Changes) -> None:
    """Until that is reported."""
    async with asyncio.timeout(TIME_LIMIT):
        while URI not in changes.uris:
            append(path)
            await asyncio.sleep(0.01)


def replace(path: Path) -> None:
    """As editors save: a new file takes the name of the old one, with the same size and time."""
    status = path.stat()
    new = path.with_suffix(".new")
    new.write_text("x" * status.st_size)
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(new, path)


async def test_each_save_of_a_file_is_reported_once(watcher: Watcher, changes: Changes, path: Path) -> None:
    watcher.watch(URI, path)
    for change in (append, replace, Path.unlink, lambda path: path.write_text("back")):
        change(path)
        await changes.wait_for()
        await changes.stay_silent(0.1)
    for _ in range(50):
        append(path)
    await changes.wait_for()
    (path.parent / "file.txt.bak").write_text("x")
    await changes.stay_silent(0.1)


async def test_a_file_and_its_folders_may_come_later_and_again(
    watcher: Watcher, changes: Changes, tmp_path: Path
) -> None:
    path = tmp_path / "later" / "deeper" / "file.txt"
    watcher.watch(URI, path)
    for _ in range(2):
        path.parent.mkdir(parents=True)
        await changes.stay_silent()
        path.write_text("here")
        await changes.wait_for()
        shutil.rmtree(path.parent.parent)
        await changes.wait_for()


async def test_a_folder_reports_what_happens_below(watcher: Watcher, changes: Changes, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    watcher.watch(URI, folder)
    for change in (
        lambda: (folder / "deep" / "new.txt").write_text("new"),
        lambda: append(folder / "deep" / "new.txt"),
        lambda: (folder / "deep" / "deeper").mkdir(),
        lambda: (folder / "deep" / "deeper" / "x").touch(),
        lambda: (folder / "deep" / "new.txt").unlink(),
        lambda: folder.rename(tmp_path / "elsewhere"),
    ):
        change()
        await changes.wait_for()
    append(tmp_path / "elsewhere" / "deep" / "deeper" / "x")
    await changes.stay_silent()
    folder.mkdir()
    await changes.wait_for()
    (folder / "x").touch()
    await changes.wait_for()


async def test_what_a_symlink_leads_to_is_watched(watcher: Watcher, changes: Changes, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real", target_is_directory=True)
    watcher.watch("file:///folder", tmp_path / "link")
    (tmp_path / "real" / "x").touch()
    await changes.wait_for("file:///folder")
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    (tmp_path / "current").symlink_to("one")
    watcher.watch(URI, tmp_path / "current")
    (tmp_path / "next").symlink_to("two")
    os.replace(tmp_path / "next", tmp_path / "current")
    await changes.wait_for()


async def test_holders_are_counted_and_the_task_lives_from_the_first_uri_to_the_last(
    watcher: Watcher, changes: Changes, path: Path
) -> None:
    for _ in range(2):  # and again
        watcher.watch(URI, path)
        watcher.watch(URI, path)
        watcher.watch("file:///folder", path.parent)
        assert len(watching_tasks()) == 1
        watcher.unwatch(URI)
        append(path)
        await changes.wait_for()
        watcher.unwatch(URI)
        append(path)
        await changes.wait_for("file:///folder")
        watcher.unwatch(URI)  # once too often is ignored
        watcher.unwatch("file:///folder")
        await until(lambda: not watching_tasks(), TIME_LIMIT)
    assert changes.uris == []


async def test_neither_a_failing_listener_nor_a_failing_poll_ends_the_watching(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes, calls = Changes(), 0

    def report(uri: str) -> None:
        changes(uri)
        raise ValueError("not shown")

    async def run(work: Callable[[], Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise Busy("no thread is free")
        return work()

    watcher = polling(report, run=run)
    watcher.watch(URI, path)
    for _ in range(2):
        append(path)
        await changes.wait_for()
    await watcher.close()
    await watcher.close()
    assert "no thread is free" in caplog.text
    assert "not shown" in caplog.text


class Panic(BaseException):
    """What a panic in Rust looks like from Python."""


@needs_watchfiles
@pytest.mark.parametrize("failure", [OSError("no more watches"), Panic("broken")])
async def test_without_watchfiles_polling_goes_on(
    changes: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    failure: BaseException,
) -> None:  # fmt: skip
    async def fail(*_: object, **__: object) -> AsyncIterator[Any]:
        yield set()
        raise failure

    monkeypatch.setattr("watchfiles.awatch", fail)
    watcher = Watcher(changes, poll_seconds=0.02, quiet=0.02)
    watcher.watch(URI, tmp_path)
    await until(lambda: str(failure) in caplog.text, TIME_LIMIT)
    (tmp_path / "new").touch()
    await changes.wait_for()
    await watcher.close()


@needs_watchfiles
async def test_watchfiles_notifies_at_once_of_folders_also_of_those_that_come_back(
    changes: Changes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, deep = tmp_path / "folder", tmp_path / "folder" / "deep"
    watcher = Watcher(changes, poll_seconds=600, quiet=0.02)
    for _ in range(2):
        deep.mkdir(parents=True)
        watcher.watch(URI, folder)
        await keep_writing(deep / "x", changes)  # it takes a moment until it is notified
        shutil.rmtree(folder)
        watcher.unwatch(URI)
        changes.uris.clear()
    await watcher.close()
    await until(lambda: not watching_tasks(), TIME_LIMIT)
    assert not caplog.records


async def test_a_poll_of_a_large_folder_is_bounded(
    changes: Changes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(20):
        (tmp_path / str(number)).touch()
    assert stat_path(str(tmp_path), 5) == stat_path(str(tmp_path), 5)
    assert stat_path(str(tmp_path), 5).is_large
    assert not stat_path(str(tmp_path), 21).is_large
    watcher = polling(changes, max_entries=1)
    watcher.watch(URI, tmp_path)
    await watcher.close()
    assert caplog.text.count("first 1 entries") == 1


async def test_a_disk_that_hangs_holds_up_no_caller(
    changes: Changes, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    real, loop = os.stat, threading.get_ident()

    def hang(path: object, **options: bool) -> os.stat_result:
        assert threading.get_ident() != loop, "the event loop looks at a disk"
        if str(path) == str(tmp_path / "hangs"):
            release.wait(TIME_LIMIT)
        return real(path, **options)  # type: ignore[arg-type]

    watcher = polling(changes)
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", hang)
        watcher.watch("file:///hangs", tmp_path / "hangs")
        watcher.watch(URI, path)
        release.set()
        await keep_writing(path, changes)  # its first look may come late
        release.clear()
        watcher.watch("file:///again", tmp_path / "hangs")
        await watcher.close()  # does not wait for the disk either
        release.set()


def test_a_new_event_loop_starts_anew(path: Path) -> None:
    seen: list[str] = []
    watcher = Watcher(seen.append, poll_seconds=0.05)

    async def use() -> None:
        watcher.watch(URI, path)
        append(path)
        await until(lambda: URI in seen, TIME_LIMIT)
        seen.clear()

    for _ in range(2):  # neither time closed
        asyncio.run(use())
        path.write_text("old")
        watcher.unwatch(URI)
