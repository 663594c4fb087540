"""Tokens in a file: only its owner reads it, nobody sees half of it, and several programs may use it."""

import asyncio
import logging
import os
import pprint
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.client.credentials import Challenged
from dovetail.client.oauth import MemoryTokens, TokenFile, TokenSet, token_file
from dovetail.client.oauth.documents import RegistrationAnswer, TokenAnswer
from dovetail.client.oauth.token_file import usual_place
from dovetail.client.oauth.tokens import RegisteredClient
from dovetail.client.oauth.web import OAuthAnswer
from dovetail.errors import NotSignedIn

TOKENS = TokenSet(
    access_token="a-token",
    token_type="DPoP",
    issuer="https://login.example.com",
    client=RegisteredClient("app", "its-secret", "client_secret_basic", "http://127.0.0.1:8123/callback"),
    requested=("a", "b"),
    granted=("a",),
    expires_at=12.5,
    refresh_token="another",
    proof_key={"kty": "EC", "d": "private"},
)
POSIX = pytest.mark.skipif(os.name != "posix", reason="no owners of files here")


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "folder" / "tokens.json")


async def keep(
    file: TokenFile, key: str = "https://notes.example.com/mcp app", tokens: TokenSet | None = TOKENS
) -> None:
    async with file.exclusive(key):
        await file.save(key, tokens)


async def test_what_is_kept_comes_back(file: TokenFile) -> None:
    assert await file.load("one") is None
    await keep(file, "one")
    await keep(file, "two")
    assert await file.load("one") == TOKENS
    await keep(file, "one", None)
    await keep(file, "none", None)
    assert await TokenFile(file.path).load("one") is None
    assert await TokenFile(str(file.path)).load("two") == TOKENS
    assert {path.name for path in file.path.parent.iterdir() if path.suffix != ".lock"} == {"tokens.json"}


SECRET = "sikrit"
CONFIDENTIAL: list[Any] = [
    replace(TOKENS, access_token=SECRET, refresh_token=SECRET, proof_key={"d": SECRET}),
    RegisteredClient("app", SECRET),
    RegistrationAnswer("app", SECRET),
    TokenAnswer(SECRET, "Bearer", refresh_token=SECRET),
    OAuthAnswer(200, {"x": SECRET}, {"access_token": SECRET}),
    Challenged(401, [], None, {"Authorization": SECRET}),
    MemoryTokens(),
    TokenFile("tokens.json"),
]


@pytest.mark.parametrize("held", CONFIDENTIAL, ids=lambda held: type(held).__name__)
def test_secrets_are_not_shown(held: Any) -> None:
    for show in (repr, str, pprint.pformat):
        assert SECRET not in show([held])
        assert type(held).__name__ in show([held])
    for_rich = getattr(held, "__rich_repr__", list)  # a Struct has its own, which goes past `repr`
    assert SECRET not in str(list(for_rich()))
    assert repr(TOKENS) == "TokenSet(token_type='DPoP', issuer='https://login.example.com')"


@POSIX
@pytest.mark.parametrize("action", ["load", "save"])
async def test_a_pipe_is_not_waited_for(file: TokenFile, action: str) -> None:
    file.path.parent.mkdir()
    os.mkfifo(file.path, 0o600)
    helper = threading.Timer(5, lambda: os.close(os.open(file.path, os.O_RDWR | os.O_NONBLOCK)))
    helper.start()  # or a test that fails would last for ever
    try:
        with pytest.raises(NotSignedIn, match="that is not a file; move it away"):
            await (file.load("one") if action == "load" else keep(file))
        assert helper.is_alive()
    finally:
        helper.cancel()
        helper.join()


@POSIX
async def test_only_its_owner_can_read_it(file: TokenFile) -> None:
    before = os.umask(0)
    try:
        await keep(file)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


@POSIX
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
async def test_one_that_others_can_read_is_not_used(file: TokenFile, mode: int) -> None:
    await keep(file)
    file.path.chmod(mode)
    with pytest.raises(NotSignedIn, match="others can read the tokens in it; run: chmod 600"):
        await file.load("one")
    file.path.chmod(0o600)
    assert await file.load("https://notes.example.com/mcp app") == TOKENS


@POSIX
async def test_a_link_is_not_followed(file: TokenFile, tmp_path: Path) -> None:
    await keep(file)
    link = TokenFile(tmp_path / "link.json")
    link.path.symlink_to(file.path)
    with pytest.raises(NotSignedIn, match="can't be opened"):
        await link.load("one")


