"""Every kind of result in every revision: appendix B, and the official schemas as the judge."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import official
from dovetail.protocol import results, revisions
from dovetail.protocol.capabilities import Completion, ServerCapabilities
from dovetail.protocol.results import SERVER_INFO_KEY, SUBSCRIPTION_KEY, CacheHint, Shaper, Style, ToolResult
from dovetail.protocol.types import (
    Audio,
    Implementation,
    Message,
    PromptArgument,
    PromptDefinition,
    ResourceContents,
    ResourceDefinition,
    TemplateDefinition,
    Text,
    ToolDefinition,
)

REVISIONS = pytest.mark.parametrize("revision", revisions.ALL, ids=lambda row: row.name)
NAMES = [row.name for row in revisions.ALL]
INFO = Implementation(name="s", title="S", version="1", description="d", website_url="https://example.com")
HINT = CacheHint(60_000, "public")
CAPABILITIES = ServerCapabilities(names=frozenset({"tools", "resources", "prompts", "completions", "logging"}))
META = {"com.example/k": 1}


def shaper(revision: revisions.Revision, **style: bool) -> Shaper:
    return Shaper(revision, Style(**style), INFO)


def official_result(body: bytes, revision: revisions.Revision, kind: str) -> Any:
    """The result as a client reads it, once the official schema has agreed."""
    shown = json.loads(body)
    official.demand()
    official.validator_for(revision.name, kind).validate(shown)
    return shown


def called(made: Shaper, result: ToolResult) -> Any:
    return official_result(made.tool_result(result), made.revision, "CallToolResult")


# ── what every result has ──


def every_result(made: Shaper) -> dict[str, tuple[str, bytes]]:
    tool = ToolDefinition(name="t", title="T", input_schema={"type": "object"}, output_schema={"type": "string"})
    resource = ResourceDefinition(uri="a://b", name="r", title="R", meta=META)
    template = TemplateDefinition(uri_template="a://{b}", name="r")
    prompt = PromptDefinition(name="p", arguments=[PromptArgument(name="x", title="X")])
    contents = [ResourceContents("a://b", text="t", meta=META), ResourceContents("a://c", blob=b"\x00")]
    messages = [Message("user", "t"), Message("assistant", Text("u"))]
    kinds = {
        "empty": ("EmptyResult", results.EmptyResult().encode(made)),
        "tool": ("CallToolResult", made.tool_result(ToolResult(content=[Text("t")]))),
        "tools": ("ListToolsResult", made.page("tools", [tool], "next", HINT)),
        "resources": ("ListResourcesResult", made.page("resources", [resource], None, HINT)),
        "templates": ("ListResourceTemplatesResult", made.page("resourceTemplates", [template], None, HINT)),
        "prompts": ("ListPromptsResult", made.page("prompts", [prompt], None, HINT)),
        "no-tools": ("ListToolsResult", made.page("tools", [], None, HINT)),
        "contents": ("ReadResourceResult", results.ReadResourceResult(contents, HINT).encode(made)),
        "prompt": ("GetPromptResult", results.PromptResult(messages, "d").encode(made)),
        "completion": ("CompleteResult", results.CompleteResult(Completion(["a"], 1, False)).encode(made)),
    }
    if made.revision.handshake:
        kinds["initialize"] = ("InitializeResult", results.InitializeResult(CAPABILITIES, "how").encode(made))
    else:
        kinds["discover"] = ("DiscoverResult", results.DiscoverResult(CAPABILITIES, "how", HINT).encode(made))
        kinds["listen"] = ("SubscriptionsListenResult", results.ListenEnded({SUBSCRIPTION_KEY: 1}).encode(made))
    return kinds


CACHEABLE = {"tools", "resources", "templates", "prompts", "no-tools", "contents", "discover"}


@pytest.mark.rule(
    "BASE-13", "BASE-14", "LIFE-15", "CACHE-1", "CACHE-2", "CACHE-3", "TOOL-2", "TOOL-21", "RES-16", "PR-10"
)
@REVISIONS
def test_every_result_is_official(revision: revisions.Revision) -> None:
    for name, (kind, body) in every_result(shaper(revision)).items():
        shown = official_result(body, revision, kind)
        modern = revision.name == "2026-07-28"
        assert shown.get("resultType") == ("complete" if modern else None), name
        assert b"null" not in body, name
        assert (SERVER_INFO_KEY in shown.get("_meta", {})) == modern, name
        hints = {key: shown[key] for key in ("ttlMs", "cacheScope") if key in shown}
        assert hints == ({"ttlMs": 60_000, "cacheScope": "public"} if modern and name in CACHEABLE else {}), name


@pytest.mark.rule("LIFE-15")
def test_server_info_can_be_switched_off() -> None:
    revision = revisions.R2026_07_28
    for kind, body in every_result(shaper(revision, server_info=False)).values():
        assert SERVER_INFO_KEY not in official_result(body, revision, kind).get("_meta", {})
    details = {"description": "d", "websiteUrl": "https://example.com"}
    assert json.loads(shaper(revision).empty)["_meta"] == {
        SERVER_INFO_KEY: {"name": "s", "title": "S", "version": "1"} | details
    }
    assert shaper(revisions.R2025_11_25).empty == b"{}"


# ── tools ──

Cells = tuple[Any, Any, Any, Any, Any]
ABSENT: Cells = (..., ..., ..., ..., ...)
# Appendix B: the internal result, its text, and its structuredContent in 2024-11-05 … 2026-07-28.
TOOL_RESULTS: list[tuple[str, ToolResult, list[str], Cells]] = [
    ("text", ToolResult(content=[Text("t")]), ["t"], ABSENT),
    ("nothing", ToolResult(), [], ABSENT),
    ("object", ToolResult(structured={"a": 1}), ['{"a":1}'], (..., ..., *[{"a": 1}] * 3)),
    ("array", ToolResult(structured=[1], wrap=True), ["[1]"], (..., ..., *[{"result": [1]}] * 2, [1])),
    ("array-unmarked", ToolResult(structured=[1]), ["[1]"], (..., ..., *[{"result": [1]}] * 2, [1])),
    ("string", ToolResult(structured="s", wrap=True), ["s"], (..., ..., *[{"result": "s"}] * 2, "s")),
    ("null", ToolResult(structured=None, wrap=True), ["null"], (..., ..., *[{"result": None}] * 2, None)),
    ("false", ToolResult(structured=False, wrap=True), ["false"], (..., ..., *[{"result": False}] * 2, False)),
    # its schema says "an object or null", so that it is wrapped even when it is an object
    ("wrapped-object", ToolResult(structured={"a": 1}, wrap=True), ['{"a":1}'],
     (..., ..., *[{"result": {"a": 1}}] * 2, {"a": 1})),
    ("own-text", ToolResult(content=[Text("t")], structured={"a": 1}), ["t"], (..., ..., *[{"a": 1}] * 3)),
]  # fmt: skip


@pytest.mark.rule("TOOL-8", "TOOL-9", "TOOL-15")
@pytest.mark.parametrize(
    ("result", "texts", "cells"), [row[1:] for row in TOOL_RESULTS], ids=[row[0] for row in TOOL_RESULTS]
)
def test_appendix_b(result: ToolResult, texts: list[str], cells: Cells) -> None:
    for revision, structured in zip(revisions.ALL, cells, strict=True):
        shown = called(shaper(revision), result)
        assert [block["text"] for block in shown["content"]] == texts, revision.name
        assert shown.get("structuredContent", ...) == structured, revision.name
        assert shown["isError"] is False


@pytest.mark.rule("TOOL-9")
@REVISIONS
def test_structured_only(revision: revisions.Revision) -> None:
    """Without the text copy nothing would be left where there is no structured content, so there it stays."""
    shown = called(shaper(revision), ToolResult(structured=[1], wrap=True, text_copy=False))
    assert bool(shown["content"]) == (not revision.structured_output)


@pytest.mark.rule("TOOL-15")
@REVISIONS
@pytest.mark.parametrize("explicit", [True, False])
def test_errors(revision: revisions.Revision, explicit: bool) -> None:
    made = shaper(revision, explicit_is_error=explicit)
    bad = called(made, ToolResult(content=[Text("no")], is_error=True))
    good = called(made, ToolResult(content=[Text("yes")]))
    assert bad["isError"] is True
    assert good.get("isError") == (False if explicit else None)


@REVISIONS
def test_a_result_may_have_meta_of_its_own(revision: revisions.Revision) -> None:
    shown = called(shaper(revision), ToolResult(content=[Text("t")], meta=META))
    assert shown["_meta"]["com.example/k"] == 1
    assert (SERVER_INFO_KEY in shown["_meta"]) == revision.result_type
    assert META == {"com.example/k": 1}


def test_a_tool_result_is_made_by_name_and_never_changed() -> None:
    """One that is cached may be sent to many callers."""
    result = ToolResult(content=[Text("t")])
    with pytest.raises(AttributeError):
        result.is_error = True  # type: ignore[misc]
    with pytest.raises(TypeError):
        ToolResult([Text("t")])  # type: ignore[misc]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(revisions.ALL),
    st.booleans(),
)
@pytest.mark.rule("TOOL-8", "TOOL-9")
def test_any_structured_value_is_official_and_its_text_says_the_same(
    value: Any, revision: revisions.Revision, wrap: bool
) -> None:
    shown = json.loads(shaper(revision).tool_result(ToolResult(structured=value, wrap=wrap)))
    if official.available():
        official.validator_for(revision.name, "CallToolResult").validate(shown)
    text = shown["content"][0]["text"]
    assert text == value if isinstance(value, str) else json.loads(text) == value  # a string is its own best text
    if revision.any_structured_output:
        assert shown["structuredContent"] == value
    elif revision.structured_output:
        assert isinstance(shown["structuredContent"], dict)


# ── profiles ──


@REVISIONS
def test_structured_content_always(revision: revisions.Revision) -> None:
    made = shaper(revision, always_structured_content=True)
    assert called(made, ToolResult(content=[Text("t")]))["structuredContent"] == {}
    wanted = [1] if revision.name == "2026-07-28" else {"result": [1]}
    assert called(made, ToolResult(structured=[1]))["structuredContent"] == wanted
    failed = json.loads(made.tool_result(ToolResult(content=[Text("no")], is_error=True)))
    assert failed["structuredContent"] == {}
    promised = json.loads(made.tool_result(ToolResult(content=[Text("no")], is_error=True, has_schema=True)))
    assert "structuredContent" not in promised  # {} might break the tool's own schema


@pytest.mark.rule("PAGE-4", "PAGE-5")
@REVISIONS
@pytest.mark.parametrize("always", [True, False])
def test_the_last_page_has_no_cursor(revision: revisions.Revision, always: bool) -> None:
    made = shaper(revision, empty_next_cursor=always)
    middle = official_result(made.page("tools", [], "abc", HINT), revision, "ListToolsResult")
    last = official_result(made.page("tools", [], None, HINT), revision, "ListToolsResult")
    assert middle["nextCursor"] == "abc"
    assert last.get("nextCursor") == ("" if always and revision.handshake else None)


# ── lists, resources, prompts, completion ──


@pytest.mark.rule("RES-11", "RES-18")
@REVISIONS
def test_contents(revision: revisions.Revision) -> None:
    items = [
        ResourceContents("a://b", mime_type="text/plain", text="t", meta=META),
        ResourceContents("a://c", blob=b"\xff"),
    ]
    shown = official_result(
        results.ReadResourceResult(items, HINT).encode(shaper(revision)), revision, "ReadResourceResult"
    )
    first, second = shown["contents"]
    assert first.pop("_meta", None) == (META if revision.object_meta else None)
    assert first == {"uri": "a://b", "mimeType": "text/plain", "text": "t"}
    assert second == {"uri": "a://c", "blob": "/w=="}


@REVISIONS
def test_a_prompt(revision: revisions.Revision) -> None:
    messages = [Message("user", "t"), Message("assistant", Audio(b"a", "audio/wav"))]
    made = shaper(revision)
    shown = official_result(results.PromptResult(messages, "d").encode(made), revision, "GetPromptResult")
    assert shown["description"] == "d"
    assert shown["messages"][0] == {"role": "user", "content": {"type": "text", "text": "t"}}
    assert shown["messages"][1]["content"]["type"] == ("audio" if revision.audio else "text")
    assert "description" not in official_result(results.PromptResult([]).encode(made), revision, "GetPromptResult")


@pytest.mark.rule("COMP-2")
@REVISIONS
def test_completion(revision: revisions.Revision) -> None:
    made = shaper(revision)
    suggestions = results.CompleteResult(Completion([str(n) for n in range(150)]))
    many = official_result(suggestions.encode(made), revision, "CompleteResult")
    assert len(many["completion"]["values"]) == 100
    assert many["completion"] | {"values": []} == {"values": [], "total": 150, "hasMore": True}
    few = official_result(results.CompleteResult(Completion([])).encode(made), revision, "CompleteResult")
    assert few["completion"] == {"values": [], "total": 0, "hasMore": False}


# ── beginnings and ends ──


@pytest.mark.rule("LIFE-2", "LIFE-3")
@pytest.mark.parametrize("revision", revisions.HANDSHAKE.values(), ids=lambda row: row.name)
@pytest.mark.parametrize("instructions", ["how", "", None])
def test_initialize(revision: revisions.Revision, instructions: str | None) -> None:
    shown = official_result(
        results.InitializeResult(CAPABILITIES, instructions).encode(shaper(revision)), revision, "InitializeResult"
    )
    assert shown["protocolVersion"] == revision.name
    assert shown["serverInfo"]["name"] == "s"
    assert shown["capabilities"] == CAPABILITIES.for_revision(revision)
    assert shown.get("instructions") == instructions
    assert set(shown) <= {"protocolVersion", "capabilities", "serverInfo", "instructions"}


@pytest.mark.rule("LIFE-11", "LIFE-15", "CACHE-1")
@pytest.mark.parametrize("instructions", ["how", None])
def test_discover(instructions: str | None) -> None:
    revision = revisions.R2026_07_28
    shown = official_result(
        results.DiscoverResult(CAPABILITIES, instructions, HINT).encode(shaper(revision)), revision, "DiscoverResult"
    )
    assert shown["supportedVersions"] == NAMES[::-1]
    assert shown["capabilities"] == CAPABILITIES.for_revision(revision)
    assert shown.get("instructions") == instructions
    assert "serverInfo" not in shown
    assert shown["_meta"][SERVER_INFO_KEY]["name"] == "s"


@pytest.mark.rule("SUB-4", "SUB-7")
@pytest.mark.parametrize("id", [1, "1", 0, ""])
def test_the_end_of_a_listen(id: int | str) -> None:
    revision = revisions.R2026_07_28
    shown = official_result(
        results.ListenEnded({SUBSCRIPTION_KEY: id}).encode(shaper(revision)), revision, "SubscriptionsListenResult"
    )
    assert shown["_meta"][SUBSCRIPTION_KEY] == id
    assert type(shown["_meta"][SUBSCRIPTION_KEY]) is type(id)


# ── results as values ──


@pytest.mark.parametrize(
    ("result", "field"),
    [
        (results.ReadResourceResult([], HINT), "contents"),
        (results.InitializeResult(CAPABILITIES, "how"), "instructions"),
        (results.DiscoverResult(CAPABILITIES, "how", HINT), "instructions"),
        (results.InputRequiredResult({}, "sealed"), "state"),
        (results.ListenEnded({SUBSCRIPTION_KEY: 1}), "meta"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_other_results_are_never_changed(result: Any, field: str) -> None:
    """A middleware gives back another one instead."""
    with pytest.raises(AttributeError):
        setattr(result, field, None)


def test_a_page_is_sent_as_its_cached_bytes_until_it_is_changed() -> None:
    made = shaper(revisions.R2025_06_18)
    tools = [ToolDefinition(name=name, input_schema={"type": "object"}) for name in "abc"]
    loads: list[int] = []

    def load() -> list[ToolDefinition]:
        loads.append(1)
        return tools

    page = results.ListResult("tools", load, None, HINT, b"cached")
    assert page.encode(made) == b"cached"
    assert not loads
    assert [item.name for item in page.items] == ["a", "b", "c"]
    assert page.encode(made) == b"cached"  # reading is no change
    page.items = [item for item in page.items if item.name != "b"]
    assert [tool["name"] for tool in json.loads(page.encode(made))["tools"]] == ["a", "c"]
    assert len(loads) == 1
    other = results.ListResult("tools", list, "next", HINT)
    assert other.encode(made) is other.encode(made), "encoded once"
