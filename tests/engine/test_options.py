"""A server's settings: what is refused, and what profiles and single switches change on the wire."""

import re
from typing import Any

import pytest

from dovetail import Server, SetupError, ToolResult
from dovetail.engine.options import PROFILES, Options
from wire import MODERN, Wire

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"profil": "pocket"}, "unknown options profil (did you mean profile?); known are "),
        ({"verison": "1", "colour": "red"}, "unknown options colour, verison (did you mean version?); known are "),
        ({"icons": [{"url": "x"}]}, "icons="),
        ({"experimental": {"x": 1}}, "experimental="),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError) as caught:
        Server("x", **options)
    assert words in str(caught.value)
    assert str(caught.value).startswith("Server")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("profile", "tiny"), ("timeout", 0), ("timeout", -1), ("timeout", "soon"), ("initialize_timeout", 0),
        ("page_size", 0), ("page_size", 2.5), ("page_size", True), ("max_concurrency", 0), ("max_queue", -1),
        ("max_threads", 0), ("max_message_bytes", 0), ("ttl_ms", -1), ("cache_scope", "shared"), ("log_level", "loud"),
        ("argument_errors", "raise"), ("output", "json"), ("explicit_is_error", "no"), ("declare", ["tool"]),
        ("declare", "tools"), ("version", 1), ("instructions", ["x"]), ("lifespan", 5), ("redact", "pin"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SetupError, match=f"^Server: {name}={re.escape(repr(value))}"):
        Server("x", **{name: value})


@pytest.mark.parametrize("name", ["", 5])
def test_a_name_is_a_string_that_is_not_empty(name: Any) -> None:
    with pytest.raises(SetupError, match="name"):
        Server(name)


def test_none_is_no_option_and_a_switch_beats_its_profile() -> None:
    assert Options.from_keywords({"title": None, "timeout": None}) == Options()  # type: ignore[typeddict-item]
    assert Options.from_keywords({"profile": "pocket", "argument_errors": "result"}).argument_errors == "result"
    assert set(PROFILES) == {"spec", "pocket", "reference"}


# ── on the wire ──


def sample(**options: Any) -> Server:
    server = Server("sample", version="1.0.0", **options)

    @server.tool(thread=False)
    def number(n: int) -> int:
        return n

    @server.tool(thread=False)
    def word() -> str:
        return "w"

    return server


async def look(server: Server, version: str) -> tuple[dict[str, Any], ...]:
    """The list, a structured result, a text result, and what bad arguments give."""
    async with Wire(server, version) as wire:
        listing = await wire.ask("tools/list")
        number = await wire.ask("tools/call", {"name": "number", "arguments": {"n": 1}})
        word = await wire.ask("tools/call", {"name": "word"})
        bad = await wire.exchange(wire.request("tools/call", {"name": "number"}))
        text = await wire.exchange(wire.request("tools/call", {"name": "number", "arguments": {"n": "5"}}))
        lenient = "result" in text and text["result"]["content"][0]["text"] == "5"
        assert lenient is server.engine.options.lenient_arguments
        return listing, number, word, bad


@pytest.mark.parametrize("version", REVISIONS)
async def test_the_profiles(version: str) -> None:
    listing, number, word, bad = await look(sample(), version)
    structured = version >= "2025-06-18"
    assert "nextCursor" not in listing
    assert ("structuredContent" in number) is structured
    assert "structuredContent" not in word
    assert word["isError"] is False
    assert bad["result"]["isError"] is True
    listing, number, word, bad = await look(sample(profile="pocket"), version)
    assert listing.get("nextCursor") == (None if version == MODERN else "")  # there an empty cursor is a live one
    assert number["structuredContent"] == (1 if version == MODERN else {"result": 1})
    assert word["structuredContent"] == {}
    assert bad["error"]["code"] == -32602
    listing, number, word, bad = await look(sample(profile="reference"), version)
    assert not any("outputSchema" in tool for tool in listing["tools"])
    for result in (number, word):
        assert not result.keys() & {"structuredContent", "isError"}
    assert number["content"] == [{"type": "text", "text": "1"}]
    assert bad["result"]["isError"] is True


