"""The official schemas as a judge of forms, stricter than they are by themselves: they let unknown keywords pass."""

from typing import Any

import official

REVISIONS = ("2025-06-18", "2025-11-25", "2026-07-28")  # those that have forms


def assert_official(params: dict[str, Any], revision: str) -> None:
    """The parameters of an `elicitation/create` are right, and each property has only keywords of one definition."""
    official.demand()
    request = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": params}
    official.validator_for(revision, "ElicitRequest").validate(request)
    for name, part in params.get("requestedSchema", {}).get("properties", {}).items():
        assert any(_is_wholly(part, kind, revision) for kind in _kinds(revision)), f"{revision}, {name}: {part}"


def _kinds(revision: str) -> list[str]:
    branches = _definitions(revision)["PrimitiveSchemaDefinition"]["anyOf"]
    return [branch["$ref"].rpartition("/")[2] for branch in branches]


def _is_wholly(part: dict[str, Any], kind: str, revision: str) -> bool:
    definition = _definitions(revision)[kind]["properties"]
    inner = definition.get("items", {}).get("properties", {})
    known = part.keys() <= definition.keys() and part.get("items", {}).keys() <= inner.keys()
    return known and official.validator_for(revision, kind).is_valid(part)


def _definitions(revision: str) -> dict[str, Any]:
    whole = official.schema(revision)
    return whole.get("$defs", whole.get("definitions"))
