"""A program and all that it starts in turn, as `uv run`, `npx` or a shell do: they are ended together.

In: the id of a process that was started with `APART`. Out: signals to the whole group that it leads.
"""

import os
import signal
import subprocess
from contextlib import suppress
from typing import Any

# Ctrl-C in a terminal is not for them: who started them sees to their end, in the order that MCP wants.
APART: dict[str, Any] = (
    {"start_new_session": True}
    if os.name == "posix"
    else {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
)


class Family:
    """The first of a group of processes, and whoever of the others is still there."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._is_over = False

    def is_left(self) -> bool:
        """Whether anybody is; where that can't be known, nobody."""
        return os.name == "posix" and self._signal(0)

    def ask(self) -> None:
        """All of them to end."""
        self._signal(signal.SIGTERM if os.name == "posix" else signal.CTRL_BREAK_EVENT)  # type: ignore[attr-defined,unused-ignore]

    def kill(self) -> None:
        """All of them, now."""
        if os.name == "posix":
            self._signal(signal.SIGKILL)
        elif not self._is_over:
            with suppress(OSError, subprocess.SubprocessError):
                command = ["taskkill", "/T", "/F", "/PID", str(self._leader)]
                subprocess.run(command, capture_output=True, timeout=10, check=False)

    def _signal(self, number: int) -> bool:
        """Whether it reached anybody. A group that is empty once stays so, and its number may get another meaning."""
        if self._is_over:
            return False
        try:
            if os.name == "posix":
                os.killpg(self._leader, number)
            else:
                os.kill(self._leader, number)
        except ProcessLookupError:
            self._is_over = True
        except OSError:  # macOS says so of a group that is dead, but not yet buried
            return False
        return not self._is_over
