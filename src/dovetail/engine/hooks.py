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
from dovetail.protocol.revisions import LATEST, Revision
from dovetail.protocol.session import Session
from dovetail.registry.registration import did_you_mean

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

Next = Callable[[Any], Awaitable[Any]]
Hook = Callable[[Any, Next], Awaitable[Any]]

BY_METHOD = {
    **{f"{name}/list": f"on_list_{name}" for name in ("tools", "resources", "prompts")},
    "resources/templates/list": "on_list_resource_templates", "resources/read": "on_read_resource",
    "tools/call": "on_call_tool", "prompts/get": "on_get_prompt", "completion/complete": "on_complete",
    "initialize": "on_initialize", "server/discover": "on_discover",
}  # fmt: skip
AROUND_REQUESTS = ("on_message", "on_request")  # from the outside in; within them is the hook of the method
BESIDE_NOTIFICATIONS = ("on_message", "on_notification")
NAMES = ("on_message", "on_request", "on_notification", *BY_METHOD.values())
log = logging.getLogger("dovetail")


class Notification(msgspec.Struct, frozen=True):
    """A notification of the client. Hooks hear of it; they can't hold it back."""

    method: str
    params: Any  # a dict, if the client sent any
    revision: Revision


def add_hooks(engine: "Engine", given: Any) -> None:
    """Register an object with hooks, or a class whose objects need no arguments. Raises SetupError."""
    where = f"server.add_middleware({getattr(given, '__name__', type(given).__name__)})"
    try:
        given = given() if inspect.isclass(given) else given
    except TypeError as problem:
        raise SetupError(f"{where}: {problem}; give it an object of the class") from problem
    names = [name for name in dir(type(given)) if name.startswith("on_") and callable(getattr(type(given), name))]
    hooks = {name: _checked(name, getattr(given, name), where) for name in names}
    if not hooks:
        fix = "or have hooks such as `async def on_call_tool(self, context, call_next)`"
        raise SetupError(f"{where}: it must be `async def m(request, call_next)`, {fix}")
    outer = [hooks[name] for name in AROUND_REQUESTS if name in hooks]
    by_method = {method: [*outer, hooks[name]] for method, name in BY_METHOD.items() if name in hooks}

    async def middleware(request: Request, call_next: CallNext) -> Any:
        return await chain(by_method.get(request.method, outer), call_next)(request)

    if outer or by_method:
        engine.use(middleware)
    engine.notification_hooks += [hooks[name] for name in BESIDE_NOTIFICATIONS if name in hooks]


def _checked(name: str, hook: Any, where: str) -> Hook:
    if name not in NAMES:
        hint = did_you_mean(name, NAMES)
        raise SetupError(f"{where}, {name}: there is no such hook{hint}; known are {', '.join(NAMES)}")
    if not inspect.iscoroutinefunction(hook) or len(inspect.signature(hook).parameters) != 2:
        raise SetupError(f"{where}, {name}: a hook is written `async def {name}(self, context, call_next)`")
    return hook  # type: ignore[no-any-return]


def chain(hooks: Sequence[Hook], inner: Next) -> Next:
    """`inner` with the hooks around it, the first one outermost."""
    if not hooks:
        return inner
    rest = chain(hooks[1:], inner)
    return lambda context: hooks[0](context, rest)


def notify(engine: "Engine", message: jsonrpc.Envelope, session: Session | None) -> None:
    """Run the hooks of a notification in a task of its own, in one of the server's slots."""
    revision = LATEST if session is None else session.revision
    task = asyncio.get_running_loop().create_task(_run(engine, message, revision))
    engine.running_steps.add(task)
    task.add_done_callback(engine.running_steps.discard)


async def _run(engine: "Engine", message: jsonrpc.Envelope, revision: Revision) -> None:
    slots = HeldSlots()
    try:
        notification = Notification(str(message.method), jsonrpc.parse(message.params), revision)
        await engine.limit.acquire()
        slots.held = (engine.limit,)
        await chain(engine.notification_hooks, _nothing)(notification)
    except (Busy, jsonrpc.BadMessage) as failure:
        log.debug("%s is passed over: %s", message.method, failure)
    except Exception:
        log.exception("a hook of %s failed", message.method)
    finally:
        slots.close()


async def _nothing(_: Any) -> None:
    """The end of the chain: the notification is handled already."""
