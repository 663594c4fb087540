"""Users' own pages that fail, and what can't be a page or a path."""

import asyncio
import logging
from typing import Any

import pytest
from page_stage import ask, directly, lambda_page, page_app, read_body
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from dovetail.engine.threads import ThreadPool
from dovetail.errors import Busy, ProtocolError, SetupError
from dovetail.transports import routes as routes_module
from dovetail.transports.routes import PageRequest, PageResponse, RouteTable, check_routes, route_app

# --- what goes wrong


def stop() -> None:
    raise SystemExit(3)


def cancel() -> None:
    raise asyncio.CancelledError


def fail() -> None:
    raise ValueError("the secret")


FAILURES = [
    fail,
    stop,
    cancel,
    lambda: None,
    lambda: 7,
    lambda: {"a": object()},
    lambda: PageResponse("x", headers={"x": "a\r\nset-cookie: b"}),
    lambda: PageResponse("x", headers={"x y": "a"}),
    lambda: PageResponse("x", headers={"Content-Length": "1"}),
    lambda: PageResponse("x", media_type="text/html\r\nx: y"),
    lambda: PageResponse("x", status=99),
]


@pytest.mark.parametrize("make", FAILURES)
async def test_a_failure_is_told_in_the_log_and_nowhere_else(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    got = await ask(page_app(lambda_page(make)))
    assert (got.status, got.error) == (500, {"code": -32603, "message": "Internal error"})
    (record,) = [record for record in caplog.records if record.name == "dovetail.http"]
    assert record.levelno == logging.ERROR
    assert "page page (" in record.getMessage()
    assert record.exc_info is not None


async def test_the_traceback_of_a_thread_is_whole(caplog: pytest.LogCaptureFixture) -> None:
    pool = ThreadPool()

    def page(request: PageRequest) -> None:
        fail()

    assert (await ask(page_app(page, run_in_thread=pool.run))).status == 500
    (record,) = [record for record in caplog.records if record.name == "dovetail.http"]
    text = logging.Formatter().format(record)
    assert "the secret" in text
    assert "in fail" in text
    pool.close()


async def test_refusals_of_the_pages_own_keep_their_words(caplog: pytest.LogCaptureFixture) -> None:
    async def refuses(request: PageRequest) -> None:
        raise ProtocolError("There is no such thing", code=-32600, http_status=404)

    async def busy(*_: Any, label: str) -> None:
        raise Busy(f"{label} can't run")

    def blocking(request: PageRequest) -> str:
        return ""

    got = await ask(page_app(refuses))
    assert (got.status, got.error["message"]) == (404, "There is no such thing")
    got = await ask(page_app(blocking, run_in_thread=busy))
    assert (got.status, got.headers["retry-after"]) == (503, "1")
    assert "can't run" in got.error["message"]
    assert not caplog.records


async def test_a_failure_in_the_middle_of_an_answer_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    async def half(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        fail()

    got = await ask(page_app(lambda_page(lambda: half)))
    assert (got.status, got.body, got.ended) == (200, b"half", False)
    assert len(caplog.records) == 1


async def test_a_client_that_leaves_is_no_failure(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def broken(message: Any) -> None:
        raise OSError("broken pipe")

    async def stuck(message: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(routes_module, "SEND_SECONDS", 0.01)
    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    await page_app(read_body)(scope, gone, broken)
    await page_app(lambda_page(lambda: "x"))(scope, gone, broken)
    await page_app(lambda_page(lambda: "x"))(scope, gone, stuck)
    assert not caplog.records


async def test_a_cancelled_request_is_cancelled() -> None:
    async def page(request: PageRequest) -> None:
        await asyncio.sleep(60)

    task = asyncio.create_task(ask(page_app(page)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- what can't be a page


def no_parameter() -> str:
    return ""


def foreign(request: StarletteRequest) -> str:
    return ""


def two(request: PageRequest, other: int) -> str:
    return ""


def generator(request: PageRequest) -> Any:
    yield ""


def variadic(*arguments: Any) -> str:
    return ""


BAD_PAGES = [
    (no_parameter, ["GET"], "a page gets the request; write no_parameter(request: PageRequest)"),
    (foreign, ["GET"], "parameter request: a page gets a PageRequest, not Request"),
    (two, ["GET"], "parameter other: a page gets the request and nothing else"),
    (generator, ["GET"], "generators"),
    (variadic, ["GET"], "parameter arguments"),
    (str, ["GET"], "a class is not a function"),
    (7, ["GET"], "can't be called"),
    (lambda request: "", ["GET"], "lambda"),
    (read_body, [], "methods=[]"),
    (read_body, "GET", "methods='GET'"),
    (read_body, ["GE T"], "methods=['GE T']"),
    (read_body, [None], "methods=[None]"),
    (read_body, None, "methods=None"),
]


@pytest.mark.parametrize(("function", "methods", "words"), BAD_PAGES)
def test_what_can_be_no_page_is_refused_at_once(function: Any, methods: Any, words: str) -> None:
    with pytest.raises(SetupError) as refused:
        page_app(function, methods)
    assert words in str(refused.value)
    assert "page " in str(refused.value)


# --- paths


RESERVED = ["/mcp", "/sse", "/messages", "/health", "/health/live"]


async def named(scope: Any, receive: Any, send: Any) -> None:
    await PageResponse(f"{scope['root_path']}|{scope['path']}")(scope, receive, send)


def test_paths_are_found_with_and_without_a_slash() -> None:
    apps = {path: (lambda *_, path=path: path) for path in ("/", "/about", "/a/b/", "/größe")}
    table = RouteTable(apps, RESERVED)
    for path in ("/about", "/about/", "/a/b", "/a/b/", "/größe", "/", ""):
        app = table.find(path)
        assert app is not None
        assert app().strip("/") == path.strip("/")
    for path in ("/abou", "/about/x", "/about//", "/a", "/ABOUT", "about", "/mcp"):
        assert table.find(path) is None


async def test_a_mount_is_told_where_it_is() -> None:
    table = RouteTable({"/files/*": named, "/files/deep/*": named, "/files/exact": route_app(
        read_body, ["GET"], max_body_bytes=1, run_in_thread=directly)}, RESERVED)  # fmt: skip
    found = {path: (await ask(table.find(path), path=path)).body for path in ("/files", "/files/", "/files/a/b")}
    assert found == {"/files": b"/files|/files", "/files/": b"/files|/files/", "/files/a/b": b"/files|/files/a/b"}
    assert (await ask(table.find("/files/deep/x"), path="/files/deep/x")).body == b"/files/deep|/files/deep/x"
    assert (await ask(table.find("/files/exact"), path="/files/exact")).body == b"0"
    assert table.find("/filesystem") is None
    assert (await ask(table.find("/files/a"), path="/app/files/a", root_path="/app")).body == b"/app/files|/app/files/a"
    assert (await ask(table.find("/files/a"), path="/files/a", root_path="/app/")).body == b"/app/files|/app/files/a"


async def test_a_mounted_starlette_finds_its_way() -> None:
    async def show(request: StarletteRequest) -> PlainTextResponse:
        return PlainTextResponse(f"{request.path_params['name']} {request.url_for('show', name='x').path}")

    inner = Starlette(routes=[Mount("/in", routes=[Route("/{name}", show, name="show")], name=None)])
    table = RouteTable({"/site/*": inner}, RESERVED)
    headers = [(b"host", b"localhost")]
    got = await ask(table.find("/site/in/ann"), path="/site/in/ann", headers=headers, scheme="http", server=None)
    assert (got.status, got.body) == (200, b"ann /site/in/x")


def test_a_mount_for_the_rest() -> None:
    table = RouteTable({"/*": named, "/about": page_app(read_body)}, RESERVED)
    assert table.find("/anything/else") is table.find("/") is not None
    assert table.find("/about") is not table.find("/")
    assert [table.find(path) for path in ("/mcp", "/mcp/", "/health/live")] == [None] * 3
    assert table.find("/mcp/x") is not None


BAD_ROUTES = [
    ("about", "begins with a slash"),
    ("", "begins with a slash"),
    (7, "begins with a slash"),
    ("/mcp", "belongs to the server"),
    ("/mcp/", "belongs to the server"),
    ("/mcp/*", "belongs to the server"),
    ("/health/live", "belongs to the server"),
    ("/users/{id}", "compared as they are"),
    ("/a*", "compared as they are"),
    ("/*/a", "compared as they are"),
    ("/a//b", "compared as they are"),
    ("/a b", "compared as they are"),
    ("/a%20b", "compared as they are"),
    ("/a?b", "compared as they are"),
    ("/a/../b", "compared as they are"),
]


@pytest.mark.parametrize(("path", "words"), BAD_ROUTES)
def test_bad_paths_are_refused_at_once(path: Any, words: str) -> None:
    with pytest.raises(SetupError) as refused:
        check_routes({path: named}, RESERVED)
    assert str(refused.value).startswith(f"route {path!r}: ")
    assert words in str(refused.value)


def test_two_apps_for_one_path_and_what_is_no_app() -> None:
    with pytest.raises(SetupError, match="there are two for this path"):
        check_routes({"/a": named, "/a/": named}, [])
    with pytest.raises(SetupError, match="str is not an ASGI callable"):
        check_routes({"/a": "page"}, [])
    assert list(check_routes({"/a/": named, "/a/*": named}, RESERVED)) == ["/a", "/a/*"]
