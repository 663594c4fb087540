"""Seed 000: a server that offers tools and nothing else."""

from dovetail import Server, ToolError

server = Server("seed-000", version="1.0.0", logging=False)


@server.tool(
    description="Get current weather information by city or zip code",
    input_schema={
        "type": "object",
        "properties": {"location": {"type": "string", "description": "City name or zip code"}},
        "required": ["location"],
    },
)
async def get_weather(location: str) -> str:
    if location == "everywhere":
        raise ToolError("API request failed: rate limit exceeded")
    return f"Weather in {location}: 72°F, partly cloudy"


if __name__ == "__main__":
    server.run()
