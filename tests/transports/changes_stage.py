"""What a session's stream says of changes."""

from http_wire import Exchange

TOOLS = "notifications/tools/list_changed"
RESOURCES = "notifications/resources/list_changed"
UPDATED = "notifications/resources/updated"


def methods(stream: Exchange) -> list[str]:
    return [message["method"] for message in stream.messages]


async def leave(*streams: Exchange) -> None:
    for stream in streams:
        stream.leave()
        await stream.done()
