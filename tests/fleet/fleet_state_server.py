"""The server of the tests of state and repeated calls over a fleet: `fleet_state_server.py --port N`.

FLEET_KEYS are its callers. What `charge` does is written to a file that all workers append to.
"""

import argparse
import asyncio
import json
import os
from pathlib import Path

from dovetail import Context, Server
from dovetail.auth import ApiKeys
from dovetail.engine.workers import LeaseTimings

CHARGES = Path(os.environ["FLEET_FOLDER"]) / "charges"

server = Server("fleet-state", version="1.0.0", auth=ApiKeys(json.loads(os.environ["FLEET_KEYS"])))
haste, timings = float(os.environ.get("FLEET_HASTE", "1")), LeaseTimings()
server.engine.lease_timings = LeaseTimings(timings.lease / haste, timings.renew_every / haste)


@server.tool
async def bump(ctx: Context) -> int:
    """Count one more, in the state of the caller."""
    return await ctx.state.update("count", lambda count: count + 1, int, default=0)


@server.tool
async def counted(ctx: Context) -> int:
    return await ctx.state.get("count", int, default=0)


@server.tool(idempotency=True)
async def charge(nonce: str, seconds: float) -> str:
    """Charge the caller: a line in a file, in the middle of the call."""
    await asyncio.sleep(seconds)
    with CHARGES.open("ab", buffering=0) as file:
        file.write(f"{nonce}\n".encode())  # one write: lines of several workers don't mix
    await asyncio.sleep(seconds)
    return f"charged {nonce}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    server.run(transport="http", port=parser.parse_args().port)
