"""Users in a file or a mapping: those that can't be, those that change, and how a password becomes a hash."""

import hmac
import io
import json
from pathlib import Path
from typing import Any

import pytest

from authserver_stage import ISSUER, PASSWORD, RESOURCE, USERS, Program, Stage
from dovetail.authserver import AuthServer, OAuthClient, hash_password
from dovetail.authserver import users as users_module
from dovetail.authserver.__main__ import main
from dovetail.authserver.users import Users
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
    "empty": " ",
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["{}", "python -m dovetail.authserver hash"]),
        (" \n", ["is empty", "{}", "python -m dovetail.authserver hash"]),
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


def test_the_command_makes_a_hash(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, typed, code in ((["hash"], PASSWORD, 0), (["hash"], "", 1), ([], "", 2), (["help"], "", 2)):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed + "\n"))
        assert main(arguments) == code
        written = capsys.readouterr().out
        assert written.startswith("scrypt:32768:8:3:") if code == 0 else written == ""
        assert PASSWORD not in written


@pytest.mark.parametrize(
    ("name", "password"), [("ann", PASSWORD), ("ann", PASSWORD[:-1]), ("ann", ""), ("nobody", PASSWORD), ("", "")]
)
async def test_a_name_that_nobody_has_costs_as_much(name: str, password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    costs: list[tuple[Any, ...]] = []
    compared: list[tuple[int, int]] = []
    scrypt = users_module._scrypt

    def watched(password: str, how: Any) -> bytes:
        costs.append((how.cost, how.block, how.parallel, len(how.salt)))
        return scrypt(password, how)

    class Watched:
        @staticmethod
        def compare_digest(one: bytes, other: bytes) -> bool:
            compared.append((len(one), len(other)))
            return hmac.compare_digest(one, other)

    monkeypatch.setattr(users_module, "_scrypt", watched)
    monkeypatch.setattr(users_module, "hmac", Watched)
    assert await Users(USERS).accepts(name, password) is (password == PASSWORD and name == "ann")
    assert (costs, compared) == ([(16, 8, 3, 16)], [(32, 32)])
