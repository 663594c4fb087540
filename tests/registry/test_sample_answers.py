"""What clients answer to `Sample`, rightly or wrongly, becomes `Sampled` or words."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_stage import HI, REVISIONS, RICH, SCHEMA, USE, WIRE_USE, add, answer, check_request, messages, text

import official
from dovetail.errors import MissingCapability, QuestionFailed
from dovetail.protocol import revisions
from dovetail.protocol.revisions import LATEST, Revision
from dovetail.protocol.types import Audio, Image, Text, ToolDefinition
from dovetail.registry.sampling import Sample, Sampled, SamplingMessage, ToolOutcome, ToolUse

# What came back


@REVISIONS
def test_a_text_comes_back(revision: Revision) -> None:
    sampled = Sample("hi").read(answer(text("ho"), stopReason="made/up", _meta={"k": 1}), revision)
    assert sampled == Sampled("assistant", (Text("ho"),), "m", "made/up")
    assert sampled.text == "ho"
    assert sampled.tool_uses == []
    assert sampled.message == SamplingMessage("assistant", (Text("ho"),))


def test_the_reason_may_be_left_out() -> None:
    assert Sample("hi").read(answer(text("ho")), LATEST).stop_reason is None
    assert Sample("hi").read(answer(text("ho"), stopReason=None), LATEST).stop_reason is None


@pytest.mark.parametrize("revision", RICH, ids=lambda row: row.name)
def test_several_blocks_come_back(revision: Revision) -> None:
    blocks = [text("a"), {"type": "image", "data": "aQ==", "mimeType": "image/png"}, text("b"), WIRE_USE]
    sample = Sample("hi", tools=[add])
    sampled = sample.read(answer(blocks, stopReason="toolUse"), revision)
    assert sampled.content == (Text("a"), Image(b"i", "image/png"), Text("b"), USE)
    assert sampled.text == "a\nb"
    assert sampled.tool_uses == [USE]
    went_on = Sample(["hi", sampled.message, ToolOutcome(sampled.tool_uses[0].id, "3")], tools=[add]).params(revision)
    check_request(went_on, revision)
    assert went_on["messages"][1]["content"] == blocks


def test_what_a_provider_says_about_a_tool_use_goes_back_to_it() -> None:
    sampled = Sample("hi", tools=[add]).read(answer(WIRE_USE | {"_meta": {"cache": 1}}), LATEST)
    (_, sent, _) = messages(["hi", sampled.message, ToolOutcome("u1", "3")])
    assert sent["content"]["_meta"] == {"cache": 1}


def test_silence() -> None:
    sampled = Sample("hi").read(answer([]), LATEST)
    assert (sampled.content, sampled.text) == ((), "")
    assert messages(["hi", sampled.message, "hello?"]) == [HI, {"role": "user", "content": text("hello?")}]


IMAGE = {"type": "image", "data": "aQ==", "mimeType": "image/png"}
BAD_ANSWERS: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{", "the result: does not fit"),
    "an array": (b"[]", "the result: expected an object"),
    "not UTF-8": (b'{"role":"assistant","content":{"type":"text","text":"\xff"},"model":"m"}', "does not fit"),
    "empty": (b"{}", "role is required, but missing"),
    "no content": (b'{"role":"user","model":"m"}', "content is required"),
    "no model": (answer(text("x")).replace(b"model", b"moodel"), "model is required"),
    "model": (answer(text("x"), model=1), "model: expected a string"),
    "role": (answer(text("x"), role="system"), "role: "),
    "role type": (answer(text("x"), role=1), "role: "),
    "stop reason": (answer(text("x"), stopReason=1), "stopReason: "),
    "a string": (answer("x"), "content: "),
    "null": (answer(None), "content: "),
    "kind": (answer({"type": "video"}), "content.type: "),
    "no kind": (answer({"text": "x"}), "content: type is required"),
    "a link": (answer({"type": "resource_link", "uri": "a:b", "name": "n"}), "content.type: "),
    "an outcome": (answer({"type": "tool_result", "toolUseId": "u1", "content": []}), "content.type: "),
    "text": (answer({"type": "text", "text": 5}), "content.text: expected a string"),
    "base64": (answer(IMAGE | {"data": "!!!"}), "content.data: must be in base64"),
    "mime": (answer({"type": "image", "data": "aQ=="}), "content: mimeType is required"),
    "priority": (
        answer(text("x") | {"annotations": {"priority": 2}}),
        "content.annotations: priority=2.0 must be from",
    ),
    "one of many": (answer([text("x"), {"type": "text"}]), r"content\[1\]: text is required"),
    "too many": (answer([text("")] * 1001), "content: must have a length of at most 1000"),
    "nested arrays": (answer([[text("x")]]), r"content\[0\]: expected an object"),
    "use without input": (answer({"type": "tool_use", "id": "u", "name": "n"}), "content: input is required"),
    "use with a list": (answer(WIRE_USE | {"input": [1]}), "content.input: expected an object"),
    "use by a user": (answer(WIRE_USE, role="user"), "role: only an assistant uses tools"),
    "one id": (answer([WIRE_USE, WIRE_USE]), "content: two uses of tools have the same id"),
}


@pytest.mark.rule("SA-7")
@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_answers_that_are_not_believed(name: str) -> None:
    result, words = BAD_ANSWERS[name]
    with pytest.raises(
        QuestionFailed, match=f"^The client's answer to sampling/createMessage can't be used: .*{words}"
    ):
        Sample("hi", tools=[add]).read(result, LATEST)


@pytest.mark.rule("SA-7")
@pytest.mark.parametrize("options", [{}, {"tools": [add], "tool_choice": "none"}])
def test_no_tools_are_used_that_were_not_offered(options: dict[str, Any]) -> None:
    with pytest.raises(QuestionFailed, match="the model uses tools, but was offered none"):
        Sample("hi", **options).read(answer([text("x"), WIRE_USE]), LATEST)


AUDIO = {"type": "audio", "data": "aQ==", "mimeType": "audio/wav"}


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
    outcomes = [ToolOutcome(use.id, "rain") for use in sampled.tool_uses]
    assert messages(["hi", sampled.message, *outcomes])[1]["content"] == content


# Whatever clients think of


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def sometimes(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 9).flatmap(lambda luck: JUNK if luck == 0 else good)


ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        "audience": sometimes(st.lists(st.sampled_from(["user", "assistant"]), max_size=2)),
        "priority": sometimes(st.floats(0, 1)),
    },
)
WORDS = sometimes(st.text(max_size=5))
MEDIA = {"data": sometimes(st.sampled_from(["", "aQ==", "aGk="])), "mimeType": WORDS}
OPTIONAL = {"annotations": sometimes(ANNOTATIONS), "_meta": sometimes(st.just({"k": 1}))}
BLOCK = sometimes(
    st.one_of(
        st.fixed_dictionaries({"type": st.just("text"), "text": WORDS}, optional=OPTIONAL),
        st.fixed_dictionaries({"type": st.sampled_from(["image", "audio"]), **MEDIA}, optional=OPTIONAL),
        st.fixed_dictionaries(
            {
                "type": st.just("tool_use"),
                "id": WORDS,
                "name": WORDS,
                "input": sometimes(st.dictionaries(st.text(max_size=3), JUNK, max_size=2)),
            }
        ),
        st.fixed_dictionaries({"type": st.just("tool_result"), "toolUseId": WORDS, "content": st.just([])}),
        st.fixed_dictionaries({"type": st.just("resource_link"), "uri": WORDS, "name": WORDS}),
    )
)
RESULT = st.fixed_dictionaries(
    {
        "role": sometimes(st.sampled_from(["assistant", "user"])),
        "content": BLOCK | st.lists(BLOCK, max_size=3),
        "model": WORDS,
    },
    optional={"stopReason": WORDS, "_meta": sometimes(st.just({}))},
)


def without_nulls(value: Any) -> Any:
    """An optional member that is null counts as left out."""
    if isinstance(value, dict):
        return {key: without_nulls(member) for key, member in value.items() if member is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def is_official(result: Any, revision: Revision) -> bool:
    if not official.available():
        return True
    result = without_nulls({key: value for key, value in result.items() if key != "_meta"})  # which nobody reads
    return official.validator_for(revision.name, "CreateMessageResult").is_valid(result)


def read_or_words(result: bytes, revision: Revision) -> Sampled | str:
    try:
        return Sample("hi", tools=[add]).read(result, revision)
    except QuestionFailed as failure:
        return str(failure)


@pytest.mark.rule("SA-7")
@given(result=RESULT | JUNK, revision=st.sampled_from(revisions.ALL))
def test_whatever_is_believed_is_right(result: Any, revision: Revision) -> None:
    sampled = read_or_words(json.dumps(result).encode(), revision)
    if isinstance(sampled, str):
        assert "`" not in sampled  # a mark of the library's own words
        return
    assert is_official(result, revision)
    outcomes = [ToolOutcome(use.id, "3") for use in sampled.tool_uses]
    if sampled.content:
        check_request(Sample(["hi", sampled.message, *outcomes]).params(LATEST), LATEST)


@given(st.binary(max_size=40))
def test_bytes_are_never_more_than_a_failed_question(result: bytes) -> None:
    with pytest.raises(QuestionFailed):
        Sample("hi").read(result, LATEST)


SAYABLE = st.one_of(
    st.text(max_size=4).map(Text),
    st.binary(max_size=4).map(lambda data: Image(data, "image/png")),
    st.binary(max_size=4).map(lambda data: Audio(data, "audio/wav")),
)


@st.composite
def exchanges(draw: st.DrawFn) -> list[SamplingMessage]:
    """A question of the model's about tools, and the outcomes in any order."""
    ids = draw(st.lists(st.text(max_size=3), min_size=1, max_size=3, unique=True))
    uses = [ToolUse(id, "add", {"a": 1}) for id in ids]
    outcomes = [ToolOutcome(id, draw(st.lists(SAYABLE, max_size=2))) for id in draw(st.permutations(ids))]
    said = draw(st.lists(SAYABLE, max_size=2))
    return [SamplingMessage("assistant", [*said, *uses]), SamplingMessage("user", outcomes)]


@pytest.mark.rule("SA-4", "SA-5")
@given(
    st.lists(
        exchanges()
        | st.builds(
            lambda role, blocks: [SamplingMessage(role, blocks)],
            st.sampled_from(["user", "assistant"]),
            st.lists(SAYABLE, min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(revisions.ALL),
)
def test_any_good_conversation_is_official(parts: list[list[SamplingMessage]], revision: Revision) -> None:
    said = [message for part in parts for message in part]
    sample = Sample(said)
    if "sampling.tools" in sample.question.requires and not revision.rich_sampling:
        with pytest.raises(MissingCapability):
            sample.params(revision)
    else:
        params = sample.params(revision)
        check_request(params, revision)
        blocks = sum(len(message.blocks) for message in said)
        assert len(params["messages"]) == (len(said) if revision.rich_sampling else blocks)
