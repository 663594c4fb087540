"""What the official conformance suite expects to find on a server, written with public names only.

`python servers/conformance/server.py --port 3101` serves it at http://127.0.0.1:3101/mcp. `fixtures.toml` lists what
the suite wants by name; `expected_failures.toml` says which of it is still to come, and why.
"""

import argparse
import asyncio
import base64
from pathlib import Path
from typing import Annotated, Any

from background import add_background_tools
from questions import add_asking_tools, add_questions_by_hand

from dovetail import Audio, Context, EmbeddedResource, Field, Image, ResourceContents, Server, Text, ToolError

PIXEL = base64.b64decode(  # a PNG of one red pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
)
SILENCE = bytes.fromhex(  # a WAV of one silent sample: 8 bits, mono, 8 kHz
    "524946462600000057415645666d74201000000001000100401f0000401f00000100080064617461010000008000"
)
WATCHED = "test://watched-resource"
PERSON_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def create_server() -> Server:
    server = Server(
        "dovetail-conformance",
        title="Dovetail conformance server",
        version="1.0.0",
        description="Every fixture of the official conformance suite.",
    )
    add_content_tools(server)
    add_reporting_tools(server)
    add_schema_tools(server)
    add_resources(server)
    server.add_skills(Path(__file__).parent / "skills")
    add_prompts(server)
    add_asking_tools(server)
    add_questions_by_hand(server)
    add_background_tools(server)
    add_changing_tools(server)  # what comes back comes back as the last, so that it has to be the last
    return server


def add_content_tools(server: Server) -> None:
    """One tool for each kind of content. The first must accept being called with no arguments."""

    @server.tool
    def test_simple_text() -> str:
        """Return a text."""
        return "This is a simple text response for testing."

    @server.tool
    def test_image_content() -> Image:
        """Return an image."""
        return Image(PIXEL, "image/png")

    @server.tool
    def test_audio_content() -> Audio:
        """Return a sound."""
        return Audio(SILENCE, "audio/wav")

    @server.tool
    def test_embedded_resource() -> EmbeddedResource:
        """Return a resource inside of the result."""
        text = "This is an embedded resource content."
        return EmbeddedResource(ResourceContents("test://embedded-resource", "text/plain", text))

    @server.tool
    def test_multiple_content_types() -> list[Text | Image | EmbeddedResource]:
        """Return a text, an image and a resource."""
        data = ResourceContents("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
        return [Text("Multiple content types test:"), Image(PIXEL, "image/png"), EmbeddedResource(data)]

    @server.tool
    def test_error_handling() -> str:
        """Fail, in words that the model can read."""
        raise ToolError("This tool intentionally returns an error for testing")

    @server.tool
    def greet(name: str) -> str:
        """Greet someone; never as a task."""
        return f"Hello, {name}!"


def add_reporting_tools(server: Server) -> None:
    """Tools that say something before they answer."""

    @server.tool
    async def test_tool_with_progress(ctx: Context) -> str:
        """Report progress three times."""
        for done in (0, 50, 100):
            await ctx.report_progress(done, 100, f"Completed step {done} of 100")
            await asyncio.sleep(0.05)
        return "Done."

    @server.tool
    async def test_tool_with_logging(ctx: Context) -> str:
        """Log three messages."""
        for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await ctx.info(message)
            await asyncio.sleep(0.05)
        return "Logged three messages."

    @server.tool
    async def test_logging_tool(ctx: Context) -> str:
        """Log once: a client that did not ask for it must not hear it."""
        await ctx.info("Nobody asked for this")
        return "Logged one message."

    @server.tool
    async def test_reconnection(ctx: Context) -> str:
        """Hang up in the middle of the call: the client comes back for the answer."""
        await ctx.close_stream(retry=0.5)
        await asyncio.sleep(0.1)
        return "Reconnection test completed successfully."


def add_schema_tools(server: Server) -> None:
    """Tools with something special in their definition."""

    @server.tool(input_schema=PERSON_SCHEMA)
    def json_schema_2020_12_tool(arguments: dict[str, Any]) -> str:
        """Take arguments by a schema that uses all of JSON Schema 2020-12."""
        return f"Called with {sorted(arguments)}."

    @server.tool
    def test_header_parameter(
        region: Annotated[str, Field(description="Also sent as Mcp-Param-Region", header="Region")] = "nowhere",
    ) -> str:
        """Take an argument that HTTP clients mirror into a header."""
        return f"The region is {region}."

    @server.tool(requires=["sampling"])
    def test_missing_capability() -> str:
        """Serve only clients that can sample."""
        return "This client can sample."


def add_changing_tools(server: Server) -> None:
    """Tools that change what the server lists: something goes and comes back, so that all workers list the same."""

    @server.tool
    def test_trigger_tool_change() -> str:
        """Change the list of tools."""
        server.remove_tool("test_passing_tool")
        server.add_tool(test_passing_tool)
        return "The tools have changed."

    @server.tool
    def test_trigger_prompt_change() -> str:
        """Change the list of prompts."""
        server.remove_prompt("test_passing_prompt")
        server.add_prompt(test_passing_prompt)
        return "The prompts have changed."

    @server.tool
    def test_passing_tool() -> str:
        """Come and go."""
        return "Still here."

    @server.prompt
    def test_passing_prompt() -> str:
        """Come and go."""
        return "Still here."


def add_resources(server: Server) -> None:
    @server.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        """A text that never changes."""
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        """An image that never changes."""
        return PIXEL

    @server.resource(WATCHED, mime_type="text/plain")
    def watched_resource() -> str:
        """A text that clients may subscribe to."""
        return "Watched resource content"

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> dict[str, Any]:
        """Data by its id."""
        return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


def add_prompts(server: Server) -> None:
    @server.prompt
    def test_simple_prompt() -> str:
        """A prompt without arguments."""
        return "This is a simple prompt for testing."

    @server.prompt
    def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        """A prompt with two arguments."""
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.completion(prompt="test_prompt_with_arguments", argument="arg1")
    def complete_arg1(value: str) -> list[str]:
        return [word for word in ("paris", "park", "party") if word.startswith(value)]

    @server.prompt
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[EmbeddedResource | str]:
        """A prompt that carries a resource."""
        text = "Embedded resource content for testing."
        embedded = EmbeddedResource(ResourceContents(resourceUri, "text/plain", text))
        return [embedded, "Please process the embedded resource above."]

    @server.prompt
    def test_prompt_with_image() -> list[Image | str]:
        """A prompt that carries an image."""
        return [Image(PIXEL, "image/png"), "Please analyze the image above."]


server = create_server()

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve the fixtures of the conformance suite over HTTP.")
    parser.add_argument("--port", type=int, default=3101)
    server.run(transport="http", port=parser.parse_args().port)
