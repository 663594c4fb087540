"""`Sample` from what an author writes to what a client is asked."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sample_stage import HI, OTHER_USE, REVISIONS, RICH, SCHEMA, USE, add, check_request, messages, text

from dovetail.errors import MissingCapability, QuestionFailed, SetupError
from dovetail.protocol.elicitation import Inquiry
from dovetail.protocol.features import require_askable
from dovetail.protocol.revisions import Revision
from dovetail.protocol.types import EmbeddedResource, Image, Message, ResourceContents, ResourceLink, Text
from dovetail.registry.sampling import Sample, Sampled, SamplingMessage, ToolOutcome
from dovetail.registry.tools import compile_tool

# What was said


@REVISIONS
def test_a_word(revision: Revision) -> None:
    inquiry: Inquiry[Sampled] = Sample("hi")
    assert inquiry.question.method == "sampling/createMessage"
    assert inquiry.question.requires == ("sampling",)
    assert inquiry.params(revision) == {"messages": [HI], "maxTokens": 1024}
    check_request(inquiry.params(revision), revision)


@pytest.mark.parametrize(
    "said",
    [
        Text("hi"),
        Message("user", "hi"),
        Message("user", Text("hi")),
        SamplingMessage("user", "hi"),
        SamplingMessage("user", [Text("hi")]),
        ["hi"],
        (Message("user", "hi"),),
    ],
)
def test_other_ways_to_say_it(said: Any) -> None:
    assert messages(said) == [HI]
    assert Sample(said).question.digest == Sample("hi").question.digest


def test_a_conversation() -> None:
    said = ["hi", SamplingMessage("assistant", "yes?"), Image(b"i", "image/png"), SamplingMessage("user", ["a", "b"])]
    sent = messages(said)
    assert [message["role"] for message in sent] == ["user", "assistant", "user", "user"]
    assert sent[2]["content"]["type"] == "image"
    assert sent[3]["content"] == [text("a"), text("b")]


def test_loose_tool_uses_and_outcomes_in_a_row_are_one_message() -> None:
    said = ["hi", USE, OTHER_USE, ToolOutcome("u2", "x"), ToolOutcome("u1", "3"), "so?"]
    sent = messages(said, tools=[add])
    assert [message["role"] for message in sent] == ["user", "assistant", "user", "user"]
    assert [block["id"] for block in sent[1]["content"]] == ["u1", "u2"]
    assert [block["toolUseId"] for block in sent[2]["content"]] == ["u2", "u1"]


def test_any_change_makes_another_question() -> None:
    digests = {
        Sample("hi").question.digest,
        Sample("hi", max_tokens=10).question.digest,
        Sample("hi", tools=[add]).question.digest,
        Sample("ho").question.digest,
        Sample(["hi", "ho"]).question.digest,
    }
    assert len(digests) == 5


LINK = ResourceLink("a://b", "n")
BAD_MESSAGES: dict[str, tuple[Any, str]] = {
    "nothing": ([], "messages is empty"),
    "only silence": ([SamplingMessage("assistant", [])], "messages is empty"),
    "an empty one": (["hi", SamplingMessage("user", [])], "message 1: it holds no content; leave it out"),
    "None": (None, "message 0: NoneType is no message; pass a string"),
    "a number": (["hi", 5], "message 1: int is no message"),
    "bytes": (b"hi", "message 0: bytes is no message"),
    "a dict": ([{"role": "user", "content": "hi"}], "message 0: dict is no message; .* SamplingMessage"),
    "system": ([Message("system", "be nice")], "message 0: role='system' must be \"user\" or .* system_prompt="),  # type: ignore[arg-type]
    "a link": (["hi", LINK], "message 1: ResourceLink can't be part of it; use a string, Text, Image"),
    "a link in a message": (SamplingMessage("user", ["see", LINK]), "message 0: ResourceLink can't"),  # type: ignore[list-item]
    "a resource of a prompt": (
        Message("user", EmbeddedResource(ResourceContents("a://b", text="t"))),
        "message 0: EmbeddedResource can't be part of it",
    ),
    "a generator": (SamplingMessage("user", (word for word in "ab")), "message 0: generator can't"),  # type: ignore[arg-type]
    "a use as its id": ([USE, ToolOutcome(USE, "x")], "message 1: tool_use_id must be the id .* not ToolUse"),  # type: ignore[arg-type]
    "a value as content": ([USE, ToolOutcome("u1", {"a": 1})], "message 1: .* can't be dict; .* or structured="),  # type: ignore[arg-type]
    "a number as content": ([USE, ToolOutcome("u1", [3])], "message 1: .* ToolOutcome can't be int"),  # type: ignore[list-item]
    "no JSON": ([USE, ToolOutcome("u1", "x", structured=object())], "message 1: structured can't be sent: .* no JSON"),
    "mixed": ([USE, SamplingMessage("user", [ToolOutcome("u1", "x"), "so?"])], "message 1: .* nothing else"),
    "no outcome": (["hi", USE, "well?"], "message 1: the next message must hold a ToolOutcome .* 'u1'"),
    "counted as given": ([USE, OTHER_USE, ToolOutcome("u1", "x"), ToolOutcome("u2", "x"), USE], "message 4: the next"),
    "half a character": ("\ud800", "the question can't be sent: .* not valid Unicode"),
}


@pytest.mark.rule("SA-4", "SA-5")
@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_messages_that_are_not_sent(name: str) -> None:
    said, words = BAD_MESSAGES[name]
    with pytest.raises(SetupError, match=f"^sample.*{words}"):
        Sample(said)


# What is wished for


@REVISIONS
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
    assert params == {
        "messages": [HI],
        "maxTokens": 7,
        "systemPrompt": "be nice",
        "temperature": 0,
        "stopSequences": ["a", "b"],
        "modelPreferences": {
            "hints": [{"name": "small"}, {"name": "large"}],
            "costPriority": 1.0,
            "speedPriority": 0.5,
        },
        "includeContext": "none",
        "metadata": {"k": [1]},
    }


@pytest.mark.parametrize(
    ("given", "hints"),
    [
        ("small", [{"name": "small"}]),
        (["small", "large"], [{"name": "small"}, {"name": "large"}]),
        ({"hints": "small"}, [{"name": "small"}]),
        ({"hints": [{"x-family": "f"}]}, [{"x-family": "f"}]),
    ],
)
def test_models_by_name(given: Any, hints: Any) -> None:
    assert Sample("hi", model_preferences=given).question.params["modelPreferences"] == {"hints": hints}


BAD_WISHES: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens=0 is not possible; it must be a whole number, 1 or more"),
    ({"max_tokens": True}, "max_tokens=True is not possible"),
    ({"max_tokens": 1.5}, "max_tokens=1.5 is not possible"),
    ({"system_prompt": 1}, "system_prompt=1 is not possible; it must be a string"),
    ({"temperature": -1}, "temperature=-1 is not possible; it must be a number, 0 or more"),
    ({"temperature": float("inf")}, "can't be sent: .* inf"),
    ({"stop_sequences": "stop"}, "stop_sequences='stop' is not possible; it must be a list of strings"),
    ({"include_context": "all"}, 'include_context=\'all\' is not possible; it must be "none", "thisServer"'),
    ({"metadata": [1]}, r"metadata=\[1\] is not possible; it must be a dict"),
    ({"metadata": {"k": object()}}, "metadata=.* is not possible"),
    ({"model_preferences": 5}, r"hints=\[5\] must be names of models"),
    ({"model_preferences": [5]}, r"hints=\[5\] must be names"),
    ({"model_preferences": {"hints": [{"name": 5}]}}, "must be names"),
    ({"model_preferences": {"costPriority": 1.5}}, "model_preferences=.* is not right: .*costPriority"),
    ({"model_preferences": {"speedPriority": -0.1}}, "model_preferences=.* is not right: .*speedPriority"),
    ({"model_preferences": {"intelligencePriority": "much"}}, "model_preferences=.* is not right"),
    ({"model_preferences": {"wit": 1}}, r"model_preferences has unknown keys \['wit'\]; known are hints"),
    ({"tools": add}, "tools must be a list, not function"),
    ({"tools": {"name": "add"}}, "tools must be a list, not dict"),
    ({"tools": [5]}, "tool 0: int is no tool; pass a function"),
    ({"tools": [add, {"name": "x"}]}, "tool 1: tools=.* is not right: .*inputSchema"),
    ({"tools": [{"name": "x", "inputSchema": SCHEMA, "input": 1}]}, r"tool 0: tools has unknown keys \['input'\]"),
    ({"tools": [{"name": "x", "inputSchema": {}}]}, 'tool 0: the inputSchema of x must have "type": "object"'),
    ({"tools": [{"name": "a b", "inputSchema": SCHEMA}]}, "tool 0: the name 'a b' is not allowed"),
    ({"tools": [add, {"name": "add", "inputSchema": SCHEMA}]}, "two tools have the name 'add'"),
    ({"tools": [lambda a: a]}, "a lambda has no name"),
    ({"tool_choice": "sometimes"}, "tool_choice='sometimes' is not possible; it must be \"auto\""),
    ({"tool_choice": {"name": "add"}}, "tool_choice=.* is not possible"),
    ({"tool_choice": "required"}, 'tool_choice="required" needs tools='),
]


@pytest.mark.parametrize(("wish", "words"), BAD_WISHES)
def test_wishes_that_are_refused(wish: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        Sample("hi", **wish)


@pytest.mark.parametrize(
    "tool",
    [
        add,
        compile_tool(add, {"output": "text"}),
        compile_tool(add, {"output": "text"}).definition,
        {
            "name": "add",
            "description": "Add two numbers.",
            "inputSchema": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 0}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    ],
)
def test_ways_to_offer_a_tool(tool: Any) -> None:
    (sent,) = Sample("hi", tools=[tool]).question.params["tools"]
    assert sent == {
        "name": "add",
        "description": "Add two numbers.",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 0}},
            "required": ["a"],
            "additionalProperties": False,
        },
    }


@pytest.mark.parametrize("choice", ["required", {"mode": "required"}])
def test_ways_to_choose(choice: Any) -> None:
    assert Sample("hi", tools=[add], tool_choice=choice).question.params["toolChoice"] == {"mode": "required"}


def test_no_tools_are_no_tools() -> None:
    sample = Sample("hi", tools=[])
    assert "tools" not in sample.question.params
    assert sample.question.requires == ("sampling",)


@pytest.mark.parametrize("revision", RICH, ids=lambda row: row.name)
def test_outcomes_may_be_any_value(revision: Revision) -> None:
    @dataclass
    class Place:
        x: int

    sample = Sample([USE, ToolOutcome("u1", "there", structured=Place(3))], tools=[add])
    params = sample.params(revision)
    check_request(params, revision)
    assert params["messages"][1]["content"]["structuredContent"] == {"x": 3}


@pytest.mark.rule("SA-6")
def test_a_tool_loop_has_an_end() -> None:
    said = ["hi", *[USE, ToolOutcome("u1", "3")] * 100]
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
    (lambda: Sample(["hi", USE, ToolOutcome("u1", "3")]), {"sampling": {}}, "never"),
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
        require_askable(sample.question, revision, declared)
        check_request(sample.params(revision), revision)
    else:
        with pytest.raises(MissingCapability):
            require_askable(sample.question, revision, declared)


@pytest.mark.rule("SA-3")
@REVISIONS
def test_context_was_free_before_it_could_be_declared(revision: Revision) -> None:
    sample = Sample("hi", include_context="thisServer")
    if revision.rich_sampling:
        with pytest.raises(MissingCapability):
            require_askable(sample.question, revision, {"sampling": {}})
    else:
        require_askable(sample.question, revision, {"sampling": {}})
        assert sample.params(revision)["includeContext"] == "thisServer"
