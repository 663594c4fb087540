"""Chunks to lines, whatever the chunks; messages to lines, whatever the messages."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.transports.lines import Line, LineSplitter, as_line


def split(*chunks: bytes, limit: int = 20) -> list[Line]:
    splitter = LineSplitter(limit)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return [line if line is None else bytes(line) for line in lines + splitter.end()]


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([], []),
        ([b"a\n"], [b"a"]),
        ([b"a\nb\nc\n"], [b"a", b"b", b"c"]),
        ([b"a\r\nb\r\n"], [b"a\r", b"b\r"]),
        ([b"a", b"b", b"c\nd", b"\n"], [b"abc", b"d"]),
        ([b"a", b"\n"], [b"a"]),
        ([b"a\nlast"], [b"a", b"last"]),
        ([b"\n\n  \n\r\n\t\na\n\n"], [b"a"]),
        ([b" ", b" \n", b" "], []),
        ([b"\n" * 1000], []),
    ],
)
@pytest.mark.rule("STDIO-1")
def test_lines_whatever_the_chunks(chunks: list[bytes], lines: list[bytes]) -> None:
    assert split(*chunks) == lines


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"12345\n"], [b"12345"]),
        ([b"123456\n"], [None]),
        ([b"123456"], [None]),
        ([b"123456\nok\n"], [None, b"ok"]),
        ([b"123", b"456", b"789", b"\nok\n"], [None, b"ok"]),
        ([b"123", b"456\nok\n"], [None, b"ok"]),
        ([b"ok\n123456", b"{}\nok\n"], [b"ok", None, b"ok"]),  # the tail is no line of its own
        ([b"123456", b"x" * 100, b"\n", b"123456\n"], [None, None]),
        ([b"1234", b"5\n"], [b"12345"]),
        ([b"123456", b"\n", b"\n"], [None]),
    ],
)
def test_a_line_over_the_limit_is_reported_once(chunks: list[bytes], lines: list[Line]) -> None:
    assert split(*chunks, limit=5) == lines


def test_an_oversize_line_is_reported_before_it_ends_and_not_kept() -> None:
    splitter = LineSplitter(5)
    assert splitter.feed(b"123456") == [None]
    assert splitter.feed(b"7" * 1000) == []
    assert len(splitter._begun) == 0
    assert splitter.feed(b"\nok\n") == [b"ok"]


def test_a_line_in_a_million_pieces() -> None:
    splitter = LineSplitter(2_000_000)
    for _ in range(1_000_000):
        splitter.feed(b"x")
    assert [len(line or b"") for line in splitter.feed(b"\n")] == [1_000_000]


@given(st.lists(st.binary(min_size=1, max_size=30)), st.data())
def test_every_way_to_cut_a_stream_gives_the_same_lines(pieces: list[bytes], data: st.DataObject) -> None:
    stream = b"\n".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    wanted = [line for line in stream.split(b"\n") if len(line) > 20 or line.strip(b"\t\v\f\r ")]
    expected = [line if len(line) <= 20 else None for line in wanted]
    found = split(*(chunk for chunk in chunks if chunk))
    assert [line for line in found if line is not None] == [line for line in expected if line is not None]
    assert found.count(None) <= expected.count(None)


@pytest.mark.rule("STDIO-1")
def test_a_message_is_one_line() -> None:
    assert as_line(b'{"a":1}') == b'{"a":1}\n'
    pretty = json.dumps({"text": "two\nlines\r"}, indent=2).replace("\n", "\r\n").encode()
    line = as_line(pretty)
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    assert json.loads(line) == {"text": "two\nlines\r"}
