"""Base64 for URLs: each bytes have one text, and every other text is none."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.protocol.pagination import decode_base64url, encode_base64url


@given(st.binary(max_size=100))
def test_there_and_back(data: bytes) -> None:
    text = encode_base64url(data)
    assert text == base64.urlsafe_b64encode(data).decode().rstrip("=")
    assert decode_base64url(text) == data


@pytest.mark.parametrize("text", ["A", "AB", "AA==", "AA=", "A A", "AA\n", "+/+/", "AAA.", "é", "\udc80", "AAAAA"])
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        decode_base64url(text)


@given(st.text(max_size=20))
def test_a_text_is_refused_or_the_only_one(text: str) -> None:
    try:
        data = decode_base64url(text)
    except ValueError:
        return
    assert encode_base64url(data) == text