@pytest.mark.parametrize("version", ["2024-11-05", MODERN])
async def test_the_pocket_profile_sends_no_result_without_content(version: str) -> None:
    server = Server("pocket", version="1.0.0", profile="pocket")
    server.add_tool(lambda: None, name="nothing")
    server.add_tool(lambda: [], name="no_items")  # noqa: PIE807
    server.add_tool(lambda: {"content": []}, name="on_the_wire")
    server.add_tool(lambda: ToolResult(content=()), name="explicit")
    server.add_tool(lambda: ToolResult(is_error=True), name="failed")
    server.add_tool(lambda: ToolResult(structured={"n": 1}), name="structured")

    @server.tool(output="structured")
    def number() -> int:
        return 1

    async with Wire(server, version) as wire:
        for tool in server.engine.tools.all():
            result = await wire.ask("tools/call", {"name": tool.name})
            (block,) = result["content"]
            assert block["type"] == "text"
            assert block["text"] == {"no_items": "[]", "structured": '{"n":1}', "number": "1"}.get(tool.name, "")


@pytest.mark.parametrize(
    ("switch", "value"),
    [
        ("lenient_arguments", False),
        ("always_structured_content", True),
        ("empty_next_cursor", True),
        ("argument_errors", "error"),
        ("explicit_is_error", False),
    ],
)
async def test_each_switch_changes_one_thing(switch: str, value: Any) -> None:
    listing, _, word, bad = await look(sample(**{switch: value}), "2025-06-18")
    assert ("structuredContent" in word) is (switch == "always_structured_content")
    assert ("nextCursor" in listing) is (switch == "empty_next_cursor")
    assert ("error" in bad) is (switch == "argument_errors")
    assert ("isError" in word) is (switch != "explicit_is_error")


@pytest.mark.rule("LIFE-15", "CACHE-1", "CACHE-2")
async def test_server_info_and_cache_hints_of_the_newest_revision() -> None:
    hints = {"ttl_ms": 5000, "cache_scope": "public"}
    async with Wire(sample(server_info=False, **hints), MODERN) as wire:
        for method in ("tools/list", "server/discover"):
            result = await wire.ask(method)
            assert (result["ttlMs"], result["cacheScope"]) == (5000, "public")
            assert "_meta" not in result
    async with Wire(sample(**hints), MODERN) as wire:
        meta = (await wire.ask("tools/list"))["_meta"]
        assert meta["io.modelcontextprotocol/serverInfo"] == {"name": "sample", "version": "1.0.0"}
    async with Wire(sample(), MODERN) as wire:
        assert (await wire.ask("tools/list")).items() >= {"ttlMs": 0, "cacheScope": "private"}.items()
    async with Wire(sample(**hints), "2025-11-25") as wire:
        assert (await wire.ask("tools/list")).keys() == {"tools"}


@pytest.mark.rule("LIFE-2", "LIFE-11")
@pytest.mark.parametrize("version", REVISIONS)
async def test_what_a_server_says_of_itself(version: str) -> None:
    server = sample(
        title="Sample", description="Shows.", website_url="https://example.org", instructions="Ask.",
        icons=[{"src": "https://example.org/i.png"}], experimental={"org.example/x": {}}, list_changed=False,
        logging=False, declare=["prompts"],
    )  # fmt: skip
    async with Wire(server, version) as wire:
        said = await wire.ask("server/discover") if version == MODERN else wire.welcome
    info = said["_meta"]["io.modelcontextprotocol/serverInfo"] if version == MODERN else said["serverInfo"]
    assert said["instructions"] == "Ask."
    assert said["capabilities"] == {"tools": {}, "prompts": {}, "experimental": {"org.example/x": {}}}
    assert ("title" in info) is (version >= "2025-06-18")
    assert ({"description", "websiteUrl", "icons"} <= info.keys()) is (version >= "2025-11-25")
