"""Tests of the benchmarks on stdio: the driver counts right answers only, and the arithmetic is right."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmarks.case import CannotMeasure
from benchmarks.http_contender import MODERN
from benchmarks.import_time import imported_us
from benchmarks.pipe import IDS, Pipe, Ring, WrongAnswer, add_call, check_calls, check_greeting, check_sum, opened, pace
from benchmarks.servers.echo_stdio import ANSWER

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the benchmarks are driven on POSIX systems only")

DOVETAIL = Path(__file__).parent.parent / "servers" / "dovetail_stdio.py"
RIGHT = '{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"3"}],"structuredContent":3}}'
ANSWERING = "import json, sys\nfor line in sys.stdin:\n    number = json.loads(line)['id']\n    print({}, flush=True)\n"


@contextmanager
def program(answer: str) -> Iterator[Pipe]:
    """A server that answers with the value of an expression of `number`."""
    with opened([sys.executable, "-c", ANSWERING.format(answer)]) as pipe:
        yield pipe


def ring(in_flight: int) -> Ring:
    return Ring([add_call(number, MODERN) for number in IDS], in_flight)


@pytest.mark.parametrize("in_flight", [1, 32])
def test_dovetail_is_checked_and_counted(in_flight: int) -> None:
    with opened([sys.executable, DOVETAIL]) as pipe:
        check_calls(pipe, MODERN, in_flight)
        answers, seconds = pace(pipe, ring(in_flight), in_flight, 0.1)
    assert answers > 0
    assert seconds >= 0.1


def test_the_floor_answers_with_as_many_bytes_as_dovetail() -> None:
    with opened([sys.executable, DOVETAIL]) as pipe:
        assert pipe.ask(add_call(IDS[0], MODERN)) + b"\n" == ANSWER


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(repr(RIGHT.replace("%d", "7")), id="another id"),
        pytest.param(repr(RIGHT.replace('"3"', '"4"')) + " % number", id="another text"),
        pytest.param(repr(RIGHT.replace(":3}", ":4}")) + " % number", id="another structured content"),
        pytest.param(repr(RIGHT.replace('"result":{', '"result":{"isError":true,')) + " % number", id="isError"),
        pytest.param("""'{"jsonrpc":"2.0","id":%d,"error":{"code":-32601,"message":"no"}}' % number""", id="error"),
        pytest.param("'hello'", id="no JSON"),
        pytest.param(repr(RIGHT % IDS[0]), id="one answer twice"),
    ],
)
def test_a_wrong_answer_is_refused_before_anything_is_timed(answer: str) -> None:
    with program(answer) as pipe, pytest.raises(WrongAnswer):
        check_calls(pipe, MODERN, 2)


def test_a_wrong_answer_is_noticed_after_the_time_was_taken() -> None:
    late_mistake = f"{RIGHT!r} % number if number < {IDS[20]} else '4'"
    with program(late_mistake) as pipe:
        check_calls(pipe, MODERN, 4)
        with pytest.raises(WrongAnswer):
            pace(pipe, ring(4), 4, 0.2)


def test_a_server_that_ends_is_no_measurement_and_its_last_words_are_shown() -> None:
    with pytest.raises(CannotMeasure, match="out of luck"), program("sys.exit('out of luck')") as pipe:
        pipe.ask(add_call(IDS[0], MODERN))


def test_a_right_sum_in_both_shapes() -> None:
    check_sum((RIGHT % 5).encode(), 5)
    check_sum((RIGHT % 5).replace(":3}", ':{"result":3}}').encode(), 5)


@pytest.mark.parametrize("answer", [b"", b"{}", b'{"result":{"protocolVersion":"2024-11-05"}}', b'{"error":{}}'])
def test_a_wrong_greeting(answer: bytes) -> None:
    with pytest.raises(WrongAnswer):
        check_greeting(answer)


def test_a_ring_gives_all_requests_in_turn() -> None:
    small = Ring([b"a\n", b"b\n", b"c\n", b"d\n"], 3)
    assert [small.take(count) for count in (3, 2, 1, 3)] == [b"a\nb\nc\n", b"d\na\n", b"b\n", b"c\nd\na\n"]


@pytest.mark.parametrize("requests", [[b"a\n", b"bb\n", b"c\n"], [b"a\n", b"b\n"]])
def test_a_ring_that_cannot_be(requests: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"equally long|in flight"):
        Ring(requests, 2)


def test_imports_are_summed_after_those_of_python_itself() -> None:
    account = (
        "import time: self [us] | cumulative | imported package\n"
        "import time:       100 |        100 | encodings\n"
        "import time:        50 |        150 | site\n"
        "import time:         7 |          7 |   inner\n"
        "import time:        20 |         27 | outer\n"
        "something else on stderr\n"
    )
    assert imported_us(account) == 27
    with pytest.raises(CannotMeasure):
        imported_us("nothing")
