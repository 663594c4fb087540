"""HTTP+SSE with real workers: a client whose stream one worker holds posts to the others, much and quickly."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fleet_processes import Fleet, fleet

pytestmark = [pytest.mark.slow]
HELLO = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
PROMPTLY = 20.0
BURST = 400


class OldClient:
    """The first worker holds its stream; what it posts goes to all of them in turn."""

    def __init__(self, http: aiohttp.ClientSession, origins: list[str], stream: aiohttp.ClientResponse) -> None:
        self._http = http
        self._origins = origins
        self._stream = stream
        self._path = ""
        self.answered: list[int] = []

    async def open(self) -> None:
        assert await self._stream.content.readline() == b"event: endpoint\n"
        self._path = (await self._stream.content.readline()).decode().removeprefix("data: ").strip()
        assert await self.post(0, "initialize", **HELLO) == 202
        await self.read(1)

    async def read(self, count: int) -> None:
        """Until so many answers have come, all in all."""
        async with asyncio.timeout(PROMPTLY):
            while len(self.answered) < count:
                line = await self._stream.content.readline()
                if line.startswith(b"data: "):
                    self.answered.append(json.loads(line[6:])["id"])

    async def post(self, id: int, method: str, **params: Any) -> int:
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        url = f"{self._origins[id % len(self._origins)]}{self._path}"
        async with self._http.post(url, json=message) as response:
            assert response.status != 503 or response.headers["Retry-After"]
            return response.status


@contextlib.asynccontextmanager
async def old_client(running: Fleet) -> AsyncIterator[OldClient]:
    origins = [worker.origin for worker in running.workers]
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=BURST)) as http,
        http.get(f"{origins[0]}/sse") as stream,
    ):
        client = OldClient(http, origins, stream)
        await client.open()
        yield client


@pytest.mark.parametrize("store", ["redis", pytest.param("sqlite", marks=pytest.mark.soak)])
async def test_whatever_is_accepted_is_answered(tmp_path: Path, store: str) -> None:
    with fleet(tmp_path, workers=3, store=store) as running:
        async with old_client(running) as client:
            # one after the other: in order, whichever worker takes them
            for id in range(1, 31):
                assert await client.post(id, "ping") == 202
            await client.read(31)
            assert client.answered == list(range(31))

            # all at once, while the stream is read; only a very slow machine refuses some
            ids = range(1000, 1000 + BURST)
            reading = asyncio.create_task(client.read(31 + BURST))
            statuses = dict(zip(ids, await asyncio.gather(*(client.post(id, "ping") for id in ids)), strict=True))
            assert set(statuses.values()) <= {202, 503}
            for id in [id for id in ids if statuses[id] == 503]:
                assert await client.post(id, "ping") == 202
            await reading
            assert sorted(client.answered[31:]) == list(ids)
        running.assert_clean()
