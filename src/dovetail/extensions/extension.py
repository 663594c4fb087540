"""`Extension`: settings that a server declares, and plain functions as methods and notifications of its own."""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from dovetail import engine as lazy
from dovetail.engine.context import Context
from dovetail.engine.handlers import Handler, call_in_slot
from dovetail.engine.request_context import RequestContext
from dovetail.errors import INVALID_PARAMS, ArgumentError, ProtocolError, SetupError
from dovetail.protocol import extensions, jsonrpc
from dovetail.protocol.capabilities import require_capabilities
from dovetail.protocol.headers import Headers
from dovetail.protocol.inbound import Request
from dovetail.protocol.jsonrpc import UNREADABLE, Envelope, members
from dovetail.protocol.methods import EVERY, NOTIFICATIONS, REQUESTS, Method, Params
from dovetail.protocol.results import CacheHint, Result, Shaper
from dovetail.protocol.revisions import Revision
from dovetail.protocol.session import Session
from dovetail.registry.arguments import Arguments
from dovetail.registry.functions import Invocation, inspect_function
from dovetail.schema.encode import OutputError, encode_json

if TYPE_CHECKING:
    from dovetail.auth.principal import Principal
    from dovetail.engine.engine import Engine

Functions = Mapping[str, Callable[..., Any]]
EXAMPLES = {"methods": "com.example/find", "notifications": "notifications/com.example/changed"}
CORE = frozenset(row.name for row in (*REQUESTS, *NOTIFICATIONS))
METHOD = re.compile("(?!rpc[.])[!-~]{1,200}")  # which fits into a header of HTTP
log = logging.getLogger("dovetail")


class Extension(msgspec.Struct, frozen=True):
    """An extension of the protocol, for `server.add_extension`.

    server.add_extension(Extension("com.example/notes", {"maxLength": 500}, methods={"com.example/notes/find": find}))

    The functions are written as tools are: their parameters are the params of the request, they may take a `Context`
    and `Depends`, and what they return is the result, an object or None. With `declared_only=True` they are there only
    for clients that declare the extension.
    """

    id: str
    settings: Mapping[str, Any] = {}
    methods: Functions = {}
    notifications: Functions = {}  # from the client; they return nothing
    declared_only: bool = False


class ExtensionResult(msgspec.Struct, frozen=True):
    """The result of an extension's method, perhaps one that clients may cache."""

    fields: Mapping[str, Any]
    hint: CacheHint | None = None

    def encode(self, shaper: Shaper) -> bytes:
        if self.hint is not None:
            return shaper.cacheable({**self.fields}, self.hint)
        return shaper.body(self.fields, self.fields.get("_meta"))


def add_extension(engine: "Engine", extension: Extension) -> None:
    """Add an extension of the author's own. Raises SetupError."""
    where = "server.add_extension"
    if not isinstance(extension, Extension):
        raise SetupError(f'{where}({extension!r:.100}): give it an Extension("com.example/name", …)')
    declared = extensions.DeclaredExtension(extensions.checked_extension(extension.id, extension.settings, where))
    rows: dict[str, tuple[Method, Handler]] = {}
    for kind, functions in (("methods", extension.methods), ("notifications", extension.notifications)):
        if not isinstance(functions, Mapping):
            raise SetupError(f"{where}: {kind}= of {extension.id} must be a dict of functions by their methods")
        for name, function in functions.items():
            if not _is_name(name, kind):
                fix = f'use a name of your own in printable ASCII without spaces, such as "{EXAMPLES[kind]}"'
                raise SetupError(f"{where}: {kind}= has {name!r:.100}; {fix}")
            rows[name] = Method(name, EVERY, is_authors=True), _compile(extension, name, function)
    if doubled := sorted(engine.notifications.keys() & rows.keys()):
        raise SetupError(f"{where}: another extension has the method {doubled[0]} already")
    receivers = {name: partial(_receive, engine, *rows.pop(name)) for name in extension.notifications}
    engine.add_extension(extension.id, declared, rows, where)
    engine.notifications.update(receivers)


def _is_name(name: object, kind: str) -> bool:
    if not isinstance(name, str) or not METHOD.fullmatch(name) or name in CORE:
        return False
    return name.startswith("notifications/") == (kind == "notifications")


def _compile(extension: Extension, name: str, function: Callable[..., Any]) -> Handler:
    """The handler of a method. Params that the function does not have are passed over: newer clients may send them."""
    info = inspect_function(function, kind="method", injectable=Context, name=name)
    arguments, invocation = Arguments(info), Invocation.from_info(info, {})
    names = {parameter.name for parameter in info.parameters}

    async def handler(engine: "Engine", context: RequestContext) -> Result:
        if extension.declared_only:
            require_capabilities([extension.id], context.request.capabilities)
        if engine.options.rate_limit:
            await lazy.rate_limits.count_request(engine, context)
        params = members(context.request.raw_params)
        try:
            given = arguments.decode(Raw(jsonrpc.encode({key: params[key] for key in params.keys() & names})))
        except ArgumentError as failure:
            raise ProtocolError(str(failure), code=INVALID_PARAMS, data={"errors": failure.problems}) from None
        result: Result = await call_in_slot(engine, context, invocation, given, f"method {name}", _to_result)
        return result

    return handler


def _receive(
    engine: "Engine", row: Method, handler: Handler, message: Envelope, revision: Revision,
    session: Session | None = None, principal: "Principal | None" = None, headers: Headers | None = None,
) -> None:  # fmt: skip
    """Run the function of a notification in a task of its own, in one of the server's slots. It has no response."""
    request = Request(
        id="", method=row.name, row=row, params=Params(), raw_params=message.params, revision=revision,
        session=session, headers=headers,
    )  # fmt: skip

    async def serve() -> None:
        try:
            await handler(engine, RequestContext(request, _discard, principal=principal))
        except (ProtocolError, *UNREADABLE) as failure:  # others are logged where they happen
            log.debug("%s is passed over: %s", row.name, failure)

    task = asyncio.get_running_loop().create_task(serve())
    engine.running_steps.add(task)
    task.add_done_callback(engine.running_steps.discard)


async def _discard(message: bytes) -> None:
    """Send nothing: a notification has no stream to send on."""


def _to_result(value: Any) -> ExtensionResult:
    fields = {} if value is None else msgspec.json.decode(encode_json(value))
    if not isinstance(fields, dict) or not isinstance(fields.get("_meta", {}), dict) or "resultType" in fields:
        raise OutputError("a method returns an object or None; its _meta is an object, and resultType is a key of MCP")
    return ExtensionResult(fields)
