"""Sampling on the wire: messages of a conversation with a model, their rules, their form by revision."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from dovetail.errors import MissingCapability, QuestionFailed, SetupError
from dovetail.protocol.revisions import Revision
from dovetail.protocol.types import (
    Audio,
    Content,
    Image,
    Meta,
    Role,
    Text,
    ToolDefinition,
    shape_content,
    shape_definition,
)

METHOD = "sampling/createMessage"
ContextScope = Literal["none", "thisServer", "allServers"]
ToolMode = Literal["auto", "required", "none"]
Priority = Annotated[float, msgspec.Meta(ge=0, le=1)]
B = TypeVar("B")


class ToolUseContent(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="tool_use"):
    """A model's call of a tool."""

    id: str
    name: str
    input: dict[str, Any]
    meta: Meta | None = msgspec.field(name="_meta", default=None)  # returned unchanged: providers cache by it


class ToolResultContent(
    msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", tag_field="type", tag="tool_result"
):
    """The result of a tool use, for the model."""

    tool_use_id: str
    content: str | Content | Sequence[Content | str]
    structured: Any = msgspec.field(name="structuredContent", default=None)
    is_error: bool = False
    meta: Meta | None = msgspec.field(name="_meta", default=None)

    @property
    def blocks(self) -> tuple[Content, ...]:
        return _as_blocks(self.content)


PlainContent = Text | Image | Audio
SamplingContent = Text | Image | Audio | ToolUseContent | ToolResultContent


class SamplingMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a conversation, with one or several blocks."""

    role: Role
    content: str | SamplingContent | Sequence[SamplingContent | str]
    meta: Meta | None = msgspec.field(name="_meta", default=None)

    @property
    def blocks(self) -> tuple[SamplingContent, ...]:
        return _as_blocks(self.content)

    @property
    def tool_uses(self) -> list[ToolUseContent]:
        return [block for block in self.blocks if isinstance(block, ToolUseContent)]

    @property
    def tool_results(self) -> list[ToolResultContent]:
        return [block for block in self.blocks if isinstance(block, ToolResultContent)]


def _as_blocks(content: str | B | Sequence[B | str]) -> tuple[B | Text, ...]:
    if isinstance(content, str):
        return (Text(content),)
    if isinstance(content, Sequence):
        return tuple(Text(item) if isinstance(item, str) else item for item in content)
    return (content,)


class ModelPreferences(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The wanted model: parts of names, the best first, and priorities from 0 to 1."""

    hints: Sequence[Mapping[str, Any]] | None = None
    cost_priority: Priority | None = None
    speed_priority: Priority | None = None
    intelligence_priority: Priority | None = None


class ToolChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    mode: ToolMode | None = None


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, rename="camel"):
    messages: Sequence[SamplingMessage]
    max_tokens: int
    system_prompt: str | None = None
    temperature: float | None = None
    stop_sequences: Sequence[str] | None = None
    model_preferences: ModelPreferences | None = None
    include_context: ContextScope | None = None
    tools: Sequence[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None
    metadata: Mapping[str, Any] | None = None

    @property
    def offers_tools(self) -> bool:
        return bool(self.tools) and (self.tool_choice is None or self.tool_choice.mode != "none")

    @property
    def requires(self) -> tuple[str, ...]:
        """The capabilities that the client must have declared."""
        tools_in_messages = any(message.tool_uses or message.tool_results for message in self.messages)
        parts = {
            "sampling": True,
            "sampling.tools": tools_in_messages or self.tools is not None or self.tool_choice is not None,
            "sampling.context": self.include_context not in (None, "none"),
        }
        return tuple(name for name, is_needed in parts.items() if is_needed)


def check_conversation(messages: Mapping[int, SamplingMessage]) -> None:
    """Raises SetupError unless the next message holds the results of all tool uses; keys are numbers for its text."""
    used_in, uses = 0, list[str]()
    for number, message in messages.items():
        if message.tool_uses and message.role != "assistant":
            raise SetupError(f'message {number}: only the model uses tools; one with tool uses has role="assistant"')
        if message.tool_results and (message.role != "user" or len(message.tool_results) != len(message.blocks)):
            raise SetupError(f'message {number}: one with tool results has role="user", and may hold nothing else')
        given = [result.tool_use_id for result in message.tool_results]
        if missing := set(uses).difference(given):
            raise _missing_results(used_in, missing)
        if len(given) != len(uses):
            raise SetupError(
                f"message {number}: it must hold a ToolResultContent for each tool use before it, no other"
            )
        used_in, uses = number, [use.id for use in message.tool_uses]
        if len(set(uses)) != len(uses):
            raise SetupError(
                f"message {number}: two tool uses in it have the same id, so results can't tell them apart"
            )
    if uses:
        raise _missing_results(used_in, set(uses))


def check_tool_turns(messages: Sequence[SamplingMessage], most: int = 100) -> None:
    """Raises QuestionFailed if the model has used tools in `most` messages and still does not end."""
    if sum(1 for message in messages if message.tool_uses) >= most:
        raise QuestionFailed(
            f"The model has used tools in {most} turns of this conversation and is not offered any more; "
            'tool_choice="none" makes it answer'
        )


def _missing_results(number: int, ids: set[str]) -> SetupError:
    return SetupError(
        f"message {number}: the next message must hold a ToolResultContent for each tool use in this one; "
        f"there is none for {', '.join(repr(id[:80]) for id in sorted(ids)[:5])}"
    )


def shape_sampling(params: SamplingParams, revision: Revision) -> SamplingParams:
    """The params as a revision spells them. Raises MissingCapability for tools if it has none."""
    if revision.rich_sampling:
        messages = [_shape_message(message, revision) for message in params.messages if message.blocks]
        tools = None if params.tools is None else [shape_definition(tool, revision) for tool in params.tools]
        return msgspec.structs.replace(params, messages=messages, tools=tools)
    if "sampling.tools" in params.requires:
        raise MissingCapability({"sampling": {"tools": {}}})
    single = [part for message in params.messages for part in _single_blocks(message, revision)]
    return msgspec.structs.replace(params, messages=single)


def _shape_message(message: SamplingMessage, revision: Revision) -> SamplingMessage:
    blocks = [_shape_block(block, revision) for block in message.blocks]
    # One block is sent without a list, as clients of older revisions expect.
    return msgspec.structs.replace(message, content=blocks[0] if len(blocks) == 1 else blocks)


def _shape_block(block: SamplingContent, revision: Revision) -> SamplingContent:
    if not isinstance(block, ToolResultContent):
        return block
    structured = block.structured
    if structured is not None and not isinstance(structured, Mapping) and not revision.any_structured_output:
        structured = {"result": structured}
    return msgspec.structs.replace(block, content=shape_content(block.blocks, revision), structured=structured)


def _single_blocks(message: SamplingMessage, revision: Revision) -> list[SamplingMessage]:
    plain = [block for block in message.blocks if isinstance(block, PlainContent)]  # without tools there are no others
    return [SamplingMessage(message.role, block) for block in shape_content(plain, revision)]  # type: ignore[arg-type]
