"""Who shares the secrets of a server: processes, workers, and those who come later."""

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from keys_stage import ONE, TWO

from dovetail import Server, SetupError
from dovetail.engine.keys import Secrets, checked_secrets
from dovetail.engine.request_state import BadSeal
from dovetail.engine.secrets import KEY, keep_sharing, shared_secrets
from dovetail.state.memory import MemoryState
from far_state import FarState
from http_serving import until
from wire import MODERN, Wire


@pytest.fixture(autouse=True)
def _no_secret_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOVETAIL_SECRET", raising=False)


def own(letter: bytes) -> Secrets:
    return Secrets([letter * 32])


async def test_who_comes_first_decides() -> None:
    state = MemoryState()
    for each in (b"a", b"b", b"a"):
        assert await shared_secrets(state, own(each)) == own(b"a")


async def test_many_at_once_agree() -> None:
    state = FarState()
    agreed = await asyncio.gather(*(shared_secrets(state, own(bytes([n]))) for n in range(8)))
    assert len(set(agreed)) == 1


async def test_a_store_that_has_forgotten_the_secret_gets_it_back() -> None:
    """If another worker was quicker, its secret seals from then on, and the old one still opens."""
    state, known = FarState(), SimpleNamespace(secrets=own(b"a"))
    known.secrets = await shared_secrets(state, known.secrets)
    keeping = asyncio.create_task(keep_sharing(state, known, seconds=0.001))
    await state.delete(KEY)
    await until(lambda: any(KEY in key for key in state._entries.things))
    assert await shared_secrets(state, own(b"b")) == own(b"a")
    state.break_down()
    await asyncio.sleep(0.01)
    state.trouble = None
    await state.put(KEY, b"c" * 32, ttl=60)
    await until(lambda: len(known.secrets) == 2)
    assert known.secrets == (b"c" * 32, b"a" * 32)
    keeping.cancel()


async def test_a_state_that_holds_something_else_is_refused() -> None:
    state = MemoryState()
    await state.put(KEY, b"hunter2", ttl=10)
    with pytest.raises(SetupError, match="set DOVETAIL_SECRET") as caught:
        await shared_secrets(state, own(b"b"))
    assert "hunter2" not in str(caught.value)


async def test_servers_that_share_a_state_open_each_others_seals() -> None:
    engines = one, other, alone = [Server("x").engine for _ in range(3)]
    one.state = other.state = FarState()
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
    state = FarState()
    await shared_secrets(state, own(b"a"))
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
    assert await state.get(KEY) is None


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
        async def claim(self, key: str, value: bytes, ttl: float) -> bool:
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
