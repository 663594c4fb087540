"""The recipe for work that outlives its worker: DBOS runs it, a task follows it, through kill -9 and a restart."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import test_servers
from fleet_processes import FleetProcess, demand, free_ports

from documented import PROGRAMS
from dovetail import Client, ServerError

FRAMES, BEFORE = 25, 5  # of the film, and how many are drawn when its worker is killed


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A database of a PostgreSQL server on loopback. The server refuses root, so root starts it as `nobody`."""
    binaries, (port,) = Path(demand(test_servers.postgres)).parent, free_ports(1)
    user: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as data, (folder / "postgres.log").open("wb") as log:
        if user:
            shutil.chown(data, "nobody")
        options: dict[str, Any] = {"stdout": log, "stderr": log, "cwd": data, **user}
        subprocess.run([binaries / "initdb", "-D", data, "-U", "films", "--auth=trust"], check=True, **options)
        where = ["-p", str(port), "-h", "127.0.0.1"]
        server = subprocess.Popen([binaries / "postgres", "-D", data, *where, "-k", ""], **options)
        try:
            while subprocess.run([binaries / "pg_isready", "-q", *where], check=False).returncode:
                assert server.poll() is None, (folder / "postgres.log").read_text()
            yield f"postgresql://films@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait(30)


@contextlib.contextmanager
def sqlite(folder: Path) -> Iterator[str]:
    yield f"sqlite:///{folder / 'films.sqlite'}"


@pytest.mark.parametrize(
    "database", [pytest.param(sqlite, marks=pytest.mark.slow), pytest.param(postgres, marks=pytest.mark.soak)]
)
async def test_a_workflow_is_followed_through_kill_and_restart(tmp_path: Path, database: Any) -> None:
    drawn = tmp_path / "drawn"
    drawn.touch()
    (port,) = free_ports(1)
    with database(tmp_path) as url, contextlib.ExitStack() as stack:
        environment = {"FILMS_DATABASE": url, "FILMS_LOG": str(drawn), "PORT": str(port)}
        worker = FleetProcess("films", tmp_path, port, [sys.executable, str(PROGRAMS["tasks_durable"])], **environment)
        stack.callback(worker.stop)
        await asyncio.to_thread(worker.start)
        scene = {"scene": "beach", "frames": FRAMES}
        async with Client(f"{worker.origin}/mcp", tasks=True) as client:
            task = await client.start_tool("render", scene)
            async with asyncio.timeout(30):
                while len(drawn.read_text().splitlines()) < BEFORE:  # noqa: ASYNC110  # another process draws
                    await asyncio.sleep(0.01)
        await asyncio.to_thread(worker.kill)
        await asyncio.to_thread(worker.start)
        async with Client(f"{worker.origin}/mcp", tasks=True) as client:
            with pytest.raises(ServerError, match="There is no such task"):
                await client.task(task.id).wait()  # tasks lie in the memory of the worker, without a store
            again = await client.start_tool("render", scene)
            assert (await again.wait()).text == f"beach: {FRAMES} frames"
            assert (await client.call_tool("render", scene)).text == f"beach: {FRAMES} frames"  # it is done already
    frames = Counter(drawn.read_text().splitlines())
    assert set(frames) == {f"beach {number}" for number in range(FRAMES)}
    assert sum(frames.values()) <= FRAMES + 1, "more than the step that was cut off ran twice"
