"""Sampling on the wire: the rules of a conversation, and their form in every revision."""

import json
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

import official
from dovetail.errors import MissingCapability, QuestionFailed, SetupError
from dovetail.protocol import jsonrpc, revisions
from dovetail.protocol.revisions import Revision
from dovetail.protocol.sampling import (
    ModelPreferences,
    SamplingMessage,
    SamplingParams,
    ToolChoice,
    ToolResultContent,
    ToolUseContent,
    check_conversation,
    check_tool_turns,
    shape_sampling,
)
from dovetail.protocol.types import Audio, EmbeddedResource, Image, ResourceContents, ResourceLink, Text, ToolDefinition

REVISIONS = pytest.mark.parametrize("revision", revisions.ALL, ids=lambda row: row.name)
RICH = [row for row in revisions.ALL if row.rich_sampling]
PLAIN = [row for row in revisions.ALL if not row.rich_sampling]
LOOKUP = ToolDefinition(name="lookup", input_schema={"type": "object", "properties": {"any": True}})
USE = ToolUseContent("u1", "lookup", {"any": 1})
OTHER_USE = ToolUseContent("u2", "lookup", {})
RESULT = ToolResultContent("u1", "found")
OTHER_RESULT = ToolResultContent("u2", [Text("not found")], is_error=True)


def user(*blocks: Any) -> SamplingMessage:
    return SamplingMessage("user", blocks)


def assistant(*blocks: Any) -> SamplingMessage:
    return SamplingMessage("assistant", blocks)


def asking(*messages: SamplingMessage, **more: Any) -> SamplingParams:
    return SamplingParams(messages=messages, max_tokens=10, **more)


def wire(params: SamplingParams, revision: Revision) -> Any:
    """What goes out, after the official schema has had a look at it."""
    sent = json.loads(jsonrpc.encode(shape_sampling(params, revision)))
    if official.available():
        request = {"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": sent}
        official.validator_for(revision.name, "CreateMessageRequest").validate(request)
    return sent


# The types


@pytest.mark.parametrize("content", ["hi", Text("hi"), [Text("hi")], ["hi"], (Text("hi"),)])
def test_one_block_in_any_spelling(content: Any) -> None:
    assert SamplingMessage("user", content).blocks == (Text("hi"),)
    assert ToolResultContent("u1", content).blocks == (Text("hi"),)


@pytest.mark.parametrize(("priority", "good"), [(0, True), (1, True), (-0.1, False), (1.1, False)])
def test_a_priority_is_a_share(priority: float, good: bool) -> None:
    with nullcontext() if good else pytest.raises(msgspec.ValidationError):
        msgspec.convert({"costPriority": priority}, ModelPreferences)


# What a client must declare


@pytest.mark.rule("SA-1", "SA-2", "SA-3")
@pytest.mark.parametrize(
    ("params", "parts"),
    [
        (asking(user("hi")), []),
        (asking(user("hi"), tools=[LOOKUP]), ["tools"]),
        (asking(user("hi"), tool_choice=ToolChoice("none")), ["tools"]),
        (asking(user("hi"), assistant(USE), user(RESULT)), ["tools"]),
        (asking(user("hi"), include_context="none"), []),
        (asking(user("hi"), include_context="thisServer"), ["context"]),
        (asking(user("hi"), include_context="allServers", tools=[LOOKUP]), ["tools", "context"]),
    ],
)
def test_what_is_required(params: SamplingParams, parts: list[str]) -> None:
    assert params.requires == ("sampling", *(f"sampling.{part}" for part in parts))


@pytest.mark.parametrize(
    ("more", "offers"),
    [
        ({}, False),
        ({"tools": [LOOKUP]}, True),
        ({"tools": [LOOKUP], "tool_choice": ToolChoice()}, True),
        ({"tools": [LOOKUP], "tool_choice": ToolChoice("required")}, True),
        ({"tools": [LOOKUP], "tool_choice": ToolChoice("none")}, False),
        ({"tool_choice": ToolChoice("auto")}, False),
    ],
)
def test_whether_the_model_may_use_tools(more: dict[str, Any], offers: bool) -> None:
    assert asking(user("hi"), **more).offers_tools is offers


