"""Stored values of Python types: JSON text, read back as the arguments of a call are."""

import functools
from typing import Any

from msgspec import NODEFAULT

from dovetail.errors import ArgumentError, StateError
from dovetail.registry.arguments import Arguments
from dovetail.registry.functions import FunctionInfo, Parameter
from dovetail.schema.encode import OutputError, encode_json


class StoredType:
    """Reads JSON text as values of one type."""

    def __init__(self, annotation: Any) -> None:
        self.name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        parameter = Parameter("value", annotation, NODEFAULT)
        info = FunctionInfo(StoredType, self.name, f"stored type {self.name}", None, False, (parameter,), ())
        self._arguments = Arguments(info, lenient=False)

    def decode(self, encoded: bytes, subject: str) -> Any:
        """The value; raises StateError, which names the type and `subject`."""
        try:
            return self._arguments.decode(b'{"value":%b}' % encoded)["value"]
        except ArgumentError as failure:
            problems = "; ".join(failure.problems)
            raise StateError(f"{subject} can't be read as {self.name}: {problems}") from None


_cached_type = functools.lru_cache(maxsize=1024)(StoredType)


def stored_type(annotation: Any) -> StoredType:
    """The compiled type. Raises SetupError for one without a JSON form."""
    try:
        return _cached_type(annotation)
    except TypeError:  # it has no hash: the metadata of `Annotated` may be a list
        return StoredType(annotation)


def encode_stored(value: Any, subject: str) -> bytes:
    """The value as JSON text; raises StateError, which names `subject`."""
    try:
        return encode_json(value)
    except OutputError as failure:
        raise StateError(f"{subject} can't be stored: {failure}") from None
