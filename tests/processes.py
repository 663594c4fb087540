"""Server processes for tests, on pipes and over HTTP: started, asked, signalled, with a bound on every wait."""

import contextlib
import http.client
import itertools
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import official
from official import COMPLAINT

PROGRAM = Path(__file__).parent / "transports" / "programs" / "everything.py"
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
PROMPTLY = 15.0  # seconds; much more than anything takes, but far less than the tools that never end
# Unbuffered, what a program prints before `run()` is on stdout before we come.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
START = re.compile(r"serves MCP at http://(?P<host>\S+):(?P<port>\d+)(?P<path>/\S*)")
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def wait_until(is_so: Callable[[], Any], otherwise: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.01)


class Process:
    """A server process and what it writes to stderr."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, bufsize=0, env=ENVIRONMENT)
        self.errors = bytearray()
        self._readers: list[threading.Thread] = []

    def read_stderr(self) -> None:
        self._read(self.process.stderr, self.errors.extend)

    def _read(self, file: Any, take: Callable[[bytes], None]) -> None:
        def read() -> None:
            with open(file.fileno(), "rb", closefd=False) as lines:
                for line in lines:
                    take(line)

        self._readers.append(threading.Thread(target=read, daemon=True))
        self._readers[-1].start()

    @property
    def said(self) -> str:
        return self.errors.decode()

    def until_logged(self, text: str, times: int = 1) -> None:
        self.until(lambda: self.said.count(text) >= times)

    def until(self, is_so: Callable[[], Any]) -> None:
        wait_until(is_so, lambda: self.said)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def exits(self, within: float = PROMPTLY) -> int:
        code = self.process.wait(within)
        for reader in self._readers:
            reader.join(PROMPTLY)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.exits()
        for file in (self.process.stdin, self.process.stdout, self.process.stderr):
            file.close()


# ── on pipes ──


class Program(Process):
    """Write lines, read lines. All that it has written is checked in the end."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__([sys.executable, str(path), json.dumps(options)])
        self.witness = official.Witness()
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.ids = itertools.count(1)

    def read_stdout(self) -> None:
        self._read(self.process.stdout, self._take)

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
        self.until_logged(f"{tool} runs")

    def end_input(self) -> None:
        self.process.stdin.close()

    def rest(self) -> list[Any]:
        return [json.loads(self.lines.get_nowait()) for _ in range(self.lines.qsize())]

    def ends(self, *, by: int | None = None) -> list[Any]:
        """End it by a signal, or by the end of its input; returns the lines that were not read."""
        if by is None:
            self.end_input()
        else:
            self.signal(by)
        assert self.exits() == 0
        return self.rest()

    def close(self) -> None:
        super().close()
        assert not re.search("Traceback|Fatal", self.said), self.said
        self.witness.assert_clean()


Start = Callable[..., Program]


@contextlib.contextmanager
def programs() -> Iterator[Start]:
    """Gives a function that starts programs, and ends and judges them all."""
    with contextlib.ExitStack() as stack:

        def start(path: Path = PROGRAM, *, listen: bool = True, **options: Any) -> Program:
            program = Program(path, **options)
            stack.callback(program.close)
            if listen:
                program.read_stdout()
                program.read_stderr()
            return program

        yield start


def modern_call(id: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    return request(id, "tools/call", {"name": tool, "arguments": arguments, "_meta": META})


def request(id: Any, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, **({} if params is None else {"params": params})}


def text(result: dict[str, Any]) -> str:
    return result["content"][0]["text"]


# ── over HTTP ──


class HttpProgram(Process):
    """Asked over connections that are closed in the end; what it says of the schemas then fails the test."""

    def __init__(self, command: list[str]) -> None:
        super().__init__(command)
        self._connections: list[http.client.HTTPConnection] = []
        self.read_stderr()

    def ready(self) -> "HttpProgram":
        self.until(lambda: START.search(self.said) or self.process.poll() is not None)
        assert self.port, self.said
        return self

    @property
    def port(self) -> int:
        found = START.search(self.said)
        return int(found["port"]) if found else 0

    def connect(self) -> http.client.HTTPConnection:
        self._connections.append(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PROMPTLY))
        return self._connections[-1]

    def stream(self, path: str, **headers: str) -> http.client.HTTPResponse:
        connection = self.connect()
        connection.request("GET", path, headers=headers)
        return connection.getresponse()

    def get(self, path: str) -> tuple[int, Any]:
        response = self.stream(path)
        return response.status, json.loads(response.read())

    def _send(self, method: str, params: dict[str, Any], more: dict[str, str]) -> http.client.HTTPConnection:
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream", **more}
        if "_meta" in params:
            headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
            headers |= {"mcp-name": params["name"]} if "name" in params else {}
        connection = self.connect()
        connection.request("POST", "/mcp", json.dumps(request(1, method, params)), headers)
        return connection

    def post(self, method: str, params: dict[str, Any], **headers: str) -> http.client.HTTPResponse:
        return self._send(method, params, headers).getresponse()

    def call(self, tool: str, **arguments: Any) -> Any:
        response = self.post("tools/call", {"name": tool, "arguments": arguments, "_meta": META})
        body = response.read()
        assert response.status == 200, body
        return json.loads(body)["result"]

    def begin(self, tool: str, **arguments: Any) -> http.client.HTTPConnection:
        """A call that says so on stderr, under way."""
        connection = self._send("tools/call", {"name": tool, "arguments": arguments, "_meta": META}, {})
        self.until_logged(f"{tool} runs")
        return connection

    def listen(self) -> http.client.HTTPResponse:
        """An open stream."""
        response = self.post("subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": META})
        assert response.status == 200
        while b"acknowledged" not in response.readline():
            pass
        return response

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        super().close()
        assert COMPLAINT not in self.said, self.said


StartHttp = Callable[..., HttpProgram]


@contextlib.contextmanager
def http_programs() -> Iterator[StartHttp]:
    with contextlib.ExitStack() as stack:

        def start(*, ready: bool = True, command: list[str] | None = None, **options: Any) -> HttpProgram:
            given = json.dumps({"transport": "http", **options})
            program = HttpProgram(command or [sys.executable, str(PROGRAM), given])
            stack.callback(program.close)
            return program.ready() if ready else program

        yield start


def is_alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# ── a server that a shell has started, with a helper of its own: for tests of who is left behind ──

SERVER = """
import json, os, sys
INIT = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "fake", "version": "0"}}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = {"initialize": INIT, "tools/list": {"tools": []}}.get(message["method"], {"pid": os.getpid()})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""

# How a helper takes it that it should end, and whether the server waits for it.
HELPERS = {"idle": "", "deaf": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"}
WAITS = {"idle": "", "deaf": "; wait"}


def shell(folder: Path, helper: str) -> list[str]:
    """A command that starts the helper in the background, and then the server: a quick client could end both before."""
    (folder / "server.py").write_text(SERVER)
    (folder / "helper.py").write_text(
        f"{HELPERS[helper]}\nimport os, time\nopen('helper.pid', 'w').write(f'{{os.getpid()}} ')\ntime.sleep(60)\n"
    )
    python = sys.executable
    begin = f"cd {folder}; {python} helper.py </dev/null >/dev/null & cd {folder}"
    begun = "while [ ! -s helper.pid ]; do sleep 0.02; done"
    return ["sh", "-c", f"{begin}; {begun}; {python} server.py{WAITS[helper]}"]


def pid_in(folder: Path) -> int:
    """Of the helper, as soon as it runs."""
    written = folder / "helper.pid"
    wait_until(lambda: written.exists() and written.read_text().endswith(" "))
    return int(written.read_text())
