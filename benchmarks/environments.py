"""Environments of their own for programs whose packages are none of the project's: made once, and found again.

The name of an environment says for which Python and requirements it was made, so it is made anew when they change.
"""

import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PAUSES = (0, 5, 20, 60)  # seconds before each attempt: package registries refuse bursts
STAMP = ".ready"  # the file that an installation ends with


class Environment:
    """`complete` says that the requirements are everything, each with its version: then no other package comes in."""

    def __init__(self, cache: Path, name: str, requirements: Sequence[str], *, complete: bool = False) -> None:
        digest = hashlib.sha256(" ".join((sys.version, *requirements)).encode()).hexdigest()[:12]
        self._folder = cache / f"{name}-{digest}"
        self._requirements = requirements
        self._options = ["--no-deps"] if complete else []
        self.title = name if complete else ", ".join(requirements)
        self.python = self._folder / "bin" / "python"

    @property
    def is_ready(self) -> bool:
        return (self._folder / STAMP).exists()

    def make(self) -> str | None:
        """Does nothing if it is there; why not, if that fails."""
        if self.is_ready:
            return None
        with self._locked():
            if not self.is_ready:
                if (reason := self._install()) is not None:
                    return reason
                (self._folder / STAMP).touch()
        return None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Two runs at the same time make an environment once."""
        import fcntl  # late: who only looks whether an environment is there may be on Windows

        self._folder.parent.mkdir(parents=True, exist_ok=True)
        with self._folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _install(self) -> str | None:
        print(f"making an environment with {self.title}", file=sys.stderr, flush=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        venv = [sys.executable, "-m", "venv", "--without-pip", str(self._folder)]
        made = subprocess.run(venv, capture_output=True, text=True, check=False)
        if made.returncode:
            return f"no environment could be made: {(made.stdout + made.stderr).strip()[-500:]}"
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        for pause in PAUSES:
            time.sleep(pause)
            command = [*pip, "--disable-pip-version-check", *self._options, *self._requirements]
            outcome = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if outcome.returncode == 0:
                return None
            print(f"pip failed: {outcome.stderr.strip()[-200:]}", file=sys.stderr, flush=True)
        return f"pip could not install {self.title}: {outcome.stderr.strip()[-500:]}"
