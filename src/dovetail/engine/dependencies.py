"""Runs of functions with dependencies: they are entered, the function is called, generators are left in reverse.

Asynchronous dependencies run on the loop, in the task of the call, and end with it. Those of a `def` function that are
`def` themselves run in its thread: there they are left when it returns, even if the call has ended before.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dovetail.engine.context import Context
from dovetail.engine.request_context import RequestContext
from dovetail.engine.threads import CallEnded, call_has_ended, finish_in_thread, wait_in_thread
from dovetail.registry.dependencies import Dependency
from dovetail.registry.functions import Invocation

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

T = TypeVar("T")
Raised = BaseException | None  # by the function, or by a dependency that was left before

NO_VALUE = "ended without a yield; a dependency yields one value"
SECOND_VALUE = "yielded a second time; a dependency yields one value"


def start_with_dependencies(
    engine: "Engine", context: RequestContext, invocation: Invocation, bound: Callable[..., Any], label: str,
    ctx: Context | None,
) -> Coroutine[Any, Any, Any]:  # fmt: skip
    """The running function, which has its arguments and lacks the values of its dependencies."""
    plan = invocation.dependencies
    assert plan is not None
    if engine.dependency_overrides:
        plan = plan.overridden(engine.dependency_overrides)
        ctx = ctx or Context(engine, context, can_wait=invocation.can_wait)
    values: list[Any] = [None] * len(plan.dependencies)
    names = plan.names.items()
    if invocation.is_async:
        scope: Scope = WorkerScope(values, ctx, ctx, {}, engine, label)
        return scope.run(plan.dependencies, lambda: bound(**{name: values[index] for name, index in names}))
    if not invocation.in_thread:
        scope = Scope(values, ctx, ctx and Context(engine, context), {})
        return scope.run(plan.dependencies, partial(scope.call, bound, names))
    loop = asyncio.get_running_loop()

    def in_thread() -> Any:
        scope = ThreadScope(values, ctx, ctx, {}, loop)
        return _run_to_end(scope.run(plan.late, partial(scope.call, bound, names)))

    return Scope(values, ctx, ctx, {}).run(plan.early, partial(engine.threads.run, in_thread, label=label))


def _run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends: all that it waits for blocks this thread."""
    try:
        work.send(None)
    except StopIteration as returned:
        return returned.value  # type: ignore[no-any-return]
    raise RuntimeError("a dependency has suspended in a thread")


