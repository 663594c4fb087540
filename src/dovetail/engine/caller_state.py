"""State of a caller that outlives its calls, `ctx.state`, and the records of the store that hold it and handles.

All values of a caller are one record, so its quota and its time to live are those of a key. A write reads the record,
changes it, and stores it unless another worker has changed it meanwhile; then it begins again. Within a process writers
of one record take turns, so that only workers compete.
"""

import asyncio
import copy
import functools
import hashlib
import inspect
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, overload
from weakref import WeakValueDictionary

import msgspec
from msgspec import NODEFAULT

from dovetail.engine.request_context import RequestContext, running_step, server_requests_of
from dovetail.errors import ArgumentError, SetupError, StateError, ToolBusy, ToolError
from dovetail.registry.arguments import Arguments
from dovetail.registry.functions import FunctionInfo, Parameter
from dovetail.schema.encode import OutputError, decode_json, encode_json
from dovetail.schema.types import shown
from dovetail.state.base import MAX_TTL, Codec, Conflict, Entry, StoreFull

if TYPE_CHECKING:
    from types import UnionType
    from typing import _SpecialForm

    from dovetail.engine.engine import Engine

    _NoClass: TypeAlias = UnionType | _SpecialForm  # `int | None`; `Literal["a"]`, `Annotated[int, …]`

T = TypeVar("T")
D = TypeVar("D")
Function: TypeAlias = Callable[[Any], Any]
Values: TypeAlias = dict[str, bytes]  # JSON text by key

MAX_KEY = 128  # characters
MAX_TRIES = 100  # of a write, while other workers are faster
MAX_PAUSE = 0.02  # seconds between two tries
MAX_SESSION_TTL = 86_400.0  # seconds; a session has ended long before

UNKNOWN_CALLER = (
    "ctx.state: it is not known whose state this is: the caller has no session and is not authenticated. Give the "
    "server auth=, or keep the values behind a Handle, an id that the tool gives out and takes back"
)
NOT_FOUND = "There is no {} with this id: it has expired, was deleted, or was never given out to you; get a new one"
_locks: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], asyncio.Lock] = WeakValueDictionary()


class StateFull(StoreFull, ToolError):
    """A caller has used up its quota, or all callers their share of the store. The model may store less."""


def state_owner(context: RequestContext) -> str | None:
    """The key of the caller: its user, else its program, else its session, on stdio the local user; None if unknown."""
    principal, session = context.principal, context.request.session
    issuer = None if principal is None else principal.issuer
    if principal is not None:
        names = {"user": principal.subject, "client": principal.client, "principal": principal.key}
        kind, name = next(each for each in names.items() if each[1] is not None)
    elif context.locate is None and context.request.headers is None:  # no network: stdio, or in process
        kind, name = "local", str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    elif session is not None:
        kind, name = "session", session.id
    else:
        return None
    return f"{kind}-{hashlib.sha256(msgspec.json.encode((kind, issuer, name))).hexdigest()[:32]}"


# ── values ──


@functools.lru_cache(maxsize=1024)
def _compile(annotation: Any) -> Arguments:
    """How values of a type are read back: as the argument of a call. Raises SetupError for one without a JSON form."""
    name, parameter = shown(annotation), Parameter("value", annotation, NODEFAULT)
    info = FunctionInfo(_compile, name, f"stored type {name}", None, False, (parameter,), ())
    return Arguments(info, lenient=False)


def decode_stored(encoded: bytes, annotation: Any, subject: str) -> Any:
    """The value of JSON text; raises StateError, which names the type and `subject`."""
    try:
        arguments = _compile(annotation)
    except TypeError:  # it has no hash: the metadata of `Annotated` may be a list
        arguments = _compile.__wrapped__(annotation)
    try:
        return arguments.decode(b'{"value":%b}' % encoded)["value"]
    except ArgumentError as failure:
        raise StateError(f"{subject} can't be read as {arguments.subject}: {'; '.join(failure.problems)}") from None


def encode_stored(value: Any, annotation: Any, subject: str) -> bytes:
    """The value as JSON text that can be read as its type; raises StateError, which names `subject`."""
    try:
        encoded = encode_json(value)
    except OutputError as failure:
        raise StateError(f"{subject} can't be stored: {failure}") from None
    if annotation is not Any:
        decode_stored(encoded, annotation, subject)
    return encoded


# ── records ──


class Record(msgspec.Struct, array_like=True):
    """What the store holds: the state of a caller, or the value of a handle."""

    owner: str | None  # None: any caller that has the handle
    values: Values  # a handle has one
    label: tuple[str, str] = ("", "")  # server and type of a handle
    ttl: float | None = None  # seconds from the last write; None: `Server(state_ttl=)`, of a session a day at most


class HandleKind(NamedTuple):
    """The type of a handle: in its record, with the module of a class; and in texts."""

    label: str
    name: str


NO_ENTRY = Entry(b"", 0)
_codec: Codec[Record] = Codec(Record, "state of a caller")


