"""Parameters of a tool that are mirrored in headers: the marks in its schema, and the values of a call."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import HEADER_MISMATCH, SetupError
from dovetail.protocol.headers import (
    HeaderError,
    HeaderParameter,
    check_parameters,
    header_parameters,
)

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
def test_a_mark_must_be_unique_whatever_its_case(other: str):
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
        schema(x={"type": "array", "items": schema(region=REGION)}),
        schema(x={"type": "array", "contains": REGION}),
        schema(x={"anyOf": [REGION, {"type": "null"}]}),
        schema(x={"oneOf": [schema(region=REGION)]}),
        {**schema(), "allOf": [schema(region=REGION)]},
        {**schema(), "not": schema(region=REGION)},
        {**schema(), "if": schema(region=REGION)},
        {**schema(), "then": schema(region=REGION)},
        {**schema(), "else": schema(region=REGION)},
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
        ({}, {"where": "a city"}),
        ({"mcp-param-region": "us"}, {"region": "us"}),
        ({"mcp-param-region": " us "}, {"region": "us"}),
        ({"mcp-param-region": ""}, {"region": ""}),
        ({"mcp-param-region": "=?base64?SGVsbG8=?="}, {"region": "Hello"}),
        ({"mcp-param-count": "42.0"}, {"count": 42}),
        ({"mcp-param-count": "0"}, {"count": 0}),
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
        ({}, {"region": ""}, "Mcp-Param-Region is missing"),
        ({}, {"count": 0}, "Mcp-Param-Count is missing"),
        ({}, {"count": 1.0}, "Mcp-Param-Count is missing"),
        ({}, {"flag": False}, "Mcp-Param-Flag is missing"),
        ({}, {"where": {"city": "Bern"}}, "Mcp-Param-City is missing, but the body has 'where.city'"),
        ({"mcp-param-region": "us"}, {}, "Mcp-Param-Region is there, but the body has no 'region'"),
        ({"mcp-param-region": ""}, {"region": None}, "Mcp-Param-Region is there"),
        ({"mcp-param-city": "Bern"}, {"where": []}, "Mcp-Param-City is there"),
        ({"mcp-param-region": "eu"}, {"region": "us"}, "Mcp-Param-Region is not what the body says in 'region'"),
        ({"mcp-param-region": "US"}, {"region": "us"}, "Mcp-Param-Region is not"),
        ({"mcp-param-region": "us"}, {"region": ["us"]}, "Mcp-Param-Region is not"),
        ({"mcp-param-count": "43"}, {"count": 42}, "Mcp-Param-Count is not"),
        ({"mcp-param-flag": "True"}, {"flag": True}, "Mcp-Param-Flag is not"),
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
