"""A server with limits: `fleet_limit_server.py --port N`. FLEET_RATE is the limit of the whole server, if it has one.

Whoever works at the press writes it down, in one file for all workers, where it is in the order in which it happened.
"""

import argparse
import asyncio
import os
from pathlib import Path

from dovetail import Server

FOLDER = Path(os.environ.get("FLEET_FOLDER", "."))

server = Server("limited", version="1.0.0", rate_limit=os.environ.get("FLEET_RATE"))


@server.tool
async def echo(nonce: str) -> str:
    return nonce


@server.tool(rate_limit="10/day")
async def order(nonce: str) -> str:
    return nonce


@server.tool(max_concurrency=1)
async def press(nonce: str, seconds: float) -> str:
    write_down(f"begin {nonce}")
    await asyncio.sleep(seconds)
    write_down(f"end {nonce}")
    return nonce


def write_down(line: str) -> None:
    with (FOLDER / "press.log").open("a") as file:
        file.write(f"{line}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    server.run(transport="http", port=parser.parse_args().port)
