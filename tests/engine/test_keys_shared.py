"""Who shares the secrets of a server: processes, workers, and those who come later."""

import asyncio
import os
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest
from dovetail.engine.request_state import BadSeal, Sealer
from keys_stage import ONE, TWO

from dovetail import Server, SetupError
from dovetail.engine import shared_secrets
from dovetail.engine.core import Engine
from dovetail.engine.keys import Secrets, checked_secrets
from dovetail.engine.shared_secrets import agree_on_secrets
from dovetail.state.base import MAX_TTL, Conflict, Entry, StoreTrouble
from dovetail.state.memory import MemoryState
from wire import MODERN, Wire


@pytest.fixture(autouse=True)
def _no_secret_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOVETAIL_SECRET", raising=False)


class SlowState(MemoryState):
    """One that others reach between two calls, and that may lose what it holds."""

    def __init__(self, losses: int = 0) -> None:
        super().__init__()
        self.losses = losses
        self.ttls: set[float] = set()

    async def put(self, key: str, value: bytes, *, ttl: float, if_version: int | None = None) -> int:
        self.ttls.add(ttl)
        await asyncio.sleep(0)
        return await super().put(key, value, ttl=ttl, if_version=if_version)

    async def get(self, key: str) -> Entry | None:
        await asyncio.sleep(0)
        if self.losses:
            self.losses -= 1
            await self.delete(key)
        return await super().get(key)


def own(letter: bytes) -> Secrets:
    return Secrets([letter * 32])


async def test_who_comes_first_decides() -> None:
    state = MemoryState()
    for each in (b"a", b"b", b"a"):
        assert await agree_on_secrets(state, own(each)) == own(b"a")


async def test_many_at_once_agree() -> None:
    state = SlowState()
    agreed = await asyncio.gather(*(agree_on_secrets(state, own(bytes([n]))) for n in range(8)))
    assert len(set(agreed)) == 1
    assert state.ttls == {MAX_TTL}


async def test_a_secret_that_vanishes_is_made_again() -> None:
    state = SlowState()
    assert await agree_on_secrets(state, own(b"a")) == own(b"a")
    state.losses = 1
    assert await agree_on_secrets(state, own(b"b")) == own(b"b")


async def test_a_store_that_has_forgotten_them_gets_them_back() -> None:
    state, now = MemoryState(), [1e9]
    known = await agree_on_secrets(state, own(b"a"), lambda: now[0])
    now[0] += 40 * 86_400
    for _ in range(3):
        known = await agree_on_secrets(state, known, lambda: now[0])
        now[0] += 3600
    assert len(known) == 2
    await state.delete("secret")
    assert await agree_on_secrets(state, known, lambda: now[0]) == known
    assert set(await agree_on_secrets(state, own(b"z"), lambda: now[0])) == set(known)


async def until_all_know(engines: list[Engine], count: int) -> None:
    async with asyncio.timeout(5):
        while {len(set(engine.secrets)) for engine in engines} != {count}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("notices", [True, False])
async def test_what_was_sealed_before_a_store_forgot_is_opened_by_all(notices: bool) -> None:
    """Whether the workers notice an outage, or another one starts and puts its own secret there."""
    state = SlowState()
    engines = [Server("x").engine for _ in range(3)]
    for engine in engines:
        engine.state = state
    old, other, new = engines
    await old.start()
    await other.start()
    sealed = [old.sealer.seal(b"data")]
    await state.delete("secret")
    if notices:
        others = await agree_on_secrets(state, own(b"b"))
        sealed.append(Sealer(others).seal(b"data"))
        state._topics.tell_all()
        await until_all_know([old, other], 2)
    await new.start()
    sealed.append(new.sealer.seal(b"data"))
    await until_all_know(engines, 2)
    assert {engine.secrets[0] for engine in engines} == {old.secrets[0]}  # which all have known for longest
    sealed += [engine.sealer.seal(b"data") for engine in engines]
    for engine in engines:
        assert {engine.sealer.open(each) for each in sealed} == {b"data"}
    for engine in engines:
        await engine.stop()


async def test_secrets_that_come_together_keep_their_dates() -> None:
    state, now = MemoryState(), [1e9]
    old = await agree_on_secrets(state, own(b"a"), lambda: now[0])
    await state.delete("secret")
    now[0] += 20 * 86_400
    new = await agree_on_secrets(state, own(b"b"), lambda: now[0])
    both = await agree_on_secrets(state, old, lambda: now[0])
    assert (list(both), list(both.made)) == ([*old, *new], [1e9, now[0]])
    assert await agree_on_secrets(state, new, lambda: now[0]) == both
    now[0] += 3 * 3600
    assert list(await agree_on_secrets(state, old, lambda: now[0])) == [*new, *old]
    now[0] += 400 * 86_400  # nothing is good any more that the first one has sealed
    known = await agree_on_secrets(state, both, lambda: now[0])
    assert len(known) == 2
    assert old[0] not in known
    assert await agree_on_secrets(state, both, lambda: now[0]) == known


