"""The headers that mirror a request: encoding, and the standard ones."""

from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.errors import HEADER_MISMATCH, ProtocolError
from dovetail.protocol import revisions
from dovetail.protocol.headers import (
    MCP_NAME_FIELDS,
    HeaderError,
    Headers,
    agree,
    check_standard,
    check_version,
    decode_value,
    encode_argument,
    encode_value,
    matches,
)
from dovetail.protocol.methods import REQUEST_ROWS, CallToolParams

# --- values


ENCODED = [
    ("us-west1", "us-west1"),
    ("us west 1", "us west 1"),
    ("a\tb", "a\tb"),
    ("", ""),
    (" us-west1", "=?base64?IHVzLXdlc3Qx?="),
    ("us-west1 ", "=?base64?dXMtd2VzdDEg?="),
    (" us-west1 ", "=?base64?IHVzLXdlc3QxIA==?="),
    ("\tindented", "=?base64?CWluZGVudGVk?="),
    ("日本語", "=?base64?5pel5pys6Kqe?="),
    ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
    ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
    ("line1\r\nline2", "=?base64?bGluZTENCmxpbmUy?="),
    ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
    ("=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?="),
    ("=?base64?only the prefix", "=?base64?only the prefix"),
    ("file:///path/to/file%20name.txt", "file:///path/to/file%20name.txt"),
    ("https://example.com/resource?id=123", "https://example.com/resource?id=123"),
]


@pytest.mark.rule("MH-22")
@pytest.mark.parametrize(("text", "header"), ENCODED)
def test_encode_and_decode(text: str, header: str):
    assert encode_value(text) == header
    assert decode_value(header) == text


@pytest.mark.rule("MH-22")
@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("  foo ", "foo"),
        ("\tfoo\t", "foo"),
        ("   ", ""),
        ("=?base64?SGVsbG8=?=", "Hello"),
        (" =?base64?SGVsbG8=?= ", "Hello"),
        ("=?base64??=", ""),
        ("SGVsbG8=", "SGVsbG8="),
        ("=?base64?SGVsbG8=", "=?base64?SGVsbG8="),
        ("=?BASE64?SGVsbG8=?=", "=?BASE64?SGVsbG8=?="),
        ("x=?base64?SGVsbG8=?=", "x=?base64?SGVsbG8=?="),
    ],
)
def test_decode(header: str, text: str):
    assert decode_value(header) == text


@pytest.mark.rule("MH-21", "MH-22", "MH-24")
@pytest.mark.parametrize(
    "header",
    [
        "=?base64?SGVsbG8?=",  # padding is missing
        "=?base64?SGVsbG8==?=",  # too much of it
        "=?base64?SGVsbG9=?=",  # bits behind the end
        "=?base64?SGVs!!!bG8=?=",
        "=?base64?SGVs bG8=?=",
        "=?base64?SGVs-_8=?=",
        "=?base64?=?=",
        "=?base64?/w==?=",  # not UTF-8
        "=?base64?7aCA?=",  # half a surrogate pair
        "grün",
        "gr\xc3\xbcn",  # UTF-8 that came as latin-1
        "a\nb",
        "a\rb",
        "a\x00b",
        "a\x7fb",
        "a\n",
        "a\x0b",
    ],
)
def test_a_malformed_value_is_refused(header: str):
    with pytest.raises(HeaderError) as caught:
        decode_value(header)
    assert isinstance(caught.value, ProtocolError)
    assert (caught.value.code, caught.value.http_status) == (HEADER_MISMATCH, 400)


@pytest.mark.rule("MH-22")
@settings(deadline=None)
@given(st.text() | st.text("=?base64 \t\n", max_size=14) | st.from_regex(r"\A=\?base64\?.*\?=\Z"))
@example("=?base64?=")
def test_any_text_survives(text: str):
    header = encode_value(text)
    assert all(character == "\t" or " " <= character <= "~" for character in header)
    assert decode_value(header) == text
    assert decode_value(f" \t{header} ") == text
    assert matches(encode_argument(text), text)


@settings(deadline=None)
@given(st.text())
def test_any_header_is_read_or_refused(header: str):
    with suppress(HeaderError):
        assert isinstance(decode_value(header), str)


@pytest.mark.rule("MH-26")
@pytest.mark.parametrize(
    ("value", "header"),
    [("a b", "a b"), (" a", "=?base64?IGE=?="), (42, "42"), (-7, "-7"), (0, "0"), (True, "true"), (False, "false")],
)
def test_encode_argument(value: str | int | bool, header: str):
    assert encode_argument(value) == header
    assert matches(header, value)


def test_an_integer_that_clients_cannot_hold_is_not_encoded():
    assert encode_argument(2**53 - 1) == "9007199254740991"
    assert encode_argument(1 - 2**53) == "-9007199254740991"
    for value in (2**53, -(2**53), 10**5_000):
        with pytest.raises(ValueError, match="must lie within"):
            encode_argument(value)


@pytest.mark.rule("MH-23", "MH-26")
@pytest.mark.parametrize(
    ("header", "value", "expected"),
    [
        ("42", 42, True),
        ("42.0", 42, True),
        ("42", 42.0, True),
        ("042", 42, True),
        ("-0", 0, True),
        ("=?base64?NDI=?=", 42, True),
        ("42.5", 42, False),
        ("42.", 42, False),
        ("4_2", 42, False),
        ("+42", 42, False),
        ("٤٢", 42, None),
        ("1e3", 1000, False),
        ("nan", float("nan"), False),
        ("inf", float("inf"), False),
        ("1" * 5_000, 1, False),
        (str(2**53), 2**53, False),
        ("1.5", 1.5, False),
        ("", 0, False),
        ("true", True, True),
        ("True", True, False),
        ("1", True, False),
        ("true", 1, False),
        ("false", False, True),
        ("", False, False),
        ("a", "a", True),
        ("A", "a", False),
        ("42.0", "42", False),
        ("", "", True),
        ("null", None, False),
        ("[]", [], False),
    ],
)
def test_matches(header: str, value: object, expected: bool | None):
    if expected is None:
        with pytest.raises(HeaderError):
            matches(header, value)
    else:
        assert matches(header, value) is expected