# The rules of a conversation

GOOD: dict[str, list[SamplingMessage]] = {
    "plain": [user("a"), assistant("b"), user("c", Image(b"i", "image/png"))],
    "two of one side": [user("a"), user("b"), assistant("c"), assistant("d")],
    "one tool": [user("a"), assistant("hm", USE), user(RESULT), assistant("b")],
    "any order": [assistant(USE, OTHER_USE), user(OTHER_RESULT, RESULT)],
    "twice, with the same id": [assistant(USE), user(RESULT), assistant(USE), user(RESULT), user("thanks")],
}
BAD: dict[str, tuple[list[SamplingMessage], str]] = {
    "mixed": ([assistant(USE), user(RESULT, "and?")], r"message 1: .* may hold nothing else"),
    "nothing follows": ([user("a"), assistant(USE)], r"message 1: the next message must hold .* none for 'u1'"),
    "text follows": ([assistant(USE), user("well")], r"message 0: the next message must hold .* none for 'u1'"),
    "assistant follows": ([assistant(USE), assistant("b"), user(RESULT)], r"message 0: the next message must hold"),
    "one is missing": ([assistant(USE, OTHER_USE), user(RESULT)], r"message 0: .* there is none for 'u2'"),
    "one too many": ([assistant(USE), user(RESULT, OTHER_RESULT)], "message 1: it must hold a ToolResultContent"),
    "out of the blue": ([user(RESULT)], "message 0: it must hold a ToolResultContent"),
    "too late": ([assistant(USE), user(RESULT), user(RESULT)], "message 2: it must hold a ToolResultContent"),
    "result twice": ([assistant(USE), user(RESULT, RESULT)], "message 1: it must hold a ToolResultContent"),
    "use twice": ([assistant(USE, USE), user(RESULT)], r"message 0: two tool uses in it have the same id"),
    "user uses": ([user(USE), user(RESULT)], r'message 0: only the model uses tools; .* role="assistant"'),
    "assistant answers": ([assistant(USE), assistant(RESULT)], r'message 1: .* role="user"'),
}


@pytest.mark.rule("SA-4", "SA-5")
@pytest.mark.parametrize("name", GOOD)
def test_conversations_that_go_out(name: str) -> None:
    check_conversation(dict(enumerate(GOOD[name])))


@pytest.mark.rule("SA-4", "SA-5")
@pytest.mark.parametrize("name", BAD)
def test_conversations_that_do_not(name: str) -> None:
    messages, words = BAD[name]
    with pytest.raises(SetupError, match=words):
        check_conversation(dict(enumerate(messages)))


def test_messages_are_named_by_their_numbers() -> None:
    with pytest.raises(SetupError, match="message 7: the next message"):
        check_conversation({2: user("a"), 7: assistant(USE), 9: user("b")})


@pytest.mark.rule("SA-6")
def test_a_model_does_not_use_tools_for_ever() -> None:
    turns = [assistant(USE), user(RESULT)] * 99
    check_tool_turns(turns)
    with pytest.raises(QuestionFailed, match='tool_choice="none" makes it answer'):
        check_tool_turns([*turns, assistant(USE, OTHER_USE), user(RESULT, OTHER_RESULT)])


# Shapes by revision


@REVISIONS
def test_one_block_is_the_same_everywhere(revision: Revision) -> None:
    sent = wire(asking(user("hi"), assistant(Image(b"i", "image/png")), system_prompt="s"), revision)
    assert sent == {
        "messages": [
            {"role": "user", "content": {"type": "text", "text": "hi"}},
            {"role": "assistant", "content": {"type": "image", "data": "aQ==", "mimeType": "image/png"}},
        ],
        "maxTokens": 10,
        "systemPrompt": "s",
    }


