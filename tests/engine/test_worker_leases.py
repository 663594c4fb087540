"""What workers share: the secrets of a server, which are never shown, and the leases that show who is alive."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pprint import pformat
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail import Server, SetupError
from dovetail.engine.options import Options, Secrets, checked_secrets
from dovetail.engine.request_state import BadSeal
from dovetail.engine.workers import (
    SECRET_KEY,
    LeaseTimings,
    WorkerLease,
    keep_secrets_shared,
    shared_secrets,
)
from dovetail.state.memory import MemoryState
from http_serving import until
from remote_state import RemoteState
from wire import MODERN, Wire

ONE, TWO = "the first secret of two", "the second secret of two"


def secrets_of(**options: Any) -> tuple[bytes, ...]:
    return Server("x", **options).engine.secrets


@pytest.fixture(autouse=True)
def _no_secret_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOVETAIL_SECRET", raising=False)


# ── where they come from ──


@pytest.mark.parametrize(
    ("given", "secrets"),
    [
        (ONE.encode(), [ONE]),
        ((TWO.encode(), ONE), [TWO, ONE]),
        ([ONE, ONE.encode(), TWO], [ONE, TWO]),
        ("with, commas and blanks", ["with, commas and blanks"]),
        ("é" * 8, ["é" * 8]),  # 16 bytes
    ],
    ids=str,
)
def test_one_secret_or_several(given: Any, secrets: list[str]) -> None:
    assert secrets_of(secret=given) == tuple(secret.encode() for secret in secrets)


@pytest.mark.parametrize("divided", [f"{ONE}, {TWO}", f"{ONE} {TWO}", f"  {ONE},,{TWO}\n"])
def test_the_environment_may_hold_several(divided: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = divided.replace(ONE, ONE.replace(" ", "-")).replace(TWO, TWO.replace(" ", "-"))
    monkeypatch.setenv("DOVETAIL_SECRET", text)
    assert secrets_of() == (b"the-first-secret-of-two", b"the-second-secret-of-two")
    assert secrets_of(secret=TWO) == (TWO.encode(),)


def test_without_any_there_is_a_random_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_SECRET", "")
    made = {secrets_of() for _ in range(5)}
    assert len(made) == 5
    assert {(len(secrets), len(secrets[0])) for secrets in made} == {(1, 32)}


# ── what is refused, and not shown ──


WRONG: dict[str, list[Any]] = {
    "secret must be at least 16 bytes": ["hunter2", "", b"hunter2", [ONE, "hunter2"]],
    "secret must be": [[], None, 5, {"hunter2": ONE}, bytearray(b"hunter2 hunter2 hunter2"), [[ONE]]],
    "surrogate": ["hunter2 hunter2 \ud800"],
}


@pytest.mark.parametrize(("given", "words"), [(each, words) for words in WRONG for each in WRONG[words]], ids=ascii)
def test_a_wrong_secret_is_refused_and_not_shown(given: Any, words: str) -> None:
    with pytest.raises(SetupError) as caught:
        secrets_of(secret=given)
    message = str(caught.value)
    assert message.startswith("Server: secret ")
    assert words in message
    assert not any(secret in message for secret in ("hunter2", "first secret"))
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize("text", ["hunter2", f"hunter2,{ONE}", " ", ",", "hunter2 \udcff"], ids=ascii)
def test_a_wrong_variable_is_refused_by_its_name(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_SECRET", text)
    with pytest.raises(SetupError, match=r"^DOVETAIL_SECRET ") as caught:
        Server("x")
    assert "hunter2" not in str(caught.value)


def test_secrets_are_not_printed() -> None:
    server = Server("x", secret=[ONE, TWO])
    sealer = server.engine.sealer
    assert sealer.open(sealer.seal(b"data")) == b"data"
    held = [
        server.engine.secrets,
        server.engine.options,
        Options.from_keywords({"secret": ONE}),
        server,
        sealer,
        vars(sealer),
    ]
    for thing in held:
        shown = f"{thing} {thing!r} {[thing]} {pformat(thing)}"
        assert "secret of two" not in shown, type(thing)
    assert repr(Secrets([b"x"])) == "<1 hidden>"


def own(letter: bytes) -> Secrets:
    return Secrets([letter * 32])


async def test_who_comes_first_decides() -> None:
    state = MemoryState()
    for each in (b"a", b"b", b"a"):
        assert await shared_secrets(state, own(each)) == own(b"a")
    remote = RemoteState()
    assert len(set(await asyncio.gather(*(shared_secrets(remote, own(bytes([n]))) for n in range(8))))) == 1


async def test_a_store_that_has_forgotten_the_secret_gets_it_back() -> None:
    """If another worker was quicker, its secret seals from then on, and the old one still opens."""
    state, known = RemoteState(), SimpleNamespace(secrets=own(b"a"))
    known.secrets = await shared_secrets(state, known.secrets)
    keeping = asyncio.create_task(keep_secrets_shared(state, known, interval=0.001))
    await state.delete(SECRET_KEY)
    await until(lambda: any(SECRET_KEY in key for key in state._entries.rows))
    assert await shared_secrets(state, own(b"b")) == own(b"a")
    state.break_down()
    await asyncio.sleep(0.01)
    state.error = None
    await state.put(SECRET_KEY, b"c" * 32, ttl=60)
    await until(lambda: len(known.secrets) == 2)
    assert known.secrets == (b"c" * 32, b"a" * 32)
    keeping.cancel()


async def test_a_state_that_holds_something_else_is_refused() -> None:
    state = MemoryState()
    await state.put(SECRET_KEY, b"hunter2", ttl=10)
    with pytest.raises(SetupError, match="set DOVETAIL_SECRET") as caught:
        await shared_secrets(state, own(b"b"))
    assert "hunter2" not in str(caught.value)


async def test_servers_that_share_a_state_open_each_others_seals() -> None:
    engines = one, other, alone = [Server("x").engine for _ in range(3)]
    one.state = other.state = RemoteState()
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


async def test_a_configured_secret_is_not_shared() -> None:
    state = MemoryState()
    engine = Server("x", secret=ONE).engine
    engine.state = state
    await engine.start()
    await engine.stop()
    assert engine.secrets == (ONE.encode(),)
    assert await state.get(SECRET_KEY) is None


async def test_a_state_that_fails_lets_no_worker_start() -> None:
    async def fails(_name: str) -> None:
        raise ConnectionError("no such host")

    entered: list[Server] = []
    engine = Server("x", lifespan=entered.append).engine  # type: ignore[arg-type]
    engine.state = state = RemoteState()
    state.travel = fails  # type: ignore[method-assign]
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


# ── leases ──


class Clocked(RemoteState):
    """Its time is the test's."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(clock=lambda: self.now)