@given(st.integers(1 - 2**53, 2**53 - 1) | st.booleans() | st.text(), st.integers(1 - 2**53, 2**53 - 1) | st.text())
def test_only_equal_values_match(value: int | bool | str, other: int | str):
    assert matches(encode_argument(value), value)
    if isinstance(value, bool) or type(value) is type(other):
        assert matches(encode_argument(other), value) == (other == value and not isinstance(value, bool))


# --- the standard headers


@pytest.mark.rule("MH-18")
def test_what_mcp_name_mirrors():
    assert MCP_NAME_FIELDS == {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


@pytest.mark.rule("MH-18", "MH-20", "MH-22")
@pytest.mark.parametrize(
    ("headers", "method", "name"),
    [
        ({"mcp-method": "tools/list"}, "tools/list", None),
        ({"mcp-method": "tools/list", "mcp-name": "ignored"}, "tools/list", None),
        ({"mcp-method": " tools/call\t", "mcp-name": "  foo "}, "tools/call", "foo"),
        ({"mcp-method": "tools/call", "mcp-name": "=?base64?SGVsbG8=?="}, "tools/call", "Hello"),
        ({"mcp-method": "tools/call", "mcp-name": ""}, "tools/call", ""),
        ({"mcp-method": "resources/read", "mcp-name": "x://a%2fb"}, "resources/read", "x://a%2fb"),
    ],
)
def test_standard_headers_that_agree(headers: dict[str, str], method: str, name: str | None):
    check_standard(headers, method=method, name=name)


NAMES = st.sampled_from([text for text, _ in ENCODED] + [header for _, header in ENCODED]) | st.text(max_size=5)


@pytest.mark.rule("MH-18", "MH-20", "MH-22")
@given(NAMES, NAMES.map(str.encode) | st.binary(max_size=5))
@example("add", b"add")
@example("=?base64?SGVsbG8=?=", b"=?base64?SGVsbG8=?=")
@example("Stra\u00dfe", "Stra\u00dfe".encode())
def test_what_agrees_at_first_sight_agrees(name: str, sent: bytes):
    """The quick comparison never lets pass what the careful one refuses."""
    revision, row = revisions.LATEST, REQUEST_ROWS["tools/call"]
    headers = Headers([(b"mcp-protocol-version", revision.header), (b"mcp-method", row.header), (b"mcp-name", sent)])
    if agree(headers.raw, revision, row, CallToolParams(name=name)):
        check_version(headers, revision.name)
        check_standard(headers, method=row.name, name=name)
    else:
        assert sent != b"add" or name != "add"


@pytest.mark.rule("MH-18", "MH-20", "MH-21", "MH-23")
@pytest.mark.parametrize(
    ("headers", "complaint"),
    [
        ({}, "Mcp-Method is missing"),
        ({"mcp-name": "foo"}, "Mcp-Method is missing"),
        ({"mcp-method": "tools/call"}, "Mcp-Name is missing"),
        (
            {"mcp-method": "prompts/get", "mcp-name": "foo"},
            "Mcp-Method is 'prompts/get', but the body says 'tools/call'",
        ),
        ({"mcp-method": "TOOLS/CALL", "mcp-name": "foo"}, "Mcp-Method is"),
        ({"mcp-method": "=?base64?dG9vbHMvY2FsbA==?=", "mcp-name": "foo"}, "Mcp-Method is"),
        ({"mcp-method": "tools/call\n", "mcp-name": "foo"}, "not allowed"),
        ({"mcp-method": "tools/call", "mcp-name": "bar"}, "Mcp-Name is 'bar', but the body says 'foo'"),
        ({"mcp-method": "tools/call", "mcp-name": "Foo"}, "Mcp-Name is"),
        ({"mcp-method": "tools/call", "mcp-name": "foo\x00"}, "Mcp-Name has characters"),
        ({"mcp-method": "tools/call", "mcp-name": "=?base64?Zm9v!?="}, "not Base64"),
    ],
)
def test_standard_headers_that_disagree(headers: dict[str, str], complaint: str):
    with pytest.raises(HeaderError, match=complaint):
        check_standard(headers, method="tools/call", name="foo")


@pytest.mark.rule("MH-20")
def test_a_resource_is_compared_by_its_exact_uri():
    with pytest.raises(HeaderError):
        check_standard(
            {"mcp-method": "resources/read", "mcp-name": "x://a%2Fb"}, method="resources/read", name="x://a%2fb"
        )


def test_an_error_repeats_a_part_of_a_long_value_only():
    with pytest.raises(HeaderError) as caught:
        check_standard({"mcp-method": "x" * 100_000}, method="y" * 100_000, name=None)
    assert len(str(caught.value)) < 400


@pytest.mark.rule("MH-14")
def test_the_version_header():
    check_version({"mcp-protocol-version": "2026-07-28"}, "2026-07-28")
    for headers in ({}, {"mcp-protocol-version": "2025-11-25"}, {"mcp-protocol-version": ""}):
        with pytest.raises(HeaderError, match="MCP-Protocol-Version"):
            check_version(headers, "2026-07-28")
