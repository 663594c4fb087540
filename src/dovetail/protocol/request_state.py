"""The `requestState` of a call of several rounds: what it holds, and what it is bound to."""

import hashlib
from base64 import b64encode
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail.errors import INVALID_PARAMS, ProtocolError
from dovetail.protocol import jsonrpc
from dovetail.protocol.jsonrpc import UNREADABLE

MAX_ROUNDS = 32
MAX_WASTED = 3  # rounds in a row whose answers nobody took
MAX_RESPONSES = 1000
_sorted_json = msgspec.json.Encoder(order="sorted").encode


class Binding(msgspec.Struct, frozen=True):
    """What a state belongs to: the same request of the same caller to the same server, and nothing else."""

    method: str
    name: str
    arguments: str
    principal: str
    server: str

    @classmethod
    def from_request(cls, method: str, name: str, arguments: Raw, principal: str | None, server: str) -> "Binding":
        """The order of members makes no difference; nor do no arguments, none at all and null."""
        return cls(_digest(method), _digest(name), _arguments(arguments), _digest(principal), _digest(server))

    def difference(self, other: "Binding | None") -> str | None:
        """What is not the same, for the log."""
        return next((part for part in self.__struct_fields__ if getattr(self, part) != getattr(other, part, "")), None)


def _digest(value: Any) -> str:
    return b64encode(hashlib.sha256(_sorted_json(value)).digest()[:16]).decode()


def _arguments(raw: Raw) -> str:
    try:
        return _digest(_as_meant(raw) or None)
    except (*UNREADABLE, ValueError, OverflowError):  # numbers that nobody means: then every byte counts
        return _digest(b64encode(hashlib.sha256(raw).digest()).decode())


_as_meant = msgspec.json.Decoder(float_hook=lambda text: Raw(text.encode())).decode  # every digit counts


class Round(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that the next run of the function needs to come as far as this one did."""

    call: str  # the same in all rounds of a call
    number: int = 0  # how often the client has been asked, with this time; 0 before the first time
    expires: float = 0.0  # seconds since 1970
    ends: float = 0.0  # when the last state of the call expires, however many there will be
    binding: Binding | None = None
    life: str = ""  # of the store, in which the call began
    asked: list[str] = []  # the places of the questions of this round; only these are answered by the next
    answers: dict[str, Raw] = {}  # of earlier rounds, by place
    used: list[str] = []  # places whose answers some run has used
    steps: dict[str, Raw] = {}  # results, by name and occurrence
    wasted: int = 0  # rounds in a row whose answers nobody took
    state: Raw | UnsetType = UNSET  # what a function that asks by itself wants back


encode_round = msgspec.json.Encoder().encode
decode_round = msgspec.json.Decoder(Round).decode


def read_responses(raw: Raw | UnsetType) -> dict[str, Raw]:
    """The answers of a request, each an object; raises if they are anything else. Which were asked for is not known."""
    if isinstance(raw, UnsetType):
        return {}
    try:
        responses = jsonrpc.members(raw)
    except UNREADABLE:
        if bytes(raw) == b"null":
            return {}
        raise _bad("inputResponses must be an object") from None
    if len(responses) > MAX_RESPONSES:
        raise _bad(f"inputResponses may hold {MAX_RESPONSES} answers at most")
    for key, response in responses.items():
        if memoryview(response)[0] != ord("{"):
            raise _bad(f"inputResponses.{key[:100]} must be an object")
    return responses


def _bad(words: str) -> ProtocolError:
    return ProtocolError(f"Invalid params: {words}", code=INVALID_PARAMS)
