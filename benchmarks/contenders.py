"""The contenders, each pinned and in an environment of its own, with the Python that runs it.

Environments are made on first use in .cache/bench, and made anew when their requirements change. Dovetail, the floor
and the bare processes run from the checkout with the Python that runs the benchmarks.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

from benchmarks.case import CannotMeasure

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "bench"
REQUIREMENTS = {
    "mcp": ("mcp==2.3.0",),
    "fastmcp": ("fastmcp==4.1.2",),
    "plot": ("matplotlib==3.10.3",),
}
HTTP_SERVER = ("uvicorn", "httptools", "uvloop")  # the peers get just the versions that Dovetail runs with
LIST = "from importlib.metadata import distributions as all; print(*sorted({f'{d.name}=={d.version}' for d in all()}))"
PAUSES = (0, 5, 20, 60)  # seconds before each attempt: package registries refuse bursts


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
    digest = hashlib.sha256(" ".join((sys.version, *requirements)).encode()).hexdigest()[:12]
    folder = CACHE / f"{name}-{digest}"
    with _locked(folder):
        if not (folder / ".ready").exists():
            if (reason := _make(folder, requirements)) is not None:
                return reason
            (folder / ".ready").touch()
    return folder / "bin" / "python"


def installed(name: str) -> list[str]:
    """Every package in the environment of a contender with its version, for the record."""
    command = [str(python_of(name)), "-c", LIST]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two runs at the same time make an environment once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path, requirements: tuple[str, ...]) -> str | None:
    """Make an environment; why not, if that fails."""
    print(f"making an environment with {', '.join(requirements)}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    made = subprocess.run([sys.executable, "-m", "venv", folder], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no environment could be made: {(made.stdout + made.stderr).strip()[-500:]}"
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for pause in PAUSES:
        time.sleep(pause)
        outcome = subprocess.run([*pip, *requirements], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if outcome.returncode == 0:
            return None
        print(f"pip failed: {outcome.stderr.strip()[-200:]}", file=sys.stderr, flush=True)
    return f"pip could not install {', '.join(requirements)}: {outcome.stderr.strip()[-500:]}"
