"""Questions to the user: what clients of each revision are asked, and what comes of their answers."""

import json
import logging
from typing import Any, Literal

import msgspec
import pytest

from dovetail.errors import QuestionFailed, SetupError
from dovetail.protocol.elicitation import InputRequest, ServerRequest
from dovetail.protocol.revisions import BY_NAME, R2025_06_18, R2025_11_25, R2026_07_28, Revision
from dovetail.registry.elicitation import Elicit, Elicited, ElicitUrl
from official import FORM_REVISIONS, assert_official
from stable_ids import stable

URL = "https://example.com/sign-in?state=1#top"
by_name = pytest.mark.parametrize(
    "revision", [BY_NAME[name] for name in FORM_REVISIONS], ids=lambda revision: revision.name
)
edges = pytest.mark.parametrize("revision", [R2025_06_18, R2026_07_28], ids=lambda revision: revision.name)


def answer(action: str, **more: Any) -> bytes:
    return json.dumps({"action": action, **more}).encode()


# What is asked


@pytest.mark.rule("EL-1", "EL-4", "EL-7")
def test_what_is_asked() -> None:
    form: InputRequest[Elicited[int]] = Elicit("How many?", int)
    schema = {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}
    asked = {"mode": "form", "message": "How many?", "requestedSchema": schema}
    assert form.server_request == ServerRequest(
        method="elicitation/create", params=asked, requires=("elicitation.form",)
    )
    page: InputRequest[Elicited[None]] = ElicitUrl("Sign in, please", URL)
    asked = {"mode": "url", "message": "Sign in, please", "url": URL}
    assert page.server_request == ServerRequest(
        method="elicitation/create", params=asked, requires=("elicitation.url",)
    )


@pytest.mark.rule("EL-4", "EL-5")
@by_name
@pytest.mark.parametrize("response_type", [None, int, ["a"], [{"a": "A"}], {"a": "A"}, list[Literal["a"]]], ids=stable)
def test_forms_are_official(response_type: Any, revision: Revision) -> None:
    params = Elicit("Well?", response_type).params(revision)
    assert_official(params, revision.name)
    assert ("mode" in params) == (revision is not R2025_06_18)


def test_what_is_asked_is_spelled_for_the_client() -> None:
    inquiry = Elicit("Which?", {"a": "A"})
    assert inquiry.params(R2026_07_28) == inquiry.params(R2025_11_25) == inquiry.server_request.params
    older = {"type": "string", "enum": ["a"], "enumNames": ["A"]}
    assert inquiry.params(R2025_06_18) == {
        "message": "Which?",
        "requestedSchema": {"type": "object", "properties": {"value": older}, "required": ["value"]},
    }


def test_a_raw_schema() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "default": 2}, "t": {"type": "string"}}}
    inquiry = Elicit("?", schema=schema)
    assert inquiry.server_request.params["requestedSchema"] == schema
    assert inquiry.read(answer("accept", content={"t": "x"}), R2026_07_28) == Elicited("accept", {"n": 2, "t": "x"})
    with pytest.raises(SetupError, match=r"keep one of them"):
        Elicit("?", int, schema=schema)


def test_a_class_as_the_schema_is_the_type_of_the_response() -> None:
    class Trip(msgspec.Struct):
        city: str
        nights: int = 1

    inquiry = Elicit("Where to?", schema=Trip)
    assert inquiry.server_request == Elicit("Where to?", Trip).server_request
    assert inquiry.read(answer("accept", content={"city": "Rome"}), R2026_07_28).data == Trip("Rome", 1)
    with pytest.raises(SetupError, match="schema: it is a class or a dict, not str"):
        Elicit("?", schema="Trip")


@pytest.mark.rule("EL-7")
@pytest.mark.parametrize("revision", [R2025_11_25, R2026_07_28], ids=lambda revision: revision.name)
def test_pages_are_official(revision: Revision) -> None:
    inquiry = ElicitUrl("Sign in, please", URL)
    params = inquiry.params(revision)
    assert_official(params, revision.name)
    assert params.get("elicitationId") == (inquiry.elicitation_id if revision is R2025_11_25 else None)


@pytest.mark.rule("EL-7")
def test_the_id_of_a_page_is_made_once_and_is_no_part_of_the_question() -> None:
    first, second = ElicitUrl("?", URL), ElicitUrl("?", URL)
    assert first.params(R2025_11_25) == first.params(R2025_11_25)
    assert first.elicitation_id != second.elicitation_id
    assert len(first.elicitation_id) >= 20
    assert first.server_request.digest == second.server_request.digest
    assert ElicitUrl("?", URL, elicitation_id="mine").params(R2025_11_25)["elicitationId"] == "mine"


@pytest.mark.parametrize("ask", [Elicit, lambda message: ElicitUrl(message, URL)], ids=["form", "page"])
def test_messages_that_say_nothing(ask: Any) -> None:
    for message in ("", " \n", "x" * 70_000, "\ud800"):
        with pytest.raises(SetupError, match=r"an elicitation's message"):
            ask(message)
    for wrong in (None, 5, b"x"):
        with pytest.raises(TypeError, match=r"message must be a string, not"):
            ask(wrong)


# URLs