@asynccontextmanager
async def living(state: Clocked) -> AsyncIterator[WorkerLease]:
    worker = WorkerLease(state, LeaseTimings(lease=10, renew_every=0.001))
    worker.start()
    await until(lambda: worker.store_error is None)
    yield worker
    await worker.stop()


async def test_one_that_lives_is_not_lost_and_one_that_has_stopped_or_was_killed_is() -> None:
    state = Clocked()
    other = WorkerLease(state)
    async with living(state) as worker:
        for _ in range(10):
            state.now += 9
            touched = state.calls["touch"]
            await until(lambda touched=touched: state.calls["touch"] > touched + 1)
            assert not await other.is_lost(worker.id)
        assert await other.is_alive(worker.id)
    assert await other.is_lost(worker.id)
    assert not await other.is_lost(other.id)
    await state.put("worker/killed", b"", ttl=10)
    for seconds, is_lost in ((9.9, False), (0.2, True)):
        state.now += seconds
        assert await other.is_lost("killed") is is_lost
    alone = WorkerLease(MemoryState())  # which no process shares
    alone.start()
    assert (await alone.is_lost("gone"), await alone.is_lost(alone.id)) == (True, False)
    await alone.stop()


async def test_after_an_outage_a_worker_declares_no_other_lost_for_one_lease() -> None:
    state = Clocked()
    other = WorkerLease(state, LeaseTimings(lease=0.2))
    assert await other.is_lost("gone")
    state.outages += 1
    assert not await other.is_lost("gone")
    async with asyncio.timeout(5):
        while not await other.is_lost("gone"):  # noqa: ASYNC110  # time is what it waits for
            await asyncio.sleep(0.01)


async def test_an_error_of_the_store_is_known_without_asking_it() -> None:
    state = Clocked()
    async with living(state) as worker:
        state.break_down()
        await until(lambda: worker.store_error is not None)
        state.now += 11  # the lease is gone meanwhile
        state.error = None
        await until(lambda: worker.store_error is None)
        assert await WorkerLease(state).is_alive(worker.id)
