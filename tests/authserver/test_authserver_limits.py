"""Limits on strangers: tries to sign in, registrations, documents, assertions and consents; the queue of passwords."""

import asyncio
import re
import threading
from typing import Any

import pytest

from authserver_stage import CALLBACK, USERS, Browser, Clock, Program, Stage
from dovetail.authserver import OAuthClient, users
from dovetail.authserver.endpoints import OAuthRefusal
from dovetail.authserver.storage import AttemptLimit, AuthStore
from dovetail.authserver.users import Users
from dovetail.state.memory import MemoryState

LIMIT = AttemptLimit("tries", "tries to sign in", 900.0, each=3, for_all=10)


async def taken(store: AuthStore, names: list[str]) -> list[int]:
    statuses = []
    for name in names:
        try:
            await LIMIT.take(store, name)
            statuses.append(200)
        except OAuthRefusal as refusal:
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


async def test_a_wrong_password_is_told_without_saying_which_part() -> None:
    stage = Stage()
    browser = Browser(stage)
    page = await browser.open(Program(stage).url())
    known, unknown = await browser.sign_in(page, "ann", "wrong"), await browser.sign_in(page, "nobody", "wrong")
    assert known.status == unknown.status == 403
    hidden = re.compile(r'value="[^"]*"')
    assert hidden.sub("", known.text) == hidden.sub("", unknown.text)
    assert "code" in (await browser.sign_in(known)).sent_to


@pytest.mark.parametrize("address", ["198.51.100.{}", "2001:db8:1:{:x}::1"])
async def test_guessing_is_slowed_down_for_the_guesser_only(address: str) -> None:
    """Whatever the names are; and of one name from many addresses."""
    stage = Stage()
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
async def test_strangers_cannot_register_or_make_us_fetch_without_end(what: str) -> None:
    stage = Stage()

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
    scrypt = users._scrypt

    def slow(*arguments: Any) -> bytes:
        busy[0] += 1
        most[0] = max(busy)
        assert go.wait(10)
        busy[0] -= 1
        return scrypt(*arguments)

    monkeypatch.setattr(users, "_scrypt", slow)
    known = Users(USERS)
    asking = [asyncio.create_task(known.accepts("ann", "x")) for _ in range(20)]
    await asyncio.sleep(0)
    with pytest.raises(OAuthRefusal) as refused:
        await known.accepts("ann", "x")
    assert refused.value.status == 429
    asking[-1].cancel()  # it has not begun, so its place is free again
    await asyncio.gather(asking[-1], return_exceptions=True)
    last = asyncio.create_task(known.accepts("ann", "x"))
    await asyncio.sleep(0)
    go.set()
    assert await asyncio.gather(last, *asking[:-1]) == [False] * 20
    assert most[0] <= 2
