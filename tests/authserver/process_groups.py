"""Programs in process groups of their own: a command comes in, what it printed goes out, and nothing of it stays."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any, NamedTuple

IS_POSIX = os.name == "posix"
END_SECONDS = 10.0  # for the pipes of a killed group to close
# Signals to us are not for it, and one to the group reaches all of it.
APART: dict[str, Any] = (
    {"start_new_session": True} if IS_POSIX else {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
)


class Ran(NamedTuple):
    group: int
    code: int
    stdout: str
    stderr: str


def run_apart(command: Sequence[str], seconds: float) -> Ran:
    """Raises TimeoutExpired. However it ends, the whole group has ended then."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **APART
    )
    try:
        stdout, stderr = process.communicate(timeout=seconds)
        assert not end_group(process.pid), f"the program left others behind: {stderr[-2000:]}"
        return Ran(process.pid, process.returncode, stdout, stderr)
    except BaseException:
        end_group(process.pid)
        if not IS_POSIX:
            process.kill()
        process.communicate(timeout=END_SECONDS)  # whoever still held a pipe is gone
        raise


def end_group(group: int) -> bool:
    """By its id, and by force. Whether anything was left of it."""
    if IS_POSIX:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
            return True
    return False
