"""The Node packages that the tests need, in .cache/node: Node 22, the official suite, client and everything-server.

The machine's npm installs them from tests/node/package.json and its lock file. Without npm a plain sentence says what
is missing: tests are then skipped, and fail where CI=true.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
WANTED = ROOT / "tests" / "node"
TARGET = ROOT / ".cache" / "node"
STAMP = ".installed"  # the file that an installation ends with
MANIFESTS = ("package.json", "package-lock.json")
OLDEST_NODE = 22  # the conformance suite does not start on an older one
PAUSES = (5, 20, 60, 0)  # seconds between tries: registries refuse bursts
NPM_CI = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")


class NodeMissing(Exception):
    """Why nothing that needs Node can run, in words."""


def node(target: Path = TARGET) -> Path:
    """A Node that is new enough: the one from npm, else the machine's own."""
    for path in (target / "node_modules").glob("node-*/bin/node"):
        return path
    own = shutil.which("node")
    if own is not None and _major_version(own) >= OLDEST_NODE:
        return Path(own)
    raise NodeMissing(f"there is no Node {OLDEST_NODE} in {target}, and the machine has none either")


def _major_version(executable: str) -> int:
    shown = subprocess.run([executable, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.", shown)
    return int(found[1]) if found else 0


def conformance() -> list[str]:
    """The command of the conformance suite."""
    require()
    return [str(node()), str(TARGET / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")]


def require(target: Path = TARGET) -> None:
    """Raises NodeMissing unless exactly what the lock file names is installed."""
    if not is_current(target):
        raise NodeMissing("the parts for Node are not installed: run `python scripts/node_tools.py`, which needs npm")


def is_current(target: Path, wanted: Path = WANTED) -> bool:
    stamp = target / STAMP
    return stamp.exists() and all((wanted / name).read_bytes() == (target / name).read_bytes() for name in MANIFESTS)


def install(target: Path = TARGET, wanted: Path = WANTED) -> None:
    """The packages that a folder wants; does nothing if all are there. Raises NodeMissing."""
    if is_current(target, wanted):
        return
    npm = shutil.which("npm")
    if npm is None:
        raise NodeMissing(f"npm is not on the PATH: the packages of tests/{wanted.name} can't be installed")
    target.mkdir(parents=True, exist_ok=True)
    (target / STAMP).unlink(missing_ok=True)
    for name in MANIFESTS:
        shutil.copy(wanted / name, target / name)
    for pause in PAUSES:
        done = subprocess.run([npm, *NPM_CI], cwd=target, check=False)
        if done.returncode == 0 and (wanted != WANTED or _has_node(target)):
            (target / STAMP).touch()
            return
        time.sleep(pause)
    raise NodeMissing(f"npm could not install the packages of tests/{wanted.name}, {len(PAUSES)} times")


def _has_node(target: Path) -> bool:
    """npm passes over an optional package that it can't fetch, so success is not enough."""
    try:
        node(target)
    except NodeMissing:
        return False
    return True


def main(target: Path = TARGET) -> int:
    try:
        install(target)
    except NodeMissing as missing:
        print(f"! {missing}", file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 0
    print(f"Node is at {node(target)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
