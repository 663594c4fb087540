"""Commands that are ended in every way: nothing that they have started is left behind."""

import signal
import subprocess
import time
from pathlib import Path

import pytest
from command_stage import BIN, PROMPTLY, environment

from process_stage import is_there, pid_in, shell

INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="who is there is read from /proc")


def hear_signals() -> None:
    """Also where whoever started the tests does not, as behind `nohup`."""
    for number in (INT, TERM, HUP):
        signal.signal(number, signal.SIG_DFL)


def typed_and_signalled(folder: Path, words: list[str], numbers: list[int]) -> int:
    command = subprocess.Popen(
        [BIN / "dovetail", *words], cwd=folder, env=environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=hear_signals,
    )  # fmt: skip
    try:
        pid_in(folder)
        time.sleep(0.5)
        for number in numbers:
            command.send_signal(number)
            time.sleep(0.5)
        return command.wait(PROMPTLY)
    finally:
        command.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("numbers", "code"),
    [([INT, INT], 130), ([TERM], 143)],
    ids=["twice", "terminated"],
)
def test_signals(tmp_path: Path, numbers: list[int], code: int) -> None:
    command = shell(tmp_path, "deaf")
    command[-1] = command[-1].replace("server.py;", "silent.py;")
    (tmp_path / "silent.py").write_text("import sys; sys.stdin.read()")
    assert typed_and_signalled(tmp_path, ["list", "--", *command], numbers) == code
    time.sleep(0.1)
    assert not is_there(pid_in(tmp_path))


def test_an_end_as_it_should_be(tmp_path: Path) -> None:
    command = shell(tmp_path, "idle")
    assert typed_and_signalled(tmp_path, ["list", "tools", "--", *command], []) == 0
    assert not is_there(pid_in(tmp_path))
