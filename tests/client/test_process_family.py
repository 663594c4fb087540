"""Servers that a shell or another program has started: nobody of their family is left behind, however it ends."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dovetail.client import Client, process
from dovetail.client.conversation import Conversation
from dovetail.client.family import Family
from process_stage import HELPERS, SERVER, is_there, pid_in, shell

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="who is there is read from /proc")


async def gone(pid: int) -> bool:
    for _ in range(1000):
        if not is_there(pid):
            return True
        await asyncio.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    return False


@pytest.mark.parametrize("helper", HELPERS)
async def test_whatever_it_has_started_ends_with_it(
    tmp_path: Path, helper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LEAVE_SECONDS", 0.3)
    async with Client(shell(tmp_path, helper), protocol_version="2025-06-18"):
        helping = pid_in(tmp_path)
        assert is_there(helping)
    assert await gone(helping)


async def test_a_cancelled_close_ends_all_of_them_at_once(tmp_path: Path) -> None:
    client = Client(shell(tmp_path, "deaf"), protocol_version="2025-06-18")
    await client.open()
    closing = asyncio.ensure_future(client.close())
    await asyncio.sleep(0.1)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert await gone(pid_in(tmp_path))


def test_a_loop_that_ends_has_buried_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is left for the next test's collector to complain of."""
    started: list[Any] = []
    seen = process._Child.connection_made

    def noticed(child: process._Child, transport: Any) -> None:
        started.append(transport.get_extra_info("subprocess"))
        seen(child, transport)

    monkeypatch.setattr(process._Child, "connection_made", noticed)

    async def scenario() -> None:
        client = Client(shell(tmp_path, "deaf"), protocol_version="2025-06-18")
        await client.open()
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0.1)
        closing.cancel()  # and nobody waits for it: the loop cancels it once more, and ends
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert [one.returncode for one in started] == [-signal.SIGKILL]
    assert not caplog.messages  # nobody else has taken the exit code


async def test_a_close_that_is_cancelled_early_still_closes_the_link() -> None:
    closed = asyncio.Event()

    class Counted:
        async def open(self, receiver: Any) -> None: ...
        def write(self, message: bytes) -> None: ...
        async def close(self) -> None:
            closed.set()

    class Nobody:
        def silence(self, reason: str) -> None: ...

    async def slow(direction: str, message: bytes) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    conversation = Conversation(Counted(), Nobody(), slow)  # type: ignore[arg-type]
    conversation.tell("hello")
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(conversation.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert closed.is_set()


def test_a_group_that_is_empty_is_never_signalled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def nobody(group: int, number: int) -> None:
        sent.append(number)
        raise ProcessLookupError

    monkeypatch.setattr(os, "killpg", nobody)
    family = Family(7)
    steps: list[Callable[[], object]] = [family.is_left, family.ask, family.kill]
    assert [step() for step in steps] == [False, None, None]
    assert sent == [0]


async def test_the_child_has_a_group_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    async with Client([sys.executable, str(tmp_path / "server.py")], protocol_version="2025-06-18") as client:
        pid = (await client.request("who"))["pid"]
        assert os.getpgid(pid) == pid != os.getpgid(0)
