"""Runs of functions with dependencies: they are entered, the function is called, generators are left in reverse.

Asynchronous dependencies run on the loop, in the task of the call, and end with it. Those of a `def` function that are
`def` themselves run in its thread: there they are left when it returns, even if the call has ended before.
"""

import asyncio
import inspect
import types
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from dovetail.engine.call_tool import is_cancelled
from dovetail.engine.context import Context
from dovetail.engine.request_context import RequestContext, threads_of
from dovetail.engine.threads import CallEnded, ThreadPool, call_has_ended, wait_in_thread
from dovetail.errors import Busy
from dovetail.registry.dependencies import Dependency, Filled, Node, Plan, replaced
from dovetail.registry.functions import Invocation

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

Raised = BaseException | None  # by the function, or by a dependency that was left before

NO_VALUE = object()
LEAVE_TIMEOUT = 5.0  # seconds that a cancelled call waits for the end of a generator in a thread


def start_with_dependencies(
    engine: "Engine", context: RequestContext, invocation: Invocation, plan: Plan, call: "partial[Any]", label: str,
    ctx: Context | None,
) -> Coroutine[Any, Any, Any]:  # fmt: skip
    """The running function; `call` has its arguments and gets the values of its dependencies."""
    if engine.dependency_overrides:
        plan = Plan.compile(replaced(plan.nodes, engine.dependency_overrides, label, Context))
    if ctx is None and plan.takes_context:
        ctx = engine.context_class(engine, context, can_wait=invocation.is_async or invocation.in_thread)
    can_wait = ctx is None or invocation.is_async or invocation.in_thread
    async_ctx = ctx if can_wait else engine.context_class(engine, context)
    values = [*[None] * len(plan.dependencies), async_ctx, ctx]  # `ASYNC_CONTEXT` is the first one
    if not invocation.in_thread:
        workers = engine.threads if invocation.is_async else None
        return Scope(values, plan.fills, label, workers).run(plan.dependencies, call)
    scope = Scope(values, plan.fills, label, loop=asyncio.get_running_loop())
    run = scope.run_plain if plan.is_plain else lambda *work: _run_to_end(scope.run(*work))
    in_thread = partial(threads_of(engine, context).run, partial(run, plan.late, call), label=label)
    return Scope(values, (), label).run(plan.early, in_thread) if plan.early else in_thread()