class Scope(msgspec.Struct, eq=False):
    """Dependencies that run here, on the loop; those that are `def` block it, as their function does."""

    values: list[Any]  # of all dependencies
    ctx: Context | None  # if one of them takes it
    async_ctx: Context | None  # which can wait, if `ctx` is that of a `def` on the loop
    entered: dict[int, Any]  # generators by the index of their value, until they are left

    async def run(self, dependencies: tuple[Dependency, ...], call: Callable[[], Awaitable[T]]) -> T:
        values = self.values
        try:
            for each in dependencies:
                arguments: dict[str, Any] = {name: values[index] for name, index in each.needs} if each.needs else {}
                if each.context_names:
                    arguments |= dict.fromkeys(each.context_names, self.async_ctx if each.is_async else self.ctx)
                enter = self.enter_async if each.is_async else self.enter
                values[each.index] = await enter(each, arguments)
            value = await call()
        except BaseException as raised:
            if self.entered:
                await self._leave_all(dependencies, raised)
            raise
        if self.entered:
            await self._leave_all(dependencies, None)
        return value

    async def call(self, bound: Callable[..., Any], names: Iterable[tuple[str, int]]) -> Any:
        """Call a `def` function; a decorator may have made it one that returns a coroutine."""
        value = bound(**{name: self.values[index] for name, index in names})
        return await self.wait(value) if inspect.isawaitable(value) else value

    async def _leave_all(self, dependencies: tuple[Dependency, ...], raised: Raised) -> None:
        """Leave all generators, each with the exception that is on its way; raises one that replaces `raised`."""
        failure = raised
        try:
            for each in reversed(dependencies) if self.entered else ():
                if (generator := self.entered.pop(each.index, None)) is not None:
                    frames = None if failure is None else failure.__traceback__
                    try:
                        result = await (self.leave_async if each.is_async else self.leave)(each, generator, failure)
                    except BaseException as error:  # no thread for it, or the call was cancelled meanwhile
                        result = error
                    if result is failure is not None:
                        failure.__traceback__ = frames  # without those of the generator
                    failure = result
            if failure is not raised and failure is not None:
                raise failure
        finally:
            del failure, raised  # whose tracebacks hold this frame

    # ── `def` dependencies ──

    async def enter(self, dependency: Dependency, arguments: dict[str, Any]) -> Any:
        return self._enter(dependency, arguments)

    async def leave(self, dependency: Dependency, generator: Any, raised: Raised) -> Raised:
        return self._leave(dependency, generator, raised)

    def _enter(self, dependency: Dependency, arguments: dict[str, Any]) -> Any:
        made = dependency.function(**arguments)
        if not dependency.is_generator:
            return made
        try:
            value = next(made)
        except StopIteration:
            raise RuntimeError(f"{dependency.name} {NO_VALUE}") from None
        self.entered[dependency.index] = made
        if call_has_ended():  # checked only now: else the call might have left all others before this one was there
            if self.entered.pop(dependency.index, None) is not None:
                self._leave(dependency, made, CallEnded())
            raise CallEnded
        return value

    def _leave(self, dependency: Dependency, generator: Any, raised: Raised) -> Raised:
        """Run what follows the `yield`; returns the exception that goes on from there."""
        try:
            if raised is None:
                next(generator)
            else:
                generator.throw(raised)
        except StopIteration:
            return raised
        except BaseException as error:
            return error
        generator.close()
        return RuntimeError(f"{dependency.name} {SECOND_VALUE}")

    # ── asynchronous dependencies ──

    async def wait(self, work: Awaitable[T]) -> T:
        return await work

    def enter_async(self, dependency: Dependency, arguments: dict[str, Any]) -> Awaitable[Any]:
        made = dependency.function(**arguments)
        return self._first_value(dependency, made) if dependency.is_generator else made

    async def _first_value(self, dependency: Dependency, generator: Any) -> Any:
        try:
            value = await anext(generator)
        except StopAsyncIteration:
            raise RuntimeError(f"{dependency.name} {NO_VALUE}") from None
        self.entered[dependency.index] = generator
        return value

    async def leave_async(self, dependency: Dependency, generator: Any, raised: Raised) -> Raised:
        try:
            await (anext(generator) if raised is None else generator.athrow(raised))
        except StopAsyncIteration:
            return raised
        except BaseException as error:
            return error
        await generator.aclose()
        return RuntimeError(f"{dependency.name} {SECOND_VALUE}")


class WorkerScope(Scope):
    """Dependencies of an `async` function: those that are `def` run in worker threads."""

    engine: "Engine"
    label: str

    async def enter(self, dependency: Dependency, arguments: dict[str, Any]) -> Any:
        return await self.engine.threads.run(partial(self._enter, dependency, arguments), label=self.label)

    async def leave(self, dependency: Dependency, generator: Any, raised: Raised) -> Raised:
        leaving = self.engine.threads.run(partial(self._leave, dependency, generator, raised), label=self.label)
        return await asyncio.shield(leaving)  # else a second cancellation might remove it from the queue


class ThreadScope(Scope):
    """Dependencies in the thread of a `def` function; it waits for the loop to run those that are asynchronous."""

    loop: asyncio.AbstractEventLoop

    async def wait(self, work: Awaitable[T]) -> T:
        return wait_in_thread(lambda: asyncio.run_coroutine_threadsafe(_await(work), self.loop))

    def enter_async(self, dependency: Dependency, arguments: dict[str, Any]) -> Awaitable[Any]:
        return self.wait(super().enter_async(dependency, arguments))

    async def leave_async(self, dependency: Dependency, generator: Any, raised: Raised) -> Raised:
        leaving = super().leave_async(dependency, generator, raised)
        return finish_in_thread(lambda: asyncio.run_coroutine_threadsafe(leaving, self.loop))


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable
