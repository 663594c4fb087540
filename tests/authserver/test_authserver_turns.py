"""Passwords are checked a few at a time, on each event loop, and strangers keep no known user waiting."""

import asyncio
import threading
from contextlib import suppress

import pytest

from authserver_stage import ISSUER, PASSWORD, USERS
from dovetail.authserver import signins, turns
from dovetail.authserver import users as users_module
from dovetail.authserver.marks import Marks
from dovetail.authserver.refusals import OAuthRefusal
from dovetail.authserver.signins import SignIns
from dovetail.authserver.turns import Turns
from dovetail.authserver.users import Users


async def held(ours: Turns, go: asyncio.Event, *, is_known: bool = False) -> None:
    with ours.place(is_known=is_known) as turn:
        async with turn:
            await go.wait()


async def test_strangers_keep_no_known_user_waiting() -> None:
    ours, go = Turns(), asyncio.Event()
    strangers = [asyncio.create_task(held(ours, go)) for _ in range(turns.MOST_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(OAuthRefusal, match="people signing in") as caught:
        await held(ours, go)
    assert caught.value.status == 429
    for is_known in (True, False):
        async with asyncio.timeout(5):
            with ours.place(is_known=is_known) as turn:
                async with turn:
                    pass
        go.set()
        await asyncio.gather(*strangers)


async def test_one_at_a_time_and_a_turn_given_up_goes_to_the_next() -> None:
    ours, go = Turns(), asyncio.Event()
    first, second = (asyncio.create_task(held(ours, go)) for _ in range(2))
    third = asyncio.create_task(held(ours, go))
    await asyncio.sleep(0)
    second.cancel()
    first.cancel()
    go.set()
    async with asyncio.timeout(5):
        await third


# ── what is done when it is one's turn ──


def signing_in() -> tuple[Users, SignIns, Marks]:
    users, marks = Users(USERS), Marks(None, ISSUER)
    return users, SignIns(users, marks), marks


@pytest.mark.parametrize("is_known", [True, False])
async def test_who_finds_the_line_full_has_not_tried(is_known: bool) -> None:
    users, sign_ins, _ = signing_in()
    go = asyncio.Event()
    crowd = [asyncio.create_task(held(users._turns, go, is_known=is_known)) for _ in range(turns.MOST_WAITING)]
    await asyncio.sleep(0)
    for _ in range(signins.AT_KNOWN_BROWSERS + signins.PER_NAME_AND_NETWORK + 1):
        with pytest.raises(OAuthRefusal, match="people signing in"):
            await sign_ins.accepts("ann", PASSWORD, "192.0.2.1", is_known_browser=is_known)
    go.set()
    await asyncio.gather(*crowd)
    for _ in range(signins.PER_NAME_AND_NETWORK):
        assert not await sign_ins.accepts("ann", "wrong", "192.0.2.1")
    if is_known:
        for _ in range(signins.AT_KNOWN_BROWSERS):
            assert not await sign_ins.accepts("ann", "wrong", "192.0.2.1", is_known_browser=True)


@pytest.mark.parametrize("networks", ["one", "of one customer"])
async def test_who_has_no_tries_left_takes_nobody_s_place(networks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, sign_ins, _ = signing_in()
    few = signins.FROM_STRANGERS._replace(per_network=3, per_customer=5)
    monkeypatch.setattr(signins, "FROM_STRANGERS", few)
    addresses = ["192.0.2.1"] if networks == "one" else [f"2001:db8:1:{number:x}::/64" for number in range(100)]
    tries = [addresses[number % len(addresses)] for number in range(2 * turns.MOST_WAITING)]
    for number, address in enumerate(tries[:6]):
        with suppress(OAuthRefusal):
            await sign_ins.accepts(f"guess{number}", "x" * 2000, address)
    go, count = asyncio.Event(), Marks.count

    async def slow(self: Marks, kind: str, name: str, seconds: float) -> int:
        await go.wait()
        return await count(self, kind, name, seconds)

    monkeypatch.setattr(Marks, "count", slow)
    crowd = [asyncio.create_task(sign_ins.accepts("ann", "wrong", address)) for address in tries]
    honest = asyncio.create_task(sign_ins.accepts("ann", PASSWORD, "198.51.100.9"))
    await asyncio.sleep(0.01)
    go.set()
    async with asyncio.timeout(10):
        refused = await asyncio.gather(*crowd, return_exceptions=True)
        assert await honest
    assert {str(each) for each in refused if "tries to sign in" not in str(each)} == set()


async def test_a_known_browser_waits_in_the_line_for_those() -> None:
    users, sign_ins, marks = signing_in()
    go = asyncio.Event()
    crowd = [asyncio.create_task(held(users._turns, go)) for _ in range(turns.MOST_WAITING)]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        assert await sign_ins.accepts("ann", PASSWORD, "192.0.2.1", is_known_browser=True)
        for _ in range(signins.AT_KNOWN_BROWSERS):
            await marks.count(signins.TRIES, "known ann", signins.WINDOW)
        with pytest.raises(OAuthRefusal, match="people signing in"):  # with too many tries it waits as all others do
            await sign_ins.accepts("ann", PASSWORD, "192.0.2.1", is_known_browser=True)
    go.set()
    await asyncio.gather(*crowd)


async def test_who_gives_up_gives_the_turn_away_only_when_the_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = 0, 0
    lock, go = threading.Lock(), threading.Event()

    def slow(*_: object) -> bytes:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go.wait(10)
        with lock:
            running -= 1
        return bytes(32)

    monkeypatch.setattr(users_module, "_scrypt", slow)
    users, _, _ = signing_in()
    for _ in range(4):
        asking = asyncio.create_task(users.accepts("ann", "x"))
        await asyncio.sleep(0.02)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    go.set()
    async with asyncio.timeout(5):
        assert not await users.accepts("ann", "x")
    assert most == 1


def test_each_event_loop_has_its_own() -> None:
    ours = Turns()

    async def crowd() -> None:
        go = asyncio.Event()
        waiting = [asyncio.create_task(held(ours, go)) for _ in range(3)]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*waiting)

    for _ in range(3):
        asyncio.run(crowd())
    assert len(ours._lines) <= 1