async def test_whose_clocks_differ_do_not_overwrite_each_other() -> None:
    """At the moment when an old secret is of no use any more, which comes sooner to some."""
    state, now = MemoryState(), [1e9]
    known = await agree_on_secrets(state, own(b"a"), lambda: now[0])
    for _ in range(14):
        now[0] += shared_secrets.ROTATE_SECONDS
        known = await agree_on_secrets(state, known, lambda: now[0])
    edge = 1e9 + shared_secrets.ROTATE_SECONDS + shared_secrets.OPEN_SECONDS
    assert 0 < edge - now[0] < shared_secrets.ROTATE_SECONDS
    workers, before = [known, known], await state.get("secret")
    for _ in range(3):
        for number, time_there in enumerate((edge + 1, edge - 1)):
            workers[number] = await agree_on_secrets(state, workers[number], lambda time_there=time_there: time_there)
    assert await state.get("secret") == before
    now[0] += shared_secrets.ROTATE_SECONDS  # and when the next one comes, it goes
    known = await agree_on_secrets(state, workers[0], lambda: now[0])
    assert len(known) == len(workers[0])
    assert b"a" * 32 in workers[0]
    assert b"a" * 32 not in known
    after = await state.get("secret")
    for skew in (0, 1, 0, 1):  # nor does it come back from who has it still
        assert b"a" * 32 not in await agree_on_secrets(state, workers[1], lambda skew=skew: now[0] - skew)
    assert await state.get("secret") == after


async def test_there_are_only_so_many() -> None:
    state, now = MemoryState(), [1e9]
    fleets = []
    for number in range(shared_secrets.KEPT + 5):
        await state.delete("secret")
        fleets.append(await agree_on_secrets(state, own(bytes([number])), lambda: now[0]))
        now[0] += 1
    for known in fleets:
        await agree_on_secrets(state, known, lambda: now[0])
    everything = await agree_on_secrets(state, fleets[0], lambda: now[0])
    assert len(everything) == shared_secrets.KEPT
    assert set(everything) == {each for known in fleets[5:] for each in known}


async def test_a_look_that_failed_is_made_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_secrets, "AGAIN_SECONDS", 0.01)
    state, engine = SlowState(), Server("x").engine
    engine.state = state
    await engine.start()
    troubles = iter([StoreTrouble(), StoreTrouble(), StoreTrouble()])
    get = state.get

    async def troubled(key: str) -> Entry | None:
        for trouble in troubles:
            raise trouble
        return await get(key)

    monkeypatch.setattr(state, "get", troubled)
    await state.put("secret", b"\x01" + msgspec.msgpack.encode([(time.time(), b"b" * 32)]), ttl=60)
    await state.publish("secret")
    await until_all_know([engine], 2)
    assert caplog.text.count("can't be looked at") == 1
    await engine.stop()


async def test_a_state_that_keeps_nothing_is_given_up() -> None:
    class Forgetful(MemoryState):
        async def put(self, key: str, value: bytes, **_: Any) -> int:
            raise Conflict(key)

    with pytest.raises(SetupError, match="set DOVETAIL_SECRET"):
        await agree_on_secrets(Forgetful(), own(b"b"))


@pytest.mark.parametrize("held", [b"", b"hunter2", b"\x01hunter2", b"\x01\x90", b"\x01\x91\x92\x01\xc4\x01a"])
async def test_a_state_that_holds_something_else_is_refused(held: bytes) -> None:
    state = MemoryState()
    await state.put("secret", held, ttl=10)
    with pytest.raises(SetupError, match="shared state") as caught:
        await agree_on_secrets(state, own(b"b"))
    assert "hunter2" not in str(caught.value)


async def test_secrets_are_replaced_before_anybody_misses_them() -> None:
    """Two workers that look every hour, over two years: what one seals, the other opens."""
    state, now = MemoryState(clock=lambda: now[0]), [1e9]
    workers = [own(b"a"), own(b"b")]
    sealed: list[tuple[float, bytes]] = []
    used = set()
    for hour in range(24 * 365 * 2):
        now[0] += 3600
        workers[hour % 2] = await agree_on_secrets(state, workers[hour % 2], lambda: now[0])
        sealed.append((now[0], workers[hour % 2][0]))
        used.add(workers[hour % 2][0])
        assert workers[hour % 2][0] in workers[(hour + 1) % 2] or hour == 0
        year_ago = sealed[max(0, hour - 24 * 365)][1]
        assert year_ago in workers[hour % 2]
    assert len(used) == pytest.approx(25, abs=1)


