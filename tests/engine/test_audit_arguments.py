"""What of a request's arguments is noted: no secrets, and never much."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.engine import audit
from dovetail.engine.audit import shown
from dovetail.engine.redaction import Redactor


def test_secrets_are_blacked_out() -> None:
    given = {
        "pin": 1234,
        "db": {"password": "hunter2", "url": "postgres://u:p@h/d"},
        "note": "Bearer abcdef",
        "headers": [["x", 1]],
    }
    assert shown(msgspec.Raw(json.dumps(given).encode()), Redactor(["pin"])) == {
        "pin": "[redacted]",
        "db": {"password": "[redacted]", "url": "postgres://u:[redacted]@h/d"},
        "note": "Bearer [redacted]",
        "headers": [["x", 1]],
    }


def test_nothing_hides_behind_long_arguments() -> None:
    given = {"body": "x" * 1_000_000, "to": "bob", "token": "abc", **{f"n{number}": number for number in range(100)}}
    found = shown(msgspec.Raw(json.dumps(given).encode()), Redactor())
    assert found["body"] == "[cut] 1000002 bytes"
    assert (found["to"], found["token"], found["n0"]) == ("bob", "[redacted]", 0)
    assert found["[cut]"] == "39 more"
    assert len(found) == 65


@pytest.mark.parametrize(
    "given", [b"[" * 5000 + b"]" * 5000, b"[" + b"1," * 3000 + b"1]", b'{"a":' * 400 + b"1" + b"}" * 400]
)
def test_odd_arguments_are_no_trouble(given: bytes) -> None:
    assert len(json.dumps(shown(msgspec.Raw(given), Redactor()))) < 500


WORDS = st.text('aé"\\\n=: ', max_size=20)
VALUES = st.recursive(
    st.none() | st.integers() | WORDS, lambda inner: st.lists(inner) | st.dictionaries(WORDS, inner), max_leaves=8
)


@settings(max_examples=50)
@given(st.dictionaries(WORDS | st.sampled_from(["password", "a token"]), VALUES, max_size=8), st.integers(0, 100))
def test_what_is_shown_is_small(given: dict[str, Any], limit: int) -> None:
    raw = msgspec.json.encode(given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "MAX_ARGUMENTS", limit)
        patch.setattr(audit, "MAX_MEMBERS", 4)
        found = shown(msgspec.Raw(raw), Redactor())
    if len(raw) <= limit:
        assert found == Redactor().value(given)
    else:
        assert list(found)[:4] == list(given)[:4]
        assert len(found) == min(len(given), 5)
        assert len(msgspec.json.encode(found)) <= 12 * limit + 5 * 150
