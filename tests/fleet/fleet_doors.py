"""A parent with workers that share one port, and a door for each of them: whoever goes in by it meets that worker.

A connection belongs to the worker that accepts it. So the doorman makes connections, asks each for `whoami`, and keeps
it until somebody comes for that worker. While a worker is down its door is closed, although the parent has replaced it
already; `start` gives the door to the new one.
"""

import asyncio
import contextlib
import json
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fleet_processes import Fleet, FleetProcess, fleet, free_ports, nginx_server
from fleet_raw import HEADERS, META, MODERN

SECONDS = 20.0  # in which a worker can be found; only a broken one needs them
CHUNK = 1 << 16

Found = TypeVar("Found")


@contextmanager
def parent_fleet(folder: Path, workers: int = 4) -> Iterator[Fleet]:
    """What `--workers N` makes by itself: no state is named. nginx goes in by the doors, one after the other."""
    with fleet(folder, workers=1, processes=workers) as parent, Doorman(parent.workers[0]) as doorman:
        doors = [doorman.door(number) for number in range(1, workers + 1)]
        (folder / "doors").mkdir()
        nginx = nginx_server(folder / "doors", [door.port for door in doors])
        try:
            nginx.start()
            yield Fleet(doors, nginx, None)
        finally:
            nginx.stop()


class Connection(NamedTuple):
    pid: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def is_open(self) -> bool:
        return not self.reader.at_eof() and not self.writer.is_closing()


class Doorman:
    """Works in a thread with a loop of its own: doors outlive the loops of the tests that use them."""

    def __init__(self, parent: FleetProcess) -> None:
        self.parent = parent
        self.taken: set[int] = set()  # the ids of all processes that ever had a door
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._waiting: defaultdict[int, list[Connection]] = defaultdict(list)
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> "Doorman":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def do(self, work: Coroutine[Any, Any, Found]) -> Found:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connections in self._waiting.values():
            for each in connections:
                each.writer.close()

    def door(self, number: int) -> "Door":
        door = Door(self, number)
        self._servers.append(self.do(asyncio.start_server(door.admit, "127.0.0.1", door.port)))
        door.start()
        return door

    async def newcomer(self) -> int:
        """A worker that has no door yet."""
        async with asyncio.timeout(SECONDS):
            while not (found := self._waiting.keys() - self.taken):
                await self._make_one()
        pid = min(found)
        self.taken.add(pid)
        return pid

    async def connection(self, pid: int) -> Connection:
        """To that worker."""
        async with asyncio.timeout(SECONDS):
            while True:
                while self._waiting[pid]:
                    if (found := self._waiting[pid].pop()).is_open:
                        return found
                await self._make_one()

    async def _make_one(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.parent.port)
        try:
            pid = await _whoami(reader, writer)
        except (OSError, EOFError):  # it has just been killed
            writer.close()
        else:
            self._waiting[pid].append(Connection(pid, reader, writer))


async def _whoami(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    params = {"name": "whoami", "arguments": {}, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    named = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "whoami"}
    headers = {**HEADERS, **named, "Host": "127.0.0.1", "Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"POST /mcp HTTP/1.1\r\n{lines}\r\n{body}".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    answer = json.loads(await reader.readexactly(length))
    return int(answer["result"]["content"][0]["text"])


class Door:
    """A worker as `FleetProcess` is one, for those who come by way of its port."""

    def __init__(self, doorman: Doorman, number: int) -> None:
        self._doorman = doorman
        self.name = f"door-{number}"
        (self.port,) = free_ports(1)
        self.pid = 0
        self.log = doorman.parent.log
        self._is_open = False

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def said(self) -> str:
        """By all of them."""
        return self._doorman.parent.said

    def start(self) -> None:
        """Its parent has done so already."""
        self.pid = self._doorman.do(self._doorman.newcomer())
        self._is_open = True

    def kill(self) -> None:
        self._is_open = False
        os.kill(self.pid, signal.SIGKILL)

    async def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if self._is_open:
                inner = await self._doorman.connection(self.pid)
                await _together(_carry(reader, inner.writer), _carry(inner.reader, writer))
        writer.close()


async def _together(*ways: Awaitable[None]) -> None:
    """Until one of them ends: an end on either side is the end of both."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while chunk := await source.read(CHUNK):
            target.write(chunk)
            await target.drain()
    finally:
        target.close()
