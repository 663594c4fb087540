from typing import Any

from dovetail import Annotations, Image, ResourceLink, Server, Text, ToolResult

server = Server("pictures", version="1.0.0")
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c4944415408d763605078000001420101ab2d26a90000000049454e44ae426082"
)


@server.tool
def picture() -> list[Text | Image]:
    """A caption and an image."""
    return [Text("One blue pixel:"), Image(PIXEL)]


@server.tool
def manual() -> ResourceLink:
    """Where to read on."""
    return ResourceLink(uri="docs://manual", name="manual", mime_type="text/markdown")


@server.tool
def search(text: str) -> ToolResult:
    """Everything that a result can hold."""
    found: dict[str, Any] = {"hits": [text.upper()]}
    note = Text("1 hit", annotations=Annotations(audience=["user"]))
    return ToolResult(content=[note], structured=found, meta={"example.com/took-ms": 3})


if __name__ == "__main__":
    server.run()
