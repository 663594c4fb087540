"""`Sample`, a request to the client's model, and `Sampled`, its checked result."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, TypedDict, TypeVar, Unpack, get_args

import msgspec

from dovetail.errors import QuestionFailed, SetupError
from dovetail.protocol.elicitation import ServerRequest
from dovetail.protocol.jsonrpc import UNREADABLE
from dovetail.protocol.revisions import LATEST, Revision
from dovetail.protocol.sampling import (
    METHOD,
    ContextScope,
    ModelPreferences,
    SamplingContent,
    SamplingMessage,
    SamplingParams,
    ToolChoice,
    ToolMode,
    ToolResultContent,
    ToolUseContent,
    check_conversation,
    check_tool_turns,
    shape_sampling,
)
from dovetail.protocol.types import (
    CONTENT_TYPES,
    Audio,
    Content,
    Image,
    Message,
    Role,
    Text,
    ToolDefinition,
    describes_object,
)
from dovetail.registry import registration
from dovetail.registry.catalog import check_name
from dovetail.registry.registration import NAMES, POSITIVE_COUNT, TEXT, Kind, checked_options, convert_option
from dovetail.registry.tools import Tool, compile_tool
from dovetail.schema.encode import OutputError, to_jsonable
from dovetail.schema.explain import problems_in

Turn = str | Content | ToolUseContent | ToolResultContent | Message | SamplingMessage
Preferences = str | Sequence[str] | Mapping[str, Any]
OfferedTool = Callable[..., Any] | Mapping[str, Any] | ToolDefinition | Tool

_KINDS = {
    "max_tokens": POSITIVE_COUNT,
    "system_prompt": TEXT,
    "temperature": Kind(Annotated[float, msgspec.Meta(ge=0)], "a number, 0 or more"),
    "stop_sequences": NAMES,
    "include_context": Kind(ContextScope, '"none", "thisServer" or "allServers"'),
    "metadata": Kind(dict[str, Any], "a dict with string keys"),
}


class SampleOptions(TypedDict, total=False):
    """Options of `Sample` and `ctx.sample`."""

    max_tokens: int  # 1024 by default
    system_prompt: str | None
    temperature: float | None
    stop_sequences: Sequence[str] | None
    model_preferences: Preferences | None  # names of models, or hints and priorities
    include_context: ContextScope | None
    tools: Sequence[OfferedTool] | None
    tool_choice: ToolMode | Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None


class Sampled(msgspec.Struct, frozen=True):
    """The message of the client's model."""

    role: Role
    content: tuple[Text | Image | Audio | ToolUseContent, ...]
    model: str
    stop_reason: str | None = None  # endTurn, stopSequence, maxTokens, toolUse, or the provider's own

    @property
    def text(self) -> str:
        """All text blocks, one below the other."""
        return "\n".join(block.text for block in self.content if isinstance(block, Text))

    @property
    def tool_uses(self) -> list[ToolUseContent]:
        """The tools that the model uses; each gets a `ToolResultContent` in the next message."""
        return [block for block in self.content if isinstance(block, ToolUseContent)]

    @property
    def message(self) -> SamplingMessage:
        """The result as a message, to continue the conversation."""
        return SamplingMessage(self.role, self.content)


