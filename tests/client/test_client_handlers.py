"""Handlers: capabilities, requests that a server may send, values that fit a form."""

import asyncio
import json
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from scripted import EVERY, FORM, MODERN, ROOTS, elicitation, sampling, url_elicitation

from dovetail.client import ElicitRequest, ElicitResult, SamplingRequest
from dovetail.client.handlers import ClientHandlers, UnsupportedRequest
from dovetail.errors import INVALID_PARAMS, METHOD_NOT_FOUND, ProtocolError, SetupError
from dovetail.protocol import revisions

LATEST_HANDSHAKE = "2025-11-25"


def everything(**options: Any) -> ClientHandlers:
    handlers = {"elicitation_handler": lambda question: None, "sampling_handler": lambda request: "Hi.", "roots": []}
    return ClientHandlers({**handlers, **options})


def prepared(answering: ClientHandlers, question: dict[str, Any], revision: str = MODERN) -> Any:
    params = Raw(json.dumps(question.get("params", {})).encode())
    return answering.prepare_handler(revisions.BY_NAME[revision], question["method"], params)


def answered(answering: ClientHandlers, question: dict[str, Any], revision: str = MODERN) -> Any:
    async def wait() -> Any:
        return await prepared(answering, question, revision)()

    return asyncio.run(wait())


@pytest.mark.parametrize("revision", EVERY)
def test_what_is_declared(revision: str) -> None:
    expected: dict[str, Any] = {"sampling": {}, "roots": {} if revision == MODERN else {"listChanged": True}}
    if revision == "2025-06-18":
        expected["elicitation"] = {}
    elif revision in (LATEST_HANDSHAKE, MODERN):
        expected["elicitation"] = {"form": {}, "url": {}}
    assert everything().capabilities(revisions.BY_NAME[revision]) == expected
    assert ClientHandlers({}).capabilities(revisions.BY_NAME[revision]) == {}


TOOLS = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}

UNANSWERABLE: dict[str, tuple[dict[str, Any], dict[str, Any], str, int, str]] = {
    "no handler": ({"elicitation_handler": None}, elicitation(), MODERN, METHOD_NOT_FOUND, "elicitation_handler="),
    "no sampling": ({"sampling_handler": None}, sampling(), MODERN, METHOD_NOT_FOUND, "needs sampling_handler="),
    "no roots": ({"roots": None}, ROOTS, LATEST_HANDSHAKE, METHOD_NOT_FOUND, "needs roots="),
    "unknown": ({}, {"method": "tasks/get"}, MODERN, METHOD_NOT_FOUND, "does not know"),
    "too old": ({}, elicitation(), "2025-03-26", METHOD_NOT_FOUND, "client of 2025-03-26 has not declared"),
    "no URLs yet": ({}, url_elicitation(), "2025-06-18", INVALID_PARAMS, "not declared elicitation.url"),
    "no URLs": ({"capabilities": {"elicitation": {}}}, url_elicitation(), MODERN, INVALID_PARAMS, "elicitation.url"),
    "no forms": ({"capabilities": {"elicitation": {"url": {}}}}, elicitation(), MODERN, INVALID_PARAMS, ".form"),
    "no tools": ({}, sampling(**TOOLS), MODERN, INVALID_PARAMS, "not declared sampling.tools"),
    "no tool choice": ({}, sampling(toolChoice={"mode": "auto"}), MODERN, INVALID_PARAMS, "sampling.tools"),
}


@pytest.mark.rule("EL-20")
@pytest.mark.parametrize("case", UNANSWERABLE)
def test_questions_without_an_answer(case: str) -> None:
    options, question, revision, code, words = UNANSWERABLE[case]
    with pytest.raises(UnsupportedRequest) as caught:
        prepared(everything(**options), question, revision)
    assert caught.value.code == code
    assert words in caught.value.advice
    assert "handler" not in caught.value.message  # which the server reads


BAD_FORMS: list[Any] = [[], {}, {"properties": []}, {"properties": {"a": 1}}]
BAD_URLS: list[Any] = [
    7, "javascript:alert(1)", "file:///etc/passwd", "https://a b", "https://accounts.google.com@evil.example/in",
    "https://accounts.google.com:443@evil.example/in", "https://@evil.example/in",
    "https://accounts.google.com%2f.evil.example/in", "https://accounts.google.com;.evil.example/in",
    "https://\u202eelgoog.com/in",
]  # fmt: skip
BAD_MESSAGES = [{"role": "system", "content": {}}, *({"role": "user", "content": each} for each in ("text", [7]))]
MALFORMED: list[tuple[str, Any]] = [
    *(("elicitation/create", params) for params in ([], {}, {"message": "x"}, {"message": "x", "mode": "url"})),
    ("elicitation/create", {"message": 7, "requestedSchema": FORM}),
    ("elicitation/create", {"message": "x", "requestedSchema": FORM, "mode": "telepathy"}),
    *(("elicitation/create", {"message": "x", "requestedSchema": schema}) for schema in BAD_FORMS),
    *(("elicitation/create", {"message": "x", "mode": "url", "url": url}) for url in BAD_URLS),
    *(("sampling/createMessage", params) for params in ({}, None, {"messages": [], "maxTokens": "many"})),
    *(("sampling/createMessage", {"messages": [each], "maxTokens": 1}) for each in BAD_MESSAGES),
    ("sampling/createMessage", {"messages": [], "maxTokens": 1, "tools": [7]}),
]


@pytest.mark.parametrize(("method", "params"), MALFORMED)
def test_malformed_questions(method: str, params: Any) -> None:
    with pytest.raises(UnsupportedRequest, match=r"^Invalid params: ") as caught:
        prepared(everything(), {"method": method, "params": params})
    assert caught.value.code == INVALID_PARAMS
    assert [word in caught.value.message for word in ("msgspec", "`")] == [False, False]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)

PARTS = ("message", "mode", "requestedSchema", "url", "elicitationId", "messages", "maxTokens", "tools", "properties")


@given(
    method=st.sampled_from(["elicitation/create", "sampling/createMessage", "roots/list"]) | st.text(max_size=10),
    params=JSON | st.dictionaries(st.sampled_from(PARTS), JSON),
    revision=st.sampled_from(EVERY),
)
def test_any_question_is_answered_or_refused(method: str, params: Any, revision: str) -> None:
    with suppress(UnsupportedRequest):
        outcome = answered(everything(), {"method": method, "params": params}, revision)
        assert outcome.keys() & {"action", "role", "roots"}


TWO = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "default": 30}}}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
SIZE = {"type": "object", "properties": {"size": {"type": "string", "enum": ["S", "M"], "default": "M"}}}
YES = {"type": "object", "properties": {"sure": {"type": "boolean"}}}
SEVERAL = {"type": "object", "properties": {"tags": {"type": "array", "items": {"enum": ["a", "b"]}}}}
ODD = {"type": "object", "properties": {"a": {"default": {"deep": 1}}, "b": {"default": [1]}, "c": {"default": None}}}
MISFIT = {"type": "object", "properties": {"mail": {"type": "string", "format": "email", "default": ""}}}

REPLIES: list[tuple[Any, Any, dict[str, Any]]] = [
    (FORM, {"name": "Ada"}, {"action": "accept", "content": {"name": "Ada"}}),
    (FORM, "Ada", {"action": "accept", "content": {"name": "Ada"}}),
    (FORM, "decline", {"action": "accept", "content": {"name": "decline"}}),
    (FORM, None, {"action": "decline"}),
    (FORM, ElicitResult("cancel"), {"action": "cancel"}),
    (FORM, ElicitResult("decline", {"name": "Ada"}), {"action": "decline"}),
    (FORM, ElicitResult("accept", {"name": "Ada"}), {"action": "accept", "content": {"name": "Ada"}}),
    (YES, True, {"action": "accept", "content": {"sure": True}}),
    (YES, False, {"action": "accept", "content": {"sure": False}}),
    (SEVERAL, ["a"], {"action": "accept", "content": {"tags": ["a"]}}),
    (SIZE, {}, {"action": "accept", "content": {"size": "M"}}),
    (SIZE, ElicitResult("accept"), {"action": "accept", "content": {"size": "M"}}),
    (SIZE, "S", {"action": "accept", "content": {"size": "S"}}),
    (TWO, {"name": "Ada"}, {"action": "accept", "content": {"name": "Ada", "age": 30}}),
    (TWO, {"name": "Ada", "age": 36}, {"action": "accept", "content": {"name": "Ada", "age": 36}}),
    (ODD, {}, {"action": "accept", "content": {}}),
    (MISFIT, {}, {"action": "accept", "content": {}}),
    (EMPTY, {}, {"action": "accept", "content": {}}),
    (EMPTY, True, {"action": "accept", "content": {}}),
    (EMPTY, False, {"action": "decline"}),
]


@pytest.mark.parametrize(("schema", "returned", "expected"), REPLIES)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_a_handler_may_return(schema: Any, returned: Any, expected: dict[str, Any], asynchronous: bool) -> None:
    async def slow(question: ElicitRequest) -> Any:
        await asyncio.sleep(0)
        return returned

    answering = everything(elicitation_handler=slow if asynchronous else lambda question: returned)
    assert answered(answering, elicitation(schema=schema)) == expected


def test_a_url_is_opened_or_not() -> None:
    accepted, declined = [True, "yes", ElicitResult("accept", {"x": 1})], [False, None]
    cases = [*((each, "accept") for each in accepted), *((each, "decline") for each in declined)]
    for returned, action in [*cases, (ElicitResult("cancel"), "cancel")]:
        answering = everything(elicitation_handler=lambda question: returned)  # noqa: B023
        assert answered(answering, url_elicitation()) == {"action": action}


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        ("https://example.org/in?next=%2F#top", "https://example.org/in?next=%2F#top"),
        ("https://аpple.com/in", "https://xn--pple-43d.com/in"),  # its first letter is Cyrillic
        ("https://bücher.example:8443/in?", "https://xn--bcher-kva.example:8443/in"),
        ("https://ｅvil.example/in", "https://evil.example/in"),
        ("https://accounts.google.com。evil.example/in", "https://accounts.google.com.evil.example/in"),
        ("http://[::1]:8000/in", "http://[::1]:8000/in"),
    ],
)
def test_the_host_of_a_url_is_the_one_that_will_be_looked_up(asked: str, seen: str) -> None:
    questions: list[ElicitRequest] = []
    answered(everything(elicitation_handler=questions.append), url_elicitation(url=asked))
    assert questions[0].url == seen


def test_what_a_handler_sees() -> None:
    seen: list[ElicitRequest] = []
    answering = everything(elicitation_handler=seen.append)
    answered(answering, elicitation("Who?", mode="form", task={"ttl": 1}))
    answered(answering, url_elicitation(elicitationId="e1"), LATEST_HANDSHAKE)
    request = ElicitRequest(message="Sign in", mode="url", url="https://example.org/in", elicitation_id="e1")
    assert seen == [ElicitRequest(message="Who?", schema=FORM), request]
    assert [(each.schema, each.fields) for each in seen] == [(FORM, FORM["properties"]), (None, {})]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        *((each, r"^elicitation_handler returned \w+ for a form of 2 fields") for each in ("Ada", 7, object(), ("a",))),
        *(({"name": each}, "^elicitation_handler: what it returned ") for each in (object(), "\ud800", 1 << 70)),
    ],
)
def test_what_can_not_be_sent_is_reported_with_the_name_of_the_handler(returned: Any, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        answered(everything(elicitation_handler=lambda question: returned), elicitation(schema=TWO))


WHOLE = {"role": "assistant", "content": [{"type": "text", "text": "Hi."}], "model": "m", "stopReason": "maxTokens"}
TEXT = {"type": "text", "text": "Hi."}


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("Hi.", {"role": "assistant", "content": TEXT, "model": "unknown", "stopReason": "endTurn"}),
        (WHOLE, WHOLE),
        ({"content": TEXT}, {"role": "assistant", "content": TEXT, "model": "unknown"}),
    ],
)
def test_what_a_model_may_return(returned: Any, expected: dict[str, Any]) -> None:
    assert answered(everything(sampling_handler=lambda request: returned), sampling()) == expected
    with pytest.raises(ProtocolError, match="rejected") as caught:
        answered(everything(sampling_handler=lambda request: None), sampling())
    assert caught.value.code == -1


