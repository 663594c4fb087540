"""Options of registrations: the values that they take, and those that are refused."""

from typing import Any

import pytest

from dovetail.errors import SetupError
from dovetail.registry.registration import KINDS, Idempotency, checked_options


@pytest.mark.parametrize(
    ("names", "possible", "impossible"),
    [
        ("name title description mime_type", ["", "a"], [5, b"a", ["a"]]),
        ("tags requires unsafe", [[], ["a"], ("a",), {"a"}], ["a", [1], 5]),
        ("thread structured_output cache_shared", [True, False], [0, 1, "yes"]),
        ("size ttl_ms", [0, 1], [-1, 0.5, "1"]),
        ("meta", [{}, {"a": [1]}], [[], {1: 2}, {"a": object()}]),
        ("timeout cache", [0.1, 5], [0, -1, "5"]),
        ("max_concurrency", [1, 2], [0, 1.5]),
        ("output", ["auto", "text", "structured", "both"], ["", "all", True]),
        ("untrusted_output", [True, False, "fence"], ["", 1]),
        ("idempotency", [True, False, Idempotency(5)], ["yes", 5]),
        ("max_result_bytes", [200, 201], [199, 200.5]),
        ("cache_scope", ["public", "private"], ["all", True]),
    ],
)
def test_the_values_of_an_option(names: str, possible: list[Any], impossible: list[Any]) -> None:
    for name in names.split():
        for value in possible:
            assert checked_options({name: value}, KINDS, "tool t") == {name: value}
        for value in impossible:
            with pytest.raises(SetupError, match=rf"^tool t: {name}=.* is not possible; it must be "):
                checked_options({name: value}, KINDS, "tool t")
        assert checked_options({name: None}, KINDS, "tool t") == ({name: None} if name == "timeout" else {})


def test_a_window_of_idempotency_lasts_a_year_at_most() -> None:
    year = 366 * 24 * 60 * 60
    assert Idempotency(year).window == year
    with pytest.raises(SetupError, match="up to a year"):
        Idempotency(year + 1)
