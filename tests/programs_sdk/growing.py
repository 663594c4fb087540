"""The reference server with notes of one's own, whose lists can grow: `python growing.py notes.md`."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from dovetail import Context
from dovetail.reference import create_server

NOTES = Path(sys.argv[1])
server = create_server(notes=NOTES)


@server.resource("grown://seasons", ttl_ms=60_000, cache_scope="public")
def seasons() -> list[str]:
    """What a client may keep for a minute."""
    return ["spring", "summer", "autumn", "winter"]


@server.tool
def grow(name: str) -> str:
    """Add a tool, a prompt and a resource of that name."""
    server.add_tool(lambda: name, name=name, description="Says its name.")
    server.add_prompt(lambda: name, name=name, description="Says its name.")
    server.add_resource(f"grown://{name}", lambda: name, name=name)
    return f"{name} is there now"


def note(text: str) -> None:
    NOTES.write_text(text)


@server.tool
async def linger(ctx: Context) -> None:
    """Do nothing for a minute, and note down if that is not allowed."""
    await ctx.report_progress(1)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note("interrupted\n")
        raise


@server.tool
def retire() -> str:
    """Ask the server to stop, as a service manager would."""
    os.kill(os.getpid(), signal.SIGTERM)
    return "Goodbye"


if __name__ == "__main__":
    server.run()
