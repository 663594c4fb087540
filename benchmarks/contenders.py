"""The contenders, each pinned and in an environment of its own, with the Python that runs it.

Environments are made on first use in .cache/bench, and made anew when their requirements change. Dovetail, the floor
and the bare processes run from the checkout with the Python that runs the benchmarks.
"""

import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

from benchmarks.case import CannotMeasure
from benchmarks.environments import Environment

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "bench"
REQUIREMENTS = {
    "mcp": ("mcp==2.3.0", "opentelemetry-sdk==1.45.2"),  # both make spans if it is configured
    "fastmcp": ("fastmcp==4.1.2", "opentelemetry-sdk==1.45.2"),
    "plot": ("matplotlib==3.10.3",),
}
HTTP_SERVER = ("uvicorn", "httptools", "uvloop")  # the peers get just the versions that Dovetail runs with
LIST = "from importlib.metadata import distributions as all; print(*sorted({f'{d.name}=={d.version}' for d in all()}))"


def python_of(name: str) -> Path:
    """The interpreter in which a contender is installed. Raises CannotMeasure if it can't be installed."""
    found = _environment(name) if name in REQUIREMENTS else Path(sys.executable)
    if isinstance(found, str):
        raise CannotMeasure(found)
    return found


@cache
def _environment(name: str) -> Path | str:
    """Its interpreter, or why there is none: that is found out once in a run, for it takes long."""
    shared = () if name == "plot" else HTTP_SERVER
    requirements = (*REQUIREMENTS[name], *(f"{package}=={version(package)}" for package in shared))
    environment = Environment(CACHE, name, requirements)
    reason = environment.make()
    return environment.python if reason is None else reason


def installed(name: str) -> list[str]:
    """Every package in the environment of a contender with its version, for the record."""
    command = [str(python_of(name)), "-c", LIST]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
