"""The server of the fleet's tests: `fleet_server.py --port N`. Answers repeat a nonce, so that a wrong one shows.

FLEET_RATE is its rate limit, if it has one. With DPOP_CLAIMS, those of the one token that is known, it wants a proof
with a nonce for every request. With FLEET_HASTE=3 a dead worker is missed three times as soon, all proportions kept.
What several workers know together stands in files in the folder FLEET_FOLDER.
"""

import argparse
import asyncio
import json
import os
from pathlib import Path

from dovetail import Context, Server
from dovetail.auth import Auth, Principal
from dovetail.engine.workers import LeaseTimings

FOLDER = Path(os.environ.get("FLEET_FOLDER", "."))
ANSWER_SECONDS = 5.0  # for a question; an answer that was lost on its way must not hold a call for long

TOKEN, URL = "a-bound-token", "https://notes.example.com/mcp"  # all workers are one server under this URL


async def verify(token: str) -> Principal | None:
    return Principal(subject="ada", claims=json.loads(os.environ["DPOP_CLAIMS"])) if token == TOKEN else None


server = Server(
    "fleet",
    version="1.0.0",
    page_size=3,  # so that a list takes several requests
    rate_limit=os.environ.get("FLEET_RATE"),
    auth=Auth(verify, public_url=URL, dpop="required", dpop_nonces=True) if "DPOP_CLAIMS" in os.environ else None,
)

haste, timings = float(os.environ.get("FLEET_HASTE", "1")), LeaseTimings()
server.engine.lease_timings = LeaseTimings(timings.lease / haste, timings.renew_every / haste)


@server.tool
async def whoami() -> int:
    """The process that serves this call."""
    return os.getpid()


@server.tool
async def echo(nonce: str) -> str:
    return nonce


@server.tool
async def count(nonce: str, steps: int, pause: float, ctx: Context, let_go_at: int = 0) -> str:
    """Count aloud, from 1; after `let_go_at` steps the connection is closed on purpose."""
    for step in range(1, steps + 1):
        await ctx.report_progress(step, total=steps, message=nonce)
        if step == let_go_at:
            await ctx.close_stream(retry=0.05)
        await asyncio.sleep(pause)
    return f"{nonce} {steps}"


@server.tool
async def ask(nonce: str, ctx: Context) -> str:
    """Have the user repeat the nonce."""
    answer = await ctx.elicit(nonce, str, timeout=ANSWER_SECONDS)
    return f"{nonce} {answer.data}"


@server.tool(rate_limit="10/day")
async def order(nonce: str) -> str:
    return nonce


@server.tool(max_concurrency=1)
async def press(nonce: str, seconds: float) -> str:
    """Noted in one file for all workers, in the order in which it happens."""
    with (FOLDER / "press.log").open("a", buffering=1) as log:
        log.write(f"begin {nonce}\n")
        await asyncio.sleep(seconds)
        log.write(f"end {nonce}\n")
    return nonce


@server.tool(idempotency=True)
async def pay(nonce: str, seconds: float) -> str:
    """Noted in one file for all workers when it begins; a call that was killed stays without an end."""
    with (FOLDER / "pay.log").open("a", buffering=1) as log:
        log.write(f"begin {nonce}\n")
        await asyncio.sleep(seconds)
        log.write(f"end {nonce}\n")
    return nonce


def board_file(name: str) -> Path:
    return FOLDER / f"board-{name}"


@server.resource("board://{name}")
def board(name: str) -> int:
    """The number that was last written on a board."""
    try:
        return int(board_file(name).read_text())
    except FileNotFoundError:
        return 0


@server.tool
async def touch_resource(name: str, version: int, ctx: Context) -> int:
    """Write a number on a board; when this is answered, the change has been published."""
    fresh = FOLDER / f"{name}.{os.getpid()}"
    fresh.write_text(str(version))
    fresh.replace(board_file(name))
    await ctx.notify_resource_updated(f"board://{name}")
    return version


def announced_tools() -> list[str]:
    """What an administrator has written into a file that every worker reads."""
    file = FOLDER / "announced"
    return file.read_text().split() if file.exists() else []


@server.on_refresh
def bring_tools() -> None:
    for name in announced_tools():
        server.remove_tool(name)  # it may be there already
        server.add_tool(lambda name=name: name, name=name, description="Says its name.")


@server.tool
async def announce(name: str) -> str:
    """Have every worker offer one more tool."""
    (FOLDER / "announced").write_text(" ".join([*announced_tools(), name]))
    await server.refresh()
    return name


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    server.run(transport="http", port=parser.parse_args().port)