async def test_servers_that_share_a_state_open_each_others_seals() -> None:
    engines = one, other, alone = [Server("x").engine for _ in range(3)]
    one.state = other.state = SlowState()
    early = [engine.sealer.seal(b"early") for engine in engines]
    await asyncio.gather(*(engine.start() for engine in engines))
    assert one.secrets == other.secrets != alone.secrets
    assert repr(one.secrets) == "<1 hidden>"
    assert other.sealer.open(one.sealer.seal(b"data")) == one.sealer.open(other.sealer.seal(b"data")) == b"data"
    for foreign in (one.sealer.seal(b"data"), early[0], early[1]):
        with pytest.raises(BadSeal):
            alone.sealer.open(foreign)
    assert alone.sealer.open(early[2]) == b"early"
    await asyncio.gather(*(engine.stop() for engine in engines))


async def test_several_users_of_one_server_start_it_at_once() -> None:
    state = SlowState()
    await agree_on_secrets(state, own(b"a"))
    engine = Server("x").engine
    engine.state = state
    await asyncio.gather(*(engine.start() for _ in range(5)))
    assert engine.secrets == (b"a" * 32,)
    await asyncio.gather(*(engine.stop() for _ in range(5)))


async def test_a_configured_secret_is_nobody_elses_business() -> None:
    state = MemoryState()
    engine = Server("x", secret=ONE).engine
    engine.state = state
    await engine.start()
    await engine.stop()
    assert engine.secrets == (ONE.encode(),)
    assert await state.get("secret") is None


async def test_a_server_keeps_its_own_secret_from_one_life_to_the_next() -> None:
    engine = Server("x").engine
    token, sealer = engine.sealer.seal(b"data"), engine.sealer
    for _ in range(2):
        await engine.start()
        assert engine.sealer is sealer
        assert engine.sealer.open(token) == b"data"
        await engine.stop()


async def test_a_state_that_fails_lets_nobody_start() -> None:
    class Broken(MemoryState):
        async def get(self, key: str) -> Entry | None:
            raise ConnectionError("no such host")

    entered: list[Server] = []
    engine = Server("x", lifespan=entered.append).engine  # type: ignore[arg-type]
    engine.state = Broken()
    with pytest.raises(ConnectionError):
        await engine.start()
    assert not entered


async def test_a_page_is_not_kept_longer_than_the_secret_that_signed_it() -> None:
    server = Server("x", secret=ONE, page_size=1)
    for name in ("a", "b"):
        server.add_tool(lambda: "", name=name)
    async with Wire(server, MODERN) as wire:
        cursor = (await wire.ask("tools/list"))["nextCursor"]
        server.engine.secrets = checked_secrets([TWO, ONE], "test")
        fresh = (await wire.ask("tools/list"))["nextCursor"]
        for each in (cursor, fresh):
            assert (await wire.ask("tools/list", {"cursor": each}))["tools"][0]["name"] == "b"
        server.engine.secrets = checked_secrets(TWO, "test")
        assert (await wire.ask("tools/list", {"cursor": fresh}))["tools"][0]["name"] == "b"
        assert (await wire.refusal("tools/list", {"cursor": cursor}))["code"] == -32602


def test_the_sealer_follows_the_secrets() -> None:
    engine = Server("x", secret=ONE).engine
    token = engine.sealer.seal(b"data")
    assert engine.sealer is engine.sealer
    engine.secrets = checked_secrets([TWO, ONE], "test")
    assert engine.sealer.secrets == (TWO.encode(), ONE.encode())
    assert engine.sealer.open(token) == b"data"


FORKS = """
import os
from dovetail import Server

engine = Server("x").engine
if not (child := os.fork()):
    os.write(1, engine.sealer.seal(b"from the child").encode() + b" " + engine.secrets[0].hex().encode())
    os._exit(0)
os.waitpid(child, 0)
os.write(1, b" " + engine.sealer.seal(b"from the parent").encode() + b" " + engine.secrets[0].hex().encode())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_workers_that_are_forked_share_the_random_secret() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True, timeout=60)
    by_child, childs, by_parent, parents = done.stdout.split()
    assert childs == parents
    sealer = Server("x", secret=bytes.fromhex(parents)).engine.sealer
    assert sealer.open(by_child) == b"from the child"
    assert sealer.open(by_parent) == b"from the parent"
