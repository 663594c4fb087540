"""Our connection and uvicorn's: the same apps and the same well-formed conversations must give the same answers."""

import json
from typing import Any

from http11_connection import Line, Reply, cut, replies, uvicorn_to, wire_to
from hypothesis import given
from hypothesis import strategies as st

BODILESS = {"/empty": 204, "/unchanged": 304}
OWN = {b"date", b"server"}


async def app(scope: Any, receive: Any, send: Any) -> None:
    path = scope["path"].partition("-")[0]
    body = b"".join([each async for each in body_of(receive)])
    said = {**scope, "body": body}
    for own in ("asgi", "extensions"):  # what a server says of itself; ours offers one thing more than theirs
        said.pop(own, None)
    text = json.dumps(said, sort_keys=True, default=lambda each: each.decode("latin-1")).encode()
    if path in BODILESS:
        await respond(send, BODILESS[path], [(b"x-was", b"%d" % len(text))], b"")
    elif path == "/stream":
        await respond(send, 200, [(b"Content-Type", b"text/plain")], b"begun", b"", text, b"")
    elif path == "/pieces":
        await respond(send, 201, [(b"content-length", b"%d" % (len(text) + 5))], b"begun", text)
    elif path == "/last":
        await respond(send, 200, [(b"connection", b"close"), (b"content-length", b"%d" % len(text))], text)
    else:
        await respond(send, 499, [(b"Content-Length", b"%d" % len(text)), (b"x-a", b"1"), (b"x-a", b"")], text)


async def body_of(receive: Any) -> Any:
    while True:
        message = await receive()
        assert message["type"] == "http.request"
        yield message["body"]
        if not message["more_body"]:
            return


async def respond(send: Any, status: int, headers: Any, *pieces: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for number, piece in enumerate(pieces, 1):
        await send({"type": "http.response.body", "body": piece, "more_body": number < len(pieces)})


TOKENS = st.text("abcXYZ019-_.!#$%&'*+^`|~", min_size=1, max_size=12).map(lambda name: b"x-" + name.encode())
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_categories=["Cc"]), max_size=20).map(
    lambda value: value.encode("latin-1")
)
PATHS = st.sampled_from(
    ["/echo", "/stream", "/pieces", "/empty", "/unchanged", "/last", "/", "//double/x", "/echo-%41%2F%C3%A9%ff"]
)
QUERIES = st.sampled_from(["", "?", "?a=b&c=%20d", "?a=b?c", "?a#fragment", "#fragment", "?a/b"])
PREFIXES = st.sampled_from(["", "", "", "http://host", "http://host:80"])
BODIES = st.one_of(st.just(b""), st.binary(max_size=300), st.binary(min_size=1, max_size=8).map(lambda b: b * 20_000))


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes]:
    """A method, and the bytes of the whole request."""
    method = draw(st.sampled_from(["GET", "POST", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]))
    version = draw(st.sampled_from([b"1.1"] * 5 + [b"1.0"]))
    url = draw(PREFIXES) + draw(PATHS) + draw(QUERIES)
    lines = [b"%b %b HTTP/%b" % (method.encode(), url.encode(), version), b"Host: x"]
    lines += [b"%b:%b%b" % (name, blank, value) for name, value, blank in draw(HEADERS)]
    lines += draw(st.sampled_from([[], [], [], [b"Connection: close"], [b"connection: Keep-Alive"]]))
    framing = draw(st.sampled_from(["none", "length", "chunked"]))
    body = b"" if framing == "none" else draw(BODIES)
    if framing == "length":
        lines.append(b"Content-Length: %d" % len(body))
    elif framing == "chunked" and version == b"1.1":
        lines.append(b"Transfer-Encoding: chunked")
        body = chunked(draw, body)
    else:
        body = b""
    if body and draw(st.booleans()):
        lines.append(b"Expect: 100-continue")
    return method, b"\r\n".join([*lines, b"", body])


HEADERS = st.lists(st.tuples(TOKENS, VALUES, st.sampled_from([b"", b" ", b"  \t"])), max_size=5)


def chunked(draw: st.DrawFn, body: bytes) -> bytes:
    size = draw(st.integers(1, 1000)) if len(body) < 2000 else 30_000
    extension = draw(st.sampled_from([b"", b";a=b", b';a="b"']))
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join([b"%x%b\r\n%b\r\n" % (len(each), extension, each) for each in chunks]) + b"0\r\n\r\n"


async def converse(line: Line, pieces: list[bytes], methods: list[str], pause: bool) -> tuple[list[Reply], bool]:
    for piece in pieces:
        await line.feed([piece])
        if pause:
            await line.settle()
    await line.settle()
    answers = [each._replace(headers=comparable(each)) for each in replies(line.said, methods)]
    ended = line.ended
    await line.hang_up()
    return answers, ended


def comparable(reply: Reply) -> list[tuple[bytes, bytes]]:
    """How HTTP/1.0 sees the end of a body is the one thing that we do differently, and rightly so."""
    framing = {b"transfer-encoding"} if b'"http_version": "1.0"' in reply.body else set()
    return sorted(each for each in reply.headers if each[0] not in OWN | framing)


@given(st.lists(requests(), min_size=1, max_size=6), st.lists(st.integers(0, 10**6), max_size=8), st.booleans())
async def test_conversations(conversation: list[tuple[str, bytes]], places: list[int], pause: bool) -> None:
    methods = [method for method, _ in conversation]
    pieces = cut(b"".join(data for _, data in conversation), places)
    ours = await converse(wire_to(app), pieces, methods, pause)
    assert ours == await converse(uvicorn_to(app), pieces, methods, pause)
