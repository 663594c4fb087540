"""Runs of functions with dependencies: these are entered, the function is called, and generators are left in reverse.

Asynchronous dependencies run on the loop, in the task of the call, and end with the call. A `def` one runs in the thread
of its function: it is left there when the function returns, also if the call has ended long before.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dovetail.engine.context import Context
from dovetail.engine.request_context import RequestContext
from dovetail.engine.threads import CallEnded, call_has_ended, finish_in_thread
from dovetail.registry.dependencies import Dependency
from dovetail.registry.functions import Invocation

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

T = TypeVar("T")


async def call_with_dependencies(
    engine: "Engine",
    context: RequestContext,
    invocation: Invocation,
    bound: Callable[..., Any],
    label: str,
    ctx: Context,
) -> Any:
    """Call a function that has its arguments already, with the values of its dependencies."""
    plan = invocation.dependencies
    assert plan is not None
    if engine.dependency_overrides:
        plan = plan.overridden(engine.dependency_overrides)
    values: list[Any] = [None] * len(plan.dependencies)

    async def call(scope: Scope) -> Any:
        value = bound(**{name: values[index] for name, index in plan.names.items()})
        return await scope.wait(value) if invocation.is_async or inspect.isawaitable(value) else value

    def in_thread() -> Any:
        return _run_to_end(ThreadScope(engine, label, values, ctx, ctx).run(plan.late, call))

    if invocation.is_async:
        return await WorkerScope(engine, label, values, ctx, ctx).run(plan.dependencies, call)
    if invocation.in_thread:
        scope = Scope(engine, label, values, ctx, ctx)
        return await scope.run(plan.early, lambda _: engine.threads.run(in_thread, label=label))
    return await Scope(engine, label, values, ctx, Context(engine, context)).run(plan.dependencies, call)


def _run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends: all that it waits for blocks this thread."""
    try:
        work.send(None)
    except StopIteration as returned:
        return returned.value  # type: ignore[no-any-return]
    raise RuntimeError("a dependency has suspended in a thread")


class Scope:
    """Dependencies that run here, on the loop; those that are `def` block it, as their function does."""

    def __init__(
        self, engine: "Engine", label: str, values: list[Any], ctx: Context, async_ctx: Context
    ) -> None:  # fmt: skip
        self.engine = engine
        self.label = label
        self.values = values
        self.ctx = ctx
        self.async_ctx = async_ctx  # which can wait, if `ctx` is that of a `def` on the loop
        self.entered: dict[int, Any] = {}  # generators, by the index of their value; whoever takes one leaves it

    async def run(self, dependencies: tuple[Dependency, ...], call: "Callable[[Scope], Awaitable[T]]") -> T:
        try:
            for each in dependencies:
                arguments = {name: self.values[index] for name, index in each.needs}
                if each.is_async:
                    arguments.update(dict.fromkeys(each.context_names, self.async_ctx))
                    self.values[each.index] = await self.enter_async(each, arguments)
                else:
                    arguments.update(dict.fromkeys(each.context_names, self.ctx))
                    self.values[each.index] = await self.enter(each, arguments)
            value = await call(self)
        except BaseException as raised:
            await self._leave_all(dependencies, raised)
            raise
        await self._leave_all(dependencies, None)
        return value

    async def _leave_all(self, dependencies: tuple[Dependency, ...], raised: BaseException | None) -> None:
        """Leave all generators, each with the exception that is on its way; raises it if it is another than `raised`."""
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

    async def leave(self, dependency: Dependency, generator: Any, raised: BaseException | None) -> BaseException | None:
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

    def _leave(self, dependency: Dependency, generator: Any, raised: BaseException | None) -> BaseException | None:
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

    async def enter_async(self, dependency: Dependency, arguments: dict[str, Any]) -> Any:
        made = dependency.function(**arguments)
        if not dependency.is_generator:
            return await made
        try:
            value = await anext(made)
        except StopAsyncIteration:
            raise RuntimeError(f"{dependency.name} {NO_VALUE}") from None
        self.entered[dependency.index] = made
        return value

    async def leave_async(
        self, dependency: Dependency, generator: Any, raised: BaseException | None
    ) -> BaseException | None:
        try:
            await (anext(generator) if raised is None else generator.athrow(raised))
        except StopAsyncIteration:
            return raised
        except BaseException as error:
            return error
        await generator.aclose()
        return RuntimeError(f"{dependency.name} {SECOND_VALUE}")


NO_VALUE = "ended without a yield; a dependency yields one value"
SECOND_VALUE = "yielded a second time; a dependency yields one value"


class WorkerScope(Scope):
    """Dependencies of an `async` function: those that are `def` run in worker threads."""

    async def enter(self, dependency: Dependency, arguments: dict[str, Any]) -> Any:
        return await self.engine.threads.run(partial(self._enter, dependency, arguments), label=self.label)

    async def leave(self, dependency: Dependency, generator: Any, raised: BaseException | None) -> BaseException | None:
        leaving = self.engine.threads.run(partial(self._leave, dependency, generator, raised), label=self.label)
        return await asyncio.shield(leaving)  # else a second cancellation might remove it from the queue


class ThreadScope(Scope):
    """Dependencies in the thread of a `def` function; it waits for the loop to run those that are asynchronous."""

    async def wait(self, work: Awaitable[T]) -> T:
        return self.ctx.wait(work)

    async def enter_async(self, dependency: Dependency, arguments: dict[str, Any]) -> Any:
        return await self.wait(super().enter_async(dependency, arguments))

    async def leave_async(
        self, dependency: Dependency, generator: Any, raised: BaseException | None
    ) -> BaseException | None:
        return finish_in_thread(partial(self.ctx.wait, super().leave_async(dependency, generator, raised)))
