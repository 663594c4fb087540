"""Whom we measure, each pinned and in an environment of its own: a name goes in, its Python comes out.

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
from pathlib import Path

from benchmarks.case import CannotMeasure

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "bench"
HTTP_SERVER = ("uvicorn==0.54.0", "httptools==0.9.0", "uvloop==0.23.0")
REQUIREMENTS = {
    "mcp": ("mcp==2.3.0", *HTTP_SERVER),
    "fastmcp": ("fastmcp==4.1.2", *HTTP_SERVER),
    "plot": ("matplotlib==3.10.3",),
}
PAUSES = (0, 5, 20, 60)  # seconds before each attempt: package registries refuse bursts


def python_of(name: str) -> Path:
    """The interpreter in which a contender is installed. Raises CannotMeasure if it can't be installed."""
    requirements = REQUIREMENTS.get(name)
    if requirements is None:
        return Path(sys.executable)
    digest = hashlib.sha256(" ".join((sys.version, *requirements)).encode()).hexdigest()[:12]
    folder = CACHE / f"{name}-{digest}"
    with _locked(folder):
        if not (folder / ".ready").exists():
            _make(folder, requirements)
            (folder / ".ready").touch()
    return folder / "bin" / "python"


def installed(name: str) -> list[str]:
    """Every package in the environment of a contender with its version, for the record."""
    command = [str(python_of(name)), "-m", "pip", "freeze", "--exclude-editable", "--disable-pip-version-check"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two runs at the same time make an environment once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path, requirements: tuple[str, ...]) -> None:
    print(f"making an environment with {', '.join(requirements)}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for pause in PAUSES:
        time.sleep(pause)
        outcome = subprocess.run([*pip, *requirements], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if outcome.returncode == 0:
            return
    raise CannotMeasure(f"pip could not install {', '.join(requirements)}: {outcome.stderr.strip()[-500:]}")
