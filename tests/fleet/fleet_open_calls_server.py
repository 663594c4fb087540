"""The server of the storm of open calls: `fleet_open_calls_server.py --port N`.

Its tool forwards to a backend, as a proxy does, which asks twice and then books: a line in a file that all workers
append to. FLEET_KEYS are its callers.
"""

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import Any

from dovetail import Context, Elicit, InputRequired, Server
from dovetail.auth import ApiKeys
from dovetail.engine.open_calls import OpenCall, open_calls_of
from dovetail.engine.workers import LeaseTimings
from dovetail.protocol import revisions

BOOKINGS = Path(os.environ["FLEET_FOLDER"]) / "bookings"
MODERN = revisions.BY_NAME["2026-07-28"]

server = Server("fleet-open-calls", version="1.0.0", auth=ApiKeys(json.loads(os.environ["FLEET_KEYS"])))
haste, timings = float(os.environ.get("FLEET_HASTE", "1")), LeaseTimings()
server.engine.lease_timings = LeaseTimings(timings.lease / haste, timings.renew_every / haste)


@server.tool
async def book(nonce: str, seconds: float, ctx: Context) -> Any:
    calls, context = open_calls_of(ctx._engine), ctx._context
    if ctx.request_state is None:
        outcome = await calls.begin(context, lambda ask: backend(ask, nonce, seconds), 3600.0)
    else:
        outcome = await calls.resume(ctx.request_state, ctx.input_responses, context)
    return outcome if isinstance(outcome, InputRequired) else outcome.decode()


async def backend(ask: OpenCall, nonce: str, seconds: float) -> bytes:
    async def answer(question: str) -> str:
        request = Elicit(f"{question} of {nonce}?", str)
        return str(request.read(await ask(request), MODERN).data)

    answers = await asyncio.gather(answer("Day"), answer("Hour"))
    await asyncio.sleep(seconds)
    answers.append(await answer("Room"))
    await asyncio.sleep(seconds)
    line = " ".join([nonce, *answers])
    with BOOKINGS.open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())  # one write: lines of several workers don't mix
    await asyncio.sleep(seconds)
    return line.encode()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    server.run(transport="http", port=parser.parse_args().port)
