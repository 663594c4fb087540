"""The server that the HTTP tests ask, and what they expect of a refusal and of the request after it."""

import asyncio
import json
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from dovetail import Context, Field, Server
from http_wire import CLIENT, META, MODERN, Exchange, HttpWire

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STREAMABLE = LEGACY[1:]  # those that define Streamable HTTP; the oldest is served over it all the same
PARSE_ERROR, INVALID_REQUEST, NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
MISMATCH, MISSING_CAPABILITY, UNSUPPORTED = -32020, -32021, -32022
VERSION_KEY, CAPABILITIES_KEY, CLIENT_KEY = META
LOG_KEY = "io.modelcontextprotocol/logLevel"
ANSWER = {"jsonrpc": "2.0", "id": "q", "result": {}}
INSIDES = ("Traceback", "msgspec", ".py", "Exception", "0x7", "object at", "/src/")


@dataclass(frozen=True)
class Place:
    zone: Annotated[str, Field(header="Time-Zone")]


def new_server(**options: Any) -> Server:
    server = Server("asked", version="1.0.0", **options)

    @server.tool
    async def add(a: int, b: int = 2) -> int:
        return a + b

    @server.tool
    async def chatty(ctx: Context, seconds: float = 0) -> str:
        await ctx.report_progress(1, 2)
        await asyncio.sleep(seconds)
        await ctx.report_progress(2, 2)
        return "done"

    @server.tool
    async def talk(ctx: Context) -> str:
        await ctx.info("something happened")
        return "done"

    @server.tool
    async def wait(seconds: float = 0) -> str:
        await asyncio.sleep(seconds)
        return f"{seconds:g}"

    @server.tool(requires=["elicitation"])
    async def asking() -> str:
        return "asked"

    @server.tool
    async def weather(
        region: Annotated[str, Field(header="Region")] = "here",
        days: Annotated[int, Field(header="Days")] = 1,
        brief: Annotated[bool, Field(header="Brief")] = False,
        place: Place = Place("nowhere"),  # noqa: B008
        unmarked: str | None = None,
    ) -> str:
        return json.dumps([region, days, brief, place.zone, unmarked])

    @server.resource("notes://all")
    async def all_notes() -> str:
        return "all"

    @server.resource("notes://{note}")
    async def one_note(note: str) -> str:
        return note

    @server.prompt
    async def review(code: str = "x") -> str:
        return code

    return server


def check_refusal(answer: Exchange, status: int, code: int, id: Any = None) -> str:
    """A refusal in JSON that says no more than it should; without an id if it has none to echo. Gives its words."""
    assert answer.status == status, answer.raw
    message = answer.json
    assert message.keys() == {"jsonrpc", "error"} | ({"id"} if id is not None else set()), message
    assert message["error"]["code"] == code, message
    assert (message.get("id"), type(message.get("id"))) == (id, type(id))
    text: str = message["error"]["message"]
    assert text
    assert len(text) < 600
    assert not any(word in text for word in INSIDES), text
    return text


async def check_alive(app: Any) -> None:
    """Both eras are served as if nothing had happened."""
    assert (await HttpWire(app).call("add", {"a": 1})).answer["result"]["content"][0]["text"] == "3"
    wire = await HttpWire.session(app, "2025-06-18")
    assert (await wire.call("add", {"a": 2})).answer["result"]["content"][0]["text"] == "4"
    assert (await wire.delete()).status == 204


# ── what is sent ──


def message(method: str, params: Any = ..., *, id: Any = "q") -> dict[str, Any]:
    """A request; without an id a notification."""
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if id is not None:
        body["id"] = id
    return body if params is ... else {**body, "params": params}


def modern(method: str, params: dict[str, Any] | None = None, *, id: Any = "q", **meta: Any) -> dict[str, Any]:
    """A request of 2026-07-28; `meta` changes its `_meta`, and leaves out what is given as `...`."""
    keys = {"version": VERSION_KEY, "capabilities": CAPABILITIES_KEY, "client": CLIENT_KEY, "log": LOG_KEY}
    changed = {**META, **{keys.get(name, name): value for name, value in meta.items()}}
    return message(method, {**(params or {}), "_meta": {k: v for k, v in changed.items() if v is not ...}}, id=id)


def hello(version: str, **changes: Any) -> dict[str, Any]:
    return message(
        "initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT, **changes}, id="q"
    )


def mirrored(method: str, name: str | None = None, version: str | None = MODERN, **more: str) -> dict[str, str]:
    headers = {"mcp-protocol-version": version, "mcp-method": method, "mcp-name": name}
    return {key: value for key, value in headers.items() if value is not None} | {
        key.replace("_", "-"): value for key, value in more.items()
    }


def H(version: str) -> dict[str, str]:  # as the table calls it
    return {"mcp-protocol-version": version}


def row(name: str, rules: str, *cells: Any) -> Any:
    return pytest.param(*cells, id=name, marks=pytest.mark.rule(*rules.split()))


async def post(wire: HttpWire, body: Any, headers: dict[str, str | None] | None = None) -> Exchange:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await wire.raw("POST", data, headers).done()
