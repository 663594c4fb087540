"""Corners of real specifications, each in the smallest form: the tool asks for what the API demands."""

from typing import Any

import pytest

from dovetail import Client
from dovetail.openapi import OpenApi

TEXT = {"type": "string"}
NAMED = {"type": "object", "properties": {"name": TEXT, "purpose": TEXT}}


async def input_schema(schema: dict[str, Any], media_type: str = "application/json", path: str = "/things") -> Any:
    """Of the one tool of an API that takes such a body."""
    body = {"required": True, "content": {media_type: {"schema": schema}}}
    operation = {"operationId": "make", "requestBody": body, "responses": {"200": {"description": "done"}}}
    document = {"openapi": "3.0.3", "info": {"title": "t", "version": "1"}, "paths": {path: {"post": operation}}}
    async with Client(OpenApi(document, base_url="http://127.0.0.1:9")) as client:
        (tool,) = await client.list_tools()
        return tool.input_schema


async def test_what_is_required_beside_an_all_of() -> None:
    """DigitalOcean's projects."""
    schema = await input_schema({"allOf": [NAMED], "required": ["name", "purpose"]})
    assert schema["required"] == ["name", "purpose"]


async def test_what_a_part_requires_of_the_properties_of_another() -> None:
    """DigitalOcean's volumes."""
    part = {"properties": {"region": TEXT}, "required": ["name", "region"]}
    schema = await input_schema({"allOf": [NAMED, part]})
    assert set(schema["required"]) == {"name", "region"}


async def test_what_a_branch_requires_beside_properties_of_its_own() -> None:
    """GitHub's check runs."""
    branch = {"properties": {"name": {"enum": ["done"]}}, "required": ["name", "purpose"]}
    schema = await input_schema({**NAMED, "oneOf": [branch, {"properties": {"name": {"enum": ["open"]}}}]})
    assert schema["properties"]["body"]["anyOf"][0]["required"] == ["name", "purpose"]


@pytest.mark.parametrize("union", ["anyOf", "oneOf"])
async def test_what_a_branch_requires_of_the_properties_around_it(union: str) -> None:
    """GitHub's gists and check runs: one of the properties, whichever, is required."""
    schema = await input_schema({**NAMED, union: [{"required": ["name"]}, {"required": ["purpose"]}]})
    branches = schema["properties"]["body"]["anyOf"]
    assert [branch.get("required") for branch in branches] == [["name"], ["purpose"]]


async def test_what_is_required_and_not_described_can_be_given() -> None:
    """Box's revocations, DigitalOcean's uptime checks, two operations of Jira."""
    schema = await input_schema({**NAMED, "required": ["name", "kind"]})
    assert "kind" in schema["properties"]
    assert set(schema["required"]) == {"name", "kind"}


async def test_a_property_that_is_read_only_by_one_of_its_parts() -> None:
    """The connections of DigitalOcean's databases."""
    fixed = {"allOf": [{"type": "object", "properties": {"host": TEXT}}, {"readOnly": True}]}
    schema = await input_schema({"type": "object", "properties": {"name": TEXT, "connection": fixed}})
    assert list(schema["properties"]) == ["name"]


async def test_names_of_properties_that_have_to_fit_a_pattern() -> None:
    """Vercel's edge configurations."""
    items = {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": TEXT}
    schema = await input_schema({"type": "object", "properties": {"items": items}})
    assert schema["properties"]["items"]["propertyNames"] == {"pattern": "^[a-z]+$"}


async def test_a_form_that_is_not_described_is_an_object() -> None:
    """Codat's attachments: a text is no form."""
    schema = await input_schema({}, "multipart/form-data")
    assert schema["properties"]["body"]["type"] == "object"


async def test_a_path_with_a_fragment() -> None:
    """Box tells operations of one path apart by a fragment, which is not sent."""
    assert await input_schema(NAMED, path="/files#rename")
