"""Watching files, once by looking alone and once with watchfiles (which must do it, as looking is too slow there)."""

import asyncio
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.engine import looks
from dovetail.engine import watch as watch_module
from dovetail.engine.watch import Watcher
from dovetail.errors import Busy, SetupError

pytestmark = pytest.mark.slow  # real processes, files or a large suite: part of `make test`, not of `make check`

PATIENCE = 20.0  # only ever used up by a failing test
URI = "file:///watched"
has_watchfiles = importlib.util.find_spec("watchfiles") is not None
needs_watchfiles = pytest.mark.skipif(not has_watchfiles, reason="watchfiles is not installed")


class Changes:
    """What a watcher reported, in order."""

    def __init__(self) -> None:
        self.uris: list[str] = []
        self._arrived = asyncio.Event()

    def __call__(self, uri: str, _cause: str) -> None:
        self.uris.append(uri)
        self._arrived.set()

    async def wait_for(self, uri: str = URI) -> None:
        """Until this URI has been reported; then forget everything."""
        async with asyncio.timeout(PATIENCE):
            while uri not in self.uris:
                self._arrived.clear()
                await self._arrived.wait()
        self.uris.clear()

    async def stay_silent(self, seconds: float = 0.15) -> None:
        await asyncio.sleep(seconds)
        assert self.uris == []


@pytest.fixture(autouse=True)
def short_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bursts end sooner, so that the tests do."""
    monkeypatch.setattr(watch_module, "QUIET_SECONDS", 0.02)


@pytest.fixture
def changes() -> Changes:
    return Changes()


@pytest.fixture(params=["looking", pytest.param("watchfiles", marks=needs_watchfiles)])
async def watcher(request: pytest.FixtureRequest, changes: Changes) -> AsyncIterator[Watcher]:
    if request.param == "looking":
        watcher = Watcher(changes, poll_seconds=0.02, use_watchfiles=False)
    else:
        watcher = Watcher(changes, poll_seconds=600, use_watchfiles=True)
    yield watcher
    await watcher.close()
    assert watching_tasks() == []
    await eventually(lambda: not watching_threads())


def watching_tasks() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "dovetail.watch"]


def watching_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "dovetail.watch"]


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def append(path: Path) -> None:
    with path.open("a") as stream:
        stream.write("more")


def replace(path: Path) -> None:
    """As editors save: a new file takes the name of the old one, with the same size and time."""
    status = path.stat()
    new = path.with_suffix(".new")
    new.write_text("x" * status.st_size)
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(new, path)


def recreate(path: Path) -> None:
    path.unlink()
    path.write_text("again")


@pytest.mark.parametrize("change", [append, replace, Path.unlink, recreate])
async def test_a_change_of_a_file_is_reported_once(
    watcher: Watcher, changes: Changes, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    watcher.watch(URI, path)
    change(path)
    await changes.wait_for()
    await changes.stay_silent(0.1)


async def test_every_save_is_seen_while_a_file_is_replaced_again_and_again(
    watcher: Watcher, changes: Changes, tmp_path: Path
) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    watcher.watch(URI, path)
    for change in (replace, append, replace, Path.unlink):
        change(path)
        await changes.wait_for()
    path.write_text("back")
    await changes.wait_for()


async def test_a_burst_is_reported_once(watcher: Watcher, changes: Changes, tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    watcher.watch(URI, path)
    watcher.watch("file:///folder", tmp_path)
    append(path)
    await changes.wait_for()
    await changes.stay_silent()
    for _ in range(50):
        append(path)
    await eventually(lambda: len(changes.uris) == 2)
    assert sorted(changes.uris) == ["file:///folder", URI]
    changes.uris.clear()
    await changes.stay_silent(0.1)


async def test_a_file_that_is_always_written_is_reported_too(
    watcher: Watcher, changes: Changes, tmp_path: Path
) -> None:
    path = tmp_path / "log.txt"
    path.write_text("")
    watcher.watch(URI, path)
    async with asyncio.timeout(PATIENCE):
        while URI not in changes.uris:
            append(path)
            await asyncio.sleep(0.01)


async def test_neighbours_do_not_count(watcher: Watcher, changes: Changes, tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    watcher.watch(URI, path)
    (tmp_path / "file.txt.bak").write_text("x")
    (tmp_path / "other").mkdir()
    await changes.stay_silent()


async def test_a_file_that_is_not_there_yet(watcher: Watcher, changes: Changes, tmp_path: Path) -> None:
    path = tmp_path / "later" / "deeper" / "file.txt"
    watcher.watch(URI, path)
    await changes.stay_silent(0.1)
    path.parent.mkdir(parents=True)
    await changes.stay_silent()
    path.write_text("here")
    await changes.wait_for()


async def test_the_folder_of_a_file_may_be_replaced(watcher: Watcher, changes: Changes, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "file.txt"
    path.write_text("old")
    watcher.watch(URI, path)
    path.unlink()
    await changes.wait_for()
    folder.rmdir()
    await asyncio.sleep(0.2)
    folder.mkdir()
    await asyncio.sleep(0.2)
    path.write_text("back")
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


async def test_a_folder_that_is_made_anew_is_watched_on(
    watcher: Watcher, changes: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where file systems give the new folder the old one's inode."""
    monkeypatch.setattr(watch_module, "_plan", lambda folders: frozenset((folder, 0, 0) for folder in folders))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "x").touch()
    watcher.watch(URI, folder)
    append(folder / "x")
    await changes.wait_for()
    await asyncio.sleep(0.2)
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "x").touch()
    await changes.wait_for()
    await asyncio.sleep(0.2)
    append(folder / "x")
    await changes.wait_for()


