"""The HTTP headers that mirror a body, and the arguments that a tool mirrors in them."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.errors import HEADER_MISMATCH, ProtocolError, SetupError
from dovetail.protocol import revisions
from dovetail.protocol.headers import (
    HeaderError,
    HeaderParameter,
    Headers,
    agree,
    check_parameters,
    check_standard,
    check_version,
    decode_value,
    encode_argument,
    encode_value,
    header_parameters,
    matches,
)
from dovetail.protocol.methods import REQUEST_ROWS, CallToolParams

# --- values


ENCODED = [
    ("us-west1", "us-west1"),
    ("a\tb", "a\tb"),
    ("", ""),
    (" us-west1", "=?base64?IHVzLXdlc3Qx?="),
    ("us-west1 ", "=?base64?dXMtd2VzdDEg?="),
    ("\tindented", "=?base64?CWluZGVudGVk?="),
    ("日本語", "=?base64?5pel5pys6Kqe?="),
    ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
    ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
    ("=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?="),
    ("=?base64?only the prefix", "=?base64?only the prefix"),
    ("file:///path/to/file%20name.txt", "file:///path/to/file%20name.txt"),
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
        ("  foo ", "foo"), ("\tfoo\t", "foo"), ("   ", ""), ("=?base64?SGVsbG8=?=", "Hello"),
        (" =?base64?SGVsbG8=?= ", "Hello"), ("=?base64??=", ""), ("SGVsbG8=", "SGVsbG8="),
        ("=?base64?SGVsbG8=", "=?base64?SGVsbG8="), ("=?BASE64?SGVsbG8=?=", "=?BASE64?SGVsbG8=?="),
        ("x=?base64?SGVsbG8=?=", "x=?base64?SGVsbG8=?="),
    ],
)  # fmt: skip
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
        "=?base64?=?=",
        "=?base64?/w==?=",  # not UTF-8
        "=?base64?7aCA?=",  # half a surrogate pair
        "grün",
        "gr\xc3\xbcn",  # UTF-8 that came as latin-1
        "a\nb",
        "a\x00b",
        "a\n",
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
        ("42", 42, True), ("42.0", 42, True), ("42", 42.0, True), ("042", 42, True), ("-0", 0, True),
        ("=?base64?NDI=?=", 42, True), ("42.5", 42, False), ("42.", 42, False), ("4_2", 42, False),
        ("+42", 42, False), ("٤٢", 42, None), ("1e3", 1000, False), ("nan", float("nan"), False),
        ("inf", float("inf"), False), ("1" * 5_000, 1, False), (str(2**53), 2**53, False), ("1.5", 1.5, False),
        ("", 0, False), ("true", True, True), ("True", True, False), ("1", True, False), ("true", 1, False),
        ("false", False, True), ("", False, False), ("a", "a", True), ("A", "a", False), ("42.0", "42", False),
        ("", "", True), ("null", None, False), ("[]", [], False),
    ],
)  # fmt: skip
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


@pytest.mark.rule("MH-14", "MH-18", "MH-20")
@pytest.mark.parametrize(
    ("method", "changes", "expected"),
    [
        ("tools/list", {}, True),
        ("tools/list", {b"mcp-name": b"ignored"}, True),
        ("tools/list", {b"mcp-method": b"tools/call"}, False),
        ("tools/list", {b"mcp-method": None}, False),
        ("tools/list", {b"mcp-protocol-version": b"2025-11-25"}, False),
        ("tools/list", {b"mcp-protocol-version": None}, False),
        ("tools/call", {b"mcp-name": b"add"}, True),
        ("tools/call", {}, False),
        ("tools/call", {b"mcp-name": b"Add"}, False),
        ("tools/call", {b"mcp-name": b"add", b"mcp-method": b"tools/list"}, False),
    ],
)
def test_what_agrees_at_first_sight(method: str, changes: dict[bytes, bytes | None], expected: bool):
    revision, row = revisions.LATEST, REQUEST_ROWS[method]
    sent = {b"mcp-protocol-version": revision.header, b"mcp-method": row.header, **changes}
    raw = {name: value for name, value in sent.items() if value is not None}
    assert agree(raw, revision, row, CallToolParams(name="add")) is expected


@pytest.mark.rule("MH-18", "MH-20", "MH-21", "MH-23")
@pytest.mark.parametrize(
    ("headers", "complaint"),
    [
        ({}, "Mcp-Method is missing"),
        ({"mcp-method": "tools/call"}, "Mcp-Name is missing"),
        (
            {"mcp-method": "prompts/get", "mcp-name": "foo"},
            "Mcp-Method is 'prompts/get', but the body says 'tools/call'",
        ),
        ({"mcp-method": "=?base64?dG9vbHMvY2FsbA==?=", "mcp-name": "foo"}, "Mcp-Method is"),
        ({"mcp-method": "tools/call\n", "mcp-name": "foo"}, "not allowed"),
        ({"mcp-method": "tools/call", "mcp-name": "bar"}, "Mcp-Name is 'bar', but the body says 'foo'"),
        ({"mcp-method": "tools/call", "mcp-name": "foo\x00"}, "Mcp-Name has characters"),
        ({"mcp-method": "tools/call", "mcp-name": "=?base64?Zm9v!?="}, "not Base64"),
    ],
)
def test_standard_headers_that_disagree(headers: dict[str, str], complaint: str):
    with pytest.raises(HeaderError, match=complaint):
        check_standard(headers, method="tools/call", name="foo")


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


# --- marks in a schema


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


REGION = {"type": "string", "x-mcp-header": "Region"}


def parameter(path: str, header: str, type: str) -> HeaderParameter:
    return HeaderParameter(tuple(path.split(".")), f"Mcp-Param-{header}", type, f"mcp-param-{header.lower()}")


@pytest.mark.parametrize(
    ("input_schema", "parameters"),
    [
        ({}, []),
        (schema(), []),
        (schema(region={"type": "string"}), []),
        (schema(region=REGION), [parameter("region", "Region", "string")]),
        (
            schema(b={"type": "integer", "x-mcp-header": "B"}, a={"type": "boolean", "x-mcp-header": "A"}),
            [parameter("b", "B", "integer"), parameter("a", "A", "boolean")],
        ),
        (schema(where=schema(deep=schema(region=REGION))), [parameter("where.deep.region", "Region", "string")]),
        (schema(x={"type": "string", "x-mcp-header": "Method"}), [parameter("x", "Method", "string")]),
        (
            schema(x={"type": "string", "x-mcp-header": "!#$%&'*+-.^_`|~9"}),
            [parameter("x", "!#$%&'*+-.^_`|~9", "string")],
        ),
        # a property of that name, and plain data that look like a mark
        (schema(**{"x-mcp-header": {"type": "string"}}), []),
        ({**schema(), "default": {"properties": {"x": REGION}}, "examples": [REGION], "enum": [REGION]}, []),
    ],
)
def test_header_parameters(input_schema: dict[str, Any], parameters: list[HeaderParameter]):
    assert header_parameters(input_schema) == tuple(parameters)


@pytest.mark.parametrize("name", ["", "My Region", "Region:Primary", "Région", "Region\t1", "Region\n", "a/b", 7, None])
def test_a_mark_must_be_a_header_name(name: object):
    with pytest.raises(
        SetupError, match=r"x-mcp-header on 'a.region' can't work: .* is not a header name; use letters"
    ):
        header_parameters(schema(a=schema(region={"type": "string", "x-mcp-header": name})))


@pytest.mark.parametrize("other", ["Region", "REGION"])
def test_a_mark_must_be_unique_in_any_case(other: str):
    with pytest.raises(SetupError, match=r"on 'b.c' can't work: 'a' has the same header; use another name"):
        header_parameters(schema(a=REGION, b=schema(c={"type": "string", "x-mcp-header": other})))


@pytest.mark.parametrize("kind", ["number", "array", "object", "null", ["string", "null"], None])
def test_a_mark_needs_a_plain_type(kind: object):
    with pytest.raises(SetupError, match=r"on 'x' can't work: the property's type is .*; it must be 'string'"):
        header_parameters(schema(x={"type": kind, "x-mcp-header": "X"}))
    with pytest.raises(SetupError, match="the property's type is None"):
        header_parameters(schema(x={"anyOf": [{"type": "string"}, {"type": "null"}], "x-mcp-header": "X"}))


@pytest.mark.parametrize(
    "input_schema",
    [
        {"type": "string", "x-mcp-header": "Region"},
        schema(x={"type": "array", "items": REGION}),
        schema(x={"type": "array", "prefixItems": [REGION]}),
        schema(x={"type": "array", "contains": REGION}),
        schema(x={"anyOf": [REGION, {"type": "null"}]}),
        {**schema(), "allOf": [schema(region=REGION)]},
        {**schema(), "not": schema(region=REGION)},
        {**schema(), "if": schema(region=REGION)},
        {**schema(), "additionalProperties": REGION},
        {**schema(), "patternProperties": {"^x": REGION}},
        {**schema(), "dependentSchemas": {"x": schema(region=REGION)}},
        {**schema(x={"$ref": "#/$defs/Region"}), "$defs": {"Region": REGION}},
        {**schema(x={"$ref": "#/definitions/Region"}), "definitions": {"Region": REGION}},
    ],
)
def test_a_mark_must_be_reached_through_properties_alone(input_schema: dict[str, Any]):
    with pytest.raises(SetupError, match="reached through `properties` alone can have it; move it there"):
        header_parameters(input_schema)


@pytest.mark.rule("TOOL-19")
@pytest.mark.parametrize("secret", [{"writeOnly": True}, {"format": "password"}])
def test_a_secret_can_not_be_marked(secret: dict[str, Any]):
    with pytest.raises(SetupError, match="on 'x' can't work: the property holds a secret"):
        header_parameters(schema(x={**REGION, **secret}))


def test_a_deep_schema_is_walked_without_recursion():
    inner: dict[str, Any] = REGION
    for _ in range(5_000):
        inner = schema(x=inner)
    (found,) = header_parameters(inner)
    assert len(found.path) == 5_000


# --- the parameters of a call


PARAMETERS = header_parameters(
    schema(
        region=REGION,
        count={"type": "integer", "x-mcp-header": "Count"},
        flag={"type": "boolean", "x-mcp-header": "Flag"},
        where=schema(city={"type": "string", "x-mcp-header": "City"}),
    )
)


@pytest.mark.rule("MH-20", "MH-22", "MH-25", "MH-26", "MH-27")
@pytest.mark.parametrize(
    ("headers", "arguments"),
    [
        ({}, {}),
        ({}, {"region": None, "where": None}),
        ({}, {"where": {"city": None}}),
        ({"mcp-param-region": "us"}, {"region": "us"}),
        ({"mcp-param-region": ""}, {"region": ""}),
        ({"mcp-param-region": "=?base64?SGVsbG8=?="}, {"region": "Hello"}),
        ({"mcp-param-count": "42.0"}, {"count": 42}),
        ({"mcp-param-flag": "false"}, {"flag": False}),
        ({"mcp-param-city": "Bern"}, {"where": {"city": "Bern"}}),
        ({"mcp-param-unknown": "\x00"}, {"unknown": 1}),
        ({}, {"region": ["us"]}),  # no header can say this: the arguments are refused for it
        ({}, {"count": 1.5}),
    ],
)
def test_parameters_that_agree(headers: dict[str, str], arguments: dict[str, Any]):
    check_parameters(headers, PARAMETERS, arguments)


@pytest.mark.rule("MH-20", "MH-21", "MH-22", "MH-24", "MH-25")
@pytest.mark.parametrize(
    ("headers", "arguments", "complaint"),
    [
        ({}, {"region": "us"}, "Mcp-Param-Region is missing, but the body has 'region'"),
        ({}, {"count": 0}, "Mcp-Param-Count is missing"),
        ({}, {"count": 1.0}, "Mcp-Param-Count is missing"),
        ({}, {"where": {"city": "Bern"}}, "Mcp-Param-City is missing, but the body has 'where.city'"),
        ({"mcp-param-region": "us"}, {}, "Mcp-Param-Region is there, but the body has no 'region'"),
        ({"mcp-param-region": ""}, {"region": None}, "Mcp-Param-Region is there"),
        ({"mcp-param-city": "Bern"}, {"where": []}, "Mcp-Param-City is there"),
        ({"mcp-param-region": "eu"}, {"region": "us"}, "Mcp-Param-Region is not what the body says in 'region'"),
        ({"mcp-param-region": "us"}, {"region": ["us"]}, "Mcp-Param-Region is not"),
        ({"mcp-param-count": "43"}, {"count": 42}, "Mcp-Param-Count is not"),
        ({"mcp-param-region": "gr\xc3\xbcn"}, {"region": "grün"}, "Mcp-Param-Region has characters"),
        ({"mcp-param-region": "=?base64?SGVsbG8?="}, {"region": "Hello"}, "Mcp-Param-Region is not Base64"),
    ],
)
def test_parameters_that_disagree(headers: dict[str, str], arguments: dict[str, Any], complaint: str):
    with pytest.raises(HeaderError, match=complaint) as caught:
        check_parameters(headers, PARAMETERS, arguments)
    assert (caught.value.code, caught.value.http_status) == (HEADER_MISMATCH, 400)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["city", "x"]), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from([one.key for one in PARAMETERS]), st.text(max_size=20)),
    st.dictionaries(st.sampled_from(["region", "count", "flag", "where"]), JSON),
)
def test_any_call_agrees_or_is_refused(headers: dict[str, str], arguments: dict[str, Any]):
    with suppress(HeaderError):
        check_parameters(headers, PARAMETERS, arguments)
