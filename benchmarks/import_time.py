"""The time to import a framework and to make a server with it.

Once by the wall clock inside a fresh process, and once as the sum that `-X importtime` gives, which counts the imports
alone, and is larger: it costs something to keep that account.
"""

import re
import subprocess
from collections.abc import Callable
from functools import partial

from benchmarks import spawned
from benchmarks.case import CannotMeasure, Case
from benchmarks.contenders import python_of
from benchmarks.processes import SERVER_CORE, on_core, own_environment

STATEMENTS = {
    "dovetail": "from dovetail import Server; Server('bench')",
    "mcp": "from mcp.server.mcpserver import MCPServer; MCPServer('bench')",
    "fastmcp": "from fastmcp import FastMCP; FastMCP('bench')",
}
CLOCKED = "from time import perf_counter as clock; began = clock(); {}; print((clock() - began) * 1000)"
SECONDS = 60.0
LINE = re.compile(r"^import time: +(\d+) \| +\d+ \| *(\S+)$", re.MULTILINE)


def wall_ms(contender: str) -> float:
    return float(_run(contender, CLOCKED.format(STATEMENTS[contender])).stdout)


def imports_ms(contender: str) -> float:
    return imported_us(_run(contender, STATEMENTS[contender], "-X", "importtime").stderr) / 1000


def imported_us(account: str) -> int:
    """The time of all modules that were imported after those with which Python itself starts; `site` is the last."""
    modules = [(name, int(own)) for own, name in LINE.findall(account)]
    names = [name for name, _ in modules]
    if "site" not in names:
        raise CannotMeasure("-X importtime gave no account that we can read")
    return sum(own for _, own in modules[names.index("site") + 1 :])


def _run(contender: str, statement: str, *options: str) -> subprocess.CompletedProcess[str]:
    with on_core(SERVER_CORE):
        words = [str(python_of(contender)), *options, "-c", statement]
        outcome = subprocess.run(
            words, capture_output=True, text=True, timeout=SECONDS, check=False, env=own_environment()
        )
    if outcome.returncode != 0:
        raise CannotMeasure(f"the import failed: {outcome.stderr.strip()[-500:]}")
    return outcome


def _case(key: str, title: str, one: Callable[[str], float]) -> Case:
    return Case(
        key=key,
        title=title,
        unit="ms",
        more_is_better=False,
        contenders=("dovetail", "mcp", "fastmcp"),
        open=partial(spawned.opening, one),
    )


CASES = (
    _case("import", "import and make a server", wall_ms),
    _case("import-account", "import and make a server, imports by -X importtime", imports_ms),
)
