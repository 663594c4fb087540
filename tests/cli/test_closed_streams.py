"""stdin, stdout and stderr as shells leave them: closed, full, without a reader, or in an old encoding."""

import os
import subprocess
from pathlib import Path

import pytest
from command_stage import BIN, PROMPTLY, environment, furnish

from dovetail.cli.exits import FAILED, WRONG_USE
from dovetail.cli.streams import READER_LEFT

posix = pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX")

COMMANDS = {
    "list": "list server.py",
    "call": "call server.py add a=2 b=3",
    "bytes": "read server.py logo://small",
    "prompt": "prompt server.py greet name=Ada",
    "complete": "complete server.py prompt:greet name",
}
BY_ITSELF = ("doctor", "--help", "call --help", "--version")  # without a server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    furnish(tmp_path)
    return tmp_path


def in_shell(folder: Path, line: str, **env: str) -> "subprocess.CompletedProcess[bytes]":
    env = environment(HOME=str(folder), XDG_CONFIG_HOME=str(folder), **env)
    return subprocess.run(
        ["sh", "-c", line], cwd=folder, env=env, capture_output=True, timeout=PROMPTLY, check=False
    )  # fmt: skip


def without_reader(folder: Path, words: str) -> "subprocess.CompletedProcess[bytes]":
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            [BIN / "dovetail", *words.split()], cwd=folder, env=environment(HOME=str(folder)), stdout=writing,
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=PROMPTLY, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)


# ── nobody takes what is written ──


@posix
@pytest.mark.parametrize("words", [*COMMANDS.values(), *BY_ITSELF], ids=[*COMMANDS, *BY_ITSELF])
def test_a_reader_that_has_left_ends_it_quietly(folder: Path, words: str) -> None:
    done = without_reader(folder, words)
    assert (done.returncode, done.stderr) == (READER_LEFT, b"")


@posix
@pytest.mark.parametrize(
    ("name", "place"), [("list", "> /dev/full"), ("list", ">&-"), ("call", "> /dev/full"), ("bytes", ">&-")]
)
def test_a_result_that_can_not_be_written_is_told(folder: Path, name: str, place: str) -> None:
    done = in_shell(folder, f"dovetail {COMMANDS[name]} {place}")
    assert done.returncode == FAILED
    assert done.stderr.startswith(b"Error: the result can't be written: ")
    assert done.stderr.count(b"\n") == 1


@posix
@pytest.mark.parametrize("words", ["--help", "call --help"])
def test_help_that_can_not_be_written_is_told(folder: Path, words: str) -> None:
    done = in_shell(folder, f"dovetail {words} > /dev/full")
    assert (done.returncode, done.stderr) == (FAILED, b"Error: No space left on device\n")


@posix
@pytest.mark.parametrize("place", ["<&- 2>&-", "2> /dev/full"])
@pytest.mark.parametrize(("tool", "code", "result"), [("bake", 0, b"A cake.\n"), ("nothing", WRONG_USE, b"")])
def test_a_result_does_not_need_the_other_streams(
    folder: Path, place: str, tool: str, code: int, result: bytes
) -> None:
    done = in_shell(folder, f"dovetail call server.py {tool} {place}")
    assert (done.returncode, done.stdout) == (code, result)


@posix
@pytest.mark.parametrize("place", ["> /dev/full 2>&1", "2> /dev/full"])
def test_words_that_nobody_can_hear_do_no_harm(folder: Path, place: str) -> None:
    done = in_shell(folder, f"dovetail lisst {place}")
    assert (done.returncode, done.stdout, done.stderr) == (WRONG_USE, b"", b"")


@posix
def test_nobody_hears_what_is_wrong(folder: Path) -> None:
    done = in_shell(folder, "{ dovetail lisst 2>&1; echo $? > code.txt; } | true")
    assert (done.returncode, (folder / "code.txt").read_text()) == (0, f"{WRONG_USE}\n")


@posix
def test_arguments_from_a_closed_stdin(folder: Path) -> None:
    done = in_shell(folder, "dovetail call server.py add --args - <&-")
    assert done.returncode == WRONG_USE
    assert b"--args: this is not JSON" in done.stderr


# ── encodings ──


@pytest.mark.parametrize(
    ("env", "shown"),
    [
        ({"PYTHONIOENCODING": "cp1252"}, b"Greet \xe9\\u2603 in English."),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "Greet é☃ in English.".encode()),
        ({}, "Greet é☃ in English.".encode()),
    ],
    ids=["cp1252", "C", "usual"],
)
def test_every_text_can_be_written(folder: Path, env: dict[str, str], shown: bytes) -> None:
    (folder / "name.txt").write_text("é☃", encoding="utf-8")
    done = in_shell(folder, "dovetail prompt server.py greet name=@name.txt", **env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert shown in done.stdout


@posix
@pytest.mark.parametrize("word", ["call server.py summarise text=", ""])
def test_bytes_that_are_no_text_are_refused(folder: Path, word: str) -> None:
    done = in_shell(folder, f"dovetail {word}$(printf '\\377')")
    assert done.returncode == WRONG_USE
    assert b"of the command line is no text in UTF-8" in done.stderr
    assert b"Traceback" not in done.stderr
