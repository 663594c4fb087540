"""The time to make a server of a real OpenAPI specification, from the file on; the framework is imported before.

FastMCP takes a dictionary, so the JSON is read for it. scripts/fetch_specifications.py fetches the specifications.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.case import CannotMeasure, Case, Measured, Round, Settings
from benchmarks.contenders import python_of
from benchmarks.processes import ROOT, SERVER_CORE, on_core, own_environment

FOLDER = ROOT / ".cache" / "specifications"
SPECIFICATIONS = ("github", "kubernetes", "stripe", "jira", "box", "codat")
STATEMENTS = {  # what is imported, what is measured, the number of tools
    "dovetail": (
        "from dovetail.openapi import OpenApi",
        "server = OpenApi({path!r}, base_url='http://127.0.0.1:9')",
        "server.report.tools",
    ),
    "fastmcp": (
        "import asyncio, json; from fastmcp import FastMCP; import httpx2",
        "server = FastMCP.from_openapi(json.load(open({path!r})), httpx2.AsyncClient(base_url='http://127.0.0.1:9'))",
        "len(asyncio.run(server.list_tools()))",
    ),
}
PROGRAM = """
{imported}
from time import perf_counter as clock
began = clock()
{measured}
seconds = clock() - began
print(seconds, {tools})
"""
MAX_SECONDS = 120.0


def import_seconds(contender: str, specification: str) -> float:
    path = FOLDER / f"{specification}.json"
    if not path.exists():
        raise CannotMeasure("the specification is not there: run `python scripts/fetch_specifications.py`")
    imported, measured, tools = STATEMENTS[contender]
    program = PROGRAM.format(imported=imported, measured=measured.format(path=str(path)), tools=tools)
    command = [str(python_of(contender)), "-W", "ignore", "-c", program]
    try:
        with on_core(SERVER_CORE):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=MAX_SECONDS, check=False, env=own_environment()
            )
    except subprocess.TimeoutExpired:
        raise CannotMeasure(f"not done after {MAX_SECONDS:.0f} s") from None
    if done.returncode:
        raise CannotMeasure(f"the import failed: {done.stderr.strip()[-300:]}")
    seconds, count = done.stdout.split()
    if int(count) < 1:
        raise CannotMeasure("there are no tools")
    return float(seconds)


@contextmanager
def _open(contender: str, _settings: Settings, *, specification: str) -> Iterator[Round]:
    import_seconds(contender, specification)  # compiles what has no bytecode yet
    yield lambda: Measured(import_seconds(contender, specification) * 1000)


def _case(name: str) -> Case:
    opened = partial(_open, specification=name)
    return Case(f"openapi-{name}", f"import of {name}'s OpenAPI", "ms", False, tuple(STATEMENTS), opened)


CASES = [_case(name) for name in SPECIFICATIONS]
