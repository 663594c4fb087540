"""A FastAPI app in process: each call by HTTP and by tool gives the same."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

import httpx
import pytest
from fastapi import (
    BackgroundTasks,
    Body,
    Cookie,
    Depends,
    FastAPI,
    File,
    Form,
    Header,
    HTTPException,
    Query,
    Request,
    Response,
    UploadFile,
)
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, StreamingResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from dovetail import Client, Server, SetupError, ToolError
from dovetail.openapi import OpenApi

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Owner(BaseModel):
    name: str
    born: date | None = None


class Pet(BaseModel):
    name: str
    tags: list[str] = []
    owner: Owner | None = None
    weight: float = Field(1.5, alias="weightKg")


class Page(BaseModel):
    limit: int = 10
    order: Colour = Colour.RED


events: list[str] = []


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    events.append("start")
    yield {"greeting": "hello"}
    events.append("stop")


app = FastAPI(title="Pet shop", version="2.1", lifespan=lifespan)


@app.get("/pets/{pet_id}")
def get_pet(pet_id: int) -> Pet:
    if pet_id == 404:
        raise HTTPException(404, "there is no such pet")
    return Pet(name=f"pet {pet_id}", weightKg=2)


@app.get("/files/{name:path}")
def get_file(name: str) -> str:
    return name


@app.get("/uuids/{value}/{colour}")
def get_typed(value: UUID, colour: Colour) -> list[str]:
    return [str(value), colour.value]


@app.get("/search")
def search(q: str, limit: int = 10, exact: bool = False, since: datetime | None = None) -> dict[str, Any]:
    return {"q": q, "limit": limit, "exact": exact, "since": since}


@app.get("/lists")
def lists(ids: Annotated[list[int], Query()] = [], colours: Annotated[list[Colour], Query()] = []) -> Any:  # noqa: B006
    return [ids, colours]


@app.get("/aliased")
def aliased(value: Annotated[str, Query(alias="item-query", min_length=2)]) -> str:
    return value


@app.get("/model")
def model(page: Annotated[Page, Query()]) -> Page:
    return page


@app.get("/headers")
def headers(x_trace: Annotated[str | None, Header()] = None, strange: Annotated[list[str], Header()] = []) -> Any:  # noqa: B006
    return {"trace": x_trace, "strange": strange}


@app.get("/agent")
def agent(request: Request, user_agent: Annotated[str, Header()]) -> Any:
    return request.headers.getlist("user-agent")


@app.get("/cookie")
def cookie(session: Annotated[str | None, Cookie()] = None) -> Any:
    return {"session": session}


@app.post("/pets", status_code=201)
def add_pet(pet: Pet) -> Pet:
    return pet


@app.put("/pets/{pet_id}")
def put_pet(pet_id: int, pet: Pet, notify: bool = False) -> Any:
    return {"id": pet_id, "pet": pet, "notify": notify}


@app.patch("/pets/{pet_id}")
def patch_pet(pet_id: int, changes: dict[str, Any]) -> Any:
    return changes


@app.delete("/pets/{pet_id}", status_code=204)
def delete_pet(pet_id: int) -> None:
    return None


@app.post("/two")
def two(pet: Pet, owner: Owner, importance: Annotated[int, Body()]) -> Any:
    return [pet, owner, importance]


@app.post("/embedded")
def embedded(pet: Annotated[Pet, Body(embed=True)]) -> Pet:
    return pet


@app.post("/numbers")
def numbers(values: list[int]) -> int:
    return sum(values)


@app.post("/maybe")
def maybe(pet: Pet | None = None) -> Any:
    return pet


@app.post("/clash/{name}")
def clash(name: str, pet: Pet) -> Any:
    return [name, pet.name]


@app.post("/login")
def login(user: Annotated[str, Form()], code: Annotated[int, Form()], tags: Annotated[list[str], Form()] = []) -> Any:  # noqa: B006
    return [user, code, tags]


@app.post("/upload")
async def upload(file: UploadFile, note: Annotated[str, Form()] = "none") -> Any:
    return {"size": len(await file.read()), "type": file.content_type, "note": note}


@app.post("/uploads")
async def uploads(files: list[UploadFile]) -> Any:
    return [(await each.read()).hex() for each in files]


@app.post("/bytes")
def raw_bytes(data: Annotated[bytes, File()]) -> str:
    return data.hex()


@app.post("/text")
async def text(body: Annotated[str, Body(media_type="text/plain")], request: Request) -> PlainTextResponse:
    return PlainTextResponse((await request.body()).decode() + "!")


@app.get("/image", response_class=Response)
def image() -> Response:
    return Response(PNG, media_type="image/png")


@app.get("/blob", response_class=Response)
def blob() -> Response:
    return Response(b"\0\1\2", media_type="application/zip")


@app.get("/html", response_class=Response)
def html() -> Response:
    return Response("<p>é</p>".encode("latin-1"), media_type="text/html; charset=iso-8859-1")


@app.get("/stream", response_class=Response)
def stream() -> StreamingResponse:
    return StreamingResponse(iter([b"one ", b"two"]), media_type="text/plain")


@app.get("/moved", response_class=Response)
def moved() -> RedirectResponse:
    return RedirectResponse("/search?q=moved", 302)


@app.post("/kept", response_class=Response)
def kept() -> RedirectResponse:
    return RedirectResponse("/numbers", 307)


@app.get("/teapot")
def teapot() -> JSONResponse:
    return JSONResponse({"error": {"message": "I'm a teapot"}}, 418)


@app.get("/broken")
def broken() -> None:
    raise RuntimeError("an inside that no client sees")


@app.get("/state")
def state(request: Request) -> str:
    return str(request.state.greeting)


@app.get("/secure")
def secure(token: Annotated[Any, Depends(HTTPBearer())]) -> str:
    return f"Hello, {token.credentials[:3]}"


B64 = base64.b64encode(b"\0\1").decode()
DOG = {"name": "Rex", "tags": ["a", "ü"], "weightKg": 3.5}
CALLS: list[tuple[str, dict[str, Any], str, str, dict[str, Any]]] = [
    ("get_pet", {"pet_id": 7}, "GET", "/pets/7", {}),
    ("get_pet", {"pet_id": 404}, "GET", "/pets/404", {}),
    ("get_file", {"name": "a b/c?d"}, "GET", "/files/a%20b/c%3Fd", {}),
    ("get_typed", {"value": "6b6b5b1e-7a54-4a3c-9d6e-0f8f3b9f7a11", "colour": "blue"}, "GET",
     "/uuids/6b6b5b1e-7a54-4a3c-9d6e-0f8f3b9f7a11/blue", {}),
    ("search", {"q": "a&b=ü", "exact": True}, "GET", "/search", {"params": {"q": "a&b=ü", "exact": "true"}}),
    ("search", {"q": "x", "limit": 3, "since": "2026-01-02T03:04:05Z"}, "GET", "/search",
     {"params": {"q": "x", "limit": 3, "since": "2026-01-02T03:04:05Z"}}),
    ("lists", {"ids": [1, 2], "colours": ["red"]}, "GET", "/lists?ids=1&ids=2&colours=red", {}),
    ("lists", {}, "GET", "/lists", {}),
    ("aliased", {"item-query": "xyz"}, "GET", "/aliased?item-query=xyz", {}),
    ("model", {"limit": 4, "order": "blue"}, "GET", "/model?limit=4&order=blue", {}),
    ("headers", {"x-trace": "t1", "strange": ["a"]}, "GET", "/headers", {"headers": {"x-trace": "t1", "strange": "a"}}),
    ("agent", {"user-agent": "me"}, "GET", "/agent", {"headers": {"User-Agent": "me"}}),
    ("cookie", {}, "GET", "/cookie", {}),
    ("add_pet", DOG, "POST", "/pets", {"json": DOG}),
    ("add_pet", {"name": "A", "owner": {"name": "B", "born": "2000-01-01"}}, "POST", "/pets",
     {"json": {"name": "A", "owner": {"name": "B", "born": "2000-01-01"}}}),
    ("put_pet", {"pet_id": 1, **DOG, "notify": True}, "PUT", "/pets/1?notify=true", {"json": DOG}),
    ("patch_pet", {"pet_id": 1, "body": {"a": [1, None]}}, "PATCH", "/pets/1", {"json": {"a": [1, None]}}),
    ("numbers", {"body": [1, 2, 3]}, "POST", "/numbers", {"json": [1, 2, 3]}),
    ("maybe", {}, "POST", "/maybe", {}),
    ("maybe", {"body": DOG}, "POST", "/maybe", {"json": DOG}),
    ("clash", {"name": "path", "name_body": "body"}, "POST", "/clash/path", {"json": {"name": "body"}}),
    ("text", {"body": "hä"}, "POST", "/text", {"content": "hä".encode(), "headers": {"Content-Type": "text/plain"}}),
    ("kept", {}, "POST", "/kept", {}),
    ("broken", {}, "GET", "/broken", {}),
    ("delete_pet", {"pet_id": 1}, "DELETE", "/pets/1", {}),
    ("two", {"pet": DOG, "owner": {"name": "O"}, "importance": 5}, "POST", "/two",
     {"json": {"pet": DOG, "owner": {"name": "O"}, "importance": 5}}),
    ("embedded", {"pet": DOG}, "POST", "/embedded", {"json": {"pet": DOG}}),
    ("login", {"user": "a b&c", "code": 3, "tags": ["x", "y"]}, "POST", "/login",
     {"data": {"user": "a b&c", "code": 3, "tags": ["x", "y"]}}),
    ("upload", {"file": B64, "note": "é"}, "POST", "/upload",
     {"files": {"file": ("file", b"\0\1", "application/octet-stream")}, "data": {"note": "é"}}),
    ("uploads", {"files": [B64, B64]}, "POST", "/uploads",
     {"files": [("files", ("f", b"\0\1")), ("files", ("f", b"\0\1"))]}),
    ("raw_bytes", {"data": B64}, "POST", "/bytes", {"files": {"data": ("d", b"\0\1")}}),
    ("image", {}, "GET", "/image", {}),
    ("blob", {}, "GET", "/blob", {}),
    ("html", {}, "GET", "/html", {}),
    ("stream", {}, "GET", "/stream", {}),
    ("moved", {}, "GET", "/moved", {}),
    ("teapot", {}, "GET", "/teapot", {}),
    ("state", {}, "GET", "/state", {}),
    ("secure", {}, "GET", "/secure", {"headers": {"Authorization": "Bearer token-of-ours"}}),
]  # fmt: skip


def api(**options: Any) -> OpenApi:
    def name(operation_id: str | None, method: str, path: str) -> str:
        return next(route.name for route in app.routes if getattr(route, "unique_id", "") == operation_id)

    return OpenApi.from_app(app, names=name, auth="token-of-ours", **options)


def value_of(response: httpx.Response) -> Any:
    kind = response.headers.get("content-type", "")
    if not response.content:
        return f"{response.status_code} {response.reason_phrase}"
    return (
        response.json()
        if kind.startswith("application/json")
        else response.text
        if "text/" in kind
        else response.content
    )


def value_in(result: Any) -> Any:
    if result.structured is not None:
        return (
            result.structured.get("result", result.structured)
            if isinstance(result.structured, dict)
            else result.structured
        )
    (block,) = result.content
    if hasattr(block, "text"):
        try:
            return json.loads(block.text)
        except ValueError:
            return block.text
    return block.data if hasattr(block, "data") else block.resource.blob


@pytest.mark.parametrize(
    ("tool", "arguments", "method", "url", "options"), CALLS, ids=[f"{c[0]}-{n}" for n, c in enumerate(CALLS)]
)
async def test_a_call_gives_the_same_by_http_and_by_tool(
    tool: str, arguments: dict[str, Any], method: str, url: str, options: dict[str, Any]
) -> None:
    """`arguments` with "body" are those of an operation whose body is one argument."""
    if tool == "state":
        expected: Any = (200, "hello")
    else:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=False),
            base_url="http://localhost",
            follow_redirects=True,
        ) as http:
            response = await http.request(method, url, **options)
            expected = (response.status_code, value_of(response))
    async with Client(api()) as client:
        result = await client.call_tool(tool, arguments, raise_on_error=False)
    if expected[0] >= 400:
        assert result.is_error
        assert f" answered {expected[0]}" in result.text
        assert "inside" not in result.text
    else:
        assert not result.is_error, result.text
        assert value_in(result) == expected[1]


async def test_the_lifespan_of_the_app_is_that_of_the_server_unless_it_runs_elsewhere() -> None:
    events.clear()
    server = Server("desk")
    server.mount(api(), namespace="shop")
    async with Client(server) as client:
        assert (await client.call_tool("shop_state")).text == '"hello"'
        assert events == ["start"]
    assert events == ["start", "stop"]
    async with Client(api(lifespan=False)) as client:
        await client.call_tool("get_pet", {"pet_id": 1})
    assert events == ["start", "stop"]


async def test_a_failing_startup_fails_the_server() -> None:
    @asynccontextmanager
    async def failing(app: Any) -> AsyncIterator[None]:
        raise RuntimeError("no database")
        yield

    broken_app = FastAPI(lifespan=failing)
    broken_app.get("/x")(lambda: 1)
    with pytest.raises(Exception, match="no database"):
        async with Client(OpenApi.from_app(broken_app)):
            pass


async def test_background_work_goes_on_after_the_response_and_before_the_end() -> None:
    go, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go.wait()
        done.set()

    background_app = FastAPI()

    @background_app.post("/start", operation_id="start")
    async def start(tasks: BackgroundTasks) -> str:
        tasks.add_task(work)
        return "started"

    async with Client(OpenApi.from_app(background_app)) as client:
        assert (await client.call_tool("start")).data == '"started"'
        assert not done.is_set()
        go.set()
    assert done.is_set()


async def test_an_app_that_waits_is_stopped_and_told_of_the_disconnect() -> None:
    stopped = asyncio.Event()

    async def endless(request: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    waiting = Starlette(routes=[Route("/wait/{n:int}", endless, name="wait")])
    async with Client(OpenApi.from_app(waiting, timeout=0.05)) as client:
        with pytest.raises(ToolError, match="The tool wait did not finish"):
            await client.call_tool("wait", {"n": 1})
        await asyncio.wait_for(stopped.wait(), 5)


@pytest.mark.parametrize(
    ("chunk", "problem"),
    [(b"x" * 100_000, "GET /flood: the response has more than 16777216 bytes"), (b"", "did not finish within 0.5 s")],
)
async def test_an_endless_response_of_an_app_is_bounded(chunk: bytes, problem: str) -> None:
    ended = asyncio.Event()

    class Flood(StreamingResponse):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            try:
                await super().__call__(scope, receive, send)
            finally:
                ended.set()

    async def endpoint(request: Any) -> StreamingResponse:
        return Flood(repeat(chunk), media_type="text/plain")

    async def repeat(chunk: bytes) -> AsyncIterator[bytes]:
        while True:
            yield chunk

    flooding = Starlette(routes=[Route("/flood", endpoint, name="flood")])
    async with Client(OpenApi.from_app(flooding, timeout=60 if chunk else 0.5)) as client:
        with pytest.raises(ToolError, match=problem):
            await client.call_tool("flood")
        await asyncio.wait_for(ended.wait(), 5)


async def test_routes_of_a_starlette_app_are_tools() -> None:
    async def greet(request: Any) -> PlainTextResponse:
        """Greet someone."""
        body = (await request.body()).decode()
        return PlainTextResponse(f"{request.method} {request.path_params['times']!r} {request.query_params} {body}")

    plain = Starlette(routes=[Route("/greet/{times:int}", greet, methods=["GET", "POST"], name="greet")])
    async with Client(OpenApi.from_app(plain)) as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
        assert (await client.call_tool("get_greet", {"times": 2, "query": {"loud": True}})).text == "GET 2 loud=true "
        assert (await client.call_tool("post_greet", {"times": "3", "body": {"a": 1}})).text == 'POST 3  {"a":1}'
    assert tools["get_greet"].description == "Greet someone."


def test_an_app_that_tells_nothing_is_refused() -> None:
    with pytest.raises(SetupError, match="CORSMiddleware is neither a FastAPI nor a Starlette app"):
        OpenApi.from_app(CORSMiddleware(app))
