"""Runs the programs of tests/node with the Node that scripts/node_tools.py installed, and reads the JSON they print."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import node_tools

import missing

PROGRAMS = Path(__file__).parent / "node"
PROGRAM_TIMEOUT = 60  # seconds for one program; only a hanging one needs them


def why_missing(target: Path = node_tools.TARGET) -> str | None:
    """What keeps the programs from running, in words."""
    try:
        node_tools.require(target)
    except node_tools.NodeMissing as problem:
        return str(problem)
    return None


def demand(target: Path = node_tools.TARGET) -> None:
    """Skip loudly where the parts for Node are absent; in CI their absence is a failure."""
    missing.demand(why_missing(target))


def run(program: str, *arguments: str) -> dict[str, Any]:
    command = [str(node_tools.node()), str(PROGRAMS / program), *arguments]
    # a process group of its own, or None where there are no such groups
    group = 0 if os.name == "posix" else None
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT, check=False, process_group=group
    )
    assert done.returncode == 0, f"{program} failed:\n{done.stderr[-3000:]}"
    assert not done.stderr, f"{program} complained:\n{done.stderr[-3000:]}"
    return json.loads(done.stdout)
