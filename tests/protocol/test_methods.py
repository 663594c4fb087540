"""Revisions and methods as rows, held against the matrix and the official schemas."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

import official
from dovetail.protocol import methods as m
from dovetail.protocol import revisions as r
from dovetail.protocol.methods import (
    DECODERS,
    NOTIFICATIONS,
    REQUEST_ROWS,
    REQUESTS,
    SERVER_NOTIFICATIONS,
    SERVER_REQUESTS,
)

NAMES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")

# In the order of NAMES; how the specification matrix has it.
CELLS: dict[str, tuple[object, ...]] = {
    "handshake": (True, True, True, True, False),
    "batches": (False, True, False, False, False),
    "error_id_optional": (False, False, False, True, True),
    "tool_annotations": (False, True, True, True, True),
    "audio": (False, True, True, True, True),
    "progress_message": (False, True, True, True, True),
    "completions_capability": (False, True, True, True, True),
    "titles": (False, False, True, True, True),
    "structured_output": (False, False, True, True, True),
    "any_structured_output": (False, False, False, False, True),
    "open_schemas": (False, False, False, False, True),
    "resource_links": (False, False, True, True, True),
    "object_meta": (False, False, True, True, True),
    "last_modified": (False, False, True, True, True),
    "icons": (False, False, False, True, True),
    "server_details": (False, False, False, True, True),
    "result_type": (False, False, False, False, True),
    "missing_resource_code": (-32002, -32002, -32002, -32002, -32602),
    "disconnect_cancels": (False, False, False, False, True),
    "resumable": (False, False, False, True, False),
    "log_on_request": (False, False, False, False, True),
    "listens": (False, False, False, False, True),
    "input_required": (False, False, False, False, True),
    "elicitation": (False, False, True, True, True),
    "url_elicitation": (False, False, False, True, True),
    "elicitation_ids": (False, False, False, True, False),
    "core_tasks": (False, False, False, True, False),
    "rich_forms": (False, False, False, True, True),
    "rich_sampling": (False, False, False, True, True),
}


@pytest.mark.rule("BASE-9", "BASE-11", "BASE-13", "BASE-16", "CAN-8", "LOG-3", "RES-5")
@pytest.mark.parametrize("cell", CELLS)
def test_cells(cell: str) -> None:
    assert tuple(getattr(row, cell) for row in r.ALL) == CELLS[cell]


def test_names() -> None:
    assert set(r.Revision.__struct_fields__) - {"name", "header"} == set(CELLS), "every cell is checked"
    assert tuple(row.name for row in r.ALL) == NAMES
    assert tuple(row.header.decode() for row in r.ALL) == NAMES
    assert NAMES[::-1] == r.SUPPORTED
    assert {name: row.name for name, row in r.BY_NAME.items()} == {name: name for name in NAMES}
    assert tuple(r.HANDSHAKE) == NAMES[:4]
    assert tuple(r.MODERN) == NAMES[4:]
    assert r.LATEST.name == "2026-07-28"


@pytest.mark.rule("LIFE-5", "MH-17")
def test_what_stands_in_for_an_unknown_or_unnamed_version() -> None:
    assert r.LATEST_HANDSHAKE.name == "2025-11-25"
    assert r.HTTP_DEFAULT.name == "2025-03-26"


CACHEABLE = {
    "server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read",
}  # fmt: skip


@pytest.mark.rule("BASE-16", "MH-9", "STDIO-4", "MRTR-1")
def test_the_newest_revision_sends_no_requests_to_the_client() -> None:
    assert not [row.name for row in SERVER_REQUESTS if "2026-07-28" in row.versions]


@pytest.mark.rule("CACHE-1", "PR-10")
def test_what_may_be_cached() -> None:
    assert {row.name for row in REQUESTS if row.cacheable} == CACHEABLE


@pytest.mark.rule("MRTR-1")
def test_what_may_ask_the_client_and_what_needs_a_session() -> None:
    assert {row.name for row in REQUESTS if row.interactive} == {"tools/call", "resources/read", "prompts/get"}
    stateful = {"resources/subscribe", "resources/unsubscribe", "logging/setLevel"}
    assert {row.name for row in REQUESTS if row.stateful} == stateful


@pytest.mark.rule("BASE-19")
def test_the_capability_behind_a_method_is_the_first_part_of_its_name() -> None:
    base = {"initialize", "ping", "server/discover", "subscriptions/listen"}
    parts = {"completion": "completions"}
    for row in REQUESTS:
        first = row.name.split("/")[0]
        assert row.capability == (None if row.name in base else parts.get(first, first)), row.name


@pytest.mark.parametrize("revision", NAMES)
@pytest.mark.parametrize(
    ("union", "rows"),
    [
        ("ClientRequest", REQUESTS),
        ("ClientNotification", NOTIFICATIONS),
        ("ServerNotification", SERVER_NOTIFICATIONS),
        ("ServerRequest", SERVER_REQUESTS),
    ],
    ids=["requests", "notifications", "server-notifications", "server-requests"],
)
def test_the_official_unions(revision: str, union: str, rows: Any) -> None:
    official.demand()
    whole = official.schema(revision)
    definitions = whole.get("$defs", whole.get("definitions"))
    found = definitions.get(union, {"anyOf": []})
    members = found.get("anyOf", [found])  # a union of one is written as the one
    kinds = [definitions[member["$ref"].split("/")[-1]] if "$ref" in member else member for member in members]
    known = {kind["properties"]["method"]["const"] for kind in kinds}
    known = {name for name in known if "tasks/" not in name}  # an experiment of 2025-11-25
    assert {row.name for row in rows if revision in row.versions} == known
    assert {row.name.startswith("notifications/") for row in rows} == {"Notification" in union}


def test_rows_are_found_by_name() -> None:
    assert all(REQUEST_ROWS[row.name] is row for row in REQUESTS)
    assert all(row.params in DECODERS for row in (*REQUESTS, *NOTIFICATIONS))


# ── params ──


def read(method: str, params: Any) -> Any:
    row = next(row for row in (*REQUESTS, *NOTIFICATIONS) if row.name == method)
    return DECODERS[row.params].decode(json.dumps(params).encode())


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("initialize", {"protocolVersion": "x", "capabilities": {}, "clientInfo": {"name": "n", "version": "1"}}),
        ("ping", {}),
        ("server/discover", {}),
        ("tools/list", {}),
        ("tools/list", {"cursor": ""}),
        ("tools/call", {"name": "n", "arguments": {"a": [1]}, "inputResponses": {}, "requestState": "s"}),
        ("tools/call", {"name": "n", "arguments": None}),  # left to the handler, like every other wrong kind
        ("tools/call", {"name": "n", "task": {"ttl": 1}}),
        ("resources/read", {"uri": "a://b", "inputResponses": {}, "requestState": ""}),
        ("prompts/get", {"name": "n", "arguments": {"a": "b"}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": ""}}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "a://{b}"},
                                 "argument": {"name": "a", "value": "b"}}),
        ("completion/complete", {"ref": {"type": "ref/tool", "name": "t"}, "argument": {"name": "a", "value": "b"},
                                 "context": {"arguments": {"x": "y"}, "future": 1}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "p", "title": "T"},
                                 "argument": {"name": "a", "value": "b"}, "context": {}}),
        *(("logging/setLevel", {"level": level}) for level in ("debug", "info", "notice", "warning", "error",
                                                               "critical", "alert", "emergency")),
        ("subscriptions/listen", {"notifications": {}}),
        ("subscriptions/listen", {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["a://b"],
                                                    "taskIds": ["1"]}}),
        ("notifications/cancelled", {"requestId": 1}),
        ("notifications/cancelled", {}),
    ],
)  # fmt: skip
def test_good_params(method: str, params: Any) -> None:
    assert read(method, params)
    read(method, {**params, "future": {"a": 1}})  # unknown fields are tolerated everywhere
    read(method, {**params, "_meta": {"future": {"a": 1}}})


@pytest.mark.rule("TOOL-14", "PR-8", "LOG-5", "COMP-3")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("initialize", {}),
        ("initialize", {"protocolVersion": "x", "capabilities": [], "clientInfo": {}}),
        ("tools/list", {"cursor": 1}),
        ("tools/call", {}),
        ("tools/call", {"name": "n", "requestState": 1}),
        ("resources/read", {}),
        ("prompts/get", {"arguments": {}}),
        ("completion/complete", {"ref": {"type": "ref/x"}, "argument": {"name": "a", "value": "b"}}),
        ("completion/complete", {"ref": {"type": "ref/prompt"}, "argument": {"name": "a"}}),
        ("completion/complete", {"ref": {"type": "ref/prompt"}, "argument": {"name": "a", "value": 1}}),
        ("logging/setLevel", {}),
        ("logging/setLevel", {"level": "WARNING"}),
        ("subscriptions/listen", {}),
        ("subscriptions/listen", {"notifications": {"toolsListChanged": "yes"}}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": "a://b"}}),
    ],
)
def test_bad_params(method: str, params: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(method, params)


def test_what_is_left_out() -> None:
    assert read("tools/call", {"name": "n"}) == m.CallToolParams(name="n")
    assert bytes(read("tools/call", {"name": "n"}).arguments) == b"{}"
    meta = read("tools/list", {}).meta
    assert {getattr(meta, field) for field in meta.__struct_fields__} == {UNSET}


@pytest.mark.rule("SUB-3")
def test_an_acknowledgement_holds_only_what_is_honoured() -> None:
    assert json.loads(msgspec.json.encode(m.ListenFilter())) == {}
    some = m.ListenFilter(tools_list_changed=True, resource_subscriptions=["a://b"])
    assert json.loads(msgspec.json.encode(some)) == {"toolsListChanged": True, "resourceSubscriptions": ["a://b"]}
