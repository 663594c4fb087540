"""JSON-RPC: valid messages, the code and id of refused ones, and encoded messages."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from dovetail.errors import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, ProtocolError
from dovetail.protocol import jsonrpc, revisions
from dovetail.protocol.jsonrpc import MAX_BATCH, BadMessage, Envelope
from dovetail.protocol.methods import DECODERS

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
IDS = st.integers() | st.text(st.characters(codec="utf-8"))
MESSAGE_KEYS = st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "x"])
ALMOST_MESSAGES = st.dictionaries(MESSAGE_KEYS, st.just("2.0") | IDS | JSON_VALUES, max_size=7)


def refusal(data: bytes) -> BadMessage:
    with pytest.raises(BadMessage) as caught:
        jsonrpc.decode(data)
    assert caught.value.http_status == 400
    return caught.value


def one(data: bytes) -> Envelope:
    message = jsonrpc.decode(data)
    assert isinstance(message, Envelope)
    return message


# ── good messages ──


@pytest.mark.rule("BASE-1", "BASE-10")
@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', "request"),
        (b'{"jsonrpc":"2.0","id":"a","method":"ping","params":{}}', "request"),
        (b'{"params":[],"method":"x","id":0,"jsonrpc":"2.0","future":{"a":[1]}}', "request"),
        (b' \t\r\n{"jsonrpc" : "2.0", "id": 1, "method":"ping"} \n', "request"),
        (b'{"jsonrpc":"2.0","method":"notifications/initialized"}', "notification"),
        (b'{"jsonrpc":"2.0","method":"nobody/knows","params":null}', "notification"),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', "reply"),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}', "reply"),
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}', "reply"),
    ],
)
def test_what_is_a_message(data: bytes, kind: str) -> None:
    for form in (data, bytearray(data), memoryview(data)):
        message = one(form)  # type: ignore[arg-type]
        assert message.is_request == (kind == "request")
        assert message.is_notification == (kind == "notification")


def test_an_error_with_a_null_id_is_a_response_and_keeps_its_content() -> None:
    """Older peers spell "I could not read your id" so; to refuse it could make two peers refuse each other for ever."""
    message = one(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}')
    assert message.id is UNSET
    assert json.loads(bytes(message.error)) == {"code": -32700, "message": "no"}


@pytest.mark.rule("BASE-3", "BASE-6")
@pytest.mark.parametrize(
    "id",
    [
        0, 1, -1, "1", "", "true", "null", "ä\u2028", "\x00", 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**300,
        "x" * 10_000,
    ],
    ids=lambda id: f"{type(id).__name__}-{str(id)[:12]!a}",
)  # fmt: skip
def test_ids_keep_their_type_and_all_their_digits(id: int | str) -> None:
    message = one(json.dumps({"jsonrpc": "2.0", "id": id, "method": "ping"}).encode())
    assert message.id == id
    assert type(message.id) is type(id)
    for answer in (jsonrpc.result(id, b"{}"), jsonrpc.error(id, ProtocolError("m"))):
        echoed = json.loads(answer)["id"]
        assert echoed == id
        assert type(echoed) is type(id)


def test_the_last_of_two_equal_keys_counts() -> None:
    message = one(b'{"jsonrpc":"2.0","id":1,"method":"a","id":"z","method":"b"}')
    assert (message.id, message.method) == ("z", "b")


@pytest.mark.rule("BASE-3")
@pytest.mark.parametrize("ids", [b'"id":1,"id":null', b'"id":null,"id":1', b'"id":1,"id":true'])
def test_a_bad_key_is_not_made_good_by_another(ids: bytes) -> None:
    assert refusal(b'{"jsonrpc":"2.0",%b,"method":"a"}' % ids).code == INVALID_REQUEST


@pytest.mark.rule("BASE-2")
@pytest.mark.parametrize("shift", [b"", b" "])
def test_a_large_message_in_many_languages(shift: bytes) -> None:
    data = shift + b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"%s"}}' % ("aä€😀" * 300_000).encode()
    for form in (data, bytearray(data), memoryview(data)):
        assert one(form).is_request  # type: ignore[arg-type]


# ── refusals ──


NESTED = 100_000


@pytest.mark.rule("BASE-2", "BASE-20")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"jsonrpc":"2.0","id":1,"method":"ping"',
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":01,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}',
        b"\xff",
        b'{"jsonrpc":"2.0","id":1,"method":"\xff"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\xff"}}',
        b'{"jsonrpc":"2.0","id":1,"result":"\xe4"}',
        b'{"jsonrpc":"2.0","method":"ping","params":"' + b"\xc3\xa4" * 600_000 + b'\xff"}',
        b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":"\\udc00","method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":"a\nb"}',
        '{"jsonrpc":"2.0","id":1,"method":"ping"}'.encode("utf-16"),
        b'{"jsonrpc":"2.0","id":' + b"9" * 100_000 + b',"method":"ping"}',
        b"[" * NESTED,
        b"[" * NESTED + b"]" * NESTED,
        b'{"a":' * NESTED + b"1" + b"}" * NESTED,
        b'[{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"[" * NESTED + b"]" * NESTED + b"}]",
    ],
    ids=lambda data: repr(data[:40]),
)
def test_what_is_not_json(data: bytes) -> None:
    bad = refusal(data)
    assert bad.code == PARSE_ERROR
    assert bad.id is None


@pytest.mark.parametrize(
    ("data", "id"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\\ud800"}}', 1),
        (b'{"jsonrpc":"2.0","id":"one","method":"\\ud800"}', "one"),
        (b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"[" * NESTED + b"]" * NESTED + b"}", 1),
        (b'{"jsonrpc":"2.0","method":"x","id":"one","params":' + b"[" * NESTED, "one"),
    ],
    ids=["half a character", "half a method", "deep", "deep and cut"],
)
def test_a_readable_id_is_in_the_error(data: bytes, id: int | str) -> None:
    bad = refusal(data)
    assert (bad.code, bad.id) == (PARSE_ERROR, id)


@pytest.mark.rule("BASE-1", "BASE-3", "BASE-7", "BASE-20")
@pytest.mark.parametrize(
    ("data", "id"),
    [
        (b"1", None),
        (b'"text"', None),
        (b"{}", None),
        # jsonrpc
        (b'{"id":1,"method":"ping"}', 1),
        (b'{"jsonrpc":"1.0","id":"a","method":"ping"}', "a"),
        (b'{"jsonrpc":2.0,"id":1,"method":"ping"}', 1),
        # ids
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":1.0,"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', None),
        # methods
        (b'{"jsonrpc":"2.0","id":7}', 7),
        (b'{"jsonrpc":"2.0"}', None),
        (b'{"jsonrpc":"2.0","id":7,"method":5}', 7),
        (b'{"jsonrpc":"2.0","id":7,"method":1e999}', 7),
        (b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":7,"method":["ping"]}', 7),
        # requests that are answers too
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","result":{}}', 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","error":{}}', 7),
        (b'{"jsonrpc":"2.0","method":"ping","result":{}}', None),
        # answers: their id would name a request of ours
        (b'{"jsonrpc":"2.0","id":7,"result":{},"error":{}}', None),
        (b'{"jsonrpc":"2.0","result":{}}', None),
        (b'{"jsonrpc":"2.0","id":null,"result":{}}', None),
        (b'{"jsonrpc":"2.0","id":1.5,"error":{}}', None),
        (b'{"jsonrpc":"1.0","id":7,"result":{}}', None),
        (b'{"id":7,"result":{}}', None),
    ],
)
def test_what_is_json_but_no_message(data: bytes, id: int | str | None) -> None:
    bad = refusal(data)
    assert bad.code == INVALID_REQUEST
    assert bad.id == id
    assert type(bad.id) is type(id)


# ── batches ──


GOOD = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@pytest.mark.rule("BASE-11")
def test_a_batch_keeps_its_order_and_its_bad_members() -> None:
    items = jsonrpc.decode(
        b'[%b, {"jsonrpc":"2.0","method":"n"}, 5, [], [%b], {"jsonrpc":"2.0","id":"x","method":1}, {"id":null}, %b]'
        % (GOOD, GOOD, GOOD)
    )
    assert isinstance(items, list)
    good = [isinstance(item, Envelope) for item in items]
    assert good == [True, True, False, False, False, False, False, True]
    bad = [item for item in items if isinstance(item, BadMessage)]
    assert [item.code for item in bad] == [INVALID_REQUEST] * 5
    assert [item.id for item in bad] == [None, None, None, "x", None]


@pytest.mark.rule("BASE-11", "BASE-20")
@pytest.mark.parametrize("data", [b"[]", b" [ ] ", b"[%b]" % b",".join([b"1"] * (MAX_BATCH + 1))])
def test_batches_that_are_refused_as_a_whole(data: bytes) -> None:
    bad = refusal(data)
    assert (bad.code, bad.id) == (INVALID_REQUEST, None)
    largest = jsonrpc.decode(b"[%b]" % b",".join([GOOD] * MAX_BATCH))
    assert isinstance(largest, list)
    assert json.loads(jsonrpc.batch([b"1", b'{"a":2}'])) == [1, {"a": 2}]


@pytest.mark.rule("BASE-20")
@pytest.mark.parametrize("data", [b"[%b" % GOOD, b"[%b,]" % GOOD, b"[%b]]" % GOOD, b'[%b,"\xff"]' % GOOD])
def test_a_batch_that_is_not_json_is_one_parse_error(data: bytes) -> None:
    assert refusal(data).code == PARSE_ERROR


@pytest.mark.rule("BASE-11", "BASE-20")
@pytest.mark.parametrize("depth", [1, 10, 300, 490])
def test_a_batch_in_a_batch_is_not_looked_into(depth: int) -> None:
    items = jsonrpc.decode(b"[%b%b%b,%b]" % (b"[" * depth, GOOD, b"]" * depth, GOOD))
    assert isinstance(items, list)
    assert [isinstance(item, BadMessage) for item in items] == [True, False]


# ── anything at all ──


def survives(data: bytes) -> None:
    try:
        message = jsonrpc.decode(data)
    except BadMessage as bad:
        check_refusal(bad)
        return
    for item in message if isinstance(message, list) else [message]:
        if isinstance(item, BadMessage):
            check_refusal(item)
        else:
            assert item.method is UNSET or isinstance(item.method, str)
            assert item.id is UNSET or type(item.id) in (int, str)


def check_refusal(bad: BadMessage) -> None:
    assert bad.code in (PARSE_ERROR, INVALID_REQUEST)
    assert bad.id is None or type(bad.id) in (int, str)
    json.loads(jsonrpc.error(bad.id, bad))


@pytest.mark.rule("BASE-20")
@given(st.binary(), JSON_VALUES | ALMOST_MESSAGES | st.lists(ALMOST_MESSAGES, max_size=3), st.booleans())
def test_anything_decodes_or_is_refused(data: bytes, value: Any, escaped: bool) -> None:
    survives(data)
    survives(json.dumps(value, ensure_ascii=escaped).encode(errors="surrogatepass"))


@pytest.mark.rule("BASE-20")
@given(st.data())
def test_a_broken_message_decodes_or_is_refused(data: st.DataObject) -> None:
    whole = b'{"jsonrpc":"2.0","id":12,"method":"tools/call","params":{"name":"a\\u00e4","arguments":{"x":[1.5,null]}}}'
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(start + 8, len(whole))))
    survives(whole[:start] + data.draw(st.binary(max_size=8)) + whole[end:])


@given(st.integers(1, 2_000), st.sampled_from([b'{"jsonrpc":"2.0","id":1,"method":"x","params":%b}', b"%b", b"[%b]"]))
def test_any_depth_decodes_or_is_refused(depth: int, around: bytes) -> None:
    survives(around % (b"[" * depth + b"]" * depth))
    survives(around % (b'{"a":' * depth + b"1" + b"}" * depth))
    survives(b'{"jsonrpc":"2.0","id":null,"error":' + b"[" * depth + b"]" * depth + b"}")


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
    sent = one(jsonrpc.notification("notifications/message", jsonrpc.encode(value)))
    assert sent.is_notification
    assert jsonrpc.parse(bytes(sent.params)) == value


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
    shown = json.loads(jsonrpc.error(0, ProtocolError("m"), id_optional=False))
    assert (shown["id"], shown["error"]["code"]) == (0, INTERNAL_ERROR)


@pytest.mark.parametrize("data", [False, 0, "", [], {}])
def test_data_is_left_out_only_if_there_is_none(data: Any) -> None:
    assert json.loads(jsonrpc.error(1, ProtocolError("m", data=data)))["error"]["data"] == data


# ── words ──


def complaint(method_params: str, raw: bytes) -> str:
    shape = next(shape for shape in DECODERS if shape.__name__ == method_params)
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)) as caught:
        DECODERS[shape].decode(raw)
    return jsonrpc.describe_decode_error(caught.value)


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
        words = jsonrpc.describe_decode_error(failure)
        assert "`" not in words
        assert "Expected" not in words
        assert "$" not in words


@given(st.text())
def test_any_text_of_the_library_becomes_words(text: str) -> None:
    words = jsonrpc.describe_decode_error(ValueError(text))
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
    inside = '["]]]]\\"]", ' * 600 + "1" + "]" * 600  # and closing ones hide none
    with pytest.raises(BadMessage, match="nested too deeply"):
        jsonrpc.decode(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":%s}' % inside.encode())
