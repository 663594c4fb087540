"""Asks a console as a browser would, without one: requests go in as ASGI, answers come out whole or as they grow."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

HERE = ("127.0.0.1", 50000)
PAGE_HEADERS = {"x-dovetail-console": "1", "sec-fetch-site": "same-origin"}


class Told(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def scope_of(path: str, method: str = "GET", *, client: Any = HERE, root: str = "", **headers: str) -> dict[str, Any]:
    given = {"host": "localhost:8000"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return {
        "type": "http",
        "method": method,
        "path": root + path,
        "root_path": root,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items() if value],
        "client": client,
        "server": ("127.0.0.1", 8000),
        "asgi": {"version": "3.0", "spec_version": "2.4"},
    }


async def ask(app: Any, path: str, method: str = "GET", **options: Any) -> Told:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await asyncio.wait_for(app(scope_of(path, method, **options), receive, send), 10)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Told(sent[0]["status"], headers, b"".join(message["body"] for message in sent[1:]))


async def ask_api(app: Any, name: str, **options: Any) -> Told:
    """As the page itself does."""
    marks = {key.replace("-", "_"): value for key, value in PAGE_HEADERS.items()}
    return await ask(app, f"/console/api/{name}", **{**marks, **options})


class Viewer:
    """A page that watches the live figures, until it leaves."""

    def __init__(self, app: Any) -> None:
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._left = asyncio.Event()
        self.status = 0
        self.told: Any = None  # by the last event
        self.ended = False
        scope = scope_of("/console/api/live") | {"headers": [(b"host", b"localhost"), (b"x-dovetail-console", b"1")]}
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif (body := message["body"]) and self.status == 200:
            assert not self._left.is_set()
            assert body.startswith(b"data: ")
            self._events.put_nowait(json.loads(body.removeprefix(b"data: ")))
        self.ended = message["type"] == "http.response.body" and not message.get("more_body", False)

    async def next(self) -> Any:
        self.told = await asyncio.wait_for(self._events.get(), 10)
        return self.told

    async def until(self, holds: Callable[[Any], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds(await self.next()):
                pass

    async def leave(self) -> None:
        self._left.set()
        await asyncio.wait_for(self.task, 10)
