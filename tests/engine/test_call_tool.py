"""`tools/call`: results in every revision, failures without details, arguments, required capabilities."""

import asyncio
import re
from typing import Any

import pytest

from dovetail import Audio, EmbeddedResource, Image, ResourceContents, ResourceLink, Server, Text, ToolResult
from dovetail.errors import NotFound, ProtocolError, ToolError
from stable_ids import stable
from wire import MODERN, Wire

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN)


def new_server(**options: Any) -> Server:
    return Server("calls", version="1.0.0", **options)


def returning(value: Any, annotation: Any = None, **options: Any) -> Server:
    server = new_server()

    async def give() -> Any:
        if isinstance(value, BaseException):
            raise value
        return value

    if annotation is not None:
        give.__annotations__["return"] = annotation
    else:
        del give.__annotations__["return"]
    server.add_tool(give, **options)
    return server


async def call(server: Server, version: str = MODERN, /, **arguments: Any) -> dict[str, Any]:
    async with Wire(server, version) as wire:
        name = next(tool.name for tool in server.engine.tools.all())
        return await wire.ask("tools/call", {"name": name, "arguments": arguments})


# ── results ──


@pytest.mark.rule("TOOL-8", "TOOL-9", "BASE-13")
@pytest.mark.parametrize("version", REVISIONS)
async def test_structured_output_in_every_revision(version: str) -> None:
    plain = await call(returning({"n": 1}, dict[str, int]), version)
    number = await call(returning(5, int), version)
    assert plain["content"] == [{"type": "text", "text": '{"n":1}'}]
    assert number["content"] == [{"type": "text", "text": "5"}]
    is_new = version >= "2025-06-18"
    assert plain.get("structuredContent") == ({"n": 1} if is_new else None)
    assert number.get("structuredContent") == (5 if version == MODERN else {"result": 5} if is_new else None)
    assert plain["isError"] is False
    assert ("resultType" in plain) is (version == MODERN)


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("plain", ["plain"]),
        ("", [""]),
        (None, [""]),
        (5, ["5"]),
        ({"a": [1, None]}, ['{"a":[1,null]}']),
        ([], ["[]"]),
        (Text("block"), ["block"]),
        ([Text("one"), "two", 3], ["one", "two", "3"]),
        (ToolResult(content=[Text("x")]), ["x"]),
        (ToolResult(content="just text"), ["just text"]),  # type: ignore[arg-type]
        (ToolResult(content=["a", {"b": 1}]), ["a", '{"b":1}']),  # type: ignore[list-item]
        ({"content": [{"type": "text", "text": "wire"}]}, ["wire"]),
        ({"content": []}, [""]),
        ({"content": ["data"]}, ['{"content":["data"]}']),
        ({"content": 5}, ['{"content":5}']),
    ],
)
async def test_values_without_a_schema_become_content(value: Any, texts: list[str]) -> None:
    result = await call(returning(value))
    assert [block["text"] for block in result["content"]] == texts
    assert result["isError"] is False
    assert "structuredContent" not in result


async def test_a_result_spelled_as_on_the_wire() -> None:
    content = [{"type": "image", "data": "AAE=", "mimeType": "image/png"}]
    value = {"content": content, "structuredContent": {"a": 1}, "isError": True, "_meta": {"org.example/x": 1}}
    assert await call(returning(value), "2025-11-25") == value


async def test_a_tool_result_says_everything() -> None:
    value = ToolResult(content=[Text("t")], structured={"a": {1, 2}}, meta={"org.example/k": "v"})
    result = await call(returning(value))
    assert result["content"] == [{"type": "text", "text": "t"}]
    assert sorted(result["structuredContent"]["a"]) == [1, 2]
    assert result["_meta"]["org.example/k"] == "v"
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "calls"


