import json
from functools import partial
from pathlib import Path

from dovetail import Server

server = Server("phrases", version="1.0.0")
PHRASES = Path(__file__).with_name("phrases.json")  # in real life a database that all workers read


def phrases() -> dict[str, str]:
    return json.loads(PHRASES.read_text()) if PHRASES.exists() else {"hello": "Hello!"}


def say(text: str) -> str:
    return text


@server.on_refresh
def offer_phrases() -> None:
    """One tool for each phrase; every worker runs this."""
    for name, text in phrases().items():
        server.remove_tool(name)
        server.add_tool(partial(say, text), name=name, description=f"Say {text}")


@server.tool
async def reload() -> str:
    """Have every worker offer what there is now."""
    await server.refresh()
    return "reloaded"


offer_phrases()

if __name__ == "__main__":
    server.run(transport="http")
