"""The driver of a server on stdio, with bare descriptors, which sends requests and counts checked answers.

The driver must cost far less than the fastest server. So the requests are made beforehand, all equally long, and any
number of them is one slice of bytes; answers are read in big chunks and only counted while the clock runs. That each
of them is right is looked at before and after.
"""

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.case import CannotMeasure
from benchmarks.http_contender import CLIENT, HANDSHAKE, META, MODERN
from benchmarks.processes import Process, running

IDS = range(100_000, 104_096)  # equally long, and far more of them than calls in flight
CHUNK = 1 << 16
SILENCE = 60.0  # seconds without the answers that are waited for; then the server is ended

Message = dict[str, Any]


class WrongAnswer(Exception):
    """A contender did not answer what it was asked: its speed means nothing."""


class Pace(NamedTuple):
    answers: int
    seconds: float


# ── messages ──


def line(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def request(number: int, method: str, params: Message) -> bytes:
    return line({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def add_call(number: int, revision: str) -> bytes:
    """1 + 2, asked in one of the two ways."""
    params: Message = {"name": "add", "arguments": {"a": 1, "b": 2}}
    return request(number, "tools/call", params | {"_meta": META} if revision == MODERN else params)


INITIALIZE = request(0, "initialize", {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": CLIENT})
INITIALIZED = line({"jsonrpc": "2.0", "method": "notifications/initialized"})
RIGHT_TEXT = b'"3"'  # once in each right answer: the text; the structured 3 has no quotation marks


def check_sum(answer: bytes, number: int) -> None:
    """Raise WrongAnswer unless this is the sum 3, as text and as structured content, in answer to that request."""
    try:
        message = json.loads(answer)
        result = message["result"]
        right = (
            message["id"] == number
            and not result.get("isError")
            and [(item["type"], item["text"]) for item in result["content"]] == [("text", "3")]
            and result["structuredContent"] in (3, {"result": 3})  # mcp and FastMCP wrap what is not an object
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        right = False
    if not right:
        raise WrongAnswer(f"3 was expected in answer to {number}, not {answer[:500]!r}")


def check_greeting(answer: bytes) -> None:
    try:
        right = json.loads(answer)["result"]["protocolVersion"] == HANDSHAKE
    except (ValueError, KeyError, TypeError):
        right = False
    if not right:
        raise WrongAnswer(f"`initialize` was answered with {answer[:500]!r}")


# ── the driver ──


class Pipe:
    """One server's stdin and stdout."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._process = process
        self._in, self._out = process.stdin.fileno(), process.stdout.fileno()
        self._unread = b""

    def send(self, data: bytes) -> None:
        try:
            os.write(self._in, data)
        except BrokenPipeError:
            raise CannotMeasure("the server has ended") from None

    def receive(self) -> bytes:
        chunk = os.read(self._out, CHUNK)
        if not chunk:
            raise CannotMeasure("the server has ended or was silent for too long")
        return chunk

    def read_line(self) -> bytes:
        while b"\n" not in self._unread:
            self._unread += self.receive()
        first, self._unread = self._unread.split(b"\n", 1)
        return first

    def ask(self, message: bytes) -> bytes:
        """Send one request and wait for the next line."""
        with self.impatience():
            self.send(message)
            return self.read_line()

    def greet(self) -> None:
        check_greeting(self.ask(INITIALIZE))
        self.send(INITIALIZED)

    @contextmanager
    def impatience(self, seconds: float = 0.0) -> Iterator[None]:
        """End the server if the block does not end: a read that blocks can't be given up in another way."""
        timer = threading.Timer(seconds + SILENCE, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


class Ring:
    """Requests that were made beforehand, used again and again; those in flight always have different ids."""

    def __init__(self, requests: Sequence[bytes], in_flight: int) -> None:
        self._length = len(requests[0])
        if any(len(each) != self._length for each in requests):
            raise ValueError("all requests of a ring must be equally long")
        if in_flight >= len(requests):
            raise ValueError("more calls in flight than requests")
        self._count = len(requests)
        self._bytes = b"".join(requests) + b"".join(requests[:in_flight])
        self._next = 0

    def take(self, count: int) -> bytes:
        """The next so many, at most as many as may be in flight."""
        start = self._next * self._length
        self._next = (self._next + count) % self._count
        return self._bytes[start : start + count * self._length]


def check_calls(pipe: Pipe, revision: str, in_flight: int) -> None:
    """Make as many calls at once as will be in flight; each must be answered once, and rightly, in any order."""
    wanted = dict.fromkeys(IDS[:in_flight])
    with pipe.impatience():
        pipe.send(b"".join(add_call(number, revision) for number in wanted))
        for _ in range(in_flight):
            answer = pipe.read_line()
            number = _id_of(answer)
            if number not in wanted:
                raise WrongAnswer(f"no request waits for {answer[:500]!r}")
            check_sum(answer, number)
            del wanted[number]


def _id_of(answer: bytes) -> int:
    try:
        return int(json.loads(answer)["id"])
    except (ValueError, KeyError, TypeError):
        raise WrongAnswer(f"this is no answer: {answer[:500]!r}") from None


def pace(pipe: Pipe, ring: Ring, in_flight: int, seconds: float) -> Pace:
    """Keep so many calls in flight for so long. Every answer that is counted was right, or WrongAnswer is raised."""
    chunks: list[bytes] = []
    clock = time.perf_counter
    with pipe.impatience(seconds):
        began = clock()
        pipe.send(ring.take(in_flight))
        answers, now = 0, began
        while now - began < seconds:
            chunk = pipe.receive()
            chunks.append(chunk)
            count = chunk.count(b"\n")
            answers += count
            now = clock()
            pipe.send(ring.take(count))
        late = 0
        while late < in_flight:
            chunks.append(pipe.receive())
            late += chunks[-1].count(b"\n")
    if b"".join(chunks).count(RIGHT_TEXT) != answers + late:
        raise WrongAnswer("not every answer was 3 while the clock ran")
    return Pace(answers, now - began)


@contextmanager
def opened(command: Sequence[str | Path]) -> Iterator[Pipe]:
    """A server on stdin and stdout, for the time of the block. If it ends too early, its last words are reported."""
    with tempfile.TemporaryFile() as log:
        try:
            with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as process:
                yield Pipe(process)
        except CannotMeasure as error:
            log.seek(0)
            words = log.read()[-1000:].decode(errors="replace").strip()
            raise CannotMeasure(f"{error}: {words or 'it wrote nothing'}") from None
