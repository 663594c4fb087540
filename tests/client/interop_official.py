"""A server of the official Python SDK with one of everything; it serves stdio."""

from typing import Annotated

import mcp_types as types
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
from pydantic import BaseModel

QUESTION = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="How are you?"))


class Person(BaseModel):
    name: str
    age: int = 30


def ask_person() -> Elicit[Person]:
    return Elicit("What are you called?", Person)


def ask_model() -> Sample:
    return Sample([QUESTION], max_tokens=10)


def ask_roots() -> ListRoots:
    return ListRoots()


class Name(BaseModel):
    value: str


def ask_name() -> Elicit[Name]:
    return Elicit("Who are you?", Name)


def make() -> MCPServer:
    server = MCPServer("made with the SDK", version="1.0")

    @server.tool()
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool()
    async def work(steps: int, ctx: Context) -> str:
        for step in range(steps):
            await ctx.report_progress(step + 1, steps, f"step {step + 1}")
        await ctx.info("worked")
        return "done"

    @server.tool()
    async def fail() -> str:
        raise ToolError("it can't be done")

    @server.resource("notes://all")
    def notes() -> str:
        return "milk"

    @server.resource("notes://{name}/text")
    def note(name: str) -> str:
        return f"the note {name}"

    @server.prompt()
    def review(language: str) -> str:
        return f"Review this {language} program."

    @server.completion()
    async def complete(
        ref: types.PromptReference | types.ResourceTemplateReference,
        argument: types.CompletionArgument,
        context: types.CompletionContext | None,
    ) -> types.Completion:
        return types.Completion(values=[name for name in ("python", "perl", "ruby") if name.startswith(argument.value)])

    @server.tool()
    async def announce(ctx: Context) -> str:
        await ctx.notify_tools_changed()
        await ctx.notify_resource_updated("notes://all")
        return "announced"

    @server.tool()
    async def interview(
        greeting: str,
        person: Annotated[Person, Resolve(ask_person)],
        name: Annotated[Name, Resolve(ask_name)],
        mood: Annotated[types.CreateMessageResult, Resolve(ask_model)],
        roots: Annotated[types.ListRootsResult, Resolve(ask_roots)],
    ) -> str:
        """Asks four things."""
        assert isinstance(mood.content, types.TextContent)
        where = ", ".join(str(root.uri) for root in roots.roots)
        return f"{greeting} {person.name}, {person.age}, {name.value}, {mood.content.text}, {where}"

    return server


if __name__ == "__main__":
    make().run()