async def test_a_folder_behind_a_symlink(watcher: Watcher, changes: Changes, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real", target_is_directory=True)
    watcher.watch(URI, tmp_path / "link")
    (tmp_path / "real" / "x").touch()
    await changes.wait_for()


async def test_a_symlink_that_moves_on(watcher: Watcher, changes: Changes, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    link = tmp_path / "current"
    link.symlink_to("one")
    watcher.watch(URI, link)
    (tmp_path / "next").symlink_to("two")
    os.replace(tmp_path / "next", link)
    await changes.wait_for()


async def test_files_come_and_go_while_it_runs(watcher: Watcher, changes: Changes, tmp_path: Path) -> None:
    paths = [tmp_path / f"folder{number}" / "file.txt" for number in range(3)]
    for number, path in enumerate(paths):
        path.parent.mkdir()
        path.write_text("old")
        watcher.watch(f"file:///{number}", path)
        append(path)
        await changes.wait_for(f"file:///{number}")
    watcher.unwatch("file:///1")
    append(paths[1])
    await changes.stay_silent()
    append(paths[0])
    await changes.wait_for("file:///0")
    append(paths[2])
    await changes.wait_for("file:///2")


async def test_holders_are_counted(watcher: Watcher, changes: Changes, tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    watcher.watch(URI, path)
    watcher.watch(URI, path)
    watcher.unwatch(URI)
    append(path)
    await changes.wait_for()
    watcher.unwatch(URI)
    append(path)
    await changes.stay_silent()
    watcher.unwatch(URI)  # once too often is ignored
    watcher.unwatch("file:///unknown")


async def test_the_task_lives_from_the_first_uri_to_the_last(
    watcher: Watcher, changes: Changes, tmp_path: Path
) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    assert watching_tasks() == []
    for _ in range(2):  # and again
        watcher.watch(URI, path)
        watcher.watch("file:///folder", tmp_path)
        assert len(watching_tasks()) == 1
        append(path)
        await changes.wait_for()
        watcher.unwatch(URI)
        await asyncio.sleep(0.05)
        assert len(watching_tasks()) == 1
        watcher.unwatch("file:///folder")
        await eventually(lambda: not watching_tasks() and not watching_threads())


async def test_stop_and_start_at_once(watcher: Watcher, changes: Changes, tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    for _ in range(5):
        watcher.watch(URI, path)
        await asyncio.sleep(0)
        watcher.unwatch(URI)
    watcher.watch(URI, path)
    append(path)
    await changes.wait_for()
    assert len(watching_tasks()) == 1


async def test_close_twice_and_without_anything(changes: Changes) -> None:
    watcher = Watcher(changes)
    await watcher.close()
    await watcher.close()
    assert watching_tasks() == []


async def test_a_listener_that_raises_does_not_end_the_watching(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    changes = Changes()

    def report(uri: str, cause: str) -> None:
        changes(uri, cause)
        raise ValueError("no")

    watcher = Watcher(report, poll_seconds=0.02, use_watchfiles=False)
    watcher.watch(URI, path)
    for _ in range(2):
        append(path)
        await changes.wait_for()
    await watcher.close()
    assert {record.name for record in caplog.records} == {"dovetail.watch"}


class Panic(BaseException):
    """What a panic in Rust looks like from Python."""


def fail_at_once(*_: object, **__: object) -> object:
    raise OSError("no more watches")


def fail_later(*_: object, **__: object) -> object:
    yield set()
    raise Panic("broken")


def end_early(*_: object, **__: object) -> object:
    yield set()


def miss_once(real: Callable[..., object]) -> Callable[..., object]:
    calls = iter([True])

    def watch(*folders: str, **options: object) -> object:
        if next(calls, False):
            raise FileNotFoundError(2, "no such folder")
        return real(*folders, **options)

    return watch


@needs_watchfiles
@pytest.mark.parametrize(
    ("broken", "words"),
    [(fail_at_once, "no more watches"), (fail_later, "broken"), (end_early, "stopped by itself")],
)
async def test_without_watchfiles_looking_goes_on(
    changes: Changes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: object,
    words: str,
) -> None:
    monkeypatch.setattr("watchfiles.watch", broken)
    path = tmp_path / "file.txt"
    path.write_text("old")
    watcher = Watcher(changes, poll_seconds=0.02)
    with caplog.at_level(logging.WARNING, "dovetail.watch"):
        watcher.watch(URI, path)
        watcher.watch("file:///folder", tmp_path)
        await eventually(lambda: words in caplog.text)
    await eventually(lambda: not watching_threads())
    for _ in range(2):
        append(path)
        await eventually(lambda: len(changes.uris) == 2)
        assert sorted(changes.uris) == ["file:///folder", URI]
        changes.uris.clear()
    await watcher.close()


@needs_watchfiles
async def test_a_folder_that_vanishes_too_early_is_no_failure(
    changes: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("watchfiles.watch", miss_once(importlib.import_module("watchfiles").watch))
    watcher = Watcher(changes, poll_seconds=0.1)
    watcher.watch(URI, tmp_path)
    await eventually(lambda: bool(watcher._listeners) and all(each.hears for each in watcher._listeners.values()))
    assert not caplog.records
    await watcher.close()


async def test_watchfiles_that_is_not_installed(changes: Changes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SetupError, match="install it"):
        Watcher(changes, use_watchfiles=True)
    Watcher(changes)  # looks instead


async def test_a_look_into_a_large_folder_is_bounded(
    changes: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(looks, "MAX_FOLDER_ENTRIES", 5)
    for number in range(20):
        (tmp_path / str(number)).touch()
    watcher = Watcher(changes, poll_seconds=0.02, use_watchfiles=False)
    watcher.watch(URI, tmp_path)
    assert "first 5 entries" in caplog.text
    await changes.stay_silent(0.1)
    await watcher.close()


@needs_watchfiles
async def test_watchfiles_hears_all_of_a_large_folder(
    changes: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(looks, "MAX_FOLDER_ENTRIES", 1)
    for number in range(20):
        (tmp_path / str(number)).touch()
    watcher = Watcher(changes, poll_seconds=600)
    watcher.watch(URI, tmp_path)
    assert not caplog.records
    await eventually(lambda: all(each.caught_up for each in watcher._listeners.values() if each._deep))
    for number in range(20):
        append(tmp_path / str(number))
    await changes.wait_for()
    await watcher.close()


async def test_a_disk_that_hangs_holds_up_nobody(
    changes: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    real, loop = os.stat, threading.get_ident()

    def hang(path: object, **options: bool) -> os.stat_result:
        assert threading.get_ident() != loop, "the event loop looks at a disk"
        if str(path) == str(tmp_path / "hangs"):
            release.wait(PATIENCE)
        return real(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(looks, "FIRST_LOOK_SECONDS", 0.01)
    path = tmp_path / "file.txt"
    path.write_text("old")
    watcher = Watcher(changes, poll_seconds=0.02)
    with monkeypatch.context() as patch:
        patch.setattr(looks.os, "stat", hang)
        watcher.watch("file:///hangs", tmp_path / "hangs")
        watcher.watch(URI, path)
        release.set()
        await eventually(lambda: all(each.is_seen for each in watcher._watched.values()))
        append(path)
        await changes.wait_for()
        release.clear()
        watcher.watch("file:///again", tmp_path / "hangs")
        await watcher.close()  # does not wait for the disk either
        release.set()


async def test_looking_is_done_by_the_runner_that_was_given_and_survives_its_failures(
    changes: Changes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    async def run(work: Callable[[], Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise Busy("no thread is free")
        return work()

    path = tmp_path / "file.txt"
    path.write_text("old")
    watcher = Watcher(changes, poll_seconds=0.02, use_watchfiles=False, run=run)
    watcher.watch(URI, path)
    append(path)
    await changes.wait_for()
    assert "no thread is free" in caplog.text
    await watcher.close()


async def test_all_who_watch_name_the_same_cause(tmp_path: Path) -> None:
    file, folder = tmp_path / "file.txt", tmp_path / "folder"
    folder.mkdir()
    told: dict[str, list[list[str]]] = {"file": [[], []], "folder": [[], []]}
    watchers = [
        Watcher(lambda uri, cause, n=n: told[uri][n].append(cause), poll_seconds=0.02, use_watchfiles=False)
        for n in range(2)
    ]
    for watcher in watchers:
        watcher.watch("file", file)
        watcher.watch("folder", folder)
    for number in range(1, 4):
        file.write_text("x" * number)
        (folder / f"{number}.txt").write_text("new")
        await eventually(lambda number=number: all(len(each) == number for both in told.values() for each in both))
    for watcher in watchers:
        await watcher.close()
    for one, other in told.values():
        assert one == other
        assert len(set(one)) == 3


async def test_what_changed_and_changed_back_has_no_cause(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    watched = looks.Watched(path)
    watched.take_in(looks.look_at(watched.path))
    assert watched.cause() == ""
    path.unlink()
    watched.take_in(looks.look_at(watched.path))
    assert watched.cause() != ""


def test_a_new_event_loop_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    seen: list[str] = []
    watcher = Watcher(lambda uri, _: seen.append(uri), poll_seconds=0.05)

    async def use() -> None:
        watcher.watch(URI, path)
        await asyncio.sleep(0.1)
        append(path)
        await eventually(lambda: URI in seen)
        seen.clear()

    for _ in range(2):  # neither time closed
        asyncio.run(use())
        path.write_text("old")
        watcher.unwatch(URI)


ABRUPT = """
import asyncio, pathlib, sys
from dovetail.engine.watch import Watcher

async def main():
    watcher = Watcher(print, poll_seconds=600)
    watcher.watch("file:///x", pathlib.Path(sys.argv[1]))
    await asyncio.sleep(0.3)
    {ending}

asyncio.run(main())
"""


@pytest.mark.parametrize("ending", ["pass", "asyncio.get_running_loop().stop()"])
def test_a_process_that_forgets_to_close_still_ends(tmp_path: Path, ending: str) -> None:
    source = ABRUPT.format(ending=ending)
    done = subprocess.run(
        [sys.executable, "-c", source, str(tmp_path)], timeout=PATIENCE, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1)  # stop() makes asyncio.run complain; it must not abort or hang
    assert "abort" not in done.stderr.lower()