@POSIX
async def test_one_of_somebody_else_is_not_used(file: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    await keep(file)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(NotSignedIn, match="belongs to somebody else"):
        await file.load("one")


BROKEN = {
    "empty": b"",
    "half": b'{"tokens":{"one":{"access_',
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "huge": b" " * 200_001,
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_broken_one_is_kept_aside(
    file: TokenFile, case: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_file, "MAX_BYTES", 200_000)
    await keep(file)
    file.path.write_bytes(BROKEN[case])
    with caplog.at_level(logging.WARNING):
        assert await file.load("one") is None
        assert "you will have to sign in again" in caplog.text
        assert file.path.read_bytes() == BROKEN[case]  # only who writes may move it
        await keep(file, "one")
    assert "is now tokens.json.broken-" in caplog.text
    (aside,) = file.path.parent.glob("tokens.json.broken-*")
    assert aside.read_bytes() == BROKEN[case]
    assert await file.load("one") == TOKENS


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="whoever is root can move anything")
async def test_a_broken_one_that_can_not_be_moved(file: TokenFile) -> None:
    await keep(file)
    file.path.write_bytes(b"broken")
    file.path.parent.chmod(0o500)
    try:
        with pytest.raises(NotSignedIn, match="can't be moved away"):
            await keep(file)
    finally:
        file.path.parent.chmod(0o700)


async def test_what_is_too_long_takes_nothing_from_others(file: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    await keep(file, "good")
    with pytest.raises(NotSignedIn, match="are too long to be kept"):
        await keep(file, "long", replace(TOKENS, refresh_token="r" * 250_000))
    monkeypatch.setattr(token_file, "MAX_BYTES", 100_000)
    await keep(file, "one", replace(TOKENS, refresh_token="r" * 60_000))
    with pytest.raises(NotSignedIn, match="no room for more tokens"):
        await keep(file, "another", replace(TOKENS, refresh_token="r" * 60_000))
    assert await file.load("good") == TOKENS


async def test_somebody_who_reads_it_is_waited_for(file: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    put, tries = Path.replace, []

    def busy(path: Path, target: Path) -> Path:
        tries.append(path)
        if len(tries) < 3:
            raise PermissionError
        return put(path, target)

    monkeypatch.setattr(Path, "replace", busy)
    monkeypatch.setattr(token_file, "LOOK_SECONDS", 0.001)
    await keep(file, "one")
    assert await file.load("one") == TOKENS
    tries.clear()
    monkeypatch.setattr(token_file, "REPLACE_TRIES", 1)
    with pytest.raises(NotSignedIn, match="can't be kept"):
        await keep(file, "two")


async def test_one_server_does_not_wait_for_another(file: TokenFile) -> None:
    async with asyncio.timeout(5), file.exclusive("slow"):
        await keep(file, "quick")
    assert await file.load("quick") == TOKENS


def test_one_that_outlives_its_loop(file: TokenFile) -> None:
    async def contend() -> None:
        await asyncio.gather(*(keep(file, "one") for _ in range(3)))

    for _ in range(2):
        asyncio.run(contend())


async def test_a_folder_that_can_not_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotSignedIn, match="can't be kept there"):
        await keep(TokenFile(tmp_path / "file" / "tokens.json"))


WRITER = """
import asyncio, sys
from dovetail.client.oauth import TokenFile
from dovetail.client.oauth.tokens import RegisteredClient, TokenSet

async def main(path, name):
    file = TokenFile(path)
    for number in range(25):
        async with file.exclusive("all"):
            tokens = TokenSet(access_token="t", token_type="Bearer", issuer="i", client=RegisteredClient(name))
            await file.save(f"{name} {number}", tokens)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
def test_two_processes_lose_nothing(file: TokenFile) -> None:
    command = [sys.executable, "-c", WRITER, str(file.path)]
    writers = [subprocess.Popen([*command, name]) for name in ("one", "two")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert len(file._read()) == 50


async def test_whoever_holds_it_too_long(file: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_file, "LOCK_SECONDS", 0.1)
    async with file.exclusive("one"):
        with pytest.raises(NotSignedIn, match=r"another program has been changing it for 0.1 s"):
            await keep(TokenFile(file.path), "one")
    await keep(file)


PLACES = {
    "linux": ({"XDG_DATA_HOME": "/data"}, "/data/dovetail/tokens.json"),
    "linux at home": ({"XDG_DATA_HOME": ""}, "/home/ann/.local/share/dovetail/tokens.json"),
    "darwin": ({}, "/home/ann/Library/Application Support/dovetail/tokens.json"),
    "win32": ({"LOCALAPPDATA": "/local"}, "/local/dovetail/tokens.json"),
}


@pytest.mark.parametrize("system", PLACES)
def test_the_usual_place(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variables, place = PLACES[system]
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ann"))
    monkeypatch.setattr(sys, "platform", system.partition(" ")[0])
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert usual_place() == Path(place)
