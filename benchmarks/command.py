"""The time that the command line takes: `dovetail --help` beside its imports, `dovetail call` beside cold starts.

The call starts a server on stdio; the cold starts are those of a server and of a client.

"imports" is `python -c 'import dovetail, click'`. "cold-starts" is the time from the spawn of a server to its answer of
`initialize`, and that of a process which loads the client, one after the other. The command may use every core, for
so it does with its users: it loads its client while the server starts.
"""

import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import cold_start, spawned
from benchmarks.case import CannotMeasure, Case
from benchmarks.contenders import python_of
from benchmarks.processes import ROOT, own_environment
from benchmarks.stdio import SERVERS

SECONDS = 60.0
IMPORTS = "import dovetail, click"
CLIENT = "import dovetail, click; dovetail.Client"


def help_ms(contender: str) -> float:
    if contender == "imports":
        return _spawned_ms([_python(), "-c", IMPORTS])
    return _spawned_ms([_command(), "--help"], expected="Usage: dovetail")


def call_ms(contender: str) -> float:
    if contender == "cold-starts":
        return cold_start.greeted_ms("dovetail") + _spawned_ms([_python(), "-c", CLIENT])
    return _spawned_ms([_command(), "call", str(SERVERS / "dovetail_stdio.py"), "add", "a=2", "b=3"], expected="5\n")


def _python() -> str:
    return str(python_of("dovetail"))


def _command() -> str:
    found = Path(_python()).parent / "dovetail"
    if not found.is_file():
        raise CannotMeasure(f"there is no {found}")
    return str(found)


def _spawned_ms(words: Sequence[str], expected: str = "") -> float:
    """From spawn to end."""
    began = time.perf_counter()
    done = subprocess.run(
        words, cwd=ROOT, env=own_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    took = time.perf_counter() - began
    if done.returncode != 0 or not done.stdout.startswith(expected):
        raise CannotMeasure(f"it did not answer as it should: {(done.stderr or done.stdout).strip()[-500:]}")
    return took * 1000


CASES = (
    Case(
        key="command-help",
        title="`dovetail --help`",
        unit="ms",
        more_is_better=False,
        contenders=("dovetail", "imports"),
        targets={"imports": 1.5},
        open=partial(spawned.opening, help_ms),
    ),
    Case(
        key="command-call",
        title="`dovetail call`, with the start of a server on stdio",
        unit="ms",
        more_is_better=False,
        contenders=("dovetail", "cold-starts"),
        targets={"cold-starts": 1.0},
        open=partial(spawned.opening, call_ms),
    ),
)
