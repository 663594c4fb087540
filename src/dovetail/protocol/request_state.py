"""The `requestState` of a call of several rounds: its content, and the request that it is bound to."""

import hashlib
from base64 import b64encode
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail.protocol import jsonrpc
from dovetail.protocol.jsonrpc import UNREADABLE, invalid_params

MAX_ROUNDS = 32
MAX_WASTED = 3  # rounds in a row whose responses no run used
MAX_RESPONSES = 1000
_sorted_json = msgspec.json.Encoder(order="sorted").encode


class Binding(msgspec.Struct, frozen=True):
    """The request, caller and server that a state belongs to, as digests."""

    method: str
    name: str
    arguments: str
    principal: str
    server: str

    @classmethod
    def from_request(cls, method: str, name: str, arguments: Raw, principal: str | None, server: str) -> "Binding":
        """The binding of a request. The order of members does not count; absent, null and empty arguments are equal."""
        return cls(_digest(method), _digest(name), arguments_digest(arguments), _digest(principal), _digest(server))

    def difference(self, other: "Binding | None") -> str | None:
        """The name of the first field that differs, for the log."""
        return next((part for part in self.__struct_fields__ if getattr(self, part) != getattr(other, part, "")), None)


def _digest(value: Any) -> str:
    return b64encode(hashlib.sha256(_sorted_json(value)).digest()[:16]).decode()


def arguments_digest(raw: Raw) -> str:
    """The same for arguments that differ in nothing but blanks and the order of members."""
    try:
        return _digest(_decode_exact(raw) or None)
    except (*UNREADABLE, ValueError, OverflowError):  # absurd numbers: then every byte counts
        return _digest(b64encode(hashlib.sha256(raw).digest()).decode())


_decode_exact = msgspec.json.Decoder(float_hook=lambda text: Raw(text.encode())).decode  # keeps every digit


class Asked(msgspec.Struct, frozen=True):
    """The questions of a round, for their spans: only if it was traced."""

    at: int  # nanoseconds since 1970
    methods: dict[str, str]  # by the keys of the questions
    context: dict[str, str]  # of the request that asked, as W3C spells it


class Round(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the next run of the function needs to get as far as this one did."""

    call: str  # the same in all rounds of a call
    number: int = 0  # of input required results, this one included; 0 in the first run
    expires: float = 0.0  # seconds since 1970
    ends: float = 0.0  # when the call itself expires, however many rounds it takes
    binding: Binding | None = None
    generation: str = ""  # id of the store in which the call began; a store that lost its records has a new one
    requested: list[str] = []  # keys of this round's server requests; only these have responses in the next
    responses: dict[str, Raw] = {}  # responses of earlier rounds, by key
    used: list[str] = []  # keys whose responses some run has used
    steps: dict[str, Raw] = {}  # results, by name and occurrence
    wasted: int = 0  # rounds in a row whose responses no run used
    state: Raw | UnsetType = UNSET  # of a function that returned InputRequired(state=…)
    asked: Asked | None = None


encode_round = msgspec.json.Encoder().encode
decode_round = msgspec.json.Decoder(Round).decode


def read_responses(raw: Raw | UnsetType) -> dict[str, Raw]:
    """The `inputResponses` of a request, each an object. Raises ProtocolError if they are malformed."""
    if isinstance(raw, UnsetType):
        return {}
    try:
        responses = jsonrpc.members(raw)
    except UNREADABLE:
        if bytes(raw) == b"null":
            return {}
        raise invalid_params("inputResponses must be an object") from None
    if len(responses) > MAX_RESPONSES:
        raise invalid_params(f"inputResponses may hold {MAX_RESPONSES} answers at most")
    for key, response in responses.items():
        if memoryview(response)[0] != ord("{"):
            raise invalid_params(f"inputResponses.{key[:100]} must be an object")
    return responses
