"""Messages of every making, good and almost good."""

import pytest
from hypothesis import strategies as st

from dovetail.protocol import jsonrpc
from dovetail.protocol.jsonrpc import BadMessage, Envelope

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
