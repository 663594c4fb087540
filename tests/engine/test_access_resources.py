"""Resources that not everybody may read: kept contents, files, listening, and tools that read as their callers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from access_stage import ADMIN, ERAS, NOBODY, READER, WRITER, CallerWire, is_admin, new_server
from dovetail import Context, Server, ToolError
from dovetail.auth.principal import Principal
from wire import MODERN

# ── resources ──


@pytest.mark.parametrize("uri", ["kept://one", "kept://of/x"])
@pytest.mark.parametrize("rule", [{"scopes": ["notes:write"]}, {"authorize": lambda principal: principal is WRITER}])
async def test_kept_contents_are_for_those_who_may_read_them(uri: str, rule: Any) -> None:
    server = Server("kept", version="1.0.0", ttl_ms=1000, cache_scope="public")
    reads: list[str] = []

    def read(name: str = "one") -> str:
        reads.append(name)
        return "the secret"

    server.add_resource("kept://one", lambda: read(), name="r", cache=60, **rule)
    server.add_resource("kept://of/{name}", read, cache=60, **rule)
    for principal, works in ((READER, False), (WRITER, True), (READER, False), (NOBODY, False), (WRITER, True)):
        async with CallerWire(server, MODERN, principal) as wire:
            answer = await wire.exchange(wire.request("resources/read", {"uri": uri}))
            assert ("result" in answer) == works
            assert ("the secret" in repr(answer)) == works
            if works:
                assert answer["result"]["cacheScope"] == "private"
                assert answer["result"]["ttlMs"] == 1000
    assert len(reads) == 1


async def test_contents_made_while_the_rule_changed_are_not_kept() -> None:
    server = Server("kept", version="1.0.0")
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def authorize(principal: Any) -> bool:
        asked.set()
        await go_on.wait()
        return True

    server.add_resource("r://r", lambda: "old", name="r", cache=60, authorize=authorize)
    async with CallerWire(server, MODERN, NOBODY) as wire:
        wire.send(wire.request("resources/read", {"uri": "r://r"}, id="first"))
        await asked.wait()
        server.remove_resource("r://r")
        server.add_resource("r://r", lambda: "new", name="r", cache=60, scopes=["s"])
        go_on.set()
        assert (await wire.receive())["id"] == "first"
        assert (await wire.refusal("resources/read", {"uri": "r://r"}))["code"] == -32600


async def test_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    server = Server("files", version="1.0.0")
    server.add_file(tmp_path / "a.txt", uri="file:///one", scopes=["notes:write"])
    server.add_directory(tmp_path, uri="docs://d", authorize=is_admin)
    for principal, uris in ((READER, []), (WRITER, ["file:///one"]), (ADMIN, ["docs://d/b.txt"])):
        (tmp_path / "late.txt").unlink(missing_ok=True)
        async with CallerWire(server, MODERN, principal) as wire:
            assert [each["uri"] for each in (await wire.ask("resources/list"))["resources"]] == uris
            templates = (await wire.ask("resources/templates/list"))["resourceTemplates"]
            assert len(templates) == (principal is ADMIN)
            for uri in ("file:///one", "docs://d/a.txt", "docs://d/b.txt"):
                answer = await wire.exchange(wire.request("resources/read", {"uri": uri}))
                assert ("result" in answer) == (uri in uris)
            (tmp_path / "late.txt").write_text("late")  # which is not listed yet, but there
            answer = await wire.exchange(wire.request("resources/read", {"uri": "docs://d/late.txt"}))
            assert ("result" in answer) == (principal is ADMIN)


async def test_a_listen_leaves_out_what_the_caller_may_not_read() -> None:
    uris = ["open://one", "scoped://one", "scoped://of/good", "secret://one", "unknown://one", "open://of/bad"]
    for principal, honoured in (
        (READER, ["open://one", "open://of/bad"]),
        (WRITER, ["open://one", "scoped://one", "scoped://of/good", "open://of/bad"]),
        (ADMIN, ["open://one", "secret://one", "open://of/bad"]),
    ):
        server = new_server()
        async with CallerWire(server, MODERN, principal) as wire:
            wanted = {"notifications": {"resourceSubscriptions": uris}}
            wire.send(wire.request("subscriptions/listen", wanted, id="l"))
            assert (await wire.receive())["params"]["notifications"]["resourceSubscriptions"] == honoured
            for uri in uris:
                server.notify_resource_updated(uri)
            assert [(await wire.receive())["params"]["uri"] for _ in honoured] == honoured
            await wire.quiet()


async def test_a_listen_asks_each_function_once() -> None:
    asked: list[Any] = []

    def authorize(principal: Any) -> bool:
        asked.append(principal)
        return True

    server = Server("listen", version="1.0.0")
    server.add_resource("r://{name}", lambda name: name, name="r", authorize=authorize)
    async with CallerWire(server, MODERN, READER) as wire:
        wanted = {"notifications": {"resourceSubscriptions": [f"r://{number}" for number in range(20)]}}
        wire.send(wire.request("subscriptions/listen", wanted, id="l"))
        assert len((await wire.receive())["params"]["notifications"]["resourceSubscriptions"]) == 20
    assert asked == [READER]


# ── inside a call ──


@pytest.mark.parametrize("version", ERAS)
@pytest.mark.parametrize(
    ("principal", "uri", "text", "is_error"),
    [
        (READER, "scoped://one", "This needs the scopes: notes:read notes:write", True),
        (READER, "secret://one", "Resource not found", True),
        (WRITER, "scoped://one", "scoped", False),
        (ADMIN, "secret://one", "secret", False),
    ],
)
async def test_a_tool_reads_as_its_caller(
    version: str, principal: Principal, uri: str, text: str, is_error: bool
) -> None:
    server = new_server()

    @server.tool
    async def peek(uri: str, ctx: Context) -> str:
        (contents,) = await ctx.read_resource(uri)
        return str(contents.text)

    async with CallerWire(server, version, principal) as wire:
        result = await wire.ask("tools/call", {"name": "peek", "arguments": {"uri": uri}})
        assert result["content"][0]["text"] == text
        assert result.get("isError", False) == is_error


async def test_a_tool_can_catch_a_refusal_in_a_thread_too() -> None:
    server = new_server()

    @server.tool
    def peek(ctx: Context) -> str:
        try:
            return str(ctx.wait(ctx.read_resource("scoped://one"))[0].text)
        except ToolError as refusal:
            return f"caught: {refusal}"

    async with CallerWire(server, MODERN, READER) as wire:
        result = await wire.ask("tools/call", {"name": "peek"})
        assert result["content"][0]["text"].startswith("caught: This needs the scopes")


@pytest.mark.parametrize("principal", [NOBODY, WRITER, ADMIN])
async def test_a_tool_knows_who_calls_it(principal: Principal | None) -> None:
    seen: list[Principal | None] = []
    server = Server("who", version="1.0.0")

    @server.tool
    def who(ctx: Context) -> None:
        seen.append(ctx.principal)

    async with CallerWire(server, MODERN, principal) as wire:
        await wire.ask("tools/call", {"name": "who"})
    assert seen == [principal]
