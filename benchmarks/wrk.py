"""The load of wrk on a URL, by a Lua script, and the number of requests that were answered.

Only answers count. One that is no success, or a connection that fails, is an error, and then the run is worth nothing.
"""

import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from benchmarks.case import CannotMeasure
from benchmarks.processes import LOAD_CORE, running

TIMEOUT = 60  # seconds until wrk gives an answer up
INSTALL_SECONDS = 300

# wrk's own summary rounds; this line does not.
_DONE = """
function done(summary, latency, requests)
  local e = summary.errors
  local wrong = 0
  for _, thread in ipairs(threads) do wrong = wrong + (thread:get("wrong") or 0) end
  print(string.format("FIGURES requests=%d microseconds=%d status=%d sockets=%d wrong=%d",
    summary.requests, summary.duration, e.status, e.connect + e.read + e.write + e.timeout, wrong))
end
threads = {}
function setup(thread) table.insert(threads, thread) end
"""

_FIGURES = re.compile(r"^FIGURES requests=(\d+) microseconds=(\d+) status=(\d+) sockets=(\d+) wrong=(\d+)$", re.M)


class WrkFigures(NamedTuple):
    requests: int  # that were answered, errors included
    seconds: float
    errors: int  # answers with an error status, failed connections, and wrong bodies where they were looked at


def run(url: str, lua: str, seconds: float, connections: int) -> WrkFigures:
    """Load an address for some time, from one thread. wrk knows whole seconds only."""
    duration = max(1, math.ceil(seconds))
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(lua + _DONE)
        script.flush()
        command = [program(), "-t1", f"-c{connections}", f"-d{duration}s", f"--timeout={TIMEOUT}s"]
        command += ["-s", script.name, url]
        with running(command, core=LOAD_CORE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            output, _ = process.communicate(timeout=duration + 2 * TIMEOUT)
    return figures_in(output.decode(errors="replace"))


def figures_in(output: str) -> WrkFigures:
    """What our line in wrk's output says."""
    found = _FIGURES.search(output)
    if found is None:
        raise CannotMeasure(f"wrk gave no figures: {output.strip()[-500:]}")
    requests, microseconds, status, sockets, wrong = map(int, found.groups())
    return WrkFigures(requests, microseconds / 1e6, status + sockets + wrong)


def constant(headers: Mapping[str, str], body: str) -> str:
    """The script for a request that is always the same."""
    lines = [f"wrk.headers[{_quoted(name)}] = {_quoted(value)}" for name, value in headers.items()]
    return "\n".join(['wrk.method = "POST"', f"wrk.body = {_quoted(body)}", *lines, ""])


def looking(times: Mapping[str, int]) -> str:
    """A script that has every body looked at: each text must be in it that many times. Too dear while time is taken."""
    table = ", ".join(f"[{_quoted(text)}] = {count}" for text, count in times.items())
    return f"""
expected = {{ {table} }}
wrong = 0
function response(status, headers, body)
  for text, count in pairs(expected) do
    local found, at = 0, 1
    while true do
      local first, last = string.find(body, text, at, true)
      if first == nil then break end
      found, at = found + 1, last + 1
    end
    if found ~= count then wrong = wrong + 1 return end
  end
end
"""


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def program() -> str:
    """Where wrk is; installs it where that can be done without asking. Raises CannotMeasure."""
    found = shutil.which("wrk") or _installed()
    if found is None:
        raise CannotMeasure("wrk is missing: install it (apt install wrk, dnf install wrk, brew install wrk)")
    return found


@cache
def _installed() -> str | None:
    """Tried once in a run."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    print("installing wrk by apt-get", file=sys.stderr, flush=True)
    for words in (["update"], ["install", "-y", "wrk"]):
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["apt-get", "-q", *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=INSTALL_SECONDS,
                check=False,
            )
    return shutil.which("wrk")
