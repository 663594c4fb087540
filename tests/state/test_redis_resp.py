"""The language of Redis: however replies are cut into pieces, they come out the same; what is none is refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.state import redis_resp
from dovetail.state.redis_resp import Refused, Replies, Reply, packed

values = st.recursive(
    st.none() | st.binary(max_size=50) | st.integers(-(2**63), 2**63 - 1),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=20,
).filter(lambda value: depth(value) <= redis_resp.MAX_DEPTH)


def depth(value: Reply) -> int:
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def said(value: Reply) -> bytes:
    """As a store would write it."""
    match value:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % value
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(value), value)
        case _:
            return b"*%d\r\n" % len(value) + b"".join(map(said, value))


def read(*pieces: bytes) -> list[Reply]:
    replies = Replies()
    return [reply for piece in pieces for reply in replies.feed(piece)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("PING",), b"*1\r\n$4\r\nPING\r\n"),
        (("SET", b"\r\n\xff", 12), b"*3\r\n$3\r\nSET\r\n$3\r\n\r\n\xff\r\n$2\r\n12\r\n"),
        (("ä", ""), b"*2\r\n$2\r\n\xc3\xa4\r\n$0\r\n\r\n"),
    ],
)
def test_packed(words: tuple[redis_resp.Part, ...], message: bytes) -> None:
    assert packed(words) == message
    assert read(message) == [[word if isinstance(word, bytes) else str(word).encode() for word in words]]


@given(st.lists(values, max_size=5), st.data())
def test_pieces_of_any_size(sent: list[Reply], data: st.DataObject) -> None:
    message = b"".join(map(said, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(message)), max_size=10)))
    pieces = [message[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(message)], strict=True)]
    assert read(*pieces) == sent
    assert read(*(message[at : at + 1] for at in range(len(message)))) == sent


def test_texts_and_refusals() -> None:
    text, refusal, empty, nothing = read(b"+OK\r\n-WRONGTYPE no, w", b"rong\r\n*0\r\n*-1\r\n")
    assert (text, empty, nothing) == (b"OK", [], None)
    assert isinstance(refusal, Refused)
    assert (refusal.code, str(refusal)) == ("WRONGTYPE", "WRONGTYPE no, wrong")


def test_a_long_value_is_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    replies, looks = Replies(), 0
    look = replies._read

    def counting(data: bytes, found: list[Reply]) -> int:
        nonlocal looks
        looks += 1
        return look(data, found)

    monkeypatch.setattr(replies, "_read", counting)
    message = said([b"x" * 1_000_000, b"y"])
    found = [reply for at in range(0, len(message), 1000) for reply in replies.feed(message[at : at + 1000])]
    assert found == [[b"x" * 1_000_000, b"y"]]
    assert looks <= 3


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\r\n",
        b"$x\r\n",
        b"$\r\n",
        b":1.5\r\n",
        b"*many\r\n",
        b"$%d\r\n" % (redis_resp.MAX_BULK + 1),
        b"*1\r\n" * (redis_resp.MAX_DEPTH + 1),
        b"+" + b"x" * (redis_resp.MAX_LINE + 1),
        b"%1\r\n+a\r\n+b\r\n",  # a kind of RESP 3
    ],
)
def test_what_is_no_reply(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(data)


@given(st.binary(max_size=100))
def test_anything_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        read(data)
