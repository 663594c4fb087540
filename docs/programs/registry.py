from typing import Any

from dovetail import Server, ToolRegistry

registry = ToolRegistry()
log: list[str] = []


def note() -> None:
    log.append(", ".join(tool.name for tool in registry.get_all_tools()))


async def say(arguments: dict[str, Any]) -> str:
    return f"{arguments['text']}!"


def learn(word: str) -> str:
    if registry.has_tool(word):
        return f"I know {word} already."
    registry.register_tool(
        {
            "name": word,
            "title": word.title(),
            "description": f"Answer in the way of {word}",
            "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
            "annotations": {"readOnlyHint": True, "openWorldHint": False},
            "handler": say,
        }
    )
    return f"I learned {word}."


def forget(word: str = "") -> str:
    if not word:
        registry.off_tools_changed(note)
        registry.clear()
        return "I know nothing."
    return f"I forgot {word}." if registry.unregister_tool(word) else f"I never knew {word}."


def describe(word: str) -> str:
    tool = registry.get_tool(word)
    return "unknown" if tool is None else f"{tool.title}: {tool.description}"


def pages(size: int) -> list[list[str]]:
    found, cursor = [], None
    while True:
        page = registry.list_tools(cursor, page_size=size)
        found.append([tool.name for tool in page.tools])
        if (cursor := page.next_cursor) is None:
            return found


WORD = {"type": "object", "properties": {"word": {"type": "string"}}, "additionalProperties": False}
SIZE = {"type": "object", "properties": {"size": {"type": "integer", "default": 50}}}
registry.register_tool("learn", "Learn a word", {**WORD, "required": ["word"]}, learn)
registry.register_tool("forget", "Forget a word, or all of them", WORD, forget)
registry.register_tool("describe", "What a word does", {**WORD, "required": ["word"]}, describe)
registry.register_tool("pages", "All tools, in pages", SIZE, pages, output_schema={"type": "array"})
registry.register_tool("changes", "What there was after each change", {"type": "object"}, lambda: "; ".join(log))
registry.on_tools_changed(note)
server = Server("words", version="1.0.0", tools=registry)

if __name__ == "__main__":
    server.run()
