"""Seed 002: all that a server of 2024-11-05 can offer."""

from dovetail import Completion, Context, Server, ToolError

MAIN_RS = 'fn main() {\n    println!("Hello world!");\n}'
WEATHER_INPUT = {
    "type": "object",
    "properties": {"location": {"type": "string", "description": "City name or zip code"}},
    "required": ["location"],
}


def create_server(*, page_size: int = 1000) -> Server:
    server = Server("ExampleServer", version="1.0.0", page_size=page_size)
    _add_tools(server)
    _add_resources(server)
    _add_prompts(server)
    if page_size == 1:  # something for a second page

        @server.resource("file:///project/README.md", name="README.md")
        def readme() -> str:
            return "# A project\n"

    return server


def _add_tools(server: Server) -> None:
    @server.tool(description="Fetch current weather by city name or zip code", input_schema=WEATHER_INPUT)
    async def get_weather(location: str, ctx: Context) -> str:
        if location == "everywhere":
            raise ToolError("API request failed: rate limit exceeded")
        if location == "Atlantis":
            details = {"host": "localhost", "port": 5432}
            await ctx.error({"error": "Connection failed", "details": details}, logger="database")
        return f"Current weather in {location}: 72°F, Partly cloudy"


def _add_resources(server: Server) -> None:
    @server.resource(
        "file:///project/src/main.rs", name="main.rs", description="Rust entry point", mime_type="text/x-rust"
    )
    def main_rs() -> str:
        return MAIN_RS


def _add_prompts(server: Server) -> None:
    @server.prompt(description="Analyze code quality and suggest improvements")
    def code_review(code: str) -> str:
        """Ask for a review.

        Args:
            code: Python code to review
        """
        return f"Please review this code:\n{code}"

    @server.completion(prompt="code_review", argument="language")
    def languages(value: str) -> Completion:
        known = ["python", "pytorch", "pyside", "go", "rust"]
        return Completion([name for name in known if name.startswith(value)], total=10, has_more=True)


server = create_server()

if __name__ == "__main__":
    server.run()