class Sample:
    """A request to the client's model.

    `messages` is the conversation so far: a string or block is a message of the user, a `SamplingMessage` may be of
    either role and hold several blocks. Results of tools in a row become one message. `tools` are functions, dicts with
    name, description and inputSchema, or definitions; they are offered to the model, and only the author runs them.
    """

    def __init__(self, messages: Turn | Sequence[Turn], **options: Unpack[SampleOptions]) -> None:
        given: dict[str, Any] = checked_options({**options}, SampleOptions.__annotations__, "sample", _KINDS)
        given.setdefault("max_tokens", 1024)
        tools = given.pop("tools", None)
        self._params = SamplingParams(
            messages=_conversation(messages),
            model_preferences=_preferences(given.pop("model_preferences", None)),
            tools=_definitions(tools),
            tool_choice=_choice(given.pop("tool_choice", None), tools),
            **given,
        )
        if self._params.offers_tools:
            check_tool_turns(self._params.messages)
        try:
            params = self.params(LATEST)
        except OutputError as failure:
            raise SetupError(f"sample: the question can't be sent: {failure}") from None
        self.server_request = ServerRequest(method=METHOD, params=params, requires=self._params.requires)

    def params(self, revision: Revision) -> dict[str, Any]:
        return to_jsonable(shape_sampling(self._params, revision))  # type: ignore[no-any-return]

    def read(self, result: bytes | msgspec.Raw, revision: Revision) -> Sampled:
        """The model's checked message. Raises QuestionFailed if the result does not fit the request."""
        try:
            decode = _decode_rich if revision.rich_sampling else _decode_plain if revision.audio else _decode_oldest
            decoded = decode(result)
        except UNREADABLE as failure:
            path, words = problems_in(failure)[0]
            raise _unusable(path.lstrip(".") or "the result", words) from None
        content = tuple(decoded.content) if isinstance(decoded.content, list) else (decoded.content,)
        sampled = Sampled(decoded.role, content, decoded.model, decoded.stop_reason)
        ids = [use.id for use in sampled.tool_uses]
        if ids and not self._params.offers_tools:
            raise _unusable("content", "the model uses tools, but was offered none")
        if ids and sampled.role != "assistant":
            raise _unusable("role", "only an assistant uses tools")
        if len(set(ids)) != len(ids):
            raise _unusable("content", "two uses of tools have the same id")
        return sampled


def _conversation(given: Turn | Sequence[Turn]) -> tuple[SamplingMessage, ...]:
    """The messages as they are sent; errors name them by their position in the author's list."""
    given = registration.from_official(given)
    turns: Sequence[Any] = given if isinstance(given, (list, tuple)) else [given]
    messages: dict[int, SamplingMessage] = {}
    previous: Any = None
    for number, turn in enumerate(turns):
        if isinstance(turn, (ToolUseContent, ToolResultContent)) and type(turn) is type(previous):
            last, message = messages.popitem()
            messages[last] = SamplingMessage(message.role, (*message.blocks, *_message(turn, number).blocks))
        else:
            messages[number] = _message(turn, number)
        previous = turn
    if not any(message.blocks for message in messages.values()):
        raise SetupError('sample: messages is empty; pass what to say to the model, such as "Hello"')
    try:
        check_conversation(messages)
    except SetupError as problem:
        raise SetupError(f"sample, {problem}") from None
    return tuple(messages.values())


def _message(turn: Any, number: int) -> SamplingMessage:
    where = f"sample, message {number}"
    if isinstance(turn, Message):
        turn = SamplingMessage(turn.role, turn.content)  # type: ignore[arg-type]  # what is no part of it is refused later
    elif isinstance(turn, (str, ToolUseContent, ToolResultContent, *CONTENT_TYPES)):
        turn = SamplingMessage("assistant" if isinstance(turn, ToolUseContent) else "user", turn)  # type: ignore[arg-type]
    if not isinstance(turn, SamplingMessage):
        raise SetupError(f"{where}: {type(turn).__name__} is no message; pass a string, a block or a SamplingMessage")
    if turn.role not in get_args(Role):
        raise SetupError(f'{where}: role={turn.role!r} must be "user" or "assistant"; else use system_prompt=')
    if turn.role == "user" and not turn.blocks:
        raise SetupError(f"{where}: it holds no content; leave it out")
    return msgspec.structs.replace(turn, content=tuple(_block(block, where) for block in turn.blocks))