class Records:
    """Records as one call reads and writes them."""

    def __init__(self, engine: "Engine", context: RequestContext) -> None:
        self.engine = engine
        self._context = context
        self.owner = state_owner(context)

    async def read(self, key: str, kind: HandleKind | None = None) -> tuple[Record, Entry]:
        """A record and its entry, both empty if there is none; that of a handle of this `kind`, else one ToolError."""
        entry = await self.engine.state.get(key) or NO_ENTRY
        record = _codec.decode(entry.value) if entry.version else Record(self.owner, {})
        if record is None:
            raise StateError("ctx.state, Handle: another version of dovetail wrote this state; it is left as it is")
        if kind and (record.owner not in (None, self.owner) or record.label != (self.engine.info.name, kind.label)):
            raise ToolError(NOT_FOUND.format(kind.name))
        return record, entry

    async def put(self, key: str, record: Record, before: Entry = NO_ENTRY) -> None:
        """Store a record unless it has changed since `before`; raises StateFull if it grows beyond the quota."""
        data, quota, ttl = _codec.encode(record), self.engine.options.state_quota, record.ttl
        if ttl is None:
            is_of_session = (record.owner or "").startswith("session-")
            ttl = min(self.engine.options.state_ttl, MAX_SESSION_TTL if is_of_session else MAX_TTL)
        if len(data) > max(quota, len(before.value)):
            raise StateFull(f"There is no room for {len(data)} bytes: the quota is {quota}; store less, or delete some")
        try:
            await self.engine.state.put(key, data, ttl=ttl, if_version=before.version)
        except StoreFull:
            raise StateFull("The server has no room for more state of its callers now; try again later") from None

    async def change(self, name: str, key: str, change: Callable[[Values], Any], kind: HandleKind | None = None) -> Any:
        """Change the values of a record, in a step; `change` may be called again, and returns what JSON can hold."""

        async def write() -> Any:
            async with _locks.setdefault((asyncio.get_running_loop(), key), asyncio.Lock()):
                for attempt in range(MAX_TRIES):
                    record, entry = await self.read(key, kind)
                    result = change(record.values)
                    try:
                        if entry.version or record.values:
                            await self.put(key, record, entry)
                        return result
                    except Conflict:
                        await asyncio.sleep(random.uniform(0, min(0.001 * 2**attempt, MAX_PAUSE)))
            raise ToolBusy("Other calls change the same state all the time; try again later")

        return await self.once(name, write)

    async def update(
        self, name: str, key: str, value_key: str, type: Any, function: Function, *,
        subject: str, default: Any = None, kind: HandleKind | None = None,
    ) -> Any:  # fmt: skip
        """Replace a value by what the author's function returns for it; gives the new one."""

        def change(values: Values) -> Any:
            encoded = values.get(value_key)
            updated = function(copy.deepcopy(default) if encoded is None else decode_stored(encoded, type, subject))
            if inspect.iscoroutine(updated):
                updated.close()
                raise SetupError(f"{subject}: the function of an update is plain: it may run again; await before")
            values[value_key] = encode_stored(updated, type, f"What the function returns for {subject}")
            return decode_json(values[value_key])

        return decode_stored(encode_json(await self.change(name, key, change, kind)), type, subject)

    async def once(self, name: str, write: Callable[[], Awaitable[Any]]) -> Any:
        """Write as a step, once in a call; at once inside of a step, and in completions, which take none."""
        if running_step.get() is not None or not self._context.request.row.interactive:
            return await write()
        return await server_requests_of(self.engine, self._context).step(name, write, in_thread=False)


# ── ctx.state ──


class CallerState(msgspec.Struct, eq=False):
    """Values of the caller that outlive a call; in a `def` function `ctx.wait(ctx.state.get(…))`.

    Reads see what is stored now. Writes are steps: once in a call, however often its function runs.
    """

    _records: Records

    @overload
    async def get(self, key: str, type: type[T]) -> T | None: ...
    @overload
    async def get(self, key: str, type: type[T], default: T | D) -> T | D: ...
    @overload  # mypy takes it for a default of another type, and the one above for `[]`, whose type is not known
    async def get(self, key: str, type: type[T], default: D) -> T | D: ...  # type: ignore[overload-cannot-match]
    @overload
    async def get(self, key: str, type: Any = Any, default: Any = None) -> Any: ...
    async def get(self, key: str, type: Any = Any, default: Any = None) -> Any:
        """The value as this type, or the default if there is none. Raises StateError if it does not fit the type."""
        subject, (record, _) = _checked_subject(key), await self._records.read(self._key)
        encoded = record.values.get(key)
        return default if encoded is None else decode_stored(encoded, type, subject)

    async def keys(self) -> list[str]:
        return list((await self._records.read(self._key))[0].values)

    async def set(self, key: str, value: Any) -> None:
        """Store a value: all that a tool may return. Raises StoreFull beyond the quota."""
        encoded = encode_stored(value, Any, _checked_subject(key))
        await self._records.change(f"state.set {key}", self._key, lambda values: values.update({key: encoded}))

    async def delete(self, key: str) -> bool:
        """Delete a value; False if there was none."""
        _checked_subject(key)
        name = f"state.delete {key}"
        return bool(await self._records.change(name, self._key, lambda values: bool(values.pop(key, b""))))

    @overload
    async def update(self, key: str, function: Callable[[Any], T], type: type[T], default: T | None = None) -> T: ...
    @overload
    async def update(self, key: str, function: Function, type: "_NoClass" = ..., default: Any = None) -> Any: ...
    async def update(self, key: str, function: Function, type: Any = Any, default: Any = None) -> Any:
        """Replace a value by what `function` returns for it, or for the default; gives the new value.

        No update of another call is lost: if one comes between, the plain `function` runs again with its outcome.
        """
        subject, name = _checked_subject(key), f"state.update {key}"
        return await self._records.update(name, self._key, key, type, function, subject=subject, default=default)

    @property
    def _key(self) -> str:
        if self._records.owner is None:
            raise ToolError(UNKNOWN_CALLER)
        return f"caller-state/{self._records.engine.path}{self._records.owner}"


def _checked_subject(key: object) -> str:
    """How texts name the value of a key; raises StateError for one that is not possible."""
    with suppress(UnicodeEncodeError):
        if isinstance(key, str) and 0 < len(key) <= MAX_KEY and key.encode():
            return f"ctx.state[{key!r}]"
    raise StateError(f"ctx.state: a key is a text of 1 to {MAX_KEY} characters; this is {str(key)[:40]!r}")
