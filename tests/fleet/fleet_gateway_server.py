"""A worker of the storm over a gateway, and its backend: `fleet_gateway_server.py --port N [--bookings FILE]`.

With a file it is the backend: it asks twice and then books, a line in that file. Without one it is the gateway, in
front of FLEET_BACKEND in both eras. FLEET_KEYS are its callers.
"""

import argparse
import asyncio
import json
import os
from pathlib import Path

from dovetail import Context, Proxy, Server
from dovetail.auth import ApiKeys
from dovetail.engine.workers import LeaseTimings

ERAS = {"old": "2025-11-25", "new": "2026-07-28"}  # namespace: revision of the sessions with the backend


def make_backend(bookings: Path) -> Server:
    backend = Server("backend", version="1.0.0")

    @backend.tool
    async def book(nonce: str, seconds: float, ctx: Context) -> str:
        for question in ("Day", "Room"):
            answer = await ctx.elicit(f"{question} of {nonce}?", str)
            if answer.data != f"{nonce}:{question}":
                note(f"stray {nonce} {answer.data}")
            await asyncio.sleep(seconds)
        note(f"booked {nonce}")
        await asyncio.sleep(seconds)
        return f"booked {nonce}"

    def note(line: str) -> None:
        with bookings.open("ab", buffering=0) as file:
            file.write(f"{line}\n".encode())

    return backend


def make_gateway() -> Server:
    server = Server("gateway", version="1.0.0", auth=ApiKeys(json.loads(os.environ["FLEET_KEYS"])))
    haste, timings = float(os.environ["FLEET_HASTE"]), LeaseTimings()
    server.engine.lease_timings = LeaseTimings(timings.lease / haste, timings.renew_every / haste)
    for namespace, revision in ERAS.items():
        proxy = Proxy(os.environ["FLEET_BACKEND"], name=namespace, protocol_version=revision)
        server.mount(proxy, namespace=namespace)
    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bookings", type=Path)
    given = parser.parse_args()
    served = make_gateway() if given.bookings is None else make_backend(given.bookings)
    served.run(transport="http", port=given.port)
