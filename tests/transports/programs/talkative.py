"""A server whose tools log, return and raise what they are told; an argument holds JSON: environment and options."""

import asyncio
import json
import logging
import os
import sys
from typing import Any

from dovetail import Server
from dovetail.auth import ApiKeys

options = json.loads(sys.argv[1])
os.environ.update(options.get("environment", {}))
over_http = options.get("transport") == "http"
keys = {"auth": ApiKeys(options["keys"])} if "keys" in options else {}
server = Server("talkative", audit=True, **keys)
own = logging.getLogger("dovetail.talkative")


def text_of(codes: list[int]) -> str:
    """Any text, also one that JSON can't carry."""
    return "".join(map(chr, codes))


@server.tool
async def speak(codes: list[int]) -> str:
    """In its own task, in a child of it, and in a thread."""
    text = text_of(codes)
    own.warning(text)
    await asyncio.gather(asyncio.to_thread(own.info, "%s", text), asyncio.create_task(note(text)))
    return text


async def note(text: str) -> None:
    own.warning("noted %r", [text])


@server.tool
def fail(codes: list[int]) -> str:
    raise ValueError(text_of(codes))


@server.tool
def repeat(value: Any) -> Any:
    """Log a value in every way, and return it."""
    own.warning(value)
    own.debug("%s and %r", value, value)
    own.info("given: %s", {"deep": [value]})
    return {"value": value}


@server.tool
def refuse(text: str) -> None:
    try:
        raise ConnectionError(text)
    except ConnectionError as failure:
        raise RuntimeError({"because": text}) from failure


@server.prompt
def ask(topic: str) -> str:
    return topic


@server.resource("note://{name}")
async def read(name: str) -> str:
    return name


if __name__ == "__main__":
    server.run("http", port=0, access_log=True, workers=options.get("workers", 1)) if over_http else server.run()
