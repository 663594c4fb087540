"""The server of the proofs of tasks on a fleet: `fleet_tasks_server.py --port N`.

`book` takes a step, asks, and books: each is a line in a file that all workers append to. `wait` ends when the file
`gate` is there. `film` and `late` wait for a file before each of their steps. FLEET_KEYS are its callers.
"""

import argparse
import asyncio
import json
import os
from pathlib import Path

from dovetail import Context, Server, TaskConfig
from dovetail.auth import ApiKeys
from dovetail.engine.workers import LeaseTimings

FOLDER = Path(os.environ["FLEET_FOLDER"])

server = Server("fleet-tasks", version="1.0.0", auth=ApiKeys(json.loads(os.environ["FLEET_KEYS"])))
haste, timings = float(os.environ.get("FLEET_HASTE", "1")), LeaseTimings()
server.engine.lease_timings = LeaseTimings(timings.lease / haste, timings.renew_every / haste)


def note(name: str, line: str) -> None:
    with (FOLDER / name).open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())  # one write: lines of several workers don't mix


@server.tool(task=True)
async def book(nonce: str, seconds: float, ctx: Context) -> str:
    async def reserve() -> str:
        note("reserved", nonce)
        await asyncio.sleep(seconds)
        return nonce

    await asyncio.sleep(seconds)
    reserved = await ctx.step("reserve", reserve)
    day = await ctx.elicit(f"Day of {nonce}?", str)
    await ctx.report_progress(1, 2, "Booking")
    await asyncio.sleep(seconds)
    line = f"{reserved} {day.data}"
    note("bookings", line)
    await asyncio.sleep(seconds)
    return line


@server.tool(task=True)
async def wait(nonce: str) -> str:
    while not (FOLDER / "gate").exists():  # noqa: ASYNC110  # another process makes it
        await asyncio.sleep(0.2)
    return nonce


async def step(nonce: str, name: str) -> None:
    while not (FOLDER / f"{nonce}.{name}").exists():  # noqa: ASYNC110  # another process makes it
        await asyncio.sleep(0.02)
    note("steps", f"{nonce} {name}")


@server.tool(task=True)
async def film(nonce: str, ctx: Context) -> str:
    note("steps", f"{nonce} begin")
    try:
        await step(nonce, "draw")
        for frame in range(3):
            await ctx.report_progress(frame + 1, 3, "Drawing")
        note("steps", f"{nonce} drawn")
        await step(nonce, "ask")
        answer = await ctx.elicit(f"Keep {nonce}?", str)
        note("steps", f"{nonce} answered")
        await step(nonce, "end")
    except asyncio.CancelledError:
        note("steps", f"{nonce} cancelled")
        raise
    return f"{nonce}: {answer.data}"


@server.tool(task=TaskConfig(after=None))
async def late(nonce: str, ctx: Context) -> str:
    note("steps", f"{nonce} begin")
    await ctx.detach("Drawing")
    await step(nonce, "end")
    return f"{nonce}: {nonce}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    server.run(transport="http", port=parser.parse_args().port)
