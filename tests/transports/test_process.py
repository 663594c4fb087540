"""The process around a server: what `asyncio.to_thread` may take of it."""

import asyncio
import threading
from functools import partial

from dovetail.engine.threads import ThreadPool
from dovetail.errors import ToolBusy
from dovetail.transports.process import run_process

WAIT = 10.0


def test_one_function_that_hangs_leaves_threads_to_the_others_of_to_thread() -> None:
    begun, go = threading.Semaphore(0), threading.Event()
    refusals: list[str] = []
    lengths: list[int] = []

    def hang() -> None:
        begun.release()
        go.wait(WAIT)

    async def abandon() -> None:
        call = asyncio.create_task(asyncio.to_thread(hang))
        while not (begun.acquire(blocking=False) or call.done()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        call.cancel()
        try:
            await call
        except ToolBusy as refusal:
            refusals.append(str(refusal))
        except asyncio.CancelledError:
            pass

    async def main() -> None:
        try:
            for _ in range(200):
                await abandon()
            lengths.append(await asyncio.to_thread(len, "abc"))
            lengths.append(await asyncio.get_running_loop().run_in_executor(None, partial(len, "ab")))
        finally:
            go.set()

    run_process(main, ThreadPool())
    assert lengths == [3, 2]
    assert len(refusals) == 200 - 32
    assert "hang given to asyncio.to_thread is busy" in refusals[0]
