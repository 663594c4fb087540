"""The log on stderr: it never blocks, says what it dropped, and knows no secrets."""

import logging
import os
import threading
import time
from collections.abc import Iterator

import pytest

from dovetail.engine.redaction import Redactor
from dovetail.transports import process
from dovetail.transports.process import MAX_LINE_BYTES, MAX_LINES, StderrHandler, log_to_stderr


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


def record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("dovetail", logging.INFO, "file", 1, text, arguments, None)


def read_all(pipe: tuple[int, int]) -> list[str]:
    os.close(pipe[1])
    data = b""
    while chunk := os.read(pipe[0], 1_000_000):
        data += chunk
    return data.decode().splitlines()


def test_lines_in_order(pipe: tuple[int, int]) -> None:
    handler = StderrHandler(pipe[1])
    for number in range(100):
        handler.emit(record("line %d", number))
    handler.flush()
    assert read_all(pipe) == [f"line {number}" for number in range(100)]


def test_nobody_reads(pipe: tuple[int, int]) -> None:
    handler = StderrHandler(pipe[1])
    for _ in range(10 * MAX_LINES):
        handler.emit(record("x" * 1000))
    assert handler._waiting.qsize() <= MAX_LINES
    assert handler.dropped > 0
    handler.flush()  # returns, although nothing can be written
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(read_until(pipe[0], "the end")))
    reader.start()
    while handler._waiting.qsize():
        time.sleep(0.01)
    handler.emit(record("the end"))
    reader.join(10)
    os.close(pipe[1])
    gaps = [int(line.split()[2]) for line in lines if line.endswith("lines that nobody read in time were dropped")]
    written = len(lines) - len(gaps)
    assert sum(gaps) == handler.dropped
    assert written + sum(gaps) == 10 * MAX_LINES + 1


def read_until(descriptor: int, last: str) -> list[str]:
    data = b""
    while not data.endswith(last.encode() + b"\n"):
        data += os.read(descriptor, 1_000_000)
    return data.decode().splitlines()


def test_lines_that_are_too_long_or_cannot_be_shown(pipe: tuple[int, int]) -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError

    handler = StderrHandler(pipe[1])
    handler.emit(record("ä" * 20_000))
    handler.emit(record("%s", Broken()))
    handler.emit(record("\udc80"))
    handler.flush()
    os.close(pipe[1])
    lines = open(pipe[0], "rb", closefd=False).read().splitlines()  # noqa: SIM115
    assert len(lines[0]) <= MAX_LINE_BYTES + 10
    assert lines[1:] == [b"INFO dovetail: [this record can't be shown]", b"\\udc80"]


@pytest.fixture
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    logger = logging.Logger("dovetail")
    monkeypatch.setattr(process, "log", logger)
    return logger


@pytest.mark.parametrize(
    ("variable", "level"), [("", logging.INFO), ("debug", logging.DEBUG), ("nonsense", logging.INFO)]
)
def test_the_level_comes_from_the_environment(
    fresh_log: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    variable: str,
    level: int,
) -> None:
    monkeypatch.setenv("DOVETAIL_LOG_LEVEL", variable)
    log_to_stderr(Redactor())
    assert fresh_log.level == level
    fresh_log.handlers[0].flush()
    assert ("nonsense is unknown" in capfd.readouterr().err) is (variable == "nonsense")


def test_secrets_are_redacted(fresh_log: logging.Logger, capfd: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(Redactor())
    fresh_log.warning("password=%s", "hunter2")
    fresh_log.handlers[0].flush()
    assert capfd.readouterr().err.endswith("WARNING dovetail: password=[redacted]\n")


def test_a_log_that_is_set_up_already_is_left_alone(fresh_log: logging.Logger) -> None:
    fresh_log.addHandler(logging.NullHandler())
    log_to_stderr(Redactor())
    assert len(fresh_log.handlers) == 1
    assert fresh_log.level == logging.NOTSET
