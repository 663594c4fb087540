"""State of a caller that outlives its calls: `ctx.state`.

All values of a caller are one record of the store, so its quota and its time to live are those of a key. A write reads
the record, changes it, and stores it unless another worker has changed it meanwhile; then it begins again. Within a
process writers of one record take turns, so that only workers compete.
"""

import asyncio
import copy
import functools
import hashlib
import inspect
import os
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar, overload
from weakref import WeakValueDictionary

import msgspec

from dovetail.engine.request_context import RequestContext, running_step, server_requests_of
from dovetail.errors import SetupError, StateError, ToolBusy, ToolError
from dovetail.registry.values import StoredType, encode_stored, stored_type
from dovetail.schema.encode import decode_json, encode_json
from dovetail.state.base import Codec, Conflict, StoreFull

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

T = TypeVar("T")
D = TypeVar("D")
Coro: TypeAlias = Coroutine[Any, Any, T]

MAX_KEY = 128  # characters
MAX_TRIES = 100  # of a write, while other workers are faster
MAX_PAUSE = 0.02  # seconds between two tries
MAX_SESSION_TTL = 86_400.0  # seconds; a session has ended long before

UNKNOWN_CALLER = (
    "ctx.state: it is not known whose state this is: the caller has no session and is not authenticated. Give the "
    "server auth=, or keep the values behind a Handle, an id that the tool gives out and takes back"
)
_locks: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], asyncio.Lock] = WeakValueDictionary()


class UnknownCaller(StateError, ToolError):
    """`ctx.state` of a caller that has neither a principal nor a session."""


class StateFull(StoreFull, ToolError):
    """A caller has used up its quota, or all callers their share of the store. The model may store less."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.http_status = 200  # the server is well


def state_owner(context: RequestContext) -> str | None:
    """The key of the caller: its user, else its program, else its session, on stdio the local user; None if unknown."""
    parts = _owner_parts(context)
    return None if parts is None else hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]


def _owner_parts(context: RequestContext) -> tuple[str | None, ...] | None:
    principal, request = context.principal, context.request
    if principal is not None:
        if principal.subject is not None:
            return ("user", principal.issuer, principal.subject)
        if principal.client is not None:
            return ("client", principal.issuer, principal.client)
        return ("principal", principal.key)
    if request.headers is None and context.locate is None:  # no network: stdio, or in process
        return ("local", str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", ""))
    return None if request.session is None else ("session", request.session.id)


def default_ttl(engine: "Engine", context: RequestContext) -> float:
    """Seconds for which state of the caller is stored after its last write."""
    is_session = (_owner_parts(context) or ("",))[0] == "session"
    return min(engine.options.state_ttl, MAX_SESSION_TTL) if is_session else engine.options.state_ttl


# ── records ──


class Write(NamedTuple, Generic[T]):
    """What a change of a record comes to."""

    result: T
    data: bytes | None  # None: there is no record, and none is made
    ttl: float


async def store_record(engine: "Engine", key: str, data: bytes, ttl: float, version: int, before: int = 0) -> None:
    """Store a record if it has this version; raises StateFull if it grows, from `before` bytes, beyond the quota."""
    quota = engine.options.state_quota
    if len(data) > max(quota, before):
        raise StateFull(f"There is no room for {len(data)} bytes: the quota is {quota}; store less, or delete some")
    try:
        await engine.state.put(key, data, ttl=ttl, if_version=version)
    except StoreFull:
        raise StateFull("The server has no room for more state of its callers now; try again later") from None


async def change_record(engine: "Engine", key: str, change: Callable[[bytes | None], Write[T]]) -> T:
    """Read a record, apply `change` and store the outcome, by compare-and-set: `change` may be called again."""
    loop = asyncio.get_running_loop()
    lock = _locks.get((loop, key)) or _locks.setdefault((loop, key), asyncio.Lock())
    async with lock:
        for attempt in range(MAX_TRIES):
            entry = await engine.state.get(key)
            value, version = (None, 0) if entry is None else entry
            write = change(value)
            if write.data is None:
                return write.result
            try:
                await store_record(engine, key, write.data, write.ttl, version, len(value or b""))
            except Conflict:
                await asyncio.sleep(random.uniform(0, min(0.001 * 2**attempt, MAX_PAUSE)))
            else:
                return write.result
    raise ToolBusy("Other calls change the same state all the time; try again later")


async def write_once(
    engine: "Engine", context: RequestContext, name: str, write: Callable[[], Awaitable[Any]]
) -> Any:  # fmt: skip
    """Write as a step, once in a call; at once inside of a step, and in completions, which take none."""
    if running_step.get() is not None or not context.request.row.interactive:
        return await write()
    return await server_requests_of(engine, context).step(name, write, in_thread=False)


def apply_update(function: Callable[[Any], Any], value: Any, type_: StoredType, subject: str) -> bytes:
    """What the author's function makes of a value, as JSON text that can be read back."""
    updated = function(value)
    if inspect.isawaitable(updated):
        if inspect.iscoroutine(updated):
            updated.close()
        raise SetupError(f"{subject}: the function of an update is plain, because it may run again; await before it")
    encoded = encode_stored(updated, subject)
    type_.decode(encoded, f"What the function returns for {subject}")
    return encoded


