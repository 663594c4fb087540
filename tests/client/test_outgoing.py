"""What an HTTP link reads out of a message, and where it may be sent."""

import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.client.address import ServerAddress
from dovetail.client.outgoing import Outgoing
from dovetail.errors import BadAnswer
from dovetail.protocol.headers import check_parameters, check_standard, header_parameters

META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}


def message(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **fields}).encode()


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (message(id=1, method="ping"), (1, "ping", None, False)),
        (message(id="a", method="x", params={"_meta": META}), ("a", "x", "2026-07-28", False)),
        (message(id=1, method="x", params={"_meta": {**META, "progressToken": []}}), (1, "x", None, False)),
        (message(id=1, method="x", params=[1]), (1, "x", None, False)),
        (message(method="notifications/x"), (None, "notifications/x", None, False)),
        (message(id=1, result={}), (None, None, None, True)),
        (message(id=1, error={}), (None, None, None, True)),
        (b"[" + message(id=1, method="ping") + b"]", (None, None, None, False)),
        (b"nonsense", (None, None, None, False)),
        (b"", (None, None, None, False)),
    ],
)
def test_what_a_message_is(raw: bytes, kind: tuple[Any, ...]) -> None:
    out = Outgoing.of(raw)
    assert (out.id, out.method, out.version, out.is_answer) == kind
    assert out.body == raw


@given(
    st.binary()
    | st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=5).map(json.dumps).map(str.encode)
)
def test_any_bytes_may_go_out(raw: bytes) -> None:
    out = Outgoing.of(raw)
    assert out.body == raw
    out.mirror({})


SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "x-mcp-header": "Text"},
        "deep": {"type": "object", "properties": {"number": {"type": "integer", "x-mcp-header": "Number"}}},
        "flag": {"type": "boolean", "x-mcp-header": "Flag"},
    },
}
PARAMETERS = header_parameters(SCHEMA)
safe = 2**53 - 1
arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text() | st.none() | st.just("=?base64?eA==?="),
        "deep": st.fixed_dictionaries({}, optional={"number": st.integers(-safe, safe) | st.just(4.0) | st.none()}),
        "flag": st.booleans(),
        "other": st.text(),
    },
)


@given(st.text(min_size=1), arguments)
def test_a_server_agrees_with_the_headers(name: str, given_arguments: dict[str, Any]) -> None:
    """What the client writes is what the server's own check looks for."""
    out = Outgoing.of(message(id=1, method="tools/call", params={"name": name, "arguments": given_arguments}))
    headers = {key.lower(): value for key, value in out.mirror({name: PARAMETERS}).items()}
    assert all(value.replace("\t", "").isprintable() and value.isascii() for value in headers.values())
    check_standard(headers, method="tools/call", name=name)
    check_parameters(headers, PARAMETERS, given_arguments)


@pytest.mark.parametrize("params", [{"name": 7}, {"name": "x", "arguments": [1]}, [1], 7])
def test_wrong_params_have_no_headers(params: Any) -> None:
    headers = Outgoing.of(message(id=1, method="tools/call", params=params)).mirror({"x": PARAMETERS})
    assert not [name for name in headers if name.startswith("Mcp-Param")]


HOME = ServerAddress.of("https://example.org/a/mcp?key=secret")


@pytest.mark.parametrize(
    ("reference", "url"),
    [
        ("/messages?s=1", "https://example.org/messages?s=1"),
        ("messages", "https://example.org/a/messages"),
        ("?s=1", "https://example.org/a/mcp?s=1"),
        ("https://EXAMPLE.org:443/x#part", "https://EXAMPLE.org:443/x"),
        ("//example.org/x", "https://example.org/x"),
        ("", "https://example.org/a/mcp?key=secret"),
    ],
)
def test_what_a_server_may_name(reference: str, url: str) -> None:
    assert HOME.join(reference) == url


@pytest.mark.parametrize(
    "reference",
    [
        "http://example.org/x", "https://example.org:8443/x", "https://example.com/x", "//example.com",
        "https:/\\evil/x", "/a b", "/a\nb",
        "https://example.org@evil.example/", "https://user:word@example.org/", "data:text/plain,x", "https://[::1",
        "https://example.org:0x1bb/", "https://example.org:99999/", "https://evil.example\\@example.org/",
    ],
)  # fmt: skip
def test_what_a_server_may_not_name(reference: str) -> None:
    with pytest.raises(BadAnswer, match="the server names"):
        HOME.join(reference)


@given(st.text() | st.text(alphabet="htps:/\\@.#?[]%examplorgv0123"))
def test_no_reference_leads_elsewhere(reference: str) -> None:
    try:
        url = HOME.join(reference)
    except BadAnswer:
        return
    parts = urlsplit(url)
    assert (parts.scheme, parts.hostname, parts.port or 443, parts.username) == ("https", "example.org", 443, None)


def test_secrets_in_a_url_are_not_shown() -> None:
    assert HOME.shown == "https://example.org/a/mcp"
