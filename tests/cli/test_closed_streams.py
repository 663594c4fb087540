"""stdin, stdout and stderr as shells leave them: closed, full, without a reader, or in an old encoding."""

import os
import subprocess
from pathlib import Path

import pytest
from command_stage import BIN, PROMPTLY, environment, furnish

from dovetail.cli.output import FAILED, READER_LEFT, WRONG_USE

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX")


def in_shell(folder: Path, line: str, **env: str) -> "subprocess.CompletedProcess[bytes]":
    env = environment(HOME=str(folder), XDG_CONFIG_HOME=str(folder), **env)
    return subprocess.run(["sh", "-c", line], cwd=folder, env=env, capture_output=True, timeout=PROMPTLY, check=False)


@pytest.mark.parametrize("words", ["list dovetail.reference", "doctor", "call --help"])
def test_a_reader_that_has_left_ends_it_quietly(tmp_path: Path, words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [BIN / "dovetail", *words.split()], cwd=tmp_path, env=environment(HOME=str(tmp_path)), stdout=writing,
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=PROMPTLY, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (READER_LEFT, b"")


@pytest.mark.parametrize("words", ["list dovetail.reference", "--help"])
def test_a_result_that_can_not_be_written_is_told(tmp_path: Path, words: str) -> None:
    done = in_shell(tmp_path, f"dovetail {words} > /dev/full")
    assert (done.returncode, done.stderr) == (
        FAILED,
        b"Error: the result can't be written: No space left on device\n",
    )


def test_a_result_does_not_need_the_other_streams(tmp_path: Path) -> None:
    furnish(tmp_path)
    done = in_shell(tmp_path, "dovetail call server.py add a=2 b=3 <&- 2>&-")
    assert (done.returncode, done.stdout) == (0, b"5\n"), done


def test_arguments_from_a_closed_stdin(tmp_path: Path) -> None:
    done = in_shell(tmp_path, "dovetail call dovetail.reference add --args - <&-")
    assert (done.returncode, b"--args: this is not JSON" in done.stderr) == (WRONG_USE, True)


@pytest.mark.parametrize(
    ("env", "shown"),
    [
        ({"PYTHONIOENCODING": "cp1252"}, b"\xe9\\u2603"),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "é☃".encode()),
    ],
    ids=["cp1252", "C"],
)
def test_every_text_can_be_written(tmp_path: Path, env: dict[str, str], shown: bytes) -> None:
    (tmp_path / "server.py").write_text(
        "from dovetail import Server\nserver = Server('s')\n"
        "@server.prompt\ndef greet(name: str) -> str:\n    return name\n"
    )
    (tmp_path / "name.txt").write_text("é☃", encoding="utf-8")
    done = in_shell(tmp_path, "dovetail prompt server.py greet name=@name.txt", **env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert shown in done.stdout


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    done = in_shell(tmp_path, "dovetail call server.py summarise text=$(printf '\\377')")
    assert (done.returncode, b"of the command line is no text in UTF-8" in done.stderr) == (WRONG_USE, True)
