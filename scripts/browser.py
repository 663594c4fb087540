"""The Chromium that web pages are tested in: found, or installed where that is possible.

DOVETAIL_BROWSER names it, else it is looked for on the PATH, else installed as Debian's package, if we are root.
Without one a plain sentence says what is missing: tests are then skipped, and fail where CI=true.
"""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALL_TIMEOUT = 300  # seconds for the package manager: a browser is large
APT = ("-qq", "-o", "Acquire::http::Timeout=8", "-o", "Acquire::Retries=0", "-o", "DPkg::Lock::Timeout=60")
FLAGS = ("--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run")


class BrowserMissing(Exception):
    """Why no browser can be had, in words."""


@functools.cache
def chromium() -> Path:
    """The executable."""
    if given := os.environ.get("DOVETAIL_BROWSER"):
        return Path(given)
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return Path(found)
    raise BrowserMissing(
        "NO BROWSER: there is no chromium on the PATH, so no page was tested in one "
        "(run `python scripts/browser.py`, or set DOVETAIL_BROWSER)"
    )


def flags() -> list[str]:
    """What it is started with. Root has no sandbox; the pages of the tests are our own."""
    return [*FLAGS, *(["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else [])]


def install() -> None:
    """Debian's package, where that is possible."""
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return
    wanted = [apt, *APT, "install", "-y", "--no-install-recommends", "chromium"]
    if not _run(wanted) and _run([apt, *APT, "update"]):
        _run(wanted)
    chromium.cache_clear()


def _run(command: list[str]) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=INSTALL_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def why_missing() -> str | None:
    try:
        chromium()
    except BrowserMissing as missing:
        return str(missing)
    return None


def main() -> int:
    if why_missing() is not None:
        install()
    if (reason := why_missing()) is not None:
        print(f"! {reason}", file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 0
    print(f"the browser is at {chromium()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
