"""Middleware as a class: hooks around single methods, all requests, all messages, and beside notifications."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dovetail.engine.concurrency import HeldSlots
from dovetail.engine.dispatch import CallNext
from dovetail.errors import Busy, SetupError
from dovetail.protocol import jsonrpc
from dovetail.protocol.inbound import Request
from dovetail.protocol.jsonrpc import BadMessage, Envelope
from dovetail.protocol.revisions import Revision
from dovetail.registry.registration import did_you_mean

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

Next = Callable[[Any], Awaitable[Any]]
Hook = Callable[[Any, Next], Awaitable[Any]]

BY_METHOD = {
    "initialize": "on_initialize",
    "server/discover": "on_discover",
    "tools/list": "on_list_tools",
    "tools/call": "on_call_tool",
    "resources/list": "on_list_resources",
    "resources/templates/list": "on_list_resource_templates",
    "resources/read": "on_read_resource",
    "prompts/list": "on_list_prompts",
    "prompts/get": "on_get_prompt",
    "completion/complete": "on_complete",
}
AROUND_REQUESTS = ("on_message", "on_request")  # from the outside in; within them is the hook of the method
BESIDE_NOTIFICATIONS = ("on_message", "on_notification")
NAMES = ("on_message", "on_request", "on_notification", *BY_METHOD.values())
EXAMPLE = "async def on_call_tool(self, context, call_next)"
log = logging.getLogger("dovetail")


class Notification(msgspec.Struct, frozen=True):
    """A notification of the client. Hooks hear of it; they can't hold it back."""

    method: str
    params: Any  # a dict, if the client sent any
    revision: Revision


def add_hooks(engine: "Engine", given: Any) -> None:
    """Register an object with hooks, or a class whose objects need no arguments. Raises SetupError."""
    where = f"server.add_middleware({getattr(given, '__name__', type(given).__name__)})"
    if inspect.isclass(given):
        try:
            given = given()
        except TypeError as problem:
            raise SetupError(f"{where}: {problem}; give it an object of the class") from None
    names = [name for name in dir(type(given)) if name.startswith("on_") and callable(getattr(type(given), name))]
    hooks = {name: getattr(given, name) for name in names}
    for name, hook in hooks.items():
        _check(name, hook, f"{where}, {name}")
    if not hooks:
        raise SetupError(f"{where}: it must be `async def m(request, call_next)`, or have hooks such as `{EXAMPLE}`")
    outer = [hooks[name] for name in AROUND_REQUESTS if name in hooks]
    by_method = {method: [*outer, hooks[name]] for method, name in BY_METHOD.items() if name in hooks}

    async def middleware(request: Request, call_next: CallNext) -> Any:
        return await _chain(by_method.get(request.method, outer), call_next)(request)

    if outer or by_method:
        engine.use(middleware)
    engine.notification_hooks += [hooks[name] for name in BESIDE_NOTIFICATIONS if name in hooks]


def _check(name: str, hook: Any, where: str) -> None:
    if name not in NAMES:
        raise SetupError(f"{where}: there is no such hook{did_you_mean(name, NAMES)}; known are {', '.join(NAMES)}")
    try:
        inspect.signature(hook).bind(None, None)
    except TypeError:
        raise SetupError(f"{where}: a hook takes the context and call_next; write `{EXAMPLE}`") from None
    if not inspect.iscoroutinefunction(hook):
        raise SetupError(f"{where}: a hook must be async; write `{EXAMPLE}`")


def _chain(hooks: Sequence[Hook], inner: Next) -> Next:
    """`inner` with the hooks around it, the first one outermost."""
    for hook in reversed(hooks):
        inner = _bound(hook, inner)
    return inner


def _bound(hook: Hook, inner: Next) -> Next:
    return lambda context: hook(context, inner)


def notify(engine: "Engine", message: Envelope, revision: Revision) -> None:
    """Run the hooks of a notification in a task of its own, in one of the server's slots."""
    try:
        params = jsonrpc.parse(message.params)
    except BadMessage:
        params = None
    notification = Notification(str(message.method), params, revision)

    async def run() -> None:
        try:
            await engine.limit.acquire()
            slots = HeldSlots((engine.limit,))
            try:
                await _chain(engine.notification_hooks, _nothing)(notification)
            finally:
                slots.close()
        except Busy as failure:
            log.debug("%s is passed over: %s", notification.method, failure)
        except Exception:
            log.exception("a hook of %s failed", notification.method)

    task = asyncio.get_running_loop().create_task(run())
    engine.running_steps.add(task)
    task.add_done_callback(engine.running_steps.discard)


async def _nothing(_: Any) -> None:
    """The end of the chain: the notification is handled already."""
