"""A page of the user's own, and what a client gets of it."""

import json
from typing import Any

from dovetail.transports.asgi import App
from dovetail.transports.routes import PageRequest, route_app


class Got:
    """An answer, put together again."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        assert [message["type"] for message in messages[:1]] == ["http.response.start"]
        self.status: int = messages[0]["status"]
        self.raw = [(name.decode(), value.decode("latin-1")) for name, value in messages[0]["headers"]]
        self.headers = dict(self.raw)
        assert len(self.raw) == len(self.headers)
        self.body = b"".join(message["body"] for message in messages[1:])
        self.ended = not messages[-1].get("more_body", False)

    @property
    def error(self) -> dict[str, Any]:
        """The error, after the checks that every refusal has to pass."""
        assert self.headers["content-type"] == "application/json"
        message = json.loads(self.body)
        assert message.keys() == {"jsonrpc", "error"}
        return message["error"]


async def ask(app: App, method: str = "GET", path: str = "/page", body: bytes | list[bytes] = b"", **scope: Any) -> Got:
    pieces = [body] if isinstance(body, bytes) else list(body)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not pieces:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        sent.append(message)

    whole = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b"", "root_path": ""}
    await app({**whole, "client": ("192.0.2.1", 5), "asgi": {"spec_version": "2.4"}, **scope}, receive, send)
    return Got(sent)


async def directly(function: Any, *, label: str) -> Any:
    return function()


def page_app(function: Any, methods: Any = ("GET", "POST"), **options: Any) -> App:
    return route_app(function, methods, **{"max_body_bytes": 1000, "run_in_thread": directly, **options})


def lambda_page(make: Any) -> Any:
    async def page(request: PageRequest) -> Any:
        return make()

    return page


async def read_body(request: PageRequest) -> str:
    return str(len(await request.body()))
