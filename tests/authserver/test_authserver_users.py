"""Users in a file or a mapping: those that can't be, those that change, and how a password becomes a hash."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from authserver_stage import ISSUER, PASSWORD, RESOURCE, USERS, Program, Stage
from dovetail.authserver import AuthServer, OAuthClient, hash_password
from dovetail.authserver.users import MAX_FILE, Users
from dovetail.errors import SetupError


async def test_users_come_from_a_file_that_may_change(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text(json.dumps({"ann": hash_password("one", cost=16)}))
    users = Users(path)
    assert await users.accepts("ann", "one")
    assert not await users.accepts("ann", "two")
    assert not await users.accepts("bob", "one")
    assert not await users.accepts("ann", "x" * 2000)
    path.write_text(json.dumps({"ann": hash_password("two", cost=16), "bob": hash_password("bob", cost=16)}))
    assert await users.accepts("ann", "two")
    assert await users.accepts("bob", "bob")


BROKEN = {
    "gone": None,
    "half": '{"ann": ',
    "a list": "[]",
    "a password": '{"ann": "secret"}',
    "too long": " " * (4 * 1024 * 1024 + 1),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
async def test_a_file_that_breaks_while_serving_changes_nothing_and_is_told_once(
    broken: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "users.json"
    path.write_text(json.dumps(USERS))
    stage = Stage(users=path)
    tokens = await Program(stage).tokens()
    path.unlink()
    if broken is not None:
        path.write_text(broken)
    refreshed = await Program(stage).refresh(tokens["refresh_token"])
    assert refreshed.status == 200, refreshed.text
    await Program(stage).tokens()
    told = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(told) == 1, told
    assert str(path) in told[0]
    assert "secret" not in told[0]
    path.write_text(json.dumps({"bob": USERS["bob"]}))
    gone = await Program(stage).refresh(refreshed.json["refresh_token"])
    assert gone.json["error"] == "invalid_grant", "a file that is good again counts"


@pytest.mark.parametrize("broken", [each for each in BROKEN.values() if each is not None])
def test_a_file_that_is_broken_at_the_start(broken: str, tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text(broken)
    with pytest.raises(SetupError, match="users"):
        AuthServer(ISSUER, resource=RESOURCE, users=tmp_path / "users.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["is not there", "{}", "python -m dovetail.authserver hash"]),
        ("", ["is empty", "{}", "python -m dovetail.authserver hash"]),
        (" \n", ["is empty", "{}", "python -m dovetail.authserver hash"]),
        ("{" + " " * MAX_FILE + "}", ["more than 4 MiB"]),
        ("{", ["must hold JSON"]),
    ],
)
def test_a_file_that_is_no_good_says_what_to_do(text: str | None, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SetupError) as caught:
        Users(path)
    assert all(word in str(caught.value) for word in [str(path), *words]), caught.value


@pytest.mark.parametrize("salt", ["A" * 17, "A" * 17 + "B", "A" * 101])
def test_a_hash_that_nobody_could_have_made(salt: str) -> None:
    with pytest.raises(SetupError, match="'ann' has no hash of a password"):
        Users({"ann": f"scrypt:16:8:3:{salt}:{'A' * 43}"})


async def test_nobody_is_known_at_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text("{}")
    users = Users(path)
    assert not await users.accepts("ann", "one")
    path.write_text(json.dumps({"ann": hash_password("one", cost=16)}))
    assert await users.accepts("ann", "one")


@pytest.mark.parametrize("way", ["another file", "the same file"])
async def test_a_change_within_one_tick_of_the_same_length_is_seen(way: str, tmp_path: Path) -> None:
    path, other = tmp_path / "users.json", tmp_path / "other.json"
    one, two = (json.dumps({"ann": hash_password(word, cost=16)}) for word in ("one", "two"))
    assert len(one) == len(two)
    path.write_text(one)
    written = path.stat().st_mtime_ns
    users = Users(path)
    assert await users.accepts("ann", "one")
    if way == "another file":
        other.write_text(two)
        other.replace(path)
    else:
        await asyncio.sleep(0.02)  # the clock of a file system ticks in milliseconds
        path.write_text(two)
    os.utime(path, ns=(written, written))
    assert await users.accepts("ann", "two")


async def test_the_file_is_not_looked_at_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "users.json"
    path.write_text(json.dumps(USERS))
    stage = Stage(users=path)
    looked: list[int] = []
    real = Path.stat

    def stat(self: Path, **options: Any) -> Any:
        if self == path:
            looked.append(threading.get_ident())
        return real(self, **options)

    monkeypatch.setattr(Path, "stat", stat)
    tokens = await Program(stage).tokens()
    assert (await Program(stage).refresh(tokens["refresh_token"])).status == 200
    assert looked
    assert threading.get_ident() not in looked


@pytest.mark.parametrize(
    "users",
    [
        {"ann": "password"}, {"": hash_password("x", cost=16)}, {"ci": hash_password("x", cost=16)}, {"ann": 3},
        {"https://x.org/c": hash_password("x", cost=16)}, {"ann": "scrypt:99999999:8:1:" + "A" * 22 + ":" + "A" * 43},
        {"ann": "scrypt:16:0:1:" + "A" * 22 + ":" + "A" * 43}, "missing.json", [],
    ],
)  # fmt: skip
def test_users_that_can_not_be(users: Any, tmp_path: Path) -> None:
    static = OAuthClient(id="ci", grant_types=["client_credentials"], secret="0123456789abcdef")
    given = str(tmp_path / users) if isinstance(users, str) else users
    with pytest.raises((SetupError, TypeError)):
        AuthServer(ISSUER, resource=RESOURCE, users=given, clients=[static])


def test_the_command_makes_a_hash() -> None:
    command = [sys.executable, "-m", "dovetail.authserver"]
    done = subprocess.run([*command, "hash"], input=PASSWORD + "\n", capture_output=True, text=True, check=True)
    assert done.stdout.startswith("scrypt:32768:8:3:")
    assert PASSWORD not in done.stdout
    assert asyncio.run(Users({"ann": done.stdout.strip()}).mark("ann"))
    for arguments, code in ((["hash"], 1), ([], 2), (["help"], 2)):
        failed = subprocess.run([*command, *arguments], input="\n", capture_output=True, text=True, check=False)
        assert (failed.returncode, failed.stdout) == (code, "")
