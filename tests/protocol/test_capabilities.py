"""Capabilities, log levels and completion."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import official
from dovetail.errors import METHOD_NOT_FOUND, MISSING_CAPABILITY, MissingCapability, ProtocolError
from dovetail.protocol import capabilities, revisions
from dovetail.protocol.capabilities import (
    LEVELS,
    MAX_COMPLETIONS,
    Completion,
    ServerCapabilities,
    bound_completion,
    passes_level,
)
from dovetail.protocol.elicitation import ServerRequest
from dovetail.protocol.extensions import DeclaredExtension
from dovetail.protocol.methods import REQUEST_ROWS

EVERYTHING = frozenset({"tools", "resources", "prompts", "completions", "logging"})
ROWS = pytest.mark.parametrize("revision", revisions.ALL, ids=lambda row: row.name)


# ── server capabilities ──


@pytest.mark.rule("TOOL-1", "RES-1", "PR-1", "COMP-1", "LOG-1", "LIFE-2")
@ROWS
def test_every_capability_is_shown(revision: revisions.Revision) -> None:
    declared = {"com.example/y": DeclaredExtension({"z": 1})}
    capabilities = ServerCapabilities(names=EVERYTHING, experimental={"x": {}}, extensions=declared)
    shown = capabilities.for_revision(revision)
    wanted: dict[str, Any] = {
        "tools": {"listChanged": True}, "resources": {"subscribe": True, "listChanged": True},
        "prompts": {"listChanged": True}, "logging": {}, "experimental": {"x": {}},
        "extensions": {"com.example/y": {"z": 1}},
    }  # fmt: skip
    if revision.name != "2024-11-05":
        wanted["completions"] = {}
    assert shown == wanted
    official.demand()
    official.validator_for(revision.name, "ServerCapabilities").validate(shown)


@pytest.mark.rule("TOOL-1", "BASE-19")
@ROWS
def test_an_absent_capability_is_not_shown(revision: revisions.Revision) -> None:
    assert ServerCapabilities(names=frozenset()).for_revision(revision) == {}
    assert ServerCapabilities(names=frozenset({"tools"}), list_changed=False).for_revision(revision) == {"tools": {}}
    resources = ServerCapabilities(names=frozenset({"resources"}), list_changed=False).for_revision(revision)
    assert resources == {"resources": {"subscribe": True}}


@pytest.mark.rule("BASE-19", "MH-16", "COMP-3")
@ROWS
@pytest.mark.parametrize("method", sorted(name for name, row in REQUEST_ROWS.items() if row.capability))
def test_a_method_without_its_capability_does_not_exist(method: str, revision: revisions.Revision) -> None:
    row = REQUEST_ROWS[method]
    ServerCapabilities(names=EVERYTHING).check(row, revision)
    if method == "completion/complete" and revision.name == "2024-11-05":
        ServerCapabilities(names=frozenset()).check(row, revision)  # there was no such capability
        return
    with pytest.raises(ProtocolError) as caught:
        ServerCapabilities(names=EVERYTHING - {str(row.capability)}).check(row, revision)
    assert caught.value.code == METHOD_NOT_FOUND
    assert caught.value.http_status == (404 if revision.name == "2026-07-28" else 200)
    assert method in caught.value.message


@pytest.mark.rule("BASE-18", "LIFE-11")
@pytest.mark.parametrize("method", ["initialize", "ping", "server/discover", "subscriptions/listen"])
def test_the_base_protocol_is_always_there(method: str) -> None:
    for revision in revisions.ALL:
        ServerCapabilities(names=frozenset()).check(REQUEST_ROWS[method], revision)


# ── what a client must declare ──


@pytest.mark.rule("LIFE-14", "MRTR-6", "MRTR-21")
@pytest.mark.parametrize(
    ("required", "declared", "missing"),
    [
        ([], {}, None),
        (["sampling"], {"sampling": {}}, None),
        (["sampling"], {}, {"sampling": {}}),
        (["sampling"], {"sampling": None}, {"sampling": {}}),
        (["sampling", "roots"], {}, {"sampling": {}, "roots": {}}),
        (["sampling.tools"], {"sampling": {}}, {"sampling": {"tools": {}}}),
        (["sampling.tools", "sampling.context"], {}, {"sampling": {"tools": {}, "context": {}}}),
        (["sampling", "sampling.tools"], {}, {"sampling": {"tools": {}}}),
        (["sampling.tools"], {"sampling": True}, {"sampling": {"tools": {}}}),
        (["elicitation"], {"elicitation": {"url": {}}}, None),
        (["elicitation.form"], {"elicitation": {}}, None),  # {} means forms
        (["elicitation.form"], {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        (["elicitation.url"], {"elicitation": {}}, {"elicitation": {"url": {}}}),
    ],
)
def test_what_a_call_needs_of_the_client(required: list[str], declared: dict[str, Any], missing: Any) -> None:
    if missing is None:
        capabilities.require_capabilities(required, declared)
        return
    with pytest.raises(MissingCapability) as caught:
        capabilities.require_capabilities(required, declared)
    failure = caught.value
    assert failure.data == {"requiredCapabilities": missing}
    assert (failure.code, failure.http_status) == (MISSING_CAPABILITY, 400)
    assert all(name in failure.message for name in missing)
    official.demand()
    official.validator_for("2026-07-28", "ClientCapabilities").validate(missing)


@ROWS
@pytest.mark.parametrize(
    ("path", "since"),
    [("elicitation.form", "2025-06-18"), ("elicitation.url", "2025-11-25"), ("sampling.tools", "2025-11-25")],
)
def test_a_client_can_not_declare_what_its_revision_does_not_know(
    path: str, since: str, revision: revisions.Revision
) -> None:
    name, _, part = path.partition(".")
    request, declared = ServerRequest(method="m", params={}, requires=(path,)), {name: {part: {}}}
    if revision.name >= since:
        capabilities.require_client_support(request, revision, declared)
        return
    with pytest.raises(MissingCapability, match=f"{revision.name} does not know that"):
        capabilities.require_client_support(request, revision, declared)


# ── log levels ──


@pytest.mark.rule("LOG-2")
def test_levels_rise_from_debug_to_emergency() -> None:
    assert LEVELS == ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
    for rank, level in enumerate(LEVELS):
        assert [passes_level(other, level) for other in LEVELS] == [False] * rank + [True] * (8 - rank)


@pytest.mark.rule("LOG-8")
def test_what_the_newest_revision_deprecates() -> None:
    assert set(capabilities.DEPRECATED) == {"logging", "sampling", "roots"}
    assert all("2026-07-28" in text for text in capabilities.DEPRECATED.values())


# ── completion ──


@pytest.mark.rule("COMP-2")
@given(st.integers(0, 250), st.none() | st.integers(0, 10_000), st.none() | st.booleans())
def test_at_most_a_hundred_values_with_their_total(count: int, total: int | None, has_more: bool | None) -> None:
    given_values = [f"v{number}" for number in range(count)]
    bound = bound_completion(Completion(given_values, total=total, has_more=has_more))
    assert list(bound.values) == given_values[:MAX_COMPLETIONS]
    if count <= MAX_COMPLETIONS:
        assert bound.total == (count if total is None and not has_more else total)
        assert bound.has_more == ((total or 0) > count if has_more is None else has_more)
    else:
        assert (bound.total, bound.has_more) == (max(total or 0, count), True)
