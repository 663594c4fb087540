from typing import Any

from dovetail import Server, ToolRegistry

registry = ToolRegistry()


async def shout(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": arguments["text"].upper() + "!" * arguments["marks"]}]}


registry.register_tool(
    name="shout",
    description="Say it louder",
    input_schema={
        "type": "object",
        "properties": {"text": {"type": "string"}, "marks": {"type": "integer", "default": 1}},
        "required": ["text"],
    },
    handler=shout,
)
server = Server("shouting", version="1.0.0", tools=registry)

if __name__ == "__main__":
    server.run()
