"""A server of the official SDK's that asks its client in every way it knows; run as a program, it serves stdio."""

from typing import Annotated

import mcp_types as types
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
from pydantic import BaseModel

QUESTION = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="How are you?"))


class Person(BaseModel):
    name: str
    age: int = 30


class Colour(BaseModel):
    colour: str


def ask_person() -> Elicit[Person]:
    return Elicit("Who are you?", Person)


def ask_colour() -> Elicit[Colour]:
    return Elicit("Which colour?", Colour)


def ask_model() -> Sample:
    return Sample([QUESTION], max_tokens=10)


def ask_roots() -> ListRoots:
    return ListRoots()


def make() -> MCPServer:
    server = MCPServer("asking")

    @server.tool()
    async def introduce(
        greeting: str,
        person: Annotated[Person, Resolve(ask_person)],
        colour: Annotated[Colour, Resolve(ask_colour)],
        mood: Annotated[types.CreateMessageResult, Resolve(ask_model)],
        roots: Annotated[types.ListRootsResult, Resolve(ask_roots)],
    ) -> str:
        """In every revision that has forms."""
        assert isinstance(mood.content, types.TextContent)
        where = ", ".join(str(root.uri) for root in roots.roots)
        return f"{greeting} {person.name}, {person.age}, {colour.colour}, {mood.content.text}, {where}"

    @server.tool()
    async def sample(ctx: Context) -> str:
        """As a request of the server's own, as far as there are any."""
        answer = await ctx.session.create_message([QUESTION], max_tokens=10, related_request_id=ctx.request_id)
        assert isinstance(answer.content, types.TextContent)
        return f"{answer.model}: {answer.content.text}"

    @server.tool()
    async def list_roots(ctx: Context) -> str:
        """Aside from the stream of the call."""
        return ", ".join(str(root.uri) for root in (await ctx.session.list_roots()).roots)

    @server.tool()
    async def form(ctx: Context) -> str:
        answer = await ctx.elicit("Who are you?", Person)
        return f"{answer.action} {answer.data.name}, {answer.data.age}" if answer.action == "accept" else answer.action

    @server.tool()
    async def visit(ctx: Context) -> str:
        answer = await ctx.elicit_url("Sign in", "https://example.org/in", "e1")
        await ctx.session.send_elicit_complete("e1", related_request_id=ctx.request_id)
        return answer.action

    return server


if __name__ == "__main__":
    make().run()