@pytest.mark.rule("EL-7", "EL-13")
@pytest.mark.parametrize(
    "url",
    [
        "", "example.com", "/sign-in", "//example.com", "https:", "https://", "https:///path", "https://:80/", "ftp://a.b",
        "javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "HTTPS:example.com",
        "https://user:password@example.com", "https://user@example.com", "https://@example.com",
        "https://a.b/\n", "https://a.b/\x00", "https://a.b/\x7f", " https://a.b", "https://a.b/ x", "\thttps://a.b",
        "https://a.b\\@c.d", "https://a.b/{x}", "https://a.b/%zz", "https://a.b/é", "https://ex\u0430mple.com",
        "https://[::1", "https://a.b:port/", "https://a.b:99999/", "https://a.b/" + "x" * 9_000,
    ],
    ids=lambda url: repr(url)[:40],
)  # fmt: skip
def test_urls_that_no_client_should_open(url: str) -> None:
    with pytest.raises(SetupError) as failure:
        ElicitUrl("Sign in, please", url)
    assert len(str(failure.value)) < 300


def test_ids_that_no_client_wants() -> None:
    for wrong in ("", "x" * 300, "\ud800"):
        with pytest.raises(SetupError, match=r"elicitation_id (must have 1 to 256 characters|holds half)"):
            ElicitUrl("?", URL, elicitation_id=wrong)
    with pytest.raises(TypeError, match=r"elicitation_id must be a string"):
        ElicitUrl("?", URL, elicitation_id=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be a string, not bytes"):
        ElicitUrl("?", b"https://a.b")  # type: ignore[arg-type]


@pytest.mark.rule("EL-14")
def test_plain_http_is_warned_of_once_for_each_host(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="dovetail"):
        for url in ("http://once.example/a", "http://ONCE.example:81/b", "http://twice.example", "https://tls.example"):
            ElicitUrl("?", url)
        for host in ("localhost:8000", "app.localhost", "127.0.0.1", "127.9.9.9:1", "[::1]:8000"):
            ElicitUrl("?", f"http://{host}/sign-in")
    assert [record.name for record in caplog.records] == ["dovetail", "dovetail"]
    assert [host in text for host, text in zip(("once", "twice"), caplog.messages, strict=True)] == [True, True]
    assert "use https" in caplog.text


# What is answered


@pytest.mark.rule("EL-8")
@edges
@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("content", [{}, {"content": {"value": 3}}, {"content": "?"}, {"content": None}], ids=stable)
def test_a_refusal_carries_no_data(action: Any, content: dict[str, Any], revision: Revision) -> None:
    for inquiry in (Elicit("How many?", int), ElicitUrl("Sign in, please", URL)):
        elicited = inquiry.read(answer(action, **content), revision)
        assert elicited == Elicited(action, None)
        assert not elicited.accepted


@pytest.mark.rule("EL-8", "EL-9")
@edges
@pytest.mark.parametrize("given", [3, 3.0])
def test_an_accepted_form(given: Any, revision: Revision) -> None:
    elicited = Elicit("How many?", int).read(answer("accept", content={"value": given}, _meta={"own": 1}), revision)
    assert elicited == Elicited("accept", 3)
    assert elicited.accepted
    assert type(elicited.data) is int


def test_several_choices_of_an_old_client() -> None:
    inquiry = Elicit("Toppings?", [["cheese", "ham"]])
    assert list(inquiry.params(R2025_06_18)["requestedSchema"]["properties"]) == ["value: cheese", "value: ham"]
    for content, data in (({"value: ham": True}, ["ham"]), ({"value: ham": False}, [])):
        assert inquiry.read(answer("accept", content=content), R2025_06_18) == Elicited("accept", data)


@pytest.mark.rule("EL-9")
@edges
def test_several_choices_of_a_client_that_has_lists_anyway(revision: Revision) -> None:
    inquiry = Elicit("Toppings?", list[Literal["cheese", "ham"]])
    assert inquiry.read(answer("accept", content={"value": ["ham"]}), revision).data == ["ham"]
    for content, words in (({"value": ["jam"]}, "value: must be one of"), ({}, "value: is required, but missing")):
        with pytest.raises(QuestionFailed, match=words):
            inquiry.read(answer("accept", content=content), revision)


@edges
@pytest.mark.parametrize("content", [{}, {"content": {}}, {"content": None}, {"content": {"x": 1}}], ids=stable)
def test_consent_needs_no_content(content: dict[str, Any], revision: Revision) -> None:
    assert Elicit("Go on?").read(answer("accept", **content), revision) == Elicited("accept", None)
    assert ElicitUrl("Go there", URL).read(answer("accept", **content), revision) == Elicited("accept", None)


@pytest.mark.rule("EL-8", "EL-9")
@edges
@pytest.mark.parametrize(
    ("result", "words"),
    [
        (b"", "can't be read"),
        (b"null", "can't be read"),
        (b"{}", '"accept", "decline" or "cancel"'),
        (b'{"action":"yes"}', '"accept", "decline" or "cancel"'),
        (b'{"action":"accept"}', "it must be an object"),
        (b'{"action":"accept","content":null}', "it must be an object"),
        (b'{"action":"accept","content":"value"}', "it must be an object"),
        (b'{"action":"accept","content":{"value":1e999}}', "content that can be read"),
        (b'{"action":"accept","content":{"value":"\\ud800"}}', "can't be read"),
        (b'{"action":"accept","content":{"value":"\xff"}}', "can't be read|can be read"),
        (b'{"action":"accept","content":{}}', "value: is required, but missing"),
        (b'{"action":"accept","content":{"value":"3"}}', "value: expected an integer"),
        (b'{"action":"accept","content":{"value":3.5}}', "value: expected an integer"),
        (b'{"action":"accept","content":{"value":' + b"9" * 9_999 + b"}}", "content that can be read"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_answers_that_do_not_fit(result: bytes, words: str, revision: Revision) -> None:
    with pytest.raises(QuestionFailed, match=words):
        Elicit("How many?", int).read(result, revision)