async def test_a_failed_result_need_not_fit_the_schema() -> None:
    failed = ToolResult(content=[Text("sorry")], is_error=True)
    result = await call(returning(failed, dict[str, int], output_schema={"type": "object", "required": ["n"]}))
    assert (result["isError"], result["content"][0]["text"]) == (True, "sorry")


@pytest.mark.parametrize(
    ("policy", "content", "structured"),
    [("auto", 1, True), ("both", 1, True), ("structured", 0, True), ("text", 1, False)],
)
async def test_the_output_policy_decides_what_is_sent(policy: str, content: int, structured: bool) -> None:
    for value, annotation in (({"n": 1}, dict[str, int]), (ToolResult(structured={"n": 1}), None)):
        if annotation is None and policy == "structured":
            continue  # nothing was promised, so nothing is known to be left out
        result = await call(returning(value, annotation, output=policy))
        assert (len(result["content"]), "structuredContent" in result) == (content, structured)
        older = await call(returning(value, annotation, output=policy), "2025-03-26")
        assert older["content"] == [{"type": "text", "text": '{"n":1}'}]
    both = ToolResult(content=[Text("t")], structured=1)
    assert ("structuredContent" in await call(returning(both, output=policy))) is structured


@pytest.mark.rule("TOOL-11")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_content_of_every_kind(version: str) -> None:
    blocks = [
        Image(b"\x00\x01", "image/png"),
        Audio(b"\x02", "audio/wav"),
        ResourceLink("notes://1", "one", title="One"),
        EmbeddedResource(ResourceContents("notes://1", text="t", meta={"a/b": 1})),
        EmbeddedResource(ResourceContents("notes://2", blob=b"\xff")),
    ]
    kinds = [block["type"] for block in (await call(returning(blocks), version))["content"]]
    audio = "audio" if version >= "2025-03-26" else "text"
    link = "resource_link" if version >= "2025-06-18" else "text"
    assert kinds == ["image", audio, link, "resource", "resource"]


# ── failures ──


@pytest.mark.rule("TOOL-15")
@pytest.mark.parametrize("failure", [ToolError("No such city."), NotFound("No such city.")])
async def test_a_tool_error_is_sent(failure: Exception) -> None:
    result = await call(returning(failure), "2025-11-25")
    assert (result["isError"], result["content"]) == (True, [{"type": "text", "text": "No such city."}])


@pytest.mark.seed("S2-90")
@pytest.mark.parametrize("kind", [RuntimeError, KeyError, ValueError, SystemExit])
@pytest.mark.parametrize("thread", [True, False])
async def test_other_exceptions_are_logged_and_not_sent(kind: Any, thread: bool, caplog: Any) -> None:
    server = new_server()

    def fail() -> str:
        raise kind("secret 42")

    server.add_tool(fail, thread=thread)
    async with Wire(server, "2025-11-25") as wire:
        result = await wire.ask("tools/call", {"name": "fail"})
        assert result["isError"] is True
        assert "secret" not in str(wire.seen)
        assert "fail" in result["content"][0]["text"]
        await wire.ask("ping")
    assert "secret 42" in caplog.text


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ("text", int),
        ({"n": "x"}, dict[str, int]),
        (float("nan"), float),
        (float("inf"), None),
        ({"a": float("nan")}, None),
        (object(), None),
        ("\ud800", None),
        (Text("only content"), int),
        (ToolResult(content=[Text("no structured")]), int),
        (ToolResult(structured={"a": object()}), None),
        (ToolResult(meta=[1]), None),  # type: ignore[arg-type]
        ({"content": [{"type": "text"}]}, None),
        ({"content": [{"type": "hologram"}]}, None),
    ],
)
async def test_a_value_that_cannot_be_sent_is_the_tools_fault(
    value: Any, annotation: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"output_schema": {"type": "integer"}} if type(value) is ToolResult and annotation else {}
    result = await call(returning(value, annotation, **options))
    assert result["isError"] is True
    assert "give" in result["content"][0]["text"]
    assert "structuredContent" not in result
    assert "give" in caplog.text