def _run_to_end(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never suspends: all that it waits for blocks this thread."""
    try:
        work.send(None)
    except StopIteration as returned:
        return returned.value
    raise RuntimeError("a dependency has suspended in a thread")


class Scope(msgspec.Struct, eq=False):
    """Dependencies from when they are entered until they are left, and where that happens."""

    values: list[Any]  # of all dependencies, and the Context
    fills: Filled  # the parameters of the function itself
    label: str
    workers: ThreadPool | None = None  # run those that are `def`, else they run here
    loop: asyncio.AbstractEventLoop | None = None  # runs those that are asynchronous, else they run here
    entered: dict[int, Any] = {}  # generators by the index of their value, until they are left

    async def run(self, dependencies: tuple[Dependency, ...], call: "partial[Any]") -> Any:
        values = self.values
        try:
            for each in dependencies:
                node = each.node
                arguments: dict[str, Any] = {name: values[index] for name, index in each.needs} if each.needs else {}
                if node.is_async:
                    made = node.function(**arguments)
                    work = self._enter_async(each, made) if node.is_generator else made
                    value = await work if self.loop is None else wait_in_thread(work, self.loop)
                elif self.workers is None:
                    value = self._enter(each, arguments)
                else:
                    value = await self.workers.run(partial(self._enter, each, arguments), label=self.label)
                if type(value) is types.CoroutineType and not node.is_generator:  # an `async def` behind a decorator
                    value = await value if self.loop is None else wait_in_thread(value, self.loop)
                values[each.index] = value
            for name, index in self.fills:
                call.keywords[name] = values[index]
            value = call()
            if inspect.isawaitable(value):  # also of a `def`: a decorator may have made it of an `async def`
                value = await value if self.loop is None else wait_in_thread(value, self.loop)
            if self.loop is not None and call_has_ended():  # the client was told that it failed: nothing may commit
                raise CallEnded
        except BaseException as raised:
            if self.entered:
                await self._leave_all(dependencies, raised)
            raise
        if self.entered:
            await self._leave_all(dependencies, None)
        return value

    def run_plain(self, dependencies: tuple[Dependency, ...], call: "partial[Any]") -> Any:
        """`run` in the thread of a function, without generators, and so with nothing to leave."""
        values, loop = self.values, self.loop
        assert loop is not None
        for each in dependencies:
            value = each.node.function(**{name: values[index] for name, index in each.needs})
            if type(value) is types.CoroutineType:  # an `async def` behind a decorator
                value = wait_in_thread(value, loop)
            values[each.index] = value
            if call_has_ended():
                raise CallEnded
        for name, index in self.fills:
            call.keywords[name] = values[index]
        value = call()
        return wait_in_thread(value, loop) if inspect.isawaitable(value) else value

    def _enter(self, each: Dependency, arguments: dict[str, Any]) -> Any:
        value = made = each.node.function(**arguments)
        if each.node.is_generator:
            value = self._entered(each, made, next(made, NO_VALUE))
        if call_has_ended():  # checked only now: else the call might have left all others before this one was there
            if self.entered.pop(each.index, None) is not None:
                _run_to_end(_leave(each.node, made, CallEnded()))
            raise CallEnded
        return value

    async def _enter_async(self, each: Dependency, generator: Any) -> Any:
        return self._entered(each, generator, await anext(generator, NO_VALUE))

    def _entered(self, each: Dependency, generator: Any, value: Any) -> Any:
        if value is NO_VALUE:
            raise RuntimeError(f"{each.node.name} ended without a yield; a dependency yields one value")
        self.entered[each.index] = generator
        return value

    async def _leave_all(self, dependencies: tuple[Dependency, ...], raised: Raised) -> None:
        """Leave all generators, each with the exception that is on its way; raises one that replaces `raised`."""
        failure, frames = raised, None if raised is None else raised.__traceback__
        try:
            for each in reversed(dependencies):
                if (generator := self.entered.pop(each.index, None)) is not None:
                    try:
                        failure = await self._leave(each, generator, failure)
                    except BaseException as error:  # the call was cancelled meanwhile
                        failure = error
            if raised is not None:
                raised.__traceback__ = frames  # without those of the generators
            if failure is not raised and failure is not None:
                raise failure
        finally:
            del failure, raised  # whose tracebacks hold this frame

    async def _leave(self, each: Dependency, generator: Any, raised: Raised) -> Raised:
        node = each.node
        if node.is_async and self.loop is not None:
            return wait_in_thread(_leave(node, generator, raised), self.loop, to_the_end=True)
        if node.is_async or self.workers is None:
            return await _leave(node, generator, raised)
        begun: list[bool] = []

        def leave() -> Any:
            begun.append(True)
            return _run_to_end(_leave(node, generator, raised))

        leaving = asyncio.ensure_future(self.workers.run(leave, label=self.label, must_run=True))
        cancelled: asyncio.CancelledError | None = None
        try:  # those that this one needs are left after it, unless it hangs
            await asyncio.wait([leaving], timeout=LEAVE_TIMEOUT if is_cancelled() else None)
        except asyncio.CancelledError as error:
            cancelled = error
            await asyncio.wait([leaving], timeout=LEAVE_TIMEOUT)
        if leaving.done() and isinstance(leaving.exception(), Busy):
            raised = leave()  # no thread can be had: better block the loop than never run it
        elif leaving.done():
            raised = leaving.result()
        elif begun:
            leaving.cancel()  # it is stuck, and holds no slot any more
        if cancelled is not None:
            raise cancelled
        return raised


async def _leave(node: Node, generator: Any, raised: Raised) -> Raised:
    """Run what follows the `yield`; returns the exception that goes on from there."""
    ended = StopAsyncIteration if node.is_async else StopIteration
    try:
        if node.is_async:
            await (anext(generator) if raised is None else generator.athrow(raised))
        elif raised is None:
            next(generator)
        else:
            generator.throw(raised)
    except ended:
        return raised
    except BaseException as error:
        return error
    return RuntimeError(f"{node.name} yielded a second time; a dependency yields one value")
