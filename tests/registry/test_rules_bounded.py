"""What it takes to find the rule for a URI: little, whatever is asked for. Nobody is refused for a rule elsewhere."""

import time
from typing import Any, Literal

import pytest

from dovetail import Server
from dovetail.errors import NotFound
from dovetail.registry import alignments, guards

MANY = "abcdefghij"
TALL = "%28" * 2600


def _many(kind: Any, default: Any, names: str = MANY) -> Any:
    namespace: dict[str, Any] = {"default": default}
    exec(f"def many({', '.join(f'{name}=default' for name in names)}): return ''", namespace)
    namespace["many"].__annotations__ = dict.fromkeys(names, kind)
    return namespace["many"]


def _beside(strict: list[tuple[str, Any]], wide: str, function: Any) -> Server:
    server = Server("beside", version="1.0.0")
    for number, (uri, guarded) in enumerate(strict):
        server.add_resource(uri, guarded, name=f"strict{number}", scopes=["s"])
    server.add_resource(wide, function, name="wide")
    return server


def _is_guarded(server: Server, uri: str) -> bool:
    return server.engine.library._find(uri)[0].access is not None


ON_OR_OFF = _many(Literal["on", "off"], "on", "v")
A_FLAG = _many(bool, False, "v")
SEARCH = f"search://x{{?{','.join(MANY)}}}"
FLAGS = f"search://x{{?{','.join(MANY[:9])}}}"

# templates with a rule, the open one and its function, and what has nothing to do with the rule
UNRELATED: list[tuple[list[tuple[str, Any]], str, Any, list[str]]] = [
    (
        [(f"admin{number}://{{v}}", ON_OR_OFF) for number in range(3)],
        SEARCH,
        _many(str, ""),
        [
            "?" + "&".join(f"{name}=on" for name in MANY),
            "?" + "&".join(f"{name}=on" for name in MANY[:9]) + f"&j={TALL}",
        ],
    ),
    ([("admin://{v}", A_FLAG)], SEARCH, _many(bool, False), ["", "?a=true", "?a=%20true&b=tru%65"]),
    ([("search://{v}", A_FLAG)], SEARCH, _many(bool, False), ["", "?a=true", "?a=%20true&b=tru%65"]),
    ([("search://y{?v}", A_FLAG)], SEARCH, _many(bool, False), ["", "?a=true", "?a=%20true&b=tru%65"]),
    (
        [(FLAGS, _many(bool, False, MANY[:9]))],
        SEARCH,
        _many(bool, False),
        ["?" + "&".join(f"{name}={text}" for name in MANY) for text in ("true", "%20true", "tru%65")],
    ),
    (
        [("search://y/" + "/".join(f"{{{name}}}" for name in MANY), _many(Literal["7", "7.0"], "7"))],
        "search://x/" + "/".join(f"{{{name}}}" for name in MANY),
        _many(float, 0.0),
        ["/" + "/".join("7" * len(MANY))],
    ),
]


@pytest.mark.parametrize(("strict", "wide", "function", "ends"), UNRELATED)
def test_nobody_is_refused_for_a_rule_that_can_not_be_meant(
    strict: list[tuple[str, Any]], wide: str, function: Any, ends: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = _beside(strict, wide, function)
    tried = _counted(monkeypatch)
    assert [end for end in ends if _is_guarded(server, "search://x" + end)] == []
    assert len(tried) <= 4 * len(ends)


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URIs that are tried in place of what was asked for."""
    tried: list[str] = []
    expanded = alignments.expanded

    def counted(*arguments: Any) -> str:
        tried.append(expanded(*arguments))
        return tried[-1]

    monkeypatch.setattr(alignments, "expanded", counted)
    return tried


def _numbers(
    a: float,
    b: float,
    c: float,
    d: float,
    e: float,
    f: float,
    g: float,
    h: float,
    i: float,
    j: float,
    q: str,
    w: int = 1,
) -> str:
    return ""


@pytest.mark.parametrize("tail", ["x", TALL])
def test_the_texts_of_one_request_are_bounded(tail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    places = "/".join(f"{{{name}}}" for name in MANY)
    texts = _many(Literal["7", "7.0", "7.00", "7.000"], "7")
    strict = [(f"n://{places}/{number}", texts) for number in range(3)]
    server = _beside(strict, f"n://{places}/{{q}}{{?w}}", _numbers)
    tried = _counted(monkeypatch)
    begin = time.monotonic()
    with pytest.raises(NotFound, match="which rule"):
        _is_guarded(server, "n://" + "/".join("7" * len(MANY)) + f"/{tail}?w=1")
    assert 0 < len(tried) <= guards.MOST_WORK // guards.WORK_FOR_ANY + 1
    assert sum(map(len, tried)) <= guards.MOST_WORK + 2 * len(tried[0])
    assert time.monotonic() - begin < 20, "it would go on for hours"
