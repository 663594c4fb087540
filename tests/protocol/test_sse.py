"""Server-sent events: encoding, decoding, and the cost of hostile streams."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import INVALID_REQUEST, ProtocolError
from dovetail.protocol.sse import KEEP_ALIVE, Event, EventId, SseDecoder, comment, encode_event, priming_event

LIMIT = 1_000


def decode(*chunks: bytes, max_bytes: int = LIMIT) -> list[Event]:
    decoder = SseDecoder(max_bytes=max_bytes)
    return [event for chunk in chunks for event in decoder.feed(chunk)]


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (encode_event(b'{"a":1}'), b'data: {"a":1}\n\n'),
        (encode_event(b"x", id="7"), b"id: 7\ndata: x\n\n"),
        (encode_event(b"x", event="message", retry=0), b"event: message\nretry: 0\ndata: x\n\n"),
        (encode_event(b"a\nb\rc\r\nd\n"), b"data: a\ndata: b\ndata: c\ndata: d\ndata: \n\n"),
        (encode_event(b"x\n\nevent: forged"), b"data: x\ndata: \ndata: event: forged\n\n"),
        (priming_event("7", retry=500), b"id: 7\nretry: 500\ndata: \n\n"),
        (comment("hello"), b": hello\n\n"),
        (KEEP_ALIVE, b": keep-alive\n\n"),
    ],
)
def test_frames(frame: bytes, expected: bytes):
    assert frame == expected


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\0b", "\n"])
def test_nothing_can_be_smuggled_into_a_field(text: str):
    for write in (lambda: encode_event(b"", id=text), lambda: encode_event(b"", event=text), lambda: comment(text)):
        with pytest.raises(ValueError, match="line ends or NUL"):
            write()


@pytest.mark.parametrize("retry", [-1, 10**10])
def test_a_retry_is_a_sensible_number(retry: int):
    with pytest.raises(ValueError, match="milliseconds"):
        encode_event(b"", retry=retry)


@pytest.mark.rule("MH-12")
@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: x\n\n", [Event(b"x")]),
        (b"data: x\r\rdata: y\r\r", [Event(b"x"), Event(b"y")]),
        (b"data: x\r\n\r\n", [Event(b"x")]),
        (b"data:x\ndata:  y\n\n", [Event(b"x\n y")]),
        (b"data\ndata\n\n", [Event(b"\n")]),
        (b"\xef\xbb\xbfdata: x\n\n", [Event(b"x")]),
        (b"\n\xef\xbb\xbfdata: x\n\n", []),
        (b": comment\n\n:\n\n", []),
        (b"event: ping\ndata: x\n\ndata: y\n\n", [Event(b"x", "ping"), Event(b"y")]),
        (b"event: ping\n\ndata: y\n\n", [Event(b"y")]),
        (b"id: 1\ndata: x\n\ndata: y\n\n", [Event(b"x", id="1"), Event(b"y")]),
        (b"id: a\0b\ndata: x\n\n", [Event(b"x")]),
        (b"id\ndata: x\n\n", [Event(b"x", id="")]),
        (b"id: \xff\ndata: \xff\n\n", [Event(b"\xff", id="\ufffd")]),
        (b"Data: x\n data: x\nother: x\n\n", []),
        (b"data: never finished", []),
    ],
)
def test_streams(stream: bytes, events: list[Event]):
    assert decode(stream) == events
    assert decode(*(stream[place : place + 1] for place in range(len(stream)))) == events


def test_what_a_client_needs_to_connect_again():
    decoder = SseDecoder(max_bytes=LIMIT)
    assert decoder.last_event_id == ""
    assert decoder.retry is None
    assert decoder.feed(b"id: 1\nretry: 30\n\n") == []
    assert (decoder.last_event_id, decoder.retry) == ("1", 30)
    decoder.feed(b"id: 2\0\nretry: 1e3\n\nretry: -5\nretry:\nretry: 99999999999\n\ndata: x\n\n")
    assert (decoder.last_event_id, decoder.retry) == ("1", 30)
    decoder.feed(b"id:\n\n")
    assert decoder.last_event_id == ""


@pytest.mark.parametrize("start", [b"data: ", b": ", b"id: ", b""])
def test_a_line_without_end_is_cut_off(start: bytes):
    decoder = SseDecoder(max_bytes=LIMIT)
    decoder.feed(start)
    for _ in range(LIMIT - len(start)):
        assert decoder.feed(b"x") == []
    with pytest.raises(ProtocolError, match="longer than 1000 bytes"):
        decoder.feed(b"x")


def test_an_event_without_end_is_cut_off():
    decoder = SseDecoder(max_bytes=LIMIT)
    for _ in range(LIMIT):
        assert decoder.feed(b"data\n") == []
    with pytest.raises(ProtocolError, match="longer than 1000 bytes"):
        decoder.feed(b"data\n")


def test_the_limit_counts_for_each_event_alone():
    frame = encode_event(b"x" * 900)
    assert len(decode(frame * 3)) == 3
    assert len(decode(frame + frame[:600], frame[600:])) == 2
    with pytest.raises(ProtocolError):
        decode(encode_event(b"x" * 1_001))


FIELD = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=8)
EVENTS = st.tuples(
    st.binary(max_size=20) | st.text("\r\n :xé", max_size=10).map(str.encode),
    st.none() | FIELD,
    st.none() | FIELD.filter(bool),
    st.none() | st.integers(0, 10**6),
)


@settings(deadline=None)
@given(st.lists(st.none() | EVENTS, max_size=4), st.lists(st.integers(0, 200), max_size=8))
def test_what_is_written_is_read_however_it_is_cut(
    events: list[tuple[bytes, str | None, str | None, int | None] | None], cuts: list[int]
):
    frames = [
        KEEP_ALIVE if one is None else encode_event(one[0], id=one[1], event=one[2], retry=one[3]) for one in events
    ]
    stream = b"".join(frames)
    places = [0, *sorted(cuts), len(stream)]
    chunks = [stream[start:end] for start, end in itertools.pairwise(places)]
    expected = [
        Event(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), event or "message", id)
        for data, id, event, _ in filter(None, events)
    ]
    assert decode(*chunks) == expected


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30) | st.sampled_from([b"\n", b"\r", b"data", b":", b"id", b"retry"]), max_size=20))
def test_any_bytes_can_be_fed(chunks: list[bytes]):
    whole = decode(b"".join(chunks))
    assert decode(*chunks) == whole


def test_an_id_without_data_counts_when_its_event_ends() -> None:
    decoder = SseDecoder(max_bytes=1000)
    assert decoder.feed(b"id: 7\n") == []
    assert decoder.last_event_id == ""
    assert decoder.feed(b"\nid: 8\ndata: ha") == []
    assert decoder.last_event_id == "7", "a cut event has to come again"
    assert decoder.feed(b"lf\n\n") == [Event(b"half", id="8")]
    assert decoder.last_event_id == "8"


# ── our event ids ──


@pytest.mark.rule("MH-12")
@pytest.mark.parametrize(
    ("text", "parts", "again"),
    [
        ("abc.7", ("abc", 7, 0), "abc.7"),
        ("7.0", ("7", 0, 0), "7.0"),
        ("abc.7-0", ("abc", 7, 0), "abc.7"),
        ("abc.7-12", ("abc", 7, 12), "abc.7-12"),
        ("abc.7-12.x1", ("abc", 7, 12), "abc.7-12"),
        ("abc.7.x1", ("abc", 7, 0), "abc.7"),
        (f"{'a' * 32}.{'9' * 15}-{'8' * 15}", ("a" * 32, 10**15 - 1, 888888888888888), None),
    ],
)
def test_an_event_id(text: str, parts: tuple[str, int, int], again: str | None) -> None:
    assert EventId.parse(text) == parts
    assert str(EventId(*parts)) == (again or text)
    assert EventId(*parts).worker == parts[0][:12]


@pytest.mark.parametrize(
    "text",
    [
        *("", "abc", "abc.", ".7", "abc.x", "ABC.7", "abc.-7", "abc.7-", "abc.7-x", "abc.7.", "abc.7\n", "a.\u0667"),
        *("a" * 33 + ".7", "a." + "1" * 16, "a.7-" + "1" * 16, "a.7." + "a" * 33),
    ],
)
def test_what_is_none_of_our_event_ids(text: str) -> None:
    with pytest.raises(ProtocolError, match="Last-Event-ID names no event") as caught:
        EventId.parse(text)
    assert (caught.value.code, caught.value.http_status) == (INVALID_REQUEST, 400)
