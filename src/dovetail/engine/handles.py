"""Handles: ids that a tool gives out and takes back, each for a value in the store."""

import functools
import hashlib
import secrets
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

import msgspec

from dovetail.engine.caller_state import (
    Write,
    apply_update,
    change_record,
    default_ttl,
    state_owner,
    store_record,
    write_once,
)
from dovetail.engine.current_context import get_context
from dovetail.engine.request_context import RequestContext
from dovetail.errors import SetupError, ToolError
from dovetail.registry.values import encode_stored, stored_type
from dovetail.schema.encode import decode_json, encode_json
from dovetail.state.base import Codec, check_ttl

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

T = TypeVar("T")
Coro: TypeAlias = Coroutine[Any, Any, T]
ID_BYTES = 24  # random


class HandleRecord(msgspec.Struct, frozen=True, array_like=True):
    """What the store holds for a handle."""

    owner: str  # "": any caller that has the id
    server: str
    type: str
    ttl: float  # seconds from the last write
    value: bytes  # JSON text


_codec: Codec[HandleRecord] = Codec(HandleRecord, "handle")


class Handle(str, Generic[T]):
    """An id for a value of type T that the server stores: `ctx.new_handle(value)` makes one.

    A parameter `basket: Handle[Basket]` is a string for the client. The id of a known caller is good for that caller,
    one that an unknown caller was given is good for each that has it. What is not found is a ToolError.
    """

    __slots__ = ()
    __json_string__: ClassVar[Mapping[str, Any] | None] = None  # keywords of its schema: `shapes.scalar_kind`
    __json_fix__: ClassVar[str] = "write what it stands for: Handle[Basket]"
    _type: ClassVar[Any] = Any
    _type_name: ClassVar[str] = "Any"  # in the record
    _shown: ClassVar[str] = "value"  # in texts for the model

    def __class_getitem__(cls, type_: Any) -> Any:
        try:
            return _cached_class(type_)
        except TypeError:  # it has no hash
            return _make_class(type_)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        """For fields of pydantic models: a string, of which the handle is made."""
        return {"type": "function-after", "function": {"type": "no-info", "function": source}, "schema": handler(str)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self[:4]!r}…)"  # the rest is as good as a password

    def load(self) -> Coro[T]:
        """The value as it is now."""
        return self._named("load", _load)

    def update(self, function: Callable[[T], T]) -> Coro[T]:
        """Replace the value by what the plain `function` returns for it; gives the new value, and renews the handle.

        It is a step. If another call comes between, `function` runs again with its outcome.
        """
        return self._named("update", functools.partial(_update, function=function))

    def delete(self) -> Coro[None]:
        """Delete the value, in a step: the handle is not found from now on."""
        return self._named("delete", _delete)

    def _named(self, name: str, work: "Callable[[Engine, RequestContext, Handle[T]], Coro[Any]]") -> Coro[Any]:
        """The coroutine for the call that runs, which is known now: `ctx.wait` will run it elsewhere."""
        ctx = get_context()
        ctx._context.uses_state = True
        return ctx._named(f"handle.{name}", work(ctx._engine, ctx._context, self))


def _make_class(type_: Any) -> Any:
    if isinstance(type_, str):
        raise SetupError(f"Handle[{type_!r}]: give the type itself, not its name")
    is_class = isinstance(type_, type)
    name = type_.__name__ if is_class else str(type_)
    members = {
        "__slots__": (),
        "__json_string__": {"description": f"The id of a {name} that this server has given out"},
        "_type": type_,
        "_type_name": type_.__qualname__ if is_class else name,
        "_shown": name,
    }
    return type(f"Handle[{name}]", (Handle,), members)


_cached_class = functools.lru_cache(maxsize=1024, typed=True)(_make_class)


async def new_handle(
    engine: "Engine", context: RequestContext, value: Any, type_: Any, ttl: float | None
) -> Handle[Any]:  # fmt: skip
    made: type[Handle[Any]] = Handle.__class_getitem__(type(value) if type_ is None else type_)
    subject = f"ctx.new_handle: a {made._type_name}"
    encoded = encode_stored(value, subject)
    stored_type(made._type).decode(encoded, subject)
    ttl = default_ttl(engine, context) if ttl is None else ttl
    check_ttl(ttl)
    record = HandleRecord(state_owner(context) or "", engine.info.name, made._type_name, ttl, encoded)

    async def write() -> str:
        id = secrets.token_urlsafe(ID_BYTES)
        await store_record(engine, _key(id), _codec.encode(record), ttl, 0)
        return id

    return made(await write_once(engine, context, f"new_handle {made._type_name[:100]}", write))


async def _load(engine: "Engine", context: RequestContext, handle: Handle[T]) -> T:
    entry = await engine.state.get(_key(handle))
    return _decode(handle, _find(engine, context, handle, None if entry is None else entry.value).value)


async def _update(
    engine: "Engine", context: RequestContext, handle: Handle[T], function: Callable[[T], T]
) -> T:  # fmt: skip
    type_, subject = stored_type(handle._type), f"the {handle._type_name} of a handle"

    def change(current: bytes | None) -> Write[Any]:
        record = _find(engine, context, handle, current)
        encoded = apply_update(function, _decode(handle, record.value), type_, subject)
        data = _codec.encode(msgspec.structs.replace(record, value=encoded))
        return Write(decode_json(encoded), data, record.ttl)

    key = _key(handle)
    result = await write_once(engine, context, f"update {key}", lambda: change_record(engine, key, change))
    return _decode(handle, encode_json(result))


async def _delete(engine: "Engine", context: RequestContext, handle: Handle[T]) -> None:
    key = _key(handle)

    async def write() -> None:
        entry = await engine.state.get(key)
        _find(engine, context, handle, None if entry is None else entry.value)
        await engine.state.delete(key)

    await write_once(engine, context, f"delete {key}", write)


def _key(id: str) -> str:
    """The key in the store, which does not tell the id."""
    return f"handle/{hashlib.sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _decode(handle: Handle[T], encoded: bytes) -> T:
    value: T = stored_type(handle._type).decode(encoded, "The value of a handle")
    return value


def _find(engine: "Engine", context: RequestContext, handle: Handle[Any], data: bytes | None) -> HandleRecord:
    """The record; raises one and the same ToolError whatever is wrong with the handle."""
    record = None if data is None else _codec.decode(data)
    wanted = (engine.info.name, handle._type_name)
    if record is None or record.owner not in ("", state_owner(context)) or (record.server, record.type) != wanted:
        raise ToolError(
            f"There is no {handle._shown} with this id: it has expired, was deleted, or was never given out to you; "
            "get a new one"
        )
    return record
