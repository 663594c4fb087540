"""JSON encoding of the values that functions return."""

import collections
import datetime
import decimal
import enum
import math
import sys
import types
from collections import abc
from collections.abc import Callable
from typing import Any

import msgspec

from dovetail import schema as lazy_schema
from dovetail.protocol.jsonrpc import MAX_DEPTH, check_depth
from dovetail.schema.constraints import is_model

PLAIN_TYPES: frozenset[type] = frozenset({types.NoneType, bool, int, float, str, list, tuple, dict})


class OutputError(ValueError):
    """A returned value that can't be sent. Its text is for the server's log, never for the client."""


def encode_json(value: Any) -> bytes:
    """The value as JSON text. Raises OutputError for NaN, infinity, lone surrogates, cycles and unknown types."""
    try:
        encoded = _encode(value)
        if len(encoded) > MAX_DEPTH:  # a shorter text is never too deep
            check_depth(encoded)
        if encoded.find(b"null") >= 0:  # NaN and infinity become null; `find` is faster than `in`
            _refuse_infinite(value, encoded)
        return encoded
    except OutputError:
        raise
    except RecursionError:
        raise OutputError(f"the value is nested deeper than {MAX_DEPTH} levels, or contains itself") from None
    except UnicodeEncodeError:
        raise OutputError("the value contains text that is not valid Unicode (a lone surrogate)") from None
    except (TypeError, ValueError, OverflowError) as error:
        if "set_int_max_str_digits" in str(error):
            raise OutputError("the value contains an integer of thousands of digits; return it as a string") from None
        raise OutputError(f"the value has no JSON form: {error}") from None


def to_jsonable(value: Any) -> Any:
    """The value as dicts, lists, strings, numbers, booleans and None."""
    return decode_json(encode_json(value))


def decode_json(encoded: bytes) -> Any:
    """Builtins of JSON text that we encoded."""
    try:
        return _DECODER.decode(encoded)
    except RecursionError:
        raise OutputError("the value is nested too deeply") from None


def _simplify(value: Any) -> Any:
    """The hook for types that msgspec does not know; the first matching row wins."""
    for kind, convert in _CONVERSIONS:
        if isinstance(value, kind):
            return convert(value)
    if any(isinstance(value, getattr(sys.modules.get(module), name, ())) for module, name in _AS_TEXT):
        return str(value)
    if is_model(type(value)):
        return lazy_schema.pydantic.dump_model(value)
    raise TypeError(f"objects of type {type(value).__qualname__} are not supported")


_CONVERSIONS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (enum.Enum, lambda value: value.value),
    (str, lambda value: str.__str__(value)),  # of subclasses, without their own `__str__` and the like
    (int, int.__int__),
    (float, float.__float__),
    ((bytes, bytearray), bytes),
    (decimal.Decimal, decimal.Decimal),
    (datetime.datetime, lambda value: datetime.datetime.combine(value.date(), value.timetz())),
    (datetime.date, lambda value: datetime.date(value.year, value.month, value.day)),
    (datetime.timedelta, lambda value: datetime.timedelta(value.days, value.seconds, value.microseconds)),
    ((collections.deque, range), list),
    (abc.Mapping, dict),
    ((abc.KeysView, abc.ValuesView, abc.ItemsView), list),
)
# Looked up late: if there is a value, its module is loaded.
_AS_TEXT = (("pathlib", "PurePath"), ("ipaddress", "IPv4Address"), ("ipaddress", "IPv6Address"))
_encode = msgspec.json.Encoder(enc_hook=_simplify).encode
_DECODER = msgspec.json.Decoder()


def _refuse_infinite(value: Any, encoded: bytes) -> None:
    """Raises OutputError if the value contains NaN or infinity."""
    plain = msgspec.to_builtins(value, enc_hook=_simplify, str_keys=True)
    stack = [] if plain == decode_json(encoded) else [plain]  # equal: nothing has become null
    while stack:
        current = stack.pop()
        if isinstance(current, float) and not math.isfinite(current):
            raise OutputError(f"the value contains {current}, which JSON can't carry")
        if isinstance(current, dict):
            stack.extend(current.values())
        elif isinstance(current, (list, tuple)):
            stack.extend(current)
