"""Users' own pages: what a function may return, and what it is asked."""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from page_stage import Got, ask, lambda_page, page_app, read_body
from starlette.responses import HTMLResponse, PlainTextResponse, StreamingResponse

from dovetail.engine.threads import ThreadPool
from dovetail.transports.routes import PageRequest, PageResponse

# --- what a page returns


RETURNED = [
    ("hello é", 200, "text/plain; charset=utf-8", "hello é".encode()),
    (b"\x00\xff", 200, "application/octet-stream", b"\x00\xff"),
    ({"a": [1, None]}, 200, "application/json", b'{"a":[1,null]}'),
    ([], 200, "application/json", b"[]"),
    (PageResponse("<p>", media_type="text/html"), 200, "text/html; charset=utf-8", b"<p>"),
    (PageResponse("<p>", headers={"Content-Type": "text/html"}), 200, "text/html; charset=utf-8", b"<p>"),
    (PageResponse(b"<p>", media_type="text/html"), 200, "text/html", b"<p>"),
    (PageResponse({"ok": False}, 503), 503, "application/json", b'{"ok":false}'),
    (PageResponse("a", media_type="image/svg+xml"), 200, "image/svg+xml", b"a"),
    (PlainTextResponse("from Starlette", 418), 418, "text/plain; charset=utf-8", b"from Starlette"),
    (HTMLResponse("<p>"), 200, "text/html; charset=utf-8", b"<p>"),
]


@pytest.mark.parametrize(("value", "status", "kind", "body"), RETURNED)
async def test_what_a_page_may_return(value: Any, status: int, kind: str, body: bytes) -> None:
    async def page(request: PageRequest) -> Any:
        return value

    def blocking_page(request: PageRequest) -> Any:
        return value

    for function in (page, blocking_page):
        got = await ask(page_app(function))
        assert (got.status, got.headers["content-type"], got.body) == (status, kind, body)
        assert got.headers["content-length"] == str(len(body))


async def test_a_page_may_stream() -> None:
    async def numbers() -> AsyncIterator[str]:
        for number in range(3):
            yield str(number)

    got = await ask(page_app(lambda_page(lambda: StreamingResponse(numbers()))))
    assert (got.status, got.body, got.ended) == (200, b"012", True)


async def test_headers_and_empty_answers() -> None:
    got = await ask(page_app(lambda_page(lambda: PageResponse(status=204, headers={"X-Colour": "grün"}))))
    assert (got.status, got.body, got.headers["x-colour"]) == (204, b"", "grün")
    assert "content-length" not in got.headers


async def test_head_comes_with_get_and_has_no_body() -> None:
    app = page_app(lambda_page(lambda: "hello"), ["get"])
    got = await ask(app, "HEAD")
    assert (got.status, got.body, got.headers["content-length"]) == (200, b"", "5")


async def test_a_blocking_page_runs_in_a_thread() -> None:
    pool = ThreadPool()

    def page(request: PageRequest) -> str:
        return threading.current_thread().name

    got = await ask(page_app(page, run_in_thread=pool.run))
    assert got.body.startswith(b"dovetail-")
    pool.close()


async def test_callables_of_all_kinds() -> None:
    class Counter:
        def __init__(self) -> None:
            self.visits = 0

        async def page(self, request: PageRequest) -> str:
            self.visits += 1
            return str(self.visits)

        async def __call__(self, request) -> str:
            return "called"

    async def page(request: PageRequest, limit: int = 5) -> str:
        return str(limit)

    def returns_awaitable(request: "PageRequest") -> Any:
        return request.json()

    assert (await ask(page_app(Counter().page))).body == b"1"
    assert (await ask(page_app(Counter()))).body == b"called"
    assert (await ask(page_app(functools.partial(page, limit=7)))).body == b"7"
    assert (await ask(page_app(returns_awaitable), "POST", body=b"[1]")).body == b"[1]"


# --- what a page is told


async def test_the_request() -> None:
    seen: list[PageRequest] = []

    async def page(request: PageRequest) -> dict[str, Any]:
        seen.append(request)
        assert await request.body() is await request.body()
        return {"json": await request.json()}

    headers = [(b"x-a", b"1"), (b"x-a", b"2")]
    got = await ask(page_app(page), "POST", "/p", [b'{"a"', b":1}"], query_string=b"a=1&b=%C3%A9&a=&c", headers=headers)
    assert got.body == b'{"json":{"a":1}}'
    (request,) = seen
    assert (request.method, request.path, request.client) == ("POST", "/p", "192.0.2.1")
    assert request.query == {"a": ["1", ""], "b": ["é"], "c": [""]}
    assert request.headers.all("x-a") == ["1", "2"]
    assert (await ask(page_app(page), "POST", body=b"1", client=None)).status == 200
    assert seen[-1].client is None


async def read_query(request: PageRequest) -> str:
    return str(len(request.query))


async def read_json(request: PageRequest) -> list[Any]:
    return [await request.json()]


BAD_REQUESTS = [
    (read_body, {"body": b"x" * 1001}, 413),
    (read_body, {"body": [b"x" * 600, b"y" * 600, b""]}, 413),
    (read_body, {"headers": [(b"content-length", b"99999999999999999999")]}, 413),
    (read_body, {"body": b"x" * 1000}, 200),
    (read_json, {"body": b"{"}, 400),
    (read_json, {"body": b"\xff"}, 400),
    (read_json, {"body": b"[" * 1000}, 400),
    (read_json, {"body": b""}, 400),
    (read_query, {"query_string": b"a&" * 2000}, 400),
    (read_query, {"query_string": b"\xff\xfe=%ff&%"}, 200),
]


@pytest.mark.parametrize(("function", "request_parts", "status"), BAD_REQUESTS)
async def test_bad_requests(function: Any, request_parts: dict[str, Any], status: int) -> None:
    got = await ask(page_app(function), "POST", **request_parts)
    assert got.status == status
    if status >= 400:
        assert got.error["message"]


async def test_a_body_that_does_not_come_is_given_up() -> None:
    async def never() -> Any:
        await asyncio.sleep(60)

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    await page_app(read_body, body_timeout=0.01)(scope, never, send)
    assert Got(sent).status == 408
    assert Got(sent).error


@pytest.mark.parametrize("method", ["PUT", "OPTIONS", "NONSENSE" * 100])
async def test_other_methods_are_refused(method: str) -> None:
    got = await ask(page_app(read_body, ["GET", "POST"]), method)
    assert (got.status, got.headers["allow"]) == (405, "GET, POST, HEAD")
    assert method[:20] in got.error["message"]
    assert method == method[:20] or method not in got.error["message"]
