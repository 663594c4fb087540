"""Valid scopes, as authors and tokens write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import SetupError
from dovetail.protocol.scopes import MAX_SCOPES, checked_scopes, read_scopes


@pytest.mark.parametrize(
    ("given", "scopes"), [("notes:read", {"notes:read"}), (["a", "b", "a"], {"a", "b"}), ((), set()), ({"x!"}, {"x!"})]
)
def test_scopes_of_an_author(given: object, scopes: set[str]) -> None:
    assert checked_scopes(given, "here") == scopes


@pytest.mark.parametrize("given", ["", "two words", 'qu"ote', "b\\s", ["a", 1], [["a"]], ["é"], 7, None, "x" * 257])
def test_what_can_not_be_scopes(given: object) -> None:
    with pytest.raises(SetupError, match="tool add: "):
        checked_scopes(given, "tool add")


@pytest.mark.parametrize(
    ("claim", "scopes"),
    [("a b", {"a", "b"}), ("", set()), ("a  b", {"a", "b"}), (["a", 1, "b c"], {"a"}), (None, set()), (7, set())],
)
def test_scopes_of_a_token(claim: object, scopes: set[str]) -> None:
    assert read_scopes(claim) == scopes


@given(st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=20))
def test_no_claim_fails(claim: object) -> None:
    assert len(read_scopes(claim)) <= MAX_SCOPES
