"""`ctx.upstream_token()`: the caller's token at the provider, wherever an author's function runs."""

from typing import Annotated, Any

import pytest

from dovetail import Client, Context, Depends, Server, ToolError
from provider_stage import signing

CALLS = [("tools", name) for name in ("tool", "def_tool", "with_dependency", "child_mounted")]
READS = [("resources", uri) for uri in ("notes://token", "notes://ann/token")]


async def dependency(ctx: Context) -> str:
    return await ctx.upstream_token()


def notes(auth: Any) -> Server:
    server, child = Server("notes", auth=auth), Server("child")

    @server.tool
    async def tool(ctx: Context) -> str:
        return await ctx.upstream_token()

    @server.tool
    def def_tool(ctx: Context) -> str:
        return ctx.wait(ctx.upstream_token())

    @server.tool
    async def with_dependency(token: Annotated[str, Depends(dependency)]) -> str:
        return token

    @server.resource("notes://token")
    async def resource(ctx: Context) -> str:
        return await ctx.upstream_token()

    @server.resource("notes://{name}/token")
    async def template(name: str, ctx: Context) -> str:
        return await ctx.upstream_token()

    @server.prompt
    async def prompt(ctx: Context) -> str:
        return await ctx.upstream_token()

    @child.tool
    async def mounted(ctx: Context) -> str:
        return await ctx.upstream_token()

    server.mount(child, namespace="child")
    return server


async def token_seen(client: Client, kind: str, name: str) -> str:
    if kind == "tools":
        return str((await client.call_tool(name)).text)
    if kind == "resources":
        return str((await client.read_resource(name))[0].text)
    return str((await client.get_prompt(name)).messages[0].content.text)


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize(("kind", "name"), [*CALLS, *READS, ("prompts", "prompt")])
async def test_every_kind_of_function_gets_a_good_token(kind: str, name: str, revision: str) -> None:
    async with signing("keycloak") as here:
        server = notes(here.stage.server)
        token = (await here.tokens())["access_token"]
        async with Client(server, auth=token, protocol_version=revision) as client:
            first = await token_seen(client, kind, name)
            assert here.at.is_good(first)
            here.stage.clock.now += 301
            second = await token_seen(client, kind, name)
            assert second != first
            assert here.at.is_good(second)
            assert here.at.refreshes == 1


async def test_a_provider_that_is_down_is_the_failure_of_one_call() -> None:
    async with signing("keycloak") as here:
        token = (await here.tokens())["access_token"]
        async with Client(notes(here.stage.server), auth=token) as client:
            here.stage.clock.now += 301
            here.at.failures["refresh"] = "down"
            with pytest.raises(ToolError, match="Keycloak does not answer as it should at the moment"):
                await client.call_tool("tool")
            here.at.failures.clear()
            assert here.at.is_good(await token_seen(client, "tools", "tool"))