async def test_protocol_errors_pass_through() -> None:
    async with Wire(returning(ProtocolError("Mine", code=-1, data={"a": 1})), "2025-11-25") as wire:
        assert await wire.refusal("tools/call", {"name": "give"}) == {"code": -1, "message": "Mine", "data": {"a": 1}}


async def test_a_cancellation_from_inside_is_a_failure_and_not_a_silence(caplog: pytest.LogCaptureFixture) -> None:
    assert (await call(returning(asyncio.CancelledError())))["isError"] is True
    assert "give" in caplog.text


# ── arguments ──


def adder(**options: Any) -> Server:
    server = new_server(**options)

    @server.tool(thread=False)
    def add(a: int, b: int = 2) -> str:
        return str(a + b)

    return server


@pytest.mark.rule("TOOL-13")
async def test_argument_errors_are_results_that_say_everything_or_protocol_errors() -> None:
    result = await call(adder(), MODERN, a="x", c=1)
    text = result["content"][0]["text"]
    assert result["isError"] is True
    assert re.search(r"\ba:", text), text
    assert "c" in text
    assert "msgspec" not in text
    async with Wire(adder(argument_errors="error"), "2025-06-18") as wire:
        error = await wire.refusal("tools/call", {"name": "add", "arguments": {}})
        assert error["code"] == -32602
        assert len(error["data"]["errors"]) == 1


@pytest.mark.rule("TOOL-12", "TOOL-14")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25", MODERN])
@pytest.mark.parametrize(
    "params",
    [{"name": "unknown"}, {"name": "x" * 5000}, {"name": 5}, {"arguments": {}}, {"name": "add", "arguments": []},
     {"name": "add", "arguments": "{}"}, {"name": "add", "arguments": 0}, {"name": "add", "arguments": '{"a": 1}'},
     {"name": "raw", "arguments": []}, {"name": "raw", "arguments": '{"a": 1}'}],
    ids=stable,
)  # fmt: skip
async def test_malformed_calls_are_protocol_errors(params: dict[str, Any], version: str) -> None:
    server = adder()
    server.add_tool(lambda arguments: "", name="raw", input_schema={"type": "object"})
    async with Wire(server, version) as wire:
        error = await wire.refusal("tools/call", params)
        assert error["code"] == -32602
        assert len(error["message"]) < 400
        assert (await wire.ask("tools/call", {"name": "add", "arguments": {"a": 1}}))["content"][0]["text"] == "3"


async def test_missing_and_null_arguments_are_none() -> None:
    server = returning("fine")
    server.add_tool(lambda arguments: str(arguments), name="raw", input_schema={"type": "object"})
    async with Wire(server, "2025-11-25") as wire:
        for name, text in (("give", "fine"), ("raw", "{}")):
            for arguments in ({}, {"arguments": None}):
                assert (await wire.ask("tools/call", {"name": name, **arguments}))["content"][0]["text"] == text


@pytest.mark.rule("LIFE-14")
async def test_a_missing_capability() -> None:
    server = new_server()
    server.add_tool(lambda: "ok", name="ask", requires=["elicitation.form", "experimental.x"])
    missing = {"elicitation": {"form": {}}, "experimental": {"x": {}}}
    async with Wire(server, MODERN) as wire:
        error = await wire.refusal("tools/call", {"name": "ask"})
        assert (error["code"], error["data"]) == (-32021, {"requiredCapabilities": missing})
    async with Wire(server, "2025-11-25") as wire:
        result = await wire.ask("tools/call", {"name": "ask"})
        assert result["isError"] is True
        assert "elicitation" in result["content"][0]["text"]
    for version in ("2025-11-25", MODERN):
        async with Wire(server, version, capabilities={"elicitation": {}, "experimental": {"x": {}}}) as wire:
            assert (await wire.ask("tools/call", {"name": "ask"}))["isError"] is False
