"""Handles: ids that a tool gives out and takes back, each for a value in the store."""

import functools
import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from dovetail.engine.caller_state import HandleKind, Record, Records, decode_stored, encode_stored
from dovetail.engine.current_context import get_context
from dovetail.errors import SetupError
from dovetail.schema.types import shown
from dovetail.state.base import MAX_TTL

T = TypeVar("T")
PREFIX = "hdl_"  # by which logs know what to redact
ID_BYTES = 24  # random
VALUE = ""  # the key of the one value in the record of a handle
SUBJECT = "the value of a handle"  # in texts


class Handle(str, Generic[T]):
    """An id for a value of type T that the server stores: `ctx.new_handle(value)` makes one.

    A parameter `basket: Handle[Basket]` is a string for the client. The id of a known caller is good for that caller,
    one that an unknown caller was given is good for each that has it. What is not found is a ToolError.
    """

    __slots__ = ()
    __json_string__: ClassVar[Mapping[str, Any] | None] = None  # keywords of its schema: `shapes.scalar_kind`
    __json_fix__: ClassVar[str] = "write what it stands for: Handle[Basket]"
    __stored_type__: ClassVar[Any] = Any  # which `ShapeBuilder` reads too, so that a tool can't take what never was
    _kind: ClassVar[HandleKind] = HandleKind("", "value")

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def __class_getitem__(cls, type_: Any) -> Any:
        if isinstance(type_, str):
            raise SetupError(f"Handle[{type_!r}]: give the type itself, not its name")
        name = shown(type_)
        label = f"{type_.__module__}.{type_.__qualname__}" if isinstance(type_, type) else name
        keywords = {"description": f"The id of one {name} that this server has given out"}
        members = {"__json_string__": keywords, "__stored_type__": type_, "_kind": HandleKind(label, name)}
        return type(f"Handle[{name}]", (Handle,), {"__slots__": (), **members})

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        """For fields of pydantic models: a string, of which the handle is made."""
        return {"type": "function-after", "function": {"type": "no-info", "function": source}, "schema": handler(str)}

    async def load(self) -> T:
        """The value as it is now."""
        records = get_context().state._records
        record, _ = await records.read(_key(self), self._kind)
        value: T = decode_stored(record.values[VALUE], self.__stored_type__, SUBJECT)
        return value

    async def update(self, function: Callable[[T], T]) -> T:
        """Replace the value by what the plain `function` returns for it; gives the new value, and renews the handle.

        It is a step. If another call comes between, `function` runs again with its outcome.
        """
        records, key, type_ = get_context().state._records, _key(self), self.__stored_type__
        value: T = await records.update(f"update {key}", key, VALUE, type_, function, subject=SUBJECT, kind=self._kind)
        return value

    async def delete(self) -> None:
        """Delete the value, in a step: the handle is not found from now on."""
        records, key = get_context().state._records, _key(self)

        async def write() -> None:
            await records.read(key, self._kind)
            await records.engine.state.delete(key)

        await records.once(f"delete {key}", write)


async def new_handle(records: Records, value: Any, type_: Any, ttl: float | None) -> Handle[Any]:
    if ttl is not None and (type(ttl) not in (int, float) or not 0 < ttl <= MAX_TTL):
        raise SetupError(f"ctx.new_handle: ttl={ttl!r} is no number of seconds above 0, at most {MAX_TTL:.0f}")
    if type_ is None and type(value) in (list, dict, tuple, set, frozenset):  # that don't tell what they hold
        raise SetupError("ctx.new_handle: give the type of what it holds, such as ctx.new_handle(words, list[str])")
    annotation: Any = type(value) if type_ is None else type_
    made: type[Handle[Any]] = Handle.__class_getitem__(annotation)
    encoded = encode_stored(value, annotation, "ctx.new_handle: the value")
    record = Record(records.owner, {VALUE: encoded}, (records.engine.info.name, made._kind.label), ttl)

    async def write() -> str:
        id = PREFIX + secrets.token_urlsafe(ID_BYTES)
        await records.put(_key(id), record)
        return id

    return made(await records.once(f"new_handle {made._kind.name[:100]}", write))


def _key(id: str) -> str:
    """The key in the store, which does not tell the id."""
    return f"handle/{hashlib.sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()}"
