"""Handles: ids that a tool gives out and takes back, each for a value in the store."""

import functools
import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from dovetail.engine.caller_state import Record, Records, decode_stored, encode_stored
from dovetail.engine.current_context import get_context
from dovetail.errors import SetupError
from dovetail.schema.types import shown

T = TypeVar("T")
PREFIX = "hdl_"  # by which logs know what to redact
ID_BYTES = 24  # random
VALUE = ""  # the key of the one value in the record of a handle


class Handle(str, Generic[T]):
    """An id for a value of type T that the server stores: `ctx.new_handle(value)` makes one.

    A parameter `basket: Handle[Basket]` is a string for the client. The id of a known caller is good for that caller,
    one that an unknown caller was given is good for each that has it. What is not found is a ToolError.
    """

    __slots__ = ()
    __json_string__: ClassVar[Mapping[str, Any] | None] = None  # keywords of its schema: `shapes.scalar_kind`
    __json_fix__: ClassVar[str] = "write what it stands for: Handle[Basket]"
    _type: ClassVar[Any] = Any
    _name: ClassVar[str] = "value"  # of the type, in the record and in texts

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def __class_getitem__(cls, type_: Any) -> Any:
        if isinstance(type_, str):
            raise SetupError(f"Handle[{type_!r}]: give the type itself, not its name")
        name = shown(type_)
        keywords = {"description": f"The id of a {name} that this server has given out"}
        members = {"__slots__": (), "__json_string__": keywords, "_type": type_, "_name": name}
        return type(f"Handle[{name}]", (Handle,), members)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        """For fields of pydantic models: a string, of which the handle is made."""
        return {"type": "function-after", "function": {"type": "no-info", "function": source}, "schema": handler(str)}

    async def load(self) -> T:
        """The value as it is now."""
        records = get_context().state._records
        record, _ = await records.read(_key(self), self._name)
        value: T = decode_stored(record.values[VALUE], self._type, "The value of a handle")
        return value

    async def update(self, function: Callable[[T], T]) -> T:
        """Replace the value by what the plain `function` returns for it; gives the new value, and renews the handle.

        It is a step. If another call comes between, `function` runs again with its outcome.
        """
        records, key, kind = get_context().state._records, _key(self), self._name
        name, subject = f"update {key}", f"the {kind} of a handle"
        value: T = await records.update(name, key, VALUE, self._type, function, subject=subject, kind=kind)
        return value

    async def delete(self) -> None:
        """Delete the value, in a step: the handle is not found from now on."""
        records, key = get_context().state._records, _key(self)

        async def write() -> None:
            await records.read(key, self._name)
            await records.engine.state.delete(key)

        await records.once(f"delete {key}", write)


async def new_handle(records: Records, value: Any, type_: Any, ttl: float | None) -> Handle[Any]:
    annotation: Any = type(value) if type_ is None else type_
    made: type[Handle[Any]] = Handle.__class_getitem__(annotation)
    encoded = encode_stored(value, annotation, f"ctx.new_handle: a {made._name}")
    record = Record(records.owner, {VALUE: encoded}, (records.engine.info.name, made._name), ttl)

    async def write() -> str:
        id = PREFIX + secrets.token_urlsafe(ID_BYTES)
        await records.put(_key(id), record)
        return id

    return made(await records.once(f"new_handle {made._name[:100]}", write))


def _key(id: str) -> str:
    """The key in the store, which does not tell the id."""
    return f"handle/{hashlib.sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()}"
