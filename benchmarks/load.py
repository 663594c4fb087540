"""The memory of idle sessions and open streams, whether it is given back, and the time until all are notified.

    python benchmarks/load.py --streams 2000 --sessions 10000 --rounds 10

One worker in a process of its own, driven over loopback by a client of bare sockets. A third of the streams each are
`subscriptions/listen`, GET streams of sessions, and HTTP+SSE.
"""

import argparse
import asyncio
import json
import re
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

SERVER = Path(__file__).with_name("load_server.py")
MODERN = "2026-07-28"
CLIENT = {"name": "load", "version": "1.0.0"}
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": CLIENT,
}
AT_ONCE = 64  # connections being opened at the same time
SECONDS = 120.0  # that a hang would break
T = TypeVar("T")


class Figures(NamedTuple):
    session_bytes: float
    stream_bytes: float
    notified_ms: list[float]  # for each round, until the last stream was notified of the change
    resident: list[int]  # bytes of the server after each round, with no stream open


class Connection:
    """One socket that speaks just enough HTTP/1.1."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))

    def send(self, verb: str, path: str, body: Any = None, **headers: str) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        named = {
            "Host": "localhost",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        self._writer.write(f"{verb} {path} HTTP/1.1\r\n{head}\r\n".encode() + data)

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split(" ")[1]), {name.lower(): value for name, value in fields}

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = await self.head()
        return status, headers, await self._reader.readexactly(int(headers.get("content-length", 0)))

    async def until(self, text: bytes) -> bytes:
        """Read on to where `text` ends."""
        return await self._reader.readuntil(text)

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


# ── what a client opens ──


def post(connection: Connection, method: str, params: dict[str, Any], **headers: str) -> None:
    connection.send("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, **headers)


async def new_session(connection: Connection, capabilities: dict[str, Any] | None = None) -> str:
    params = {"protocolVersion": "2025-11-25", "capabilities": capabilities or {}, "clientInfo": CLIENT}
    post(connection, "initialize", params)
    status, headers, body = await connection.answer()
    assert status == 200, body
    session = headers["mcp-session-id"]
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    connection.send("POST", "/mcp", note, Mcp_Session_Id=session)
    status, _, body = await connection.answer()
    assert status == 202, body
    return session


class Stream:
    """One open stream, of any of the three kinds."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._session: str | None = None
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        assert self._connection is not None
        return self._connection

    async def listen(self) -> None:
        self._connection = await Connection.open(self._port)
        params = {"notifications": {"toolsListChanged": True}, "_meta": META}
        named = {"MCP_Protocol_Version": MODERN, "Mcp_Method": "subscriptions/listen"}
        post(self.connection, "subscriptions/listen", params, **named)
        await self.connection.until(b"acknowledged")

    async def get(self) -> None:
        self._connection = await Connection.open(self._port)
        self._session = await new_session(self.connection)
        self.connection.send("GET", "/mcp", Mcp_Session_Id=self._session)
        await self.connection.until(b"retry: ")

    async def sse(self) -> None:
        self._connection = await Connection.open(self._port)
        self.connection.send("GET", "/sse")
        found = re.search(rb"/messages\S+", await self.connection.until(b"\n\n\r\n"))
        assert found is not None
        path = found[0].decode()
        side = await Connection.open(self._port)
        params = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": CLIENT}
        side.send("POST", path, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
        assert (await side.answer())[0] == 202
        side.send("POST", path, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (await side.answer())[0] == 202
        await side.close()

    async def read_notification(self) -> None:
        await self.connection.until(b"notifications/tools/list_changed")

    async def close(self) -> None:
        await self.connection.close()
        if self._session is not None:
            side = await Connection.open(self._port)
            side.send("DELETE", "/mcp", Mcp_Session_Id=self._session)
            status, _ = await side.head()
            assert status == 204, status
            await side.close()


async def together(work: Iterable[Callable[[], Awaitable[T]]], at_once: int = AT_ONCE) -> list[T]:
    gate = asyncio.Semaphore(at_once)

    async def one(each: Callable[[], Awaitable[T]]) -> T:
        async with gate:
            return await asyncio.wait_for(each(), SECONDS)

    return list(await asyncio.gather(*(one(each) for each in work)))


# ── the server ──


@asynccontextmanager
async def load_server() -> AsyncIterator[tuple[int, int]]:
    """Its process id and its port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SERVER), stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    assert process.stderr is not None
    try:
        line = (await asyncio.wait_for(process.stderr.readline(), SECONDS)).decode()
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        assert found is not None, line
        yield process.pid, int(found[1])
    finally:
        process.terminate()
        await asyncio.wait_for(process.communicate(), SECONDS)
    assert process.returncode == 0, process.returncode


def resident_bytes(pid: int) -> int:
    """0 where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


async def settled(pid: int) -> int:
    """Resident memory when it has stopped falling."""
    size = resident_bytes(pid)
    for _ in range(50):
        await asyncio.sleep(0.1)
        now = resident_bytes(pid)
        if now >= size:
            return size
        size = now
    return size


# ── the measurements ──


async def measure(streams: int, sessions: int, rounds: int, show: Callable[[str], None] = print) -> Figures:
    allow_descriptors(streams + 500)
    async with load_server() as (pid, port):
        await idle_sessions(pid, port, 50)  # first, and before any stream: what those leave free would hide the cost
        session_bytes = await idle_sessions(pid, port, sessions)
        show(f"{sessions} idle sessions: {session_bytes:.0f} bytes each")
        await one_round(pid, port, min(streams, 100), show, "warm-up")
        notified, resident, stream_bytes = [], [], 0.0
        for number in range(1, rounds + 1):
            milliseconds, each = await one_round(pid, port, streams, show, f"round {number} of {rounds}")
            stream_bytes = max(stream_bytes, each)
            notified.append(milliseconds)
            resident.append(await settled(pid))
        return Figures(session_bytes, stream_bytes, notified, resident)


async def measure_sessions(count: int, capabilities: dict[str, Any]) -> float:
    """Bytes of each idle session whose client says so much of itself."""
    async with load_server() as (pid, port):
        await idle_sessions(pid, port, 50)
        return await idle_sessions(pid, port, count, capabilities)


async def idle_sessions(pid: int, port: int, count: int, capabilities: dict[str, Any] | None = None) -> float:
    before = resident_bytes(pid)

    async def some(many: int) -> None:
        connection = await Connection.open(port)
        for _ in range(many):
            await new_session(connection, capabilities)
        await connection.close()

    lanes = min(8, count)
    shares = [count // lanes + (lane < count % lanes) for lane in range(lanes)]
    await together([lambda many=many: some(many) for many in shares])  # type: ignore[misc]
    return (resident_bytes(pid) - before) / count


async def one_round(pid: int, port: int, count: int, show: Callable[[str], None], label: str) -> tuple[float, float]:
    """Open all, change the list once, close all; milliseconds until the last one was notified, bytes of each."""
    before = await settled(pid)
    all_streams = [Stream(port) for _ in range(count)]
    kinds = (Stream.listen, Stream.get, Stream.sse)
    opening = [lambda one=one, kind=kinds[place % 3]: kind(one) for place, one in enumerate(all_streams)]
    await together(opening)
    each = (resident_bytes(pid) - before) / count
    notified = asyncio.gather(*(asyncio.wait_for(one.read_notification(), SECONDS) for one in all_streams))
    began = time.perf_counter()
    await change(port)
    await notified
    milliseconds = (time.perf_counter() - began) * 1000
    await together([one.close for one in all_streams])
    show(f"{label}: {count} streams, {each:.0f} bytes each, all notified in {milliseconds:.0f} ms")
    return milliseconds, each


async def change(port: int) -> None:
    connection = await Connection.open(port)
    params = {"name": "change", "arguments": {}, "_meta": META}
    named = {"MCP_Protocol_Version": MODERN, "Mcp_Method": "tools/call", "Mcp_Name": "change"}
    post(connection, "tools/call", params, **named)
    status, _, body = await connection.answer()
    assert status == 200, body
    await connection.close()


def allow_descriptors(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    figures = asyncio.run(measure(given.streams, given.sessions, given.rounds))
    mebibytes = ", ".join(f"{size / 2**20:.1f}" for size in figures.resident)
    print(f"bytes for each idle session: {figures.session_bytes:.0f}, for each open stream: {figures.stream_bytes:.0f}")
    print(f"resident MiB after each round: {mebibytes}")


if __name__ == "__main__":
    main()
