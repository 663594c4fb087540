"""The reference server with notes of one's own, whose lists can grow: `python growing.py notes.md`."""

import os
import signal
import sys
from pathlib import Path

from dovetail.reference import create_server

server = create_server(notes=Path(sys.argv[1]))


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


@server.tool
def retire() -> str:
    """Ask the server to stop, as a service manager would."""
    os.kill(os.getpid(), signal.SIGTERM)
    return "Goodbye"


if __name__ == "__main__":
    server.run()
