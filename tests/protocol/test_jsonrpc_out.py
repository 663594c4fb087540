"""Messages that go out, and the words for what was wrong with one that came in."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonrpc_stage import IDS, JSON_VALUES, one
from msgspec import UNSET

from dovetail.errors import INTERNAL_ERROR, ProtocolError
from dovetail.protocol import jsonrpc, revisions
from dovetail.protocol.jsonrpc import BadMessage, Envelope
from dovetail.protocol.methods import DECODERS

# ── messages out ──


@pytest.mark.rule("BASE-1", "BASE-6", "BASE-7")
@given(IDS, JSON_VALUES)
def test_what_goes_out_as_a_result_comes_back(id: int | str, value: Any) -> None:
    message = one(jsonrpc.result(id, jsonrpc.encode(value)))
    assert message.id == id
    assert type(message.id) is type(id)
    assert jsonrpc.parse(bytes(message.result)) == value
    assert message.error is UNSET


@pytest.mark.rule("BASE-7", "BASE-8")
@given(IDS | st.none(), st.integers(-(2**31), 2**31), st.text(), JSON_VALUES)
def test_what_goes_out_as_an_error_comes_back(id: int | str | None, code: int, text: str, data: Any) -> None:
    message = one(jsonrpc.error(id, ProtocolError(text, code=code, data=data)))
    assert message.id == (UNSET if id is None else id)
    body = jsonrpc.parse(bytes(message.error))
    assert (body["code"], body["message"], body.get("data")) == (code, text, data)
    assert ("data" in body) == (data is not None)


@given(IDS, st.text(), JSON_VALUES)
def test_requests_and_notifications_come_back(id: int | str, method: str, value: Any) -> None:
    asked = one(jsonrpc.request(id, method, jsonrpc.encode(value)))
    assert asked.is_request
    assert (asked.id, asked.method, jsonrpc.parse(bytes(asked.params))) == (id, method, value)
    told = one(jsonrpc.notification("notifications/message", jsonrpc.encode(value)))
    assert told.is_notification
    assert jsonrpc.parse(bytes(told.params)) == value


def test_params_may_be_left_out() -> None:
    for message in (jsonrpc.request(1, "ping"), jsonrpc.notification("notifications/x")):
        assert "params" not in json.loads(message)
        assert bytes(one(message).params) == b"{}"


@pytest.mark.rule("STDIO-1")
@given(IDS, st.text(), JSON_VALUES)
def test_no_message_holds_a_raw_newline(id: int | str, text: str, value: Any) -> None:
    out = jsonrpc.result(id, jsonrpc.encode(value)), jsonrpc.error(id, ProtocolError(text, data=value))
    assert all(b"\n" not in message and b"\r" not in message for message in out)


@pytest.mark.rule("BASE-9")
@pytest.mark.parametrize(
    ("revision", "wanted"),
    [("2024-11-05", None), ("2025-03-26", None), ("2025-06-18", None), ("2025-11-25", ...), ("2026-07-28", ...)],
)
def test_an_id_that_could_not_be_read(revision: str, wanted: object) -> None:
    optional = revisions.BY_NAME[revision].error_id_optional
    message = json.loads(jsonrpc.error(None, ProtocolError("m"), id_optional=optional))
    assert message.get("id", ...) is wanted


@pytest.mark.rule("BASE-6", "BASE-8")
def test_an_id_that_could_be_read_is_there_in_every_revision() -> None:
    for optional in (True, False):
        message = json.loads(jsonrpc.error("7", ProtocolError("m", code=-32601), id_optional=optional))
        assert message == {"jsonrpc": "2.0", "id": "7", "error": {"code": -32601, "message": "m"}}
    assert json.loads(jsonrpc.error(0, ProtocolError("m"), id_optional=False))["id"] == 0


@pytest.mark.rule("BASE-8")
def test_an_error_without_a_code_is_internal() -> None:
    assert json.loads(jsonrpc.error(1, ProtocolError("m")))["error"]["code"] == INTERNAL_ERROR


@pytest.mark.parametrize("data", [False, 0, "", [], {}])
def test_data_is_left_out_only_if_there_is_none(data: Any) -> None:
    assert json.loads(jsonrpc.error(1, ProtocolError("m", data=data)))["error"]["data"] == data


# ── words ──


def complaint(method_params: str, raw: bytes) -> str:
    shape = next(shape for shape in DECODERS if shape.__name__ == method_params)
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)) as caught:
        DECODERS[shape].decode(raw)
    return jsonrpc.in_words(caught.value)


LEVELS = "debug, info, notice, warning, error, critical, alert, emergency"

WORDS = [
    ("Params", b"[]", "params must be an object, not an array"),
    ("Params", b'"x"', "params must be an object, not a string"),
    ("Params", b"true", "params must be an object, not true or false"),
    ("Params", b'{"_meta":5}', "_meta must be an object, not an integer"),
    ("Params", b'{"_meta":{"progressToken":1.5}}', "_meta.progressToken must be an integer or a string, not a number"),
    ("CallToolParams", b"{}", "name is missing"),
    ("CallToolParams", b'{"name":null}', "name must be a string, not null"),
    ("ListParams", b'{"cursor":5}', "cursor must be a string or null, not an integer"),
    ("CompleteParams", b'{"ref":{},"argument":{}}', "ref.type is missing"),
    ("CompleteParams", b'{"ref":{"type":"ref/x"}}', "ref.type must be one of ref/prompt, ref/resource, ref/tool"),
    ("SetLevelParams", b'{"level":"loud"}', f"level must be one of {LEVELS}"),
    ("SetLevelParams", b'{"level":"x - at `$.elsewhere`"}', f"level must be one of {LEVELS}"),
    ("SetLevelParams", b'{"level":"Expected `int`, got `str`"}', f"level must be one of {LEVELS}"),
    ("ListenParams", b'{"notifications":{"resourceSubscriptions":[1]}}', "notifications.resourceSubscriptions[0] must"),
    ("ListParams", b'{"cursor":"\xff"}', "the params do not fit the method"),
]


@pytest.mark.parametrize(("shape", "raw", "words"), WORDS, ids=lambda value: str(value)[:40])
def test_complaints_are_in_plain_words(shape: str, raw: bytes, words: str) -> None:
    assert complaint(shape, raw).startswith(words)


@given(st.sampled_from(sorted(shape.__name__ for shape in DECODERS)), JSON_VALUES)
def test_complaints_never_show_the_library(shape: str, value: Any) -> None:
    decoder = next(decoder for kind, decoder in DECODERS.items() if kind.__name__ == shape)
    try:
        decoder.decode(json.dumps(value).encode())
    except msgspec.DecodeError as failure:
        words = jsonrpc.in_words(failure)
        assert "`" not in words
        assert "Expected" not in words
        assert "$" not in words


@given(st.text())
def test_any_text_of_the_library_becomes_words(text: str) -> None:
    words = jsonrpc.in_words(ValueError(text))
    assert "`" not in words
    assert words


@pytest.mark.rule("BASE-20")
@pytest.mark.parametrize("kind", ['"method":"ping","params"', '"result"'])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_the_same_depth_on_every_interpreter(opening: str, closing: str, kind: str) -> None:
    def nested(depth: int) -> bytes:
        inside = opening * (depth - 1) + "1" + closing * (depth - 1)
        return f'{{"jsonrpc":"2.0","id":1,{kind}:{inside}}}'.encode()

    assert isinstance(jsonrpc.decode(nested(jsonrpc.MAX_DEPTH)), Envelope)
    with pytest.raises(BadMessage, match="nested too deeply") as caught:
        jsonrpc.decode(nested(jsonrpc.MAX_DEPTH + 1))
    assert caught.value.id == 1


def test_brackets_in_strings_are_no_depth() -> None:
    text = "[{" * 2_000 + '\\" ]'
    message = jsonrpc.encode(
        {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"text": text, "list": [[]] * 1_000}}
    )
    assert isinstance(jsonrpc.decode(message), Envelope)
    assert isinstance(jsonrpc.decode(memoryview(message)), Envelope)


def test_closing_brackets_in_strings_hide_no_depth() -> None:
    inside = '["]]]]\\"]", ' * 600 + "1" + "]" * 600
    with pytest.raises(BadMessage, match="nested too deeply"):
        jsonrpc.decode(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":%s}' % inside.encode())