def _block(block: Any, where: str) -> SamplingContent:
    if not isinstance(block, SamplingContent):
        kinds = "a string, Text, Image, Audio, ToolUseContent, ToolResultContent"
        raise SetupError(f"{where}: {type(block).__name__} can't be part of it; use {kinds}")
    if not isinstance(block, ToolResultContent):
        return block
    if not isinstance(block.tool_use_id, str):
        raise SetupError(f"{where}: tool_use_id must be the id of a tool use, not {type(block.tool_use_id).__name__}")
    if wrong := [type(part).__name__ for part in block.blocks if not isinstance(part, CONTENT_TYPES)]:
        fix = "use strings and blocks, or structured="
        raise SetupError(f"{where}: the content of a ToolResultContent can't be {wrong[0]}; {fix}")
    try:
        return msgspec.structs.replace(block, content=block.blocks, structured=to_jsonable(block.structured))
    except OutputError as failure:
        raise SetupError(f"{where}: structured can't be sent: {failure}") from None


def _preferences(given: Preferences | None) -> ModelPreferences | None:
    if given is None:
        return None
    members: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"hints": given}
    if (hints := members.get("hints")) is not None:
        hints = hints if isinstance(hints, (list, tuple)) else [hints]
        members["hints"] = [hint if isinstance(hint, Mapping) else {"name": hint} for hint in hints]
        if not all(isinstance(hint.get("name", ""), str) for hint in members["hints"]):
            raise SetupError(f"sample: model_preferences: hints={hints!r} must be names of models, or parts of names")
    preferences: ModelPreferences = convert_option(members, ModelPreferences, "sample", "model_preferences")
    return preferences


def _definitions(tools: Sequence[OfferedTool] | None) -> list[ToolDefinition] | None:
    if not tools:
        return None
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Sequence):
        raise SetupError(f"sample: tools must be a list, not {type(tools).__name__}")
    definitions = [_definition(tool, number) for number, tool in enumerate(tools)]
    names = [definition.name for definition in definitions]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SetupError(f"sample: two tools have the name {twice[0]!r}; the model could not tell them apart")
    return definitions


def _definition(tool: OfferedTool, number: int) -> ToolDefinition:
    where = f"sample, tool {number}"
    if callable(tool):
        tool = compile_tool(tool, {"output": "text"})  # a model gets no output schemas
    if isinstance(tool, Tool):
        return tool.definition
    if not isinstance(tool, (ToolDefinition, Mapping)):
        raise SetupError(f"{where}: {type(tool).__name__} is no tool; pass a function, a dict or a ToolDefinition")
    definition: ToolDefinition = convert_option(tool, ToolDefinition, where, "tools")
    check_name(definition.name, where)
    if not describes_object(definition.input_schema):
        raise SetupError(f'{where}: the inputSchema of {definition.name} must have "type": "object"')
    return definition


def _choice(given: ToolMode | Mapping[str, Any] | None, tools: Sequence[OfferedTool] | None) -> ToolChoice | None:
    if given is None:
        return None
    mode: Any = given.get("mode") if isinstance(given, Mapping) and given.keys() <= {"mode"} else given
    if mode not in (None, *get_args(ToolMode)):
        raise SetupError(f'sample: tool_choice={given!r} is not possible; it must be "auto", "required" or "none"')
    if mode == "required" and not tools:
        raise SetupError('sample: tool_choice="required" needs tools=')
    return ToolChoice(mode)


C = TypeVar("C")


class _Result(msgspec.Struct, Generic[C], frozen=True, rename="camel"):
    role: Role
    content: C
    model: str
    stop_reason: str | None = None


_Block = Text | Image | Audio | ToolUseContent
_Blocks = Annotated[list[_Block], msgspec.Meta(max_length=1_000)]
_Decode = Callable[[bytes | msgspec.Raw], _Result[Any]]
_decode_oldest: _Decode = msgspec.json.Decoder(_Result[Text | Image]).decode
_decode_plain: _Decode = msgspec.json.Decoder(_Result[Text | Image | Audio]).decode
_decode_rich: _Decode = msgspec.json.Decoder(_Result[_Block | _Blocks]).decode


def _unusable(place: str, words: str) -> QuestionFailed:
    return QuestionFailed(f"The client's answer to {METHOD} can't be used: {place}: {words}")