@REVISIONS
def test_several_blocks(revision: Revision) -> None:
    sent = wire(asking(user("a", "b"), assistant("c")), revision)["messages"]
    a, b, c = ({"type": "text", "text": text} for text in "abc")
    if revision.rich_sampling:
        assert sent == [{"role": "user", "content": [a, b]}, {"role": "assistant", "content": c}]
    else:
        assert sent == [
            {"role": "user", "content": a},
            {"role": "user", "content": b},
            {"role": "assistant", "content": c},
        ]


@REVISIONS
def test_audio(revision: Revision) -> None:
    (message,) = wire(asking(user(Audio(b"a", "audio/wav"))), revision)["messages"]
    if revision.audio:
        assert message["content"] == {"type": "audio", "data": "YQ==", "mimeType": "audio/wav"}
    else:
        assert message["content"]["text"] == "[audio, audio/wav, 1 bytes: not part of this protocol revision]"


@REVISIONS
def test_meta_goes_only_where_it_is_known(revision: Revision) -> None:
    meta = {"com.example/k": 1}
    message = SamplingMessage("user", [Text("a", meta=meta)], meta=meta)
    (sent,) = wire(asking(message), revision)["messages"]
    assert ("_meta" in sent) is revision.rich_sampling
    assert ("_meta" in sent["content"]) is revision.object_meta


@REVISIONS
def test_a_turn_without_words_is_left_out(revision: Revision) -> None:
    sent = wire(asking(user("a"), assistant(), user("b")), revision)
    assert [message["role"] for message in sent["messages"]] == ["user", "user"]


@pytest.mark.rule("SA-2")
@pytest.mark.parametrize("revision", PLAIN, ids=lambda row: row.name)
@pytest.mark.parametrize(
    "params",
    [
        asking(user("hi"), tools=[LOOKUP]),
        asking(user("hi"), tool_choice=ToolChoice("none")),
        asking(assistant(USE), user(RESULT)),
    ],
)
def test_tools_never_reach_a_revision_without_them(params: SamplingParams, revision: Revision) -> None:
    with pytest.raises(MissingCapability) as caught:
        shape_sampling(params, revision)
    assert caught.value.required == {"sampling": {"tools": {}}}


@pytest.mark.rule("SA-2")
@pytest.mark.parametrize("revision", RICH, ids=lambda row: row.name)
def test_tools(revision: Revision) -> None:
    link = ResourceLink("a://b", "n")
    resource = EmbeddedResource(ResourceContents("a://b", text="t"))
    talk = [
        user("hi"),
        assistant(USE, OTHER_USE),
        user(RESULT, ToolResultContent("u2", [link, resource, "x"], is_error=True)),
    ]
    sent = wire(asking(*talk, tools=[LOOKUP], tool_choice=ToolChoice("required")), revision)
    assert sent["toolChoice"] == {"mode": "required"}
    shown = True if revision.open_schemas else {}
    schema = {"type": "object", "properties": {"any": shown}}
    assert sent["tools"] == [{"name": "lookup", "inputSchema": schema}]
    assert sent["messages"][1]["content"][0] == {"type": "tool_use", "id": "u1", "name": "lookup", "input": {"any": 1}}
    first, second = sent["messages"][2]["content"]
    assert first == {"type": "tool_result", "toolUseId": "u1", "content": [{"type": "text", "text": "found"}]}
    assert [block["type"] for block in second["content"]] == ["resource_link", "resource", "text"]
    assert second["isError"] is True


@pytest.mark.parametrize("revision", RICH, ids=lambda row: row.name)
@pytest.mark.parametrize("value", [{"a": 1}, [1], "text", 0, False])
def test_structured_results(value: Any, revision: Revision) -> None:
    talk = [assistant(USE), user(ToolResultContent("u1", "x", structured=value))]
    sent = wire(asking(*talk), revision)["messages"][1]["content"]["structuredContent"]
    as_it_is = isinstance(value, dict) or revision.any_structured_output
    assert sent == (value if as_it_is else {"result": value})
