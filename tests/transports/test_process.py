"""The process around a server: what `asyncio.to_thread` may take of it, and the log on stderr, which never blocks."""

import asyncio
import logging
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from dovetail.engine.redaction import Redactor
from dovetail.engine.threads import ThreadPool
from dovetail.errors import ToolBusy
from dovetail.transports import process
from dovetail.transports.process import MAX_LINE_BYTES, MAX_LINES, StderrHandler, log_to_stderr, run_process

WAIT = 10.0


def test_one_function_that_hangs_leaves_threads_to_the_others_of_to_thread() -> None:
    begun, go = threading.Semaphore(0), threading.Event()
    refusals: list[str] = []
    lengths: list[int] = []

    def hang() -> None:
        begun.release()
        go.wait(WAIT)

    async def abandon() -> None:
        call = asyncio.create_task(asyncio.to_thread(hang))
        while not (begun.acquire(blocking=False) or call.done()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        call.cancel()
        try:
            await call
        except ToolBusy as refusal:
            refusals.append(str(refusal))
        except asyncio.CancelledError:
            pass

    async def main() -> None:
        try:
            for _ in range(200):
                await abandon()
            lengths.append(await asyncio.to_thread(len, "abc"))
            lengths.append(await asyncio.get_running_loop().run_in_executor(None, partial(len, "ab")))
        finally:
            go.set()

    run_process(main, ThreadPool())
    assert lengths == [3, 2]
    assert len(refusals) == 200 - 32
    assert "hang given to asyncio.to_thread is busy" in refusals[0]


# ── the log ──


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


def record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("dovetail", logging.INFO, "file", 1, text, arguments, None)


def test_nobody_reads(pipe: tuple[int, int]) -> None:
    handler = StderrHandler(pipe[1])
    for _ in range(10 * MAX_LINES):
        handler.emit(record("x" * 1000))
    assert handler.dropped > 8 * MAX_LINES
    handler.flush()  # returns, although nothing can be written
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(read_until(pipe[0], "the end")))
    reader.start()
    while reader.is_alive():  # until there is room for it
        handler.emit(record("the end"))
        reader.join(0.05)
    os.close(pipe[1])
    gaps = [int(line.split()[2]) for line in lines if line.endswith("lines that nobody read in time were dropped")]
    assert lines.count("x" * 1000) + sum(gaps) >= 10 * MAX_LINES


def read_until(descriptor: int, last: str) -> list[str]:
    data = b""
    while not data.endswith(last.encode() + b"\n"):
        data += os.read(descriptor, 1_000_000)
    return data.decode().splitlines()


def test_lines_are_in_order_even_if_they_are_too_long_or_cannot_be_shown(pipe: tuple[int, int]) -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError

    handler = StderrHandler(pipe[1])
    handler.emit(record("line %d", 1))
    handler.emit(record("ä" * 20_000))
    handler.emit(record("%s", Broken()))
    handler.emit(record("\udc80"))
    handler.flush()
    os.close(pipe[1])
    lines = open(pipe[0], "rb", closefd=False).read().splitlines()  # noqa: SIM115
    assert len(lines[1]) <= MAX_LINE_BYTES + 10
    assert lines[:1] + lines[2:] == [b"line 1", b"INFO dovetail: [this record can't be shown]", b"\\udc80"]


@pytest.fixture
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    logger = logging.Logger("dovetail")
    monkeypatch.setattr(process, "log", logger)
    return logger


@pytest.mark.parametrize(
    ("variable", "level"), [("", logging.INFO), ("debug", logging.DEBUG), ("nonsense", logging.INFO)]
)
def test_the_level_comes_from_the_environment_and_secrets_are_redacted(
    fresh_log: logging.Logger, monkeypatch: pytest.MonkeyPatch, capfd: Any, variable: str, level: int
) -> None:
    monkeypatch.setenv("DOVETAIL_LOG_LEVEL", variable)
    log_to_stderr(Redactor())
    fresh_log.warning("password=%s", "hunter2")
    fresh_log.handlers[0].flush()
    assert fresh_log.level == level
    said = capfd.readouterr().err
    assert said.endswith("WARNING dovetail: password=[redacted]\n")
    assert ("nonsense is unknown" in said) is (variable == "nonsense")


def test_a_log_that_is_set_up_already_is_left_alone(fresh_log: logging.Logger) -> None:
    fresh_log.addHandler(logging.NullHandler())
    log_to_stderr(Redactor())
    assert len(fresh_log.handlers) == 1
    assert fresh_log.level == logging.NOTSET
