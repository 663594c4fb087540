from typing import Any

from dovetail import Server

server = Server("shapes", version="1.0.0")
SIDES = {
    "type": "object",
    "properties": {
        "shape": {"enum": ["square", "rectangle"]},
        "a": {"type": "number", "exclusiveMinimum": 0},
        "b": {"type": "number", "exclusiveMinimum": 0},
        "unit": {"type": "string", "default": "cm"},
    },
    "required": ["shape", "a"],
    "if": {"properties": {"shape": {"const": "rectangle"}}},
    "then": {"required": ["b"]},
}
AREA = {"type": "object", "properties": {"area": {"type": "number"}}, "required": ["area"]}


@server.tool(input_schema=SIDES, output_schema=AREA)
def area(arguments: dict[str, Any]) -> dict[str, Any]:
    """The area of a shape; all arguments come as one dict."""
    a = arguments["a"]
    return {"area": a * arguments.get("b", a), "unit": arguments["unit"]}


@server.tool(input_schema=SIDES)
def outline(shape: str, a: float, b: float = 0, unit: str = "") -> str:
    """The same schema; each argument comes by its name."""
    return f"{2 * (a + (b or a))} {unit}"


if __name__ == "__main__":
    server.run()
