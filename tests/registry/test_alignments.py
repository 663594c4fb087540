"""What one template reads in the URIs of another, and that a rule can't be passed by another text of a value."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Server
from dovetail.errors import NotFound
from dovetail.protocol.uri import UriTemplate
from dovetail.registry.alignments import fixed_texts, respelled

# the reader, the other one, and the texts that the reader finds in what they have in common
ALIGNED: list[tuple[str, str, dict[str, Any] | None]] = [
    ("n://{a}/{x}", "n://7.0/{y}", {"a": "7.0"}),
    ("n://{a}/{x}", "n://{y}/{z}", {}),
    ("n://{a}/{x}", "n://{y}/%287%29", {"x": "(7)"}),
    ("n://item/{a}", "n://{kind}/7", {"a": "7"}),
    ("n://item/{a}{?b}", "n://{kind}/7{?b}", {"a": "7"}),
    ("n://item/{a}{?b}", "n://{kind}/7", {"a": "7", "b": None}),
    ("n://item{?b}", "n://{kind}{?c}", None),
    ("n://v{a},{b}", "n://v7,{x}", {"a": "7"}),
    ("n://{+a}", "n://7/{x}", {}),  # only a part of it is fixed
    ("n:/{/a*}", "n://7/{x}", {}),
    ("n:/{/a*}", "n://7{?x}", None),
    ("n://x{?a*}", "n://x?b=7&c={d}", {}),
    ("n://{a}", "m://{a}", None),
    ("n://{a}/x", "n://7/{y}", {"a": "7"}),
    ("n://{a}/x/y", "n://7/{y}", None),
]


@pytest.mark.parametrize(("reader", "other", "expected"), ALIGNED)
def test_fixed_texts(reader: str, other: str, expected: Any) -> None:
    assert fixed_texts(UriTemplate(reader), UriTemplate(other)) == expected


def test_only_mere_text_is_spelled_differently() -> None:
    found = respelled("n://a{b}c{?d}", str.upper)
    assert found is not None
    assert found.text == "N://A{b}C{?d}"
    assert respelled("N://{b}", str.upper) is None
    assert respelled("n://{a}-{b}", lambda text: text.replace("-", "")) is None, "it could be read in two ways"


SEGMENTS = st.lists(
    st.tuples(st.sampled_from(["7.0", "text", "{t%d}"]), st.sampled_from(["7.0", "text", "{f%d}", "{s%d}"])),
    min_size=1,
    max_size=4,
)


def _function(segments: list[str]) -> Any:
    """One of the variables that stand in the segments; those with an `f` are numbers."""
    names = [segment[1:-1] for segment in segments if segment.startswith("{")]
    namespace: dict[str, Any] = {}
    exec(f"def function({', '.join(names)}): return ''", namespace)
    function = namespace["function"]
    function.__annotations__ = {name: float if name.startswith("f") else str for name in names}
    return function


@given(SEGMENTS, st.sampled_from(["7", "7.00", "70e-1"]))
def test_no_text_of_a_value_passes_a_rule(pairs: list[tuple[str, str]], other_text: str) -> None:
    strict = [each % place if "%" in each else each for place, (each, _) in enumerate(pairs)]
    wide = [each % place if "%" in each else each for place, (_, each) in enumerate(pairs)]
    uris = ["n://" + "/".join(strict), "n://" + "/".join(wide)]
    if "{" not in uris[0] or "{" not in uris[1]:
        return
    server = Server("alignments", version="1.0.0")
    server.add_resource(uris[0], _function(strict), name="strict", scopes=["s"])
    server.add_resource(uris[1], _function(wide), name="wide")
    library = server.engine.library
    # what both have, as the strict one writes it, and then as the numbers of the other one can be written too
    exact = [w if "{" not in w else s if "{" not in s else "7.0" for s, w in zip(strict, wide, strict=True)]
    alias = [other_text if w.startswith("{f") and each == "7.0" else each for each, w in zip(exact, wide, strict=True)]
    for segments in (exact, alias):
        try:
            found, _ = library._find("n://" + "/".join(segments))
        except NotFound:
            continue
        is_both = UriTemplate(uris[0]).match("n://" + "/".join(exact)) is not None
        assert (found.access is not None) == is_both
