"""Server processes for tests: real ones, on real pipes, with a bound on every wait."""

import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import official

PROGRAM = Path(__file__).parent / "programs" / "everything.py"
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
PROMPTLY = 15.0  # seconds; much more than anything takes, but far less than the tools that never end
SHORT = {"INPUT_ENDED_GRACE": 0.2, "PATIENCE": 0.3, "LIFESPAN_SECONDS": 0.3}  # waits that a test need not sit out
# Unbuffered, what a program prints before `run()` is on stdout before we come.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}

Start = Callable[..., "Program"]


class Program:
    """A server process: write lines, read lines. Whatever it says is checked in the end."""

    def __init__(self, **options: Any) -> None:
        command = [sys.executable, str(PROGRAM), json.dumps(options)]
        self.process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, bufsize=0, env=ENVIRONMENT)
        self.witness = official.Witness()
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.errors = bytearray()
        self.ids = itertools.count(1)
        self.readers: list[threading.Thread] = []

    def read_stdout(self) -> "Program":
        self._read(self.process.stdout, self._take)
        return self

    def read_stderr(self) -> "Program":
        self._read(self.process.stderr, self.errors.extend)
        return self

    def _read(self, file: Any, take: Callable[[bytes], None]) -> None:
        def read() -> None:
            with open(file.fileno(), "rb", closefd=False) as lines:
                for line in lines:
                    take(line)

        self.readers.append(threading.Thread(target=read, daemon=True))
        self.readers[-1].start()

    def _take(self, line: bytes) -> None:
        if official.available():
            self.witness.received(line)
        self.lines.put(line)

    def send(self, *messages: Any) -> None:
        """JSON values, or bytes as they are."""
        for message in messages:
            self.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")

    def write(self, data: bytes) -> None:
        for line in data.split(b"\n"):
            self.witness.sent(line)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.process.stdin.fileno(), rest) :]

    def receive(self) -> Any:
        return json.loads(self.lines.get(timeout=PROMPTLY))

    def call(self, tool: str, **arguments: Any) -> Any:
        """The result of a modern call."""
        message = modern_call(next(self.ids), tool, **arguments)
        self.send(message)
        answer = self.receive()
        assert answer["id"] == message["id"], answer
        return answer["result"]

    def begin(self, tool: str) -> None:
        """Call a tool that says so on stderr, and wait until it does."""
        self.send(modern_call("begun", tool))
        self.wait_for_error(f"{tool} runs")

    def wait_for_error(self, text: str) -> None:
        deadline = time.monotonic() + PROMPTLY
        while text.encode() not in self.errors:
            assert time.monotonic() < deadline, self.errors.decode()
            time.sleep(0.01)

    def end_input(self) -> None:
        self.process.stdin.close()

    def exits(self, within: float = PROMPTLY) -> int:
        code = self.process.wait(within)
        for reader in self.readers:
            reader.join(PROMPTLY)
        return code

    def rest(self) -> list[Any]:
        return [json.loads(self.lines.get_nowait()) for _ in range(self.lines.qsize())]


@contextlib.contextmanager
def programs() -> Iterator[Start]:
    """Gives a function that starts programs, and ends and judges them all."""
    with contextlib.ExitStack() as stack:

        def start(*, listen: bool = True, **options: Any) -> Program:
            program = Program(**options)
            stack.callback(program.witness.assert_clean)
            stack.callback(end, program)
            return program.read_stdout().read_stderr() if listen else program

        yield start


def end(program: Program) -> None:
    process = program.process
    if process.poll() is None:
        process.kill()
    process.wait(PROMPTLY)
    for reader in program.readers:
        reader.join(PROMPTLY)
    for file in (process.stdin, process.stdout, process.stderr):
        file.close()
    assert b"Traceback" not in program.errors, program.errors.decode()
    assert b"Fatal" not in program.errors, program.errors.decode()


def modern_call(id: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    return request(id, "tools/call", {"name": tool, "arguments": arguments, "_meta": MODERN})


def request(id: Any, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, **({} if params is None else {"params": params})}


def text(result: dict[str, Any]) -> str:
    return result["content"][0]["text"]
