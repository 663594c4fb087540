"""Tasks that begin at once: what ends without waiting costs neither a task of its own nor a turn of the loop.

In: coroutines, each with the context to run in. Out: they run, and `asyncio.current_task()` is a real task for them.
Since 3.12 asyncio does that by itself. Before, a spare task is lent for first steps, and kept by the first who waits.
"""

import asyncio
import sys
import types
from asyncio.tasks import _enter_task, _leave_task  # documented, in spite of their names, for who steps by himself
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any

Work = Coroutine[Any, Any, None]


class EagerTasks:
    """Begins coroutines at once where that can be, else when the loop turns."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._spare: SpareTask | None = None

    if sys.version_info >= (3, 12):

        def begin(self, work: Work, context: Context) -> None:
            asyncio.Task(work, loop=self._loop, context=context, eager_start=True)

    else:

        def begin(self, work: Work, context: Context) -> None:
            spare = self._spare
            if spare is None or spare.kept.done():
                self._spare = SpareTask(self._loop)
            elif spare.has_begun and asyncio.current_task(self._loop) is None:
                if spare.lend(work, context):
                    self._spare = None
                return
            self._loop.create_task(work, context=context)

    def close(self) -> None:
        """Nothing more will begin."""
        if self._spare is not None:
            self._spare.kept.cancel()


class SpareTask:
    """Is lent to one coroutine after the other, each for its first step. The first that waits keeps it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.has_begun = False
        self.kept: asyncio.Future[None] = loop.create_future()  # cancelled with the task, if somebody does that
        self._loop = loop
        self._work: Work | None = None
        self._context = Context()
        self._waited_for: Any = None
        self._task = loop.create_task(self._live(), context=self._context)

    def lend(self, work: Work, context: Context) -> bool:
        """Make the first step of `work`; tells whether it keeps the task. No other task may be running."""
        _enter_task(self._loop, self._task)
        try:
            self._waited_for = context.run(work.send, None)
        except (StopIteration, asyncio.CancelledError):
            return False
        except (SystemExit, KeyboardInterrupt):  # these end the loop, from wherever
            raise
        except BaseException as failure:
            self._loop.call_exception_handler({"message": "A task failed in its first step", "exception": failure})
            return False
        finally:
            _leave_task(self._loop, self._task)
        self._work, self._context = work, context
        if not self.kept.done():
            self.kept.set_result(None)
        return True

    async def _live(self) -> None:
        self.has_begun = True
        cancelled: asyncio.CancelledError | None = None
        try:
            await self.kept
        except asyncio.CancelledError as error:
            cancelled = error
        if self._work is not None:
            await self._go_on(self._work, cancelled)
        elif cancelled is not None:
            raise cancelled

    @types.coroutine
    def _go_on(self, work: Work, cancelled: asyncio.CancelledError | None) -> Generator[Any, Any, None]:
        """The other steps, as if `work` had begun in this task.

        Who was cancelled since the first one hears it as from any task: by way of what he waits for, if that can be.
        """
        waited_for, self._waited_for = self._waited_for, None
        waits = cancelled is None or (waited_for is not None and waited_for.cancel(*cancelled.args))
        step: Callable[[Any], Any] = work.throw
        value: object = cancelled
        try:
            while True:
                if waits:
                    try:
                        value = yield waited_for
                        step = work.send
                    except BaseException as error:
                        value = error
                        step = work.throw
                waited_for = self._context.run(step, value)
                waits = True
        except StopIteration:
            return
        finally:
            value = cancelled = None  # their tracebacks hold this frame
