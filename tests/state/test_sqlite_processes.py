"""The SQLite backend in several real processes on one file: nothing is lost, counted twice or damaged when one dies."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dovetail
from dovetail.state.sqlite import SqliteState

pytestmark = pytest.mark.long

SOURCE = Path(dovetail.__file__).parent.parent
HEAD = """
import asyncio, os, sys
from dovetail.state.base import StoreUnavailable
from dovetail.state.sqlite import SqliteState

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""
LIMIT = 30.0  # seconds for any process


class Program:
    """A process that runs a few lines; `arguments` stand in sys.argv from 1 on."""

    def __init__(self, lines: str, out: Path, *arguments: object) -> None:
        self.out = out  # a pipe could fill up, and hold up the process
        with out.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", HEAD + textwrap.dedent(lines), *map(str, arguments)],
                stdout=file,
                env={**os.environ, "PYTHONPATH": str(SOURCE)},
            )

    def said(self) -> list[list[str]]:
        """Each whole line so far, word by word."""
        text = self.out.read_text()
        return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]

    def ended(self) -> list[list[str]]:
        """What it has said when it has ended well."""
        assert self.process.wait(LIMIT) == 0
        return self.said()

    def kill(self) -> list[list[str]]:
        self.process.kill()
        self.process.wait(LIMIT)
        return self.said()


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    programs: list[Program] = []

    def start(lines: str, *arguments: object) -> Program:
        programs.append(Program(lines, tmp_path / f"out {len(programs)}", *arguments))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state.db"
    assert_sound(tmp_path / "state.db")


def assert_sound(path: Path) -> None:
    """SQLite finds no fault, no record is without its log, and no wake-up is missing."""
    with contextlib.closing(sqlite3.connect(path, timeout=5)) as connection:
        ask = connection.execute
        ask("BEGIN")  # others may be writing: look at one moment
        assert ask("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert not ask("SELECT 1 FROM records WHERE log NOT IN (SELECT id FROM logs)").fetchall()
        wakes, oldest, newest = ask("SELECT count(*), min(id), max(id) FROM wakes").fetchone()
        assert not wakes or wakes == newest - oldest + 1


async def test_counters_claims_and_logs_of_three_processes(path: Path, start: Start) -> None:
    lines = """
    async def main():
        state = SqliteState(sys.argv[1])
        me = sys.argv[2]
        async def work(n):
            say("total", await state.add("counter", 1, 60))
            if await state.claim(f"key {n}", me.encode(), 60):
                say("won", n)
            say("id", await state.append("log", f"{me} {n}".encode(), keep=10_000, ttl=60), me, n)
        for begin in range(0, 60, 10):
            await asyncio.gather(*(work(n) for n in range(begin, begin + 10)))
        await state.close()
    asyncio.run(main())
    """
    programs = [start(lines, path, name) for name in "abc"]
    said = [line for program in programs for line in program.ended()]
    totals = sorted(int(words[1]) for words in said if words[0] == "total")
    assert totals == list(range(1, 181))
    assert sorted(int(words[1]) for words in said if words[0] == "won") == list(range(60))
    appended = {int(words[1]): " ".join(words[2:]) for words in said if words[0] == "id"}

    state = SqliteState(path)
    stored = {record.id: record.data.decode() for record in (await state.read("log", 0, 1000)).records}
    await state.close()
    assert stored == appended
    assert sorted(appended) == list(range(1, 181))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="processes are not killed by signals there")
async def test_killed_in_the_middle_of_a_storm(path: Path, start: Start) -> None:
    """What was acknowledged is there, in order, and the processes that are left go on."""
    lines = """
    async def main():
        state = SqliteState(sys.argv[1])
        async def work(n):
            while True:
                await state.put(f"key {n % 7}", os.urandom(n * 700), ttl=0.2 if n % 2 else 60)
                say(await state.append(f"log {sys.argv[2]}", b"x" * n * 50, keep=10_000, ttl=60))
                await state.claim(f"dpop/{os.urandom(8)}", b"x" * n, 0.2 if n % 2 else 60)
                await state.publish("topic")
        await asyncio.gather(*(work(n) for n in range(12)))
    asyncio.run(main())
    """
    state = SqliteState(path)
    programs = [start(lines, path, name) for name in range(2)]

    for name in range(8):
        programs.append(start(lines, path, name + 2))
        deadline = time.monotonic() + LIMIT
        while len(programs[name].said()) < 50 and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        said = programs[name].kill()
        assert programs[name].process.returncode == -signal.SIGKILL  # until then nothing was wrong
        assert_sound(path)
        assert len(said) >= 50
        stored = [record.id for record in (await state.read(f"log {name}", 0, 100_000)).records]
        assert stored == list(range(1, len(stored) + 1))
        assert {int(word) for (word,) in said} <= set(stored)
        assert len(stored) <= len(said) + 12  # what was under way, each once
    await state.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_forked_after_it_was_made(path: Path, start: Start) -> None:
    lines = """
    state = SqliteState(sys.argv[1])
    children = [os.fork()]
    children += [os.fork()] if children[0] else []

    async def work():
        listener = state.listen(["log"])
        say(*[await state.add("counter", 1, 60) for _ in range(30)])
        await state.append("log", b"", keep=10, ttl=60)
        while (await state.read("log", 0)).last < 3:
            await asyncio.wait_for(listener.wait(), 10)
        await state.close()

    asyncio.run(work())
    if all(children):
        assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0]
    """
    totals = [int(word) for words in start(lines, path).ended() for word in words]
    assert sorted(totals) == list(range(1, 91))


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
def test_a_disk_that_takes_no_more(path: Path, start: Start) -> None:
    lines = """
    import resource
    async def main():
        state = SqliteState(sys.argv[1])
        await state.put("key", b"value", ttl=60)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
        for n in range(100):
            try:
                await state.append("log", bytes(20_000), keep=1000, ttl=60)
            except StoreUnavailable:
                break
        say(n, (await state.get("key")).value.decode(), state.outages)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        say(await state.append("log", bytes(20_000), keep=1000, ttl=60), state.outages)
        await state.close()
    asyncio.run(main())
    """
    (failed, value, before), (id, after) = start(lines, path).ended()
    assert 3 < int(failed) < 40
    assert (value, before, after) == ("value", "0", "1")
    assert int(id) == int(failed) + 1
