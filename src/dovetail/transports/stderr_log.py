"""The log of a server that nobody has set up another one for: records in, lines on stderr out.

Some hosts never read a server's stderr. So a daemon thread writes the lines, a bounded number of them waits, and what
is too much is dropped and counted: the server itself never waits for its log.
"""

import logging
import os
import threading
from queue import SimpleQueue

from dovetail.engine.redaction import RedactingFilter, Redactor
from dovetail.transports.descriptors import STDERR

LEVEL_VARIABLE = "DOVETAIL_LOG_LEVEL"
MAX_LINES = 500
MAX_LINE_BYTES = 16 * 1024
FLUSH_SECONDS = 0.5

log = logging.getLogger("dovetail")


def log_to_stderr(redactor: Redactor) -> None:
    """Let the logger `dovetail` write to stderr, unless its records go somewhere already."""
    if log.hasHandlers():
        return
    handler = StderrHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(RedactingFilter(redactor))
    log.addHandler(handler)
    if log.level == logging.NOTSET:
        _set_level(os.environ.get(LEVEL_VARIABLE) or "INFO")


def _set_level(name: str) -> None:
    levels = logging.getLevelNamesMapping()
    log.setLevel(levels.get(name.upper(), logging.INFO))
    if name.upper() not in levels:
        log.warning("%s=%s is unknown, INFO is used; known are %s", LEVEL_VARIABLE, name, ", ".join(levels))


class StderrHandler(logging.Handler):
    """Writes to the descriptor itself: a thread that is stuck in `sys.stderr` would hold a lock that the exit needs."""

    def __init__(self, descriptor: int = STDERR) -> None:
        super().__init__()
        self.dropped = 0
        self._descriptor = descriptor
        self._waiting: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._waiting.qsize() >= MAX_LINES:
            self.dropped += 1
            return
        try:
            text = self.format(record)
        except Exception:
            text = f"{record.levelname} {record.name}: [this record can't be shown]"
        self._waiting.put(_as_bytes(text))
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="dovetail-stderr", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """Wait a moment until everything is written."""
        if self._thread is not None:
            written = threading.Event()
            self._waiting.put(written)
            written.wait(FLUSH_SECONDS)

    def _write(self) -> None:
        told = 0
        while True:
            item = self._waiting.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            dropped = self.dropped
            if dropped > told:
                item += b"... and %d more lines that nobody read in time were dropped\n" % (dropped - told)
                told = dropped
            _write_all(self._descriptor, item)


def _as_bytes(text: str) -> bytes:
    data = text.encode("utf-8", "backslashreplace")
    return (data if len(data) <= MAX_LINE_BYTES else data[:MAX_LINE_BYTES] + b" [cut]") + b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError:
        return  # nobody will ever read it
