"""Seed 003: the features of 2025-11-25. Lists have pages of one item, as in the document's examples."""

from typing import TypedDict

from dovetail import Message, PromptResult, Server

LOCATION = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}


class Weather(TypedDict):
    temperature: float
    conditions: str


async def structured(location: str) -> Weather:
    return {"temperature": 22.5, "conditions": "Partly cloudy"}


async def unstructured(location: str) -> str:
    return "Temperature: 72F, Partly cloudy"


def create_server(*, output_schema: bool = True) -> Server:
    server = Server("seed-003", version="1.0.0", page_size=1)
    server.add_tool(
        structured if output_schema else unstructured,
        name="get_weather",
        title="Weather Info",
        description="Get current weather for a location",
        input_schema=LOCATION,
        annotations={"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": True},
    )
    server.add_tool(lambda: "sunny", name="forecast", description="Something for a second page")
    _add_resources(server)
    _add_prompts(server)
    return server


def _add_resources(server: Server) -> None:
    @server.resource(
        "file:///project/src/main.rs",
        name="main.rs",
        title="Main File",
        description="Primary entry point",
        mime_type="text/x-rust",
        annotations={"audience": ["user", "assistant"], "priority": 0.8, "lastModified": "2025-01-12T15:00:58Z"},
    )
    def main_rs() -> str:
        return "fn main() { ... }"

    @server.resource("file:///config.json", mime_type="application/json")
    def config() -> str:
        return "{}"

    @server.resource("file:///image.png", mime_type="image/png")
    def image() -> bytes:
        return b"\x89PNG\r\n\x1a\n"

    @server.resource("file:///{path}", name="Project Files", mime_type="application/octet-stream")
    def project_file(path: str) -> bytes:
        return path.encode()


def _add_prompts(server: Server) -> None:
    @server.prompt(title="Request Code Review", description="Asks the LLM to analyze code quality")
    def code_review(code: str) -> PromptResult:
        """Ask for a review.

        Args:
            code: The code to review
        """
        on_two_lines = code.replace("(): ", "():\n    ")
        message = Message("user", f"Please review this Python code:\n{on_two_lines}")
        return PromptResult([message], description="Code review prompt")

    @server.prompt
    def second_page() -> str:
        return "Something for a second page"


server = create_server()

if __name__ == "__main__":
    server.run()
