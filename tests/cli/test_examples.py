"""Every example in every `--help` is run: in a folder with a `server.py`, and with a server at a URL.

An example is a line of an epilog that begins with `dovetail`; what follows two spaces explains it. Only what would
leave this machine, or stand in the way of other tests, is replaced.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_stage import BIN, PROGRAM, PROMPTLY, environment, furnish
from server_process import serving

from dovetail import cli
from dovetail.cli.main import COMMANDS, main

LASTING = {"run", "dev"}  # they end when they are told to
URLS = re.compile(r"https?://(127\.0\.0\.1:8000|localhost:8000|example\.com)/mcp")
REPLACED = {
    "npx -y @modelcontextprotocol/server-everything": "python server.py",
    "--port 9000": "--port 0",
    "--host 0.0.0.0": "--host 127.0.0.1",
    "--workers 4": "--workers 2",
    "redis://127.0.0.1:6379/0": "sqlite:state.db",
}
ALLOWED = {"lint": {0, 1}, "doctor": {0, 1}}  # they say what they found


def examples() -> list[tuple[str, str]]:
    """The name of each command, and a line of its own."""
    epilogs = {"": main.epilog, **{name: getattr(cli, name).command.epilog for name in COMMANDS}}
    return [
        (name, re.split(r"\s{2,}", line.strip())[0])
        for name, epilog in epilogs.items()
        for line in (epilog or "").splitlines()
        if line.strip().startswith("dovetail ")
    ]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("served") / "log.txt"
    with serving(["-m", "dovetail.cli", "run", str(PROGRAM), "--transport", "http"], log) as served:
        yield f"{served.origin}/mcp"
    assert served.complaints == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    furnish(tmp_path)
    return tmp_path


def runnable(line: str, url: str) -> str:
    for words, others in REPLACED.items():
        line = line.replace(words, others)
    return URLS.sub(url, line)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples(name: str) -> None:
    mine = [line for command, line in examples() if command == name]
    assert mine
    assert all(line.split()[1] == name for line in mine)


ENDING = [line for _, line in examples() if line.split()[1] not in LASTING]


@pytest.mark.parametrize("line", list(dict.fromkeys(ENDING)))
def test_an_example_does_what_it_says(folder: Path, url: str, line: str) -> None:
    done = subprocess.run(
        ["sh", "-c", runnable(line, url)], cwd=folder, env=environment(HOME=str(folder), XDG_CONFIG_HOME=str(folder)),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROMPTLY, check=False,
    )  # fmt: skip
    assert done.returncode in ALLOWED.get(line.split()[1], {0}), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout or ">" in line or "--output" in line or done.stderr


SERVING = [line for _, line in examples() if line.split()[1] in LASTING]


@pytest.mark.parametrize("line", list(dict.fromkeys(SERVING)))
def test_an_example_that_lasts_can_be_started_and_ended(folder: Path, url: str, line: str) -> None:
    env = environment(HOME=str(folder), DOVETAIL_PORT="0", BROWSER="true")
    words = ["sh", "-c", f"exec {runnable(line, url)}"]
    with (folder / "told.txt").open("w+") as told:
        process = subprocess.Popen(words, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=told, stderr=told)
        try:
            process.communicate(timeout=PROMPTLY if is_ended_by_silence(line) else until_it_listens(process, folder))
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(PROMPTLY)
        finally:
            process.kill()
            process.communicate()
    assert process.returncode == 0, (folder / "told.txt").read_text()
    assert "Traceback" not in (folder / "told.txt").read_text()


def is_ended_by_silence(line: str) -> bool:
    """Over stdio a server ends with its input."""
    return line.split()[1] == "run" and len(line.split()) > 2 and "--transport http" not in line


def until_it_listens(process: "subprocess.Popen[bytes]", folder: Path) -> float:
    deadline = time.monotonic() + PROMPTLY
    while "http://" not in (folder / "told.txt").read_text():
        assert process.poll() is None, (folder / "told.txt").read_text()
        assert time.monotonic() < deadline, "it does not say where it listens"
        time.sleep(0.02)
    return 0.01


def test_the_command_that_is_run_is_the_one_under_test() -> None:
    assert (BIN / "dovetail").is_file()
    assert os.access(BIN / "dovetail", os.X_OK)
