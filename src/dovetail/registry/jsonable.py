"""Any value that a function may return goes in; JSON text or JSON builtins come out, or an OutputError."""

import collections
import datetime
import decimal
import enum
import ipaddress
import itertools
import math
import pathlib
import re
from collections import abc
from collections.abc import Callable
from typing import Any

import msgspec

from dovetail.registry.models import dump_model, is_model

MAX_DEPTH = 500  # levels of lists and objects: the same everywhere, while interpreters differ in what they bear


class OutputError(ValueError):
    """A returned value that can't be sent. The details are for the server's log, never for the client."""


def encode_json(value: Any) -> bytes:
    """The value as JSON text; refuses NaN, infinity, lone surrogates, cycles, and what has no JSON form."""
    try:
        encoded = _ENCODER.encode(value)
        if encoded.count(b"[") + encoded.count(b"{") > MAX_DEPTH:  # else it can't be too deep
            _refuse_deep(encoded)
        if b"null" in encoded:  # NaN and infinity are written as null; look closer only where there is one
            _refuse_infinite(value, encoded)
        return encoded
    except OutputError:
        raise
    except RecursionError:
        raise OutputError("the value is nested too deeply, or contains itself") from None
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
    """Our own JSON text back as builtins."""
    try:
        return _DECODER.decode(encoded)
    except RecursionError:
        raise OutputError("the value is nested too deeply") from None


def _simplify(value: Any) -> Any:
    """What msgspec does not know; the first matching row wins."""
    for kind, convert in _CONVERSIONS:
        if isinstance(value, kind):
            return convert(value)
    if is_model(type(value)):
        return dump_model(value)
    raise TypeError(f"objects of type {type(value).__qualname__} are not supported")


_CONVERSIONS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (enum.Enum, lambda value: value.value),
    (str, lambda value: str.__str__(value)),  # subclasses of builtins, whatever they make of themselves
    (int, int.__int__),
    (float, float.__float__),
    ((bytes, bytearray), bytes),
    (decimal.Decimal, decimal.Decimal),
    (datetime.datetime, lambda value: datetime.datetime.combine(value.date(), value.timetz())),
    (datetime.date, lambda value: datetime.date(value.year, value.month, value.day)),
    (datetime.timedelta, lambda value: datetime.timedelta(value.days, value.seconds, value.microseconds)),
    (pathlib.PurePath, str),
    ((ipaddress.IPv4Address, ipaddress.IPv6Address), str),
    ((collections.deque, range), list),
    (abc.Mapping, dict),
    ((abc.KeysView, abc.ValuesView, abc.ItemsView), list),
)
_ENCODER = msgspec.json.Encoder(enc_hook=_simplify)
_DECODER = msgspec.json.Decoder()


_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in _STEPS)


def _refuse_deep(encoded: bytes) -> None:
    """A second look, without the strings, only if the first finds it deep: brackets in strings count at first.

    Strings made to hide a depth from the first look gain nothing: the interpreter has a limit too.
    """
    if _depth(encoded) > MAX_DEPTH and _depth(_STRING.sub(b"", encoded)) > MAX_DEPTH:
        raise OutputError(f"the value is nested too deeply: more than {MAX_DEPTH} levels")


def _depth(encoded: bytes) -> int:
    brackets = encoded.translate(None, _NO_BRACKETS)
    return max(itertools.accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def _refuse_infinite(value: Any, encoded: bytes) -> None:
    """Find the float that JSON can't carry, if there is one."""
    plain = msgspec.to_builtins(value, enc_hook=_simplify, str_keys=True)
    waiting = [] if plain == decode_json(encoded) else [plain]  # equal: nothing has turned into null
    while waiting:
        current = waiting.pop()
        if isinstance(current, float) and not math.isfinite(current):
            raise OutputError(f"the value contains {current}, which JSON can't carry")
        if isinstance(current, dict):
            waiting.extend(current.values())
        elif isinstance(current, (list, tuple)):
            waiting.extend(current)
