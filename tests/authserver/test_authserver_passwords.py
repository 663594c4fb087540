"""Users in a file or a mapping: those that can't be, those that change, and how a password becomes a hash."""

import asyncio
import hmac
import io
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from authserver_stage import CALLBACK, ISSUER, PASSWORD, RESOURCE, USERS, Browser, Program, Stage
from dovetail.authserver import AuthServer, OAuthClient, Passwords, hash_password
from dovetail.authserver import passwords as passwords_module
from dovetail.authserver.__main__ import main
from dovetail.authserver.auth_store import AttemptLimit, AuthStore
from dovetail.authserver.oauth_http import OAuthError
from dovetail.errors import SetupError
from dovetail.state.memory import MemoryState
from issuer_stage import Clock


async def test_users_come_from_a_file_that_may_change(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text(json.dumps({"ann": hash_password("one", cost=16)}))
    users = Passwords(path)
    assert await users.accepts("ann", "one")
    assert not await users.accepts("ann", "two")
    assert not await users.accepts("bob", "one")
    assert not await users.accepts("ann", "x" * 2000)
    path.write_text(json.dumps({"ann": hash_password("two", cost=16), "bob": hash_password("bob", cost=16)}))
    assert await users.accepts("ann", "two")
    assert await users.accepts("bob", "bob")


BROKEN = {"gone": None, "half": '{"ann": ', "a list": "[]", "a password": '{"ann": "secret"}', "empty": " "}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
async def test_a_file_that_breaks_while_serving_changes_nothing_and_is_reported_once(
    broken: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "users.json"
    path.write_text(json.dumps(USERS))
    stage = Stage(sign_in=Passwords(path))
    tokens = await Program(stage).tokens()
    path.unlink()
    if broken is not None:
        path.write_text(broken)
    refreshed = await Program(stage).refresh(tokens["refresh_token"])
    assert refreshed.status == 200, refreshed.text
    await Program(stage).tokens()
    logged = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(logged) == 1, logged
    assert str(path) in logged[0]
    assert "secret" not in logged[0]
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
        Passwords(path)
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
        AuthServer(ISSUER, resource=RESOURCE, sign_in=Passwords(given), clients=[static])


@pytest.mark.parametrize("given", [USERS, "users.json", None, Passwords, Passwords(USERS).accepts])
def test_a_way_to_sign_in_is_an_object_that_says_so(given: Any) -> None:
    with pytest.raises(SetupError, match=r"sign_in= .* write SignIn.github"):
        AuthServer(ISSUER, resource=RESOURCE, sign_in=given)


async def test_the_id_of_a_client_is_no_name_of_a_user_also_when_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text(json.dumps(USERS))
    given = Passwords(path)
    app = OAuthClient(id="app", redirect_uris=[CALLBACK])
    AuthServer(ISSUER, resource=RESOURCE, sign_in=given, clients=[app])
    path.write_text(json.dumps({"app": hash_password("x", cost=16)}))
    assert not await given.accepts("app", "x")
    assert await given.accepts("ann", PASSWORD), "the users stay as they were"
    with pytest.raises(SetupError, match="'app' is the id of a client"):
        AuthServer(ISSUER, resource=RESOURCE, sign_in=Passwords(path), clients=[app])


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
async def test_an_unknown_name_costs_as_much(name: str, password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    costs: list[tuple[Any, ...]] = []
    compared: list[tuple[int, int]] = []
    scrypt = passwords_module._scrypt

    def watched(password: str, how: Any) -> bytes:
        costs.append((how.cost, how.block, how.parallel, len(how.salt)))
        return scrypt(password, how)

    class Watched:
        @staticmethod
        def compare_digest(one: bytes, other: bytes) -> bool:
            compared.append((len(one), len(other)))
            return hmac.compare_digest(one, other)

    monkeypatch.setattr(passwords_module, "_scrypt", watched)
    monkeypatch.setattr(passwords_module, "hmac", Watched)
    assert await Passwords(USERS).accepts(name, password) is (password == PASSWORD and name == "ann")
    assert (costs, compared) == ([(16, 8, 3, 16)], [(32, 32)])


LIMIT = AttemptLimit("tries", "tries to sign in", 900.0, each=3, for_all=10)


async def taken(store: AuthStore, names: list[str]) -> list[int]:
    statuses = []
    for name in names:
        try:
            await LIMIT.take(store, name)
            statuses.append(200)
        except OAuthError as refusal:
            statuses.append(refusal.status)
    return statuses


async def test_a_limit_is_of_each_and_of_all() -> None:
    clock = Clock()
    store = AuthStore(MemoryState(clock=clock), "https://login.example.com")
    assert await taken(store, ["a"] * 5) == [200] * 3 + [429] * 2
    assert await taken(store, ["b"] * 3) == [200] * 3, "what was refused uses up nothing of all"
    assert await taken(store, list("cdefgh")) == [200] * 4 + [429] * 2
    assert await store.get("tries", "g") is None, "when all are used up, a stranger leaves no counter"
    clock.now += 901
    assert await taken(store, ["a"]) == [200]


async def test_a_wrong_password_is_refused_without_saying_which_part(stage: Stage, browser: Browser) -> None:
    page = await browser.open(Program(stage).url())
    known, unknown = await browser.sign_in(page, "ann", "wrong"), await browser.sign_in(page, "nobody", "wrong")
    assert known.status == unknown.status == 403
    hidden = re.compile(r'value="[^"]*"')
    assert hidden.sub("", known.text) == hidden.sub("", unknown.text)
    assert "code" in (await browser.sign_in(known)).sent_to


@pytest.mark.parametrize("address", ["198.51.100.{}", "2001:db8:1:{:x}::1"])
async def test_guessing_is_slowed_down_for_the_guesser_only(address: str, stage: Stage) -> None:
    """With any names; and of one name from many addresses."""
    browser = Browser(stage)
    page = await browser.open(Program(stage).url())
    for number in range(30):
        stage.address = address.format(1) if "db8" not in address else f"2001:db8:1:1::{number:x}"
        assert (await browser.sign_in(page, f"user{number}", "x" * 2000)).status == 403
    refused = await browser.sign_in(page)
    assert (refused.status, 0 < int(refused.headers["retry-after"]) <= 900) == (429, True)
    stage.address = address.format(2)
    assert "code" in (await browser.sign_in(page)).sent_to
    stage.clock.now += 901
    browser = Browser(stage)
    page = await browser.open(Program(stage).url())
    for number in range(200):
        stage.address = address.format(number)
        assert (await browser.sign_in(page, "bob", "x" * 2000)).status == 403
    stage.address = address.format(201)
    assert (await browser.sign_in(page, "bob")).status == 429


@pytest.mark.parametrize("what", ["registration", "document"])
async def test_strangers_cannot_register_or_make_us_fetch_without_end(what: str, stage: Stage) -> None:

    async def once(number: int) -> int:
        if what == "registration":
            return (await stage.register(redirect_uris=[CALLBACK])).status
        return (await Browser(stage).open(Program(stage, f"https://127.0.0.1/{number}").url())).status

    good = 201 if what == "registration" else 400
    assert [await once(number) for number in range(31)] == [good] * 30 + [429]
    stage.address = "198.51.100.1"
    assert await once(32) == good


async def test_a_user_can_not_consent_without_end() -> None:
    """Each consent is kept for weeks."""
    stage = Stage(clients=[OAuthClient(id="app", redirect_uris=[CALLBACK])])
    browser = Browser(stage)
    await Program(stage).code(browser)
    statuses = [(await browser.answer(await browser.open(Program(stage).url()))).status for _ in range(60)]
    assert statuses == [303] * 59 + [429]
    other = Browser(stage)
    asked = await other.open(Program(stage).url())
    assert (await other.sign_in(asked, "bob", "bob's own")).status == 303, "each user has a number of their own"


async def test_few_passwords_are_checked_at_a_time_and_few_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    go, busy, most = threading.Event(), [0], [0]
    scrypt = passwords_module._scrypt

    def slow(*arguments: Any) -> bytes:
        busy[0] += 1
        most[0] = max(busy)
        assert go.wait(10)
        busy[0] -= 1
        return scrypt(*arguments)

    monkeypatch.setattr(passwords_module, "_scrypt", slow)
    known = Passwords(USERS)
    asking = [asyncio.create_task(known.accepts("ann", "x")) for _ in range(20)]
    await asyncio.sleep(0)
    with pytest.raises(OAuthError) as refused:
        await known.accepts("ann", "x")
    assert refused.value.status == 429
    asking[-1].cancel()  # it has not begun, so its place is free again
    await asyncio.gather(asking[-1], return_exceptions=True)
    last = asyncio.create_task(known.accepts("ann", "x"))
    await asyncio.sleep(0)
    go.set()
    assert await asyncio.gather(last, *asking[:-1]) == [False] * 20
    assert most[0] <= 2
