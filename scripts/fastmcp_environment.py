"""FastMCP in an environment of its own in .cache/fastmcp: a server behind the tested gateway, and a client of tasks.

It brings eighty packages, which are all named with their versions in tests/gateway/fastmcp.txt. Without a package
registry a plain sentence says what is missing: tests are then skipped, and fail where CI=true.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.environments import Environment

ROOT = Path(__file__).parent.parent
WANTED = ROOT / "tests" / "gateway" / "fastmcp.txt"
TARGET = ROOT / ".cache" / "fastmcp"


def environment(target: Path = TARGET) -> Environment:
    return Environment(target, "fastmcp", WANTED.read_text().split(), complete=True)


def why_missing(target: Path = TARGET) -> str | None:
    """What keeps it from being tested with, in words."""
    if environment(target).is_ready:
        return None
    return (
        "NO FASTMCP: it is not installed, so neither the gateway in front of it nor its client of tasks was tested "
        "(run `python scripts/fastmcp_environment.py`, which needs a package registry)"
    )


def main(target: Path = TARGET) -> int:
    if (reason := environment(target).make()) is not None:
        print(f"! {reason}", file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 0
    print(f"FastMCP is at {environment(target).python}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
