"""Real processes that serve HTTP: started, asked, signalled, with a bound on every wait."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from judge import COMPLAINT

PROGRAM = Path(__file__).parent / "programs" / "over_http.py"
PROMPTLY = 15.0
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
START = re.compile(r"serves MCP at http://(?P<host>\S+):(?P<port>\d+)(?P<path>/\S*)")

Start = Callable[..., "HttpProgram"]


class HttpProgram:
    """A server process and what it writes to stderr."""

    def __init__(self, command: list[str], **options: Any) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        self._connections: list[http.client.HTTPConnection] = []
        self._said = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while data := os.read(self.process.stderr.fileno(), 65536):
            self._said.extend(data)

    @property
    def said(self) -> str:
        return self._said.decode()

    def hears(self, text: str, times: int = 1) -> None:
        self.until(lambda: self.said.count(text) >= times)

    def until(self, is_so: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PROMPTLY
        while not is_so():
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)

    def ready(self) -> "HttpProgram":
        self.until(lambda: START.search(self.said) or self.process.poll() is not None)
        assert self.port, self.said
        return self

    @property
    def port(self) -> int:
        found = START.search(self.said)
        return int(found["port"]) if found else 0

    def connect(self) -> http.client.HTTPConnection:
        """Closed when the test ends."""
        self._connections.append(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PROMPTLY))
        return self._connections[-1]

    def get(self, path: str) -> tuple[int, Any]:
        connection = self.connect()
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def post(self, method: str, params: dict[str, Any], **headers: str) -> http.client.HTTPResponse:
        connection = self.connect()
        connection.request("POST", "/mcp", *message(method, params, headers))
        return connection.getresponse()

    def call(self, tool: str, **arguments: Any) -> Any:
        response = self.post("tools/call", {"name": tool, "arguments": arguments, "_meta": META})
        body = response.read()
        assert response.status == 200, body
        return json.loads(body)["result"]

    def begin(self, tool: str, **arguments: Any) -> http.client.HTTPConnection:
        """A call that says so on stderr, under way."""
        connection = self.connect()
        params = {"name": tool, "arguments": arguments, "_meta": META}
        connection.request("POST", "/mcp", *message("tools/call", params, {}))
        self.hears(f"{tool} runs")
        return connection

    def listen(self) -> http.client.HTTPResponse:
        """An open stream."""
        response = self.post("subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": META})
        assert response.status == 200
        while b"acknowledged" not in response.readline():
            pass
        return response

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def exits(self, within: float = PROMPTLY) -> int:
        code = self.process.wait(within)
        self._reader.join(PROMPTLY)
        return code

    def close(self) -> None:
        """Whatever it said to anyone was well formed."""
        for connection in self._connections:
            connection.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PROMPTLY)
        self._reader.join(PROMPTLY)
        self.process.stdout.close()
        self.process.stderr.close()
        assert COMPLAINT not in self.said, self.said


def message(method: str, params: dict[str, Any], more: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    if "_meta" in params:
        headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
        headers |= {"mcp-name": params["name"]} if "name" in params else {}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    return body.encode(), {**headers, **more}


def text(result: dict[str, Any]) -> str:
    return result["content"][0]["text"]


def is_alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def zombies_of(pid: int) -> list[int]:
    return [child for child in children_of(pid) if not is_alive(child)]


@contextlib.contextmanager
def http_programs() -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def start(*, ready: bool = True, command: list[str] | None = None, **options: Any) -> HttpProgram:
            program = HttpProgram(command or [sys.executable, str(PROGRAM), json.dumps(options)])
            stack.callback(program.close)
            return program.ready() if ready else program

        yield start


SIGNALS = (signal.SIGTERM, signal.SIGINT)
