"""`Sample` from what an author writes to what a client is asked, and what its answer becomes."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import official
from dovetail.errors import MissingCapability, QuestionFailed, SetupError
from dovetail.protocol import revisions
from dovetail.protocol.capabilities import require_client_support
from dovetail.protocol.elicitation import InputRequest
from dovetail.protocol.revisions import LATEST, Revision
from dovetail.protocol.sampling import SamplingMessage, ToolResultContent, ToolUseContent
from dovetail.protocol.types import (
    EmbeddedResource,
    Image,
    Message,
    ResourceContents,
    ResourceLink,
    Text,
    ToolDefinition,
)
from dovetail.registry.sampling import Sample, Sampled
from dovetail.registry.tools import compile_tool

REVISIONS = pytest.mark.parametrize("revision", revisions.ALL, ids=lambda row: row.name)
EDGES = pytest.mark.parametrize("revision", [revisions.ALL[0], LATEST], ids=lambda row: row.name)
HI = {"role": "user", "content": {"type": "text", "text": "hi"}}
USE = ToolUseContent("u1", "add", {"a": 1, "b": 2})
OTHER_USE = ToolUseContent("u2", "add", {})
WIRE_USE = {"type": "tool_use", "id": "u1", "name": "add", "input": {"a": 1, "b": 2}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
IMAGE = {"type": "image", "data": "aQ==", "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": "aQ==", "mimeType": "audio/wav"}


def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


def messages(*args: Any, **options: Any) -> list[dict[str, Any]]:
    return Sample(*args, **options).server_request.params["messages"]


def check_request(params: dict[str, Any], revision: Revision) -> None:
    if official.available():
        request = {"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": params}
        official.validator_for(revision.name, "CreateMessageRequest").validate(request)


def answer(content: Any, **more: Any) -> bytes:
    return json.dumps({"role": "assistant", "content": content, "model": "m", **more}).encode()


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


# What was said


@EDGES
def test_a_word(revision: Revision) -> None:
    inquiry: InputRequest[Sampled] = Sample("hi")
    assert inquiry.server_request.method == "sampling/createMessage"
    assert inquiry.server_request.requires == ("sampling",)
    assert inquiry.params(revision) == {"messages": [HI], "maxTokens": 1024}
    check_request(inquiry.params(revision), revision)


@pytest.mark.parametrize(
    "said", [Text("hi"), Message("user", Text("hi")), SamplingMessage("user", [Text("hi")]), (Message("user", "hi"),)]
)
def test_other_ways_to_say_it(said: Any) -> None:
    assert messages(said) == [HI]
    assert Sample(said).server_request.digest == Sample("hi").server_request.digest


def test_a_conversation() -> None:
    said = ["hi", SamplingMessage("assistant", "yes?"), Image(b"i", "image/png"), SamplingMessage("user", ["a", "b"])]
    sent = messages(said)
    assert [message["role"] for message in sent] == ["user", "assistant", "user", "user"]
    assert sent[2]["content"]["type"] == "image"
    assert sent[3]["content"] == [text("a"), text("b")]


def test_loose_tool_uses_and_outcomes_in_a_row_are_one_message() -> None:
    said = ["hi", USE, OTHER_USE, ToolResultContent("u2", "x"), ToolResultContent("u1", "3"), "so?"]
    sent = messages(said, tools=[add])
    assert [message["role"] for message in sent] == ["user", "assistant", "user", "user"]
    assert [block["id"] for block in sent[1]["content"]] == ["u1", "u2"]
    assert [block["toolUseId"] for block in sent[2]["content"]] == ["u2", "u1"]


LINK = ResourceLink("a://b", "n")
RESOURCE = EmbeddedResource(ResourceContents("a://b", text="t"))
BAD_MESSAGES: dict[str, tuple[Any, str]] = {
    "nothing": ([], "messages is empty"),
    "only silence": ([SamplingMessage("assistant", [])], "messages is empty"),
    "an empty one": (["hi", SamplingMessage("user", [])], "message 1: it holds no content; leave it out"),
    "a number": (["hi", 5], "message 1: int is no message"),
    "a dict": ([{"role": "user", "content": "hi"}], "message 0: dict is no message; .* SamplingMessage"),
    "system": ([Message("system", "be nice")], "message 0: role='system' must be \"user\" or .* system_prompt="),  # type: ignore[arg-type]
    "a link": (["hi", LINK], "message 1: ResourceLink can't be part of it; use a string, Text, Image"),
    "a link in a message": (SamplingMessage("user", ["see", LINK]), "message 0: ResourceLink can't"),  # type: ignore[list-item]
    "a resource": (Message("user", RESOURCE), "message 0: EmbeddedResource can't be part of it"),
    "a generator": (SamplingMessage("user", (word for word in "ab")), "message 0: generator can't"),  # type: ignore[arg-type]
    "a use as its id": ([USE, ToolResultContent(USE, "x")], "message 1: tool_use_id must be the id .* not ToolUse"),  # type: ignore[arg-type]
    "a value as content": ([USE, ToolResultContent("u1", {"a": 1})], "message 1: .* can't be dict; .* or structured="),  # type: ignore[arg-type]
    "no JSON": (
        [USE, ToolResultContent("u1", "x", structured=object())],
        "message 1: structured can't be sent: .* no JSON",
    ),
    "mixed": ([USE, SamplingMessage("user", [ToolResultContent("u1", "x"), "so?"])], "message 1: .* nothing else"),
    "no outcome": (["hi", USE, "well?"], "message 1: the next message must hold a ToolResultContent .* 'u1'"),
    "counted as given": (
        [USE, OTHER_USE, ToolResultContent("u1", "x"), ToolResultContent("u2", "x"), USE],
        "message 4: the next",
    ),
    "half a character": ("\ud800", "the question can't be sent: .* not valid Unicode"),
}


@pytest.mark.rule("SA-4", "SA-5")
@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_messages_that_are_not_sent(name: str) -> None:
    said, words = BAD_MESSAGES[name]
    with pytest.raises(SetupError, match=f"^sample.*{words}"):
        Sample(said)


# What is wished for


@EDGES
def test_every_wish(revision: Revision) -> None:
    sample = Sample(
        "hi",
        max_tokens=7,
        system_prompt="be nice",
        temperature=0,
        stop_sequences=("a", "b"),
        model_preferences={"hints": ["small", {"name": "large"}], "costPriority": 1, "speedPriority": 0.5},
        include_context="none",
        metadata={"k": [1]},
    )
    params = sample.params(revision)
    check_request(params, revision)
    hints = [{"name": "small"}, {"name": "large"}]
    assert params == {
        "messages": [HI],
        "maxTokens": 7,
        "systemPrompt": "be nice",
        "temperature": 0,
        "stopSequences": ["a", "b"],
        "modelPreferences": {"hints": hints, "costPriority": 1.0, "speedPriority": 0.5},
        "includeContext": "none",
        "metadata": {"k": [1]},
    }


def test_models_by_name() -> None:
    for given_models, hints in (
        ("small", [{"name": "small"}]),
        (["small", "large"], [{"name": "small"}, {"name": "large"}]),
        ({"hints": "small"}, [{"name": "small"}]),
        ({"hints": [{"x-family": "f"}]}, [{"x-family": "f"}]),
    ):
        assert Sample("hi", model_preferences=given_models).server_request.params["modelPreferences"] == {
            "hints": hints
        }


BAD_WISHES: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens=0 is not possible; it must be a whole number, 1 or more"),
    ({"system_prompt": 1}, "system_prompt=1 is not possible; it must be a string"),
    ({"temperature": -1}, "temperature=-1 is not possible; it must be a number, 0 or more"),
    ({"temperature": float("inf")}, "can't be sent: .* inf"),
    ({"stop_sequences": "stop"}, "stop_sequences='stop' is not possible; it must be a list of strings"),
    ({"include_context": "all"}, 'include_context=\'all\' is not possible; it must be "none", "thisServer"'),
    ({"metadata": [1]}, r"metadata=\[1\] is not possible; it must be a dict"),
    ({"model_preferences": 5}, r"hints=\[5\] must be names of models"),
    ({"model_preferences": {"hints": [{"name": 5}]}}, "must be names"),
    ({"model_preferences": {"costPriority": 1.5}}, "model_preferences=.* is not right: .*costPriority"),
    ({"model_preferences": {"wit": 1}}, r"model_preferences has unknown keys \['wit'\]; known are hints"),
    ({"tools": add}, "tools must be a list, not function"),
    ({"tools": [5]}, "tool 0: int is no tool; pass a function"),
    ({"tools": [add, {"name": "x"}]}, "tool 1: tools=.* is not right: .*inputSchema"),
    ({"tools": [{"name": "x", "inputSchema": SCHEMA, "input": 1}]}, r"tool 0: tools has unknown keys \['input'\]"),
    ({"tools": [{"name": "x", "inputSchema": {}}]}, 'tool 0: the inputSchema of x must have "type": "object"'),
    ({"tools": [{"name": "a b", "inputSchema": SCHEMA}]}, "tool 0: the name 'a b' is not allowed"),
    ({"tools": [add, {"name": "add", "inputSchema": SCHEMA}]}, "two tools have the name 'add'"),
    ({"tools": [lambda a: a]}, "a lambda has no name"),
    ({"tool_choice": "sometimes"}, "tool_choice='sometimes' is not possible; it must be \"auto\""),
    ({"tool_choice": "required"}, 'tool_choice="required" needs tools='),
]


@pytest.mark.parametrize(("wish", "words"), BAD_WISHES)
def test_wishes_that_are_refused(wish: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        Sample("hi", **wish)


ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "inputSchema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 0}},
        "required": ["a"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize(
    "tool", [add, compile_tool(add, {"output": "text"}), compile_tool(add, {"output": "text"}).definition, ADD]
)
def test_ways_to_offer_a_tool(tool: Any) -> None:
    assert Sample("hi", tools=[tool]).server_request.params["tools"] == [ADD]


def test_ways_to_choose() -> None:
    for choice in ("required", {"mode": "required"}):
        assert Sample("hi", tools=[add], tool_choice=choice).server_request.params["toolChoice"] == {"mode": "required"}
    none = Sample("hi", tools=[])
    assert "tools" not in none.server_request.params
    assert none.server_request.requires == ("sampling",)


def test_outcomes_may_be_any_value() -> None:
    place = dataclasses.make_dataclass("Place", [("x", int)])(3)
    params = Sample([USE, ToolResultContent("u1", "there", structured=place)], tools=[add]).params(LATEST)
    check_request(params, LATEST)
    assert params["messages"][1]["content"]["structuredContent"] == {"x": 3}


@pytest.mark.rule("SA-6")
def test_a_tool_loop_has_an_end() -> None:
    said = ["hi", *[USE, ToolResultContent("u1", "3")] * 100]
    with pytest.raises(QuestionFailed, match='tool_choice="none" makes it answer'):
        Sample(said, tools=[add])
    Sample(said, tools=[add], tool_choice="none")
    Sample(said)
    Sample(said[:-2], tools=[add])


# What the client must declare


ASKABLE: list[tuple[Callable[[], Sample], dict[str, Any], str]] = [  # and since which revision
    (lambda: Sample("hi"), {"sampling": {}}, "2024-11-05"),
    (lambda: Sample("hi"), {}, "never"),
    (lambda: Sample("hi"), {"sampling": None}, "never"),
    (lambda: Sample("hi", tools=[add]), {"sampling": {}}, "never"),
    (lambda: Sample("hi", tool_choice="none"), {"sampling": {"context": {}}}, "never"),
    (lambda: Sample(["hi", USE, ToolResultContent("u1", "3")]), {"sampling": {}}, "never"),
    (lambda: Sample("hi", tools=[add]), {"sampling": {"tools": {}}}, "2025-11-25"),
    (lambda: Sample("hi", include_context="none"), {"sampling": {}}, "2024-11-05"),
    (lambda: Sample("hi", include_context="allServers"), {"sampling": {"context": {}}}, "2024-11-05"),
]


@pytest.mark.rule("SA-1", "SA-2", "SA-3")
@REVISIONS
@pytest.mark.parametrize(("make", "declared", "since"), ASKABLE)
def test_who_may_be_asked(make: Callable[[], Sample], declared: dict[str, Any], since: str, revision: Revision) -> None:
    sample = make()
    if revision.name >= since:
        require_client_support(sample.server_request, revision, declared)
        check_request(sample.params(revision), revision)
    else:
        with pytest.raises(MissingCapability):
            require_client_support(sample.server_request, revision, declared)


# What came back


@EDGES
def test_a_text_comes_back(revision: Revision) -> None:
    sampled = Sample("hi").read(answer(text("ho"), stopReason="made/up", _meta={"k": 1}), revision)
    assert sampled == Sampled("assistant", (Text("ho"),), "m", "made/up")
    assert (sampled.text, sampled.tool_uses) == ("ho", [])
    assert sampled.message == SamplingMessage("assistant", (Text("ho"),))


def test_several_blocks_come_back_and_go_on() -> None:
    blocks = [text("a"), IMAGE, text("b"), WIRE_USE]
    sampled = Sample("hi", tools=[add]).read(answer(blocks, stopReason="toolUse"), LATEST)
    assert sampled.content == (Text("a"), Image(b"i", "image/png"), Text("b"), USE)
    assert (sampled.text, sampled.tool_uses) == ("a\nb", [USE])
    went_on = Sample(["hi", sampled.message, ToolResultContent(sampled.tool_uses[0].id, "3")], tools=[add]).params(
        LATEST
    )
    check_request(went_on, LATEST)
    assert went_on["messages"][1]["content"] == blocks
    noted = Sample("hi", tools=[add]).read(answer(WIRE_USE | {"_meta": {"cache": 1}}), LATEST)  # by the provider
    assert messages(["hi", noted.message, ToolResultContent("u1", "3")])[1]["content"]["_meta"] == {"cache": 1}


def test_silence() -> None:
    sampled = Sample("hi").read(answer([]), LATEST)
    assert (sampled.content, sampled.text) == ((), "")
    assert messages(["hi", sampled.message, "hello?"]) == [HI, {"role": "user", "content": text("hello?")}]


BAD_ANSWERS: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{", "the result: does not fit"),
    "an array": (b"[]", "the result: expected an object"),
    "not UTF-8": (b'{"role":"assistant","content":{"type":"text","text":"\xff"},"model":"m"}', "does not fit"),
    "empty": (b"{}", "role is required, but missing"),
    "no content": (b'{"role":"user","model":"m"}', "content is required"),
    "no model": (answer(text("x")).replace(b"model", b"moodel"), "model is required"),
    "model": (answer(text("x"), model=1), "model: expected a string"),
    "role": (answer(text("x"), role="system"), "role: "),
    "stop reason": (answer(text("x"), stopReason=1), "stopReason: "),
    "a string": (answer("x"), "content: "),
    "kind": (answer({"type": "video"}), "content.type: "),
    "a link": (answer({"type": "resource_link", "uri": "a:b", "name": "n"}), "content.type: "),
    "text": (answer({"type": "text", "text": 5}), "content.text: expected a string"),
    "base64": (answer(IMAGE | {"data": "!!!"}), "content.data: must be in base64"),
    "priority": (answer(text("x") | {"annotations": {"priority": 2}}), "content.annotations: priority=2.0 must be"),
    "one of many": (answer([text("x"), {"type": "text"}]), r"content\[1\]: text is required"),
    "too many": (answer([text("")] * 1001), "content: must have a length of at most 1000"),
    "use without input": (answer({"type": "tool_use", "id": "u", "name": "n"}), "content: input is required"),
    "use by a user": (answer(WIRE_USE, role="user"), "role: only an assistant uses tools"),
    "one id": (answer([WIRE_USE, WIRE_USE]), "content: two uses of tools have the same id"),
}


@pytest.mark.rule("SA-7")
@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_answers_that_are_not_believed(name: str) -> None:
    result, words = BAD_ANSWERS[name]
    with pytest.raises(QuestionFailed, match=f"^The client's answer to sampling/createMessage .*{words}"):
        Sample("hi", tools=[add]).read(result, LATEST)


@pytest.mark.rule("SA-7")
@pytest.mark.parametrize("options", [{}, {"tools": [add], "tool_choice": "none"}])
def test_no_tools_are_used_that_were_not_offered(options: dict[str, Any]) -> None:
    with pytest.raises(QuestionFailed, match="the model uses tools, but was offered none"):
        Sample("hi", **options).read(answer([text("x"), WIRE_USE]), LATEST)


@pytest.mark.rule("SA-7")
@REVISIONS
@pytest.mark.parametrize(
    ("content", "known"),
    [(AUDIO, "audio"), ([text("a")], "rich_sampling"), ([], "rich_sampling"), (WIRE_USE, "rich_sampling")],
)
def test_a_revision_has_only_what_it_has(content: Any, known: str, revision: Revision) -> None:
    sample = Sample("hi", tools=[add])
    if getattr(revision, known):
        assert sample.read(answer(content), revision).role == "assistant"
    else:
        with pytest.raises(QuestionFailed):
            sample.read(answer(content), revision)


@pytest.mark.parametrize("name", ["final-response", "text-response", "tool-use-response"])
def test_official_answers(name: str) -> None:
    official.demand()
    raw = (official.FOLDER / "2026-07-28" / "examples" / "CreateMessageResult" / f"{name}.json").read_bytes()
    weather = ToolDefinition(name="get_weather", input_schema=SCHEMA)
    sampled = Sample("hi", tools=[weather]).read(raw, LATEST)
    content = json.loads(raw)["content"]
    outcomes = [ToolResultContent(use.id, "rain") for use in sampled.tool_uses]
    assert messages(["hi", sampled.message, *outcomes])[1]["content"] == content


# Results that clients may send


@given(st.binary(max_size=40))
def test_bytes_are_never_more_than_a_failed_question(result: bytes) -> None:
    with pytest.raises(QuestionFailed):
        Sample("hi").read(result, LATEST)
