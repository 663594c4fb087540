"""What a server asks a model: params come in, the handler sees a `SamplingRequest`, and a result goes out."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Raw

from dovetail.client.calling import outcome_of
from dovetail.errors import ProtocolError, SetupError

REJECTED = -1  # the specification's own code for a person who says no


class SamplingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to complete, and how. `params` holds all of it as it came.

    Each message is {"role": …, "content": [blocks]}; the content is a list even where the server sent one block.
    """

    messages: list[dict[str, Any]]
    max_tokens: int
    system_prompt: str | None = None
    temperature: float | None = None
    stop_sequences: list[str] = []
    model_preferences: dict[str, Any] = {}
    include_context: str | None = None
    metadata: dict[str, Any] = {}
    tools: list[dict[str, Any]] = []
    tool_choice: dict[str, Any] | None = None
    params: dict[str, Any]

    @property
    def needs(self) -> tuple[str, ...]:
        """The capability without which a server may not ask this."""
        return ("sampling.tools",) if self.tools or self.tool_choice is not None else ()


Given = str | Mapping[str, Any] | None
SamplingHandler = Callable[[SamplingRequest], Given | Awaitable[Given]]


class _Turn(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant"]
    content: dict[str, Any] | list[dict[str, Any]]


class _Asked(msgspec.Struct, frozen=True, rename="camel"):
    messages: list[_Turn]
    max_tokens: int
    system_prompt: str | None = None
    temperature: float | None = None
    stop_sequences: list[str] | None = None
    model_preferences: dict[str, Any] | None = None
    include_context: str | None = None
    metadata: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None


def read_sampling(params: Raw) -> SamplingRequest:
    asked = msgspec.json.decode(params, type=_Asked)
    given = {name: value for name, value in msgspec.structs.asdict(asked).items() if value is not None}
    messages = [{"role": turn.role, "content": _blocks(turn.content)} for turn in asked.messages]
    return SamplingRequest(**{**given, "messages": messages, "params": msgspec.json.decode(params)})


def _blocks(content: dict[str, Any] | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return content if isinstance(content, list) else [content]


async def sample(handler: SamplingHandler, request: SamplingRequest) -> dict[str, Any]:
    given = await outcome_of(handler, request)
    if given is None:
        raise ProtocolError("The user rejected the sampling request", code=REJECTED)
    whole: dict[str, Any] = {"role": "assistant", "model": "unknown"}
    if isinstance(given, str):
        return {**whole, "content": {"type": "text", "text": given}, "stopReason": "endTurn"}
    if isinstance(given, Mapping) and "content" in given:
        return {**whole, **given}
    raise SetupError(
        f"sampling_handler returned {type(given).__name__}; "
        'return the text, a whole result such as {"content": …, "model": …}, or None to refuse'
    )