def test_what_a_model_sees() -> None:
    seen: list[SamplingRequest] = []
    answering = everything(
        sampling_handler=lambda request: seen.append(request) or "Hi.", capabilities={"sampling": {"tools": {}}}
    )
    question = sampling(
        messages=[{"role": "user", "content": TEXT}, {"role": "assistant", "content": [TEXT, TEXT]}],
        systemPrompt="Be kind.", temperature=1, stopSequences=["."], modelPreferences={"hints": []},
        includeContext="none", metadata=None, toolChoice={"mode": "auto"}, **TOOLS,
    )  # fmt: skip
    answered(answering, question)
    (request,) = seen
    expected = SamplingRequest(
        messages=[{"role": "user", "content": [TEXT]}, {"role": "assistant", "content": [TEXT, TEXT]}],
        max_tokens=10, system_prompt="Be kind.", temperature=1.0, stop_sequences=["."], model_preferences={"hints": []},
        include_context="none", metadata={}, tool_choice={"mode": "auto"}, params=question["params"], **TOOLS,
    )  # fmt: skip
    assert request == expected


def test_roots_may_be_named_in_many_ways(tmp_path: Path) -> None:
    async def later() -> list[Any]:
        return ["file:///later"]

    named = [tmp_path, str(tmp_path), "relative", "file:///a%20b", {"uri": "file:///c", "name": "C"}]
    uris = [tmp_path.as_uri(), tmp_path.as_uri(), (Path.cwd() / "relative").as_uri(), "file:///a%20b"]
    for source, roots in (
        (named, [*({"uri": uri} for uri in uris), {"uri": "file:///c", "name": "C"}]),
        (lambda: ["/x"], [{"uri": "file:///x"}]),
        (later, [{"uri": "file:///later"}]),
        ((), []),
    ):
        assert answered(everything(roots=source), ROOTS) == {"roots": roots}


@pytest.mark.parametrize(
    "roots", ["/x", Path("/x"), 7, {"uri": "file:///x"}, [7], [{"name": "x"}], ["https://x/y"], [{"uri": "file:x"}]]
)
def test_what_are_no_roots(roots: Any) -> None:
    with pytest.raises(SetupError, match="roots="):
        ClientHandlers({"roots": roots})


COLOURS = [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]


@pytest.mark.parametrize(
    ("field", "value", "good"),
    [
        ({"type": "string"}, "x", True), ({"type": "string"}, 1, False), ({"type": "integer"}, 1.0, True),
        ({"type": "integer"}, 1.5, False), ({"type": "integer"}, True, False), ({"type": "boolean"}, 0, False),
        ({"type": "string", "enum": ["S", "M"]}, "M", True), ({"type": "string", "enum": ["S", "M"]}, "L", False),
        ({"type": "string", "oneOf": COLOURS}, "g", True), ({"type": "string", "oneOf": COLOURS}, "Green", False),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, ("a",), True),
        ({"type": "array", "items": {"anyOf": COLOURS}}, ["b"], False),
        ({"type": "string", "format": "email"}, "nobody", False), ({"type": "string", "minLength": 3}, "ab", False),
        ({"type": "thing", "oneOf": [1]}, "x", True),  # of a schema that can't be used nothing is checked
        ({"type": "string"}, None, False),
    ],
)  # fmt: skip
def test_what_fits_a_form(field: dict[str, Any], value: Any, good: bool) -> None:
    schema = {"type": "object", "properties": {"it": field}, "required": ["it"]}
    given = {} if value is None else {"it": value}
    with nullcontext() if good else pytest.raises(SetupError, match=r"elicitation_handler: .* does not fit: .*it"):
        answered(everything(elicitation_handler=lambda question: given), elicitation(schema=schema))