# ── ctx.state ──


Values = dict[str, bytes]  # JSON text by key
_codec: Codec[Values] = Codec(Values, "state of a caller")


class CallerState:
    """Values of the caller that outlive a call; in a `def` function `ctx.wait(ctx.state.get(…))`.

    Reads see what is stored now. Writes are steps: once in a call, however often its function runs.
    """

    __slots__ = ("_context", "_engine")

    def __init__(self, engine: "Engine", context: RequestContext) -> None:
        self._engine = engine
        self._context = context

    @overload
    def get(self, key: str, type: type[T]) -> Coro[T | None]: ...
    @overload
    def get(self, key: str, type: type[T], default: D) -> Coro[T | D]: ...
    @overload
    def get(self, key: str, type: Any = Any, default: Any = None) -> Coro[Any]: ...
    async def get(self, key: str, type: Any = Any, default: Any = None) -> Any:
        """The value as this type, or the default if there is none. Raises StateError if it does not fit the type."""
        subject = _checked_subject(key)
        encoded = (await self._values()).get(key)
        return default if encoded is None else stored_type(type).decode(encoded, subject)

    async def keys(self) -> list[str]:
        return list(await self._values())

    async def set(self, key: str, value: Any) -> None:
        """Store a value: all that a tool may return. Raises StoreFull beyond the quota."""
        encoded = encode_stored(value, _checked_subject(key))
        await self._change(f"state.set {key}", lambda values: values.update({key: encoded}))

    async def delete(self, key: str) -> bool:
        """Delete a value; False if there was none."""
        _checked_subject(key)
        return bool(await self._change(f"state.delete {key}", lambda values: values.pop(key, None) is not None))

    @overload
    def update(self, key: str, function: Callable[[T], T], type: type[T], default: T) -> Coro[T]: ...
    @overload
    def update(self, key: str, function: Callable[[T | None], T], type: type[T]) -> Coro[T]: ...
    @overload
    def update(self, key: str, function: Callable[[Any], Any], *, default: Any = None) -> Coro[Any]: ...
    @overload
    def update(self, key: str, function: Callable[[Any], Any], type: UnionType, default: Any = None) -> Coro[Any]: ...
    async def update(self, key: str, function: Callable[[Any], Any], type: Any = Any, default: Any = None) -> Any:
        """Replace a value by what `function` returns for it, or for the default; gives the new value.

        No update of another call is lost: if one comes between, the plain `function` runs again with its outcome.
        """
        subject, type_ = _checked_subject(key), stored_type(type)

        def change(values: Values) -> Any:
            encoded = values.get(key)
            current = copy.deepcopy(default) if encoded is None else type_.decode(encoded, subject)
            values[key] = apply_update(function, current, type_, subject)
            return decode_json(values[key])

        return type_.decode(encode_json(await self._change(f"state.update {key}", change)), subject)

    def _record_key(self) -> str:
        owner = state_owner(self._context)
        if owner is None:
            raise UnknownCaller(UNKNOWN_CALLER)
        return f"caller-state/{owner}"

    async def _values(self) -> Values:
        entry = await self._engine.state.get(self._record_key())
        return _decode_values(None if entry is None else entry.value)

    async def _change(self, name: str, change: Callable[[Values], Any]) -> Any:
        """Change the values in a step; gives what `change` returns, which is JSON."""
        engine, key, ttl = self._engine, self._record_key(), default_ttl(self._engine, self._context)

        def change_record_of_caller(current: bytes | None) -> Write[Any]:
            values = _decode_values(current)
            result = change(values)
            return Write(result, _codec.encode(values) if values or current else None, ttl)

        write = functools.partial(change_record, engine, key, change_record_of_caller)
        return await write_once(engine, self._context, name, write)


def _decode_values(data: bytes | None) -> Values:
    values = {} if data is None else _codec.decode(data)
    if values is None:
        raise StateError("ctx.state: another version of dovetail wrote the state of this caller; it is left as it is")
    return values


def _checked_subject(key: object) -> str:
    """How texts name the value of a key; raises StateError for one that is not possible."""
    with suppress(UnicodeEncodeError):
        if isinstance(key, str) and 0 < len(key) <= MAX_KEY and key.encode():
            return f"ctx.state[{key!r}]"
    raise StateError(f"ctx.state: a key is a text of 1 to {MAX_KEY} characters; this is {str(key)[:40]!r}")
