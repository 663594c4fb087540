"""What handlers return and middleware sees: values that know how to be encoded by a `Shaper`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from dovetail.protocol.content import Message, Meta, ResourceContents
from dovetail.protocol.definitions import Definition
from dovetail.protocol.features import Completion, Offer
from dovetail.protocol.outbound import CacheHint, Shaper


class Result(Protocol):
    """Anything that answers a request."""

    def encode(self, shaper: Shaper) -> bytes: ...


class Empty(msgspec.Struct, frozen=True):
    """Nothing to say but that it is done."""

    def encode(self, shaper: Shaper) -> bytes:
        return shaper.empty()


class Listing:
    """A page of a list. Untouched it goes out as the bytes kept from last time; once changed it is encoded anew."""

    __slots__ = ("_encoded", "_items", "hint", "key", "next_cursor")

    def __init__(
        self,
        key: str,
        items: Sequence[Definition] | Callable[[], Sequence[Definition]],
        next_cursor: str | None,
        hint: CacheHint,
        encoded: bytes | None = None,
    ) -> None:
        """`items` may be a function: it is called only if somebody looks."""
        self.key = key
        self.next_cursor = next_cursor
        self.hint = hint
        self._items = items
        self._encoded = encoded

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if not name.startswith("_"):
            object.__setattr__(self, "_encoded", None)

    @property
    def items(self) -> tuple[Definition, ...]:
        if callable(self._items):
            self._items = self._items()
        return tuple(self._items)

    @items.setter
    def items(self, items: Sequence[Definition]) -> None:
        self._items = tuple(items)

    def encode(self, shaper: Shaper) -> bytes:
        if self._encoded is None:
            self._encoded = shaper.page(self.key, self.items, self.next_cursor, self.hint)
        return self._encoded


class Contents(msgspec.Struct, frozen=True):
    """What a resource holds."""

    items: Sequence[ResourceContents]
    hint: CacheHint = CacheHint()

    def encode(self, shaper: Shaper) -> bytes:
        return shaper.contents(self.items, self.hint)


class PromptResult(msgspec.Struct, frozen=True):
    """The messages of a prompt."""

    messages: Sequence[Message]
    description: str | None = None

    def encode(self, shaper: Shaper) -> bytes:
        return shaper.prompt(self.messages, self.description)


class Suggestions(msgspec.Struct, frozen=True):
    """Suggestions for an argument."""

    completion: Completion

    def encode(self, shaper: Shaper) -> bytes:
        return shaper.completion(self.completion)


class Welcome(msgspec.Struct, frozen=True):
    """The answer to `initialize`."""

    offer: Offer
    instructions: str | None

    def encode(self, shaper: Shaper) -> bytes:
        return shaper.initialize(self.offer, self.instructions)


class Discovery(msgspec.Struct, frozen=True):
    """The answer to `server/discover`."""

    offer: Offer
    instructions: str | None
    hint: CacheHint

    def encode(self, shaper: Shaper) -> bytes:
        return shaper.discover(self.offer, self.instructions, self.hint)


class Interim(msgspec.Struct, frozen=True):
    """Not yet a result: questions that the client answers when it makes the request again."""

    requests: Mapping[str, Any]  # by key: method and params
    state: str  # sealed

    def encode(self, shaper: Shaper) -> bytes:
        return shaper.interim(self.requests, self.state)


class ListenEnded(msgspec.Struct, frozen=True):
    """The graceful end of a `subscriptions/listen`."""

    meta: Meta  # names the subscription

    def encode(self, shaper: Shaper) -> bytes:
        return shaper.listen_ended(self.meta)
