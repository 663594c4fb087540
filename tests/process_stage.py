"""A server that a shell has started, with a helper of its own: for tests of who is left behind."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

SERVER = """
import json, os, sys
INIT = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "fake", "version": "0"}}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = {"initialize": INIT, "tools/list": {"tools": []}}.get(message["method"], {"pid": os.getpid()})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""

# How a helper takes it that it should end, and whether the server waits for it.
HELPERS = {"idle": "", "deaf": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"}
WAITS = {"idle": "", "deaf": "; wait"}


def shell(folder: Path, helper: str) -> list[str]:
    """A command that starts the helper in the background, and then the server: a quick client could end both before."""
    (folder / "server.py").write_text(SERVER)
    (folder / "helper.py").write_text(
        f"{HELPERS[helper]}\nimport os, time\nopen('helper.pid', 'w').write(f'{{os.getpid()}} ')\ntime.sleep(60)\n"
    )
    python = sys.executable
    begin = f"cd {folder}; {python} helper.py </dev/null >/dev/null & cd {folder}"
    begun = "while [ ! -s helper.pid ]; do sleep 0.02; done"
    return ["sh", "-c", f"{begin}; {begun}; {python} server.py{WAITS[helper]}"]


def pid_in(folder: Path) -> int:
    """Of the helper, as soon as it runs."""
    written = folder / "helper.pid"
    wait_until(lambda: written.exists() and written.read_text().endswith(" "))
    return int(written.read_text())


def wait_until(is_so: Callable[[], bool], otherwise: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """And not merely unburied, where no process buries orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
