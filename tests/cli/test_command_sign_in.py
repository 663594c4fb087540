"""A server behind a URL that wants people to sign in: what the command line does, with a person there and without."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from command_stage import BIN, environment, typed
from server_process import serving

from dovetail.cli.output import DECLINED

pytestmark = pytest.mark.long

PROGRAM = str(Path(__file__).parent / "guarded_server.py")
PROMPTLY = 20


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving([PROGRAM], tmp_path_factory.mktemp("guarded") / "log.txt") as served:
        yield f"{served.origin}/mcp"


def at_home(folder: Path) -> dict[str, str]:
    """Tokens are stored in this folder, and the browser signs in by itself."""
    return {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "BROWSER": f"{sys.executable} {PROGRAM} %s"}


def in_terminal(folder: Path, *words: str) -> Any:
    return pexpect.spawn(
        str(BIN / "dovetail"), [*words], cwd=str(folder), timeout=PROMPTLY, encoding="utf-8",
        env=environment(TERM="xterm", **at_home(folder)), dimensions=(40, 400), echo=False,
    )  # fmt: skip


def call(folder: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[bytes]":
    return typed(folder, "call", *words, **{**at_home(folder), **env})


def test_without_a_person_nothing_is_opened(tmp_path: Path, url: str) -> None:
    done = call(tmp_path, url, "whoami")
    assert (done.returncode, done.stdout) == (DECLINED, b"")
    expected = {b"asks for a sign-in at 127.0.0.1": True, b"--token": True, b"Traceback": False}
    assert {words: words in done.stderr for words in expected} == expected
    assert not list(tmp_path.rglob("tokens.json"))


@pytest.mark.parametrize(
    ("words", "env"), [(["--token", "secret-token"], {}), ([], {"DOVETAIL_CLIENT_TOKEN": "secret-token"})]
)
def test_a_token_is_sent_and_never_shown(tmp_path: Path, url: str, words: list[str], env: dict[str, str]) -> None:
    done = call(tmp_path, url, "whoami", *words, **env)
    assert done.returncode == DECLINED
    assert b"secret-token" not in done.stdout + done.stderr


def test_who_says_no_is_not_signed_in(tmp_path: Path, url: str) -> None:
    child = in_terminal(tmp_path, "call", url, "whoami")
    child.expect(r"sign in at 127\.0\.0\.1:\d+\. Open the browser\? \[Y/n\] ")
    child.sendline("n")
    assert "Not signed in" in child.read()
    child.close()
    assert child.exitstatus == DECLINED
    assert not list(tmp_path.rglob("tokens.json"))


@pytest.mark.slow
def test_who_says_yes_is_signed_in_and_stays_so(tmp_path: Path, url: str) -> None:
    child = in_terminal(tmp_path, "call", url, "whoami")
    child.expect_exact("Open the browser? [Y/n] ")
    child.sendline("")
    seen = child.read()
    child.close()
    assert (child.exitstatus, seen.splitlines()[-1]) == (0, "ann")
    (file,) = tmp_path.rglob("tokens.json")
    assert file.stat().st_mode & 0o777 == 0o600
    done = call(tmp_path, url, "whoami")  # without another sign-in
    assert (done.returncode, done.stdout, done.stderr) == (0, b"ann\n", b"")
    (token,) = json.loads(file.read_text())["tokens"].values()
    assert token["access_token"] not in seen
