"""`OpenApi` in front of APIs on this machine: good ones, hostile ones, and credentials."""

import asyncio
import gzip
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import ArgTransform, Client, Server, SetupError, ToolTransform
from dovetail.auth import ApiKeys, Principal
from dovetail.openapi import OpenApi

Seen = list[dict[str, Any]]
SECRET = "s3cret-token-of-the-shop"


def spec(*paths: str, method: str = "get", schemes: dict[str, Any] | None = None, **operation: Any) -> dict[str, Any]:
    """A document with one operation for each path, whose operationId is the path without its slashes."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Shop", "version": "1"},
        "paths": {
            path: {method: {"operationId": path.strip("/").split("/")[0], "responses": {}, **operation}}
            for path in paths
        },
        "components": {"securitySchemes": schemes or {}},
    }


def http(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode(errors="surrogateescape") + body


Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(answers: dict[str, Answer], closed: asyncio.Event | None = None) -> AsyncIterator[tuple[str, Seen]]:
    """An HTTP server that gives these bytes for these paths, and records what it is sent."""
    seen: Seen = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                first, *lines = head.split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, target, _ = first.split(" ")
                seen.append({"method": method, "target": target, "headers": headers, "body": body})
                answer = answers[target.partition("?")[0]]
                if isinstance(answer, bytes):
                    writer.write(answer)
                else:
                    await answer(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            if closed is not None:
                closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
        server.close()


async def call(document: Any, base_url: str, tool: str, arguments: Any = None, **options: Any) -> Any:
    async with Client(OpenApi(document, base_url=base_url, **options)) as client:
        return await client.call_tool(tool, arguments or {}, raise_on_error=False)


JSON = "Content-Type: application/json"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (http(404, b'{"message": "no such pet"}', JSON), "404: no such pet"),
        (
            http(400, b'{"title": "Bad", "detail": "too long"}', "Content-Type: application/problem+json"),
            "400: Bad: too long",
        ),
        (http(400, b'{"error": {"message": "m", "code": 3}}', JSON), "400: m"),
        (http(400, b'{"error": "invalid_grant", "error_description": "expired"}', JSON), "400: expired"),
        (
            http(422, b'{"detail": [{"loc": ["body", "a"], "msg": "Field required"}]}', JSON),
            "422: body.a: Field required",
        ),
        (http(400, b'{"errors": [{"message": "one"}, {"message": "two"}]}', JSON), "400: one; two"),
        (http(400, b'{"code": 17}', JSON), '400: {"code":17}'),
        (http(500, b"plain \x1b[31mwords\x00", "Content-Type: text/plain"), "500: plain  [31mwords"),
        (http(502, b"<html><h1>Bad gateway</h1></html>", "Content-Type: text/html"), "502 Bad Gateway"),
        (http(400, b"x" * 5000, "Content-Type: text/plain"), "400: " + "x" * 985 + "…"),
        (http(500, b'{"message": "password=hunter2 is wrong"}', JSON), "500: password=[redacted] is wrong"),
        (http(429, b"", "Retry-After: 30"), "429 Too Many Requests; try again in 30 s"),
        (http(503, b"", "Retry-After: Wed, 21 Oct 2026"), "503 Service Unavailable; try again after Wed, 21 Oct 2026"),
        (http(429, b'{"message": "slow"}', JSON, "Retry-After: 3"), "429; try again in 3 s: slow"),
        (http(304), "304 Not Modified"),
        (http(500, b"[" * 100_000, JSON), "500 Internal Server Error"),
    ],
)
async def test_an_error_says_what_the_api_says(answer: bytes, text: str) -> None:
    async with serving({"/pets/7": answer}) as (url, _):
        parameter = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        result = await call(spec("/pets/{id}", parameters=[parameter]), url, "pets", {"id": "7"})
    assert result.is_error
    assert result.text == f"GET /pets/{{id}} answered {text}"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (http(200, b'{ "a": 1.10 }', JSON), '{"a":1.10}'),
        (http(200, b"{broken", JSON), "{broken"),
        (http(200, b"[" * 100_000, JSON), "[" * 100_000),
        (http(200, b"\xe9", "Content-Type: text/plain; charset=iso-8859-1"), "é"),
        (http(200, b"a\xff", "Content-Type: text/plain; charset=punycode"), "a�"),
        (http(200, b"text"), "text"),
        (http(204), "204 No Content"),
        (http(202), "202 Accepted"),
    ],
)
async def test_a_response_without_a_schema_is_text(answer: bytes, text: str) -> None:
    async with serving({"/x": answer}) as (url, _):
        result = await call(spec("/x"), url, "x")
    assert (result.is_error, result.text) == (False, text)


async def test_other_types_are_content_of_their_own() -> None:
    answers: dict[str, Answer] = {
        "/image": http(200, b"png", "Content-Type: image/png"),
        "/audio": http(200, b"wav", "Content-Type: audio/wav"),
        "/zip": http(200, b"\0", "Content-Type: application/zip"),
        "/odd": http(200, b"odd", "Content-Type: image/\udcff"),
    }
    async with serving(answers) as (url, _), Client(OpenApi(spec(*answers), base_url=url)) as client:
        blocks = {path: (await client.call_tool(path[1:], raise_on_error=False)).content[0] for path in answers}
    assert (blocks["/image"].data, blocks["/image"].mime_type) == (b"png", "image/png")
    assert (blocks["/audio"].data, blocks["/audio"].mime_type) == (b"wav", "audio/wav")
    assert (blocks["/zip"].resource.blob, blocks["/zip"].resource.mime_type) == (b"\0", "application/zip")
    assert blocks["/zip"].resource.uri == f"{url}/zip"
    assert blocks["/odd"].text == "odd"  # a type that is none


SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
WITH_SCHEMA = {"200": {"description": "", "content": {"application/json": {"schema": SCHEMA}}}}


async def test_a_response_with_a_schema_is_structured_and_checked() -> None:
    answers: dict[str, Answer] = {
        "/good": http(200, b'{"id": 1}', JSON),
        "/bad": http(200, b'{"id": "x"}', JSON),
        "/none": http(204),
    }
    async with (
        serving(answers) as (url, _),
        Client(OpenApi(spec(*answers, responses=WITH_SCHEMA), base_url=url)) as client,
    ):
        good = await client.call_tool("good")
        bad, none = [await client.call_tool(each, raise_on_error=False) for each in ("bad", "none")]
    assert good.structured == {"id": 1}
    assert bad.is_error
    assert "GET /bad answered 200 OK, but not as its specification says: id: expected an integer" in bad.text
    assert bad.text.endswith('The call has had its effect. The response:\n{"id":"x"}')
    assert "GET /none answered 204 No Content, but not as" in none.text


async def test_arguments_are_read_leniently_and_problems_are_explained() -> None:
    parameters = [{"name": name, "in": "query", "schema": {"type": "integer", "default": 5}} for name in ("a", "b")]
    async with serving({"/x": http(200)}) as (url, seen):
        await call(spec("/x", parameters=parameters), url, "x", {"a": "3"})
        refused = await call(spec("/x", parameters=parameters), url, "x", {"a": "three"})
    assert [each["target"] for each in seen] == ["/x?a=3"]  # without defaults
    assert "Invalid arguments for x:\n- a: expected an integer" in refused.text


# ── redirects ──


async def test_redirects_are_followed_at_the_same_origin_only() -> None:
    async with serving({"/stolen": http(200, b"stolen")}) as (elsewhere, stolen):
        answers: dict[str, Answer] = {
            "/near": http(302, b"", "Location: /end?x=1"),
            "/end": http(200, b"end", "Content-Type: text/plain"),
            "/far": http(302, b"", f"Location: {elsewhere}/stolen?token=1"),
            "/loop": http(301, b"", "Location: /loop"),
            "/odd": http(302, b"", "Location: file:///etc/passwd"),
        }
        async with serving(answers) as (url, seen):
            results = {
                path: await call(spec(path), url, path[1:], auth=SECRET) for path in ("/near", "/far", "/loop", "/odd")
            }
    assert results["/near"].text == "end"
    assert seen[1]["target"] == "/end?x=1"
    assert seen[1]["headers"]["authorization"] == f"Bearer {SECRET}"
    assert results["/far"].is_error
    assert "another origin" in results["/far"].text
    assert "token" not in results["/far"].text
    assert "trust" not in results["/far"].text  # no advice to a model to go there
    assert not stolen
    assert "redirects more than 5 times" in results["/loop"].text
    assert len([each for each in seen if each["target"] == "/loop"]) == 6
    assert results["/odd"].is_error


async def test_a_post_is_never_made_a_get() -> None:
    answers: dict[str, Answer] = {
        "/post": http(303, b"", "Location: /end?token=1"),
        "/kept": http(307, b"", "Location: /end"),
        "/end": http(200, b"end"),
    }
    async with serving(answers) as (url, seen):
        moved = await call(spec("/post", method="post"), url, "post")
        kept = await call(spec("/kept", method="post"), url, "kept")
    assert moved.text == f"POST /post: it answered 303 See Other, which leads to {url}/end"
    assert kept.text == "end"
    assert [each["method"] for each in seen] == ["POST", "POST", "POST"]


# ── hostile servers ──


async def test_hostile_responses_are_bounded() -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"40000\r\n" + b"x" * 0x40000 + b"\r\n")
            await writer.drain()

    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def closing(writer: asyncio.StreamWriter) -> None:
        writer.close()

    bomb = gzip.compress(b"\0" * 20_000_000)
    answers: dict[str, Answer] = {
        "/endless": endless,
        "/bomb": http(200, bomb, "Content-Type: text/plain", "Content-Encoding: gzip"),
        "/liar": http(200, b"no gzip", "Content-Type: text/plain", "Content-Encoding: gzip"),
        "/headers": http(200, b"", "X: " + "x" * 100_000),
        "/nonsense": b"220 this is SMTP\r\n\r\n",
        "/closing": closing,
        "/silent": silent,
    }
    async with serving(answers) as (url, _):
        waits = {path: 0.05 if path == "/silent" else 60.0 for path in answers}
        texts = {path: (await call(spec(path), url, path[1:], timeout=waits[path])).text for path in answers}
    assert len(bomb) < 20_000
    assert texts["/endless"] == "GET /endless: the response has more than 16777216 bytes"
    assert texts["/bomb"] == "GET /bomb: the response has more than 16777216 bytes"
    assert texts["/silent"] == "The tool silent did not finish within 0.05 s and was stopped."
    for path in ("/liar", "/headers", "/nonsense", "/closing"):
        assert texts[path].startswith(f"GET {path}: 127.0.0.1 gave no response"), texts[path]


async def test_a_server_that_is_not_there() -> None:
    result = await call(spec("/x"), "http://127.0.0.1:9", "x", auth=SECRET)
    assert result.text == "GET /x: 127.0.0.1 gave no response (ClientConnectorError)"


async def test_cookies_do_not_pass_from_call_to_call() -> None:
    async with (
        serving({"/x": http(200, b"", "Set-Cookie: session=1; Path=/")}) as (url, seen),
        Client(OpenApi(spec("/x"), base_url=url)) as client,
    ):
        await client.call_tool("x")
        await client.call_tool("x")
    assert [each["headers"].get("cookie") for each in seen] == [None, None]


async def test_a_cancelled_call_ends_its_request() -> None:
    entered, ended = asyncio.Event(), asyncio.Event()

    async def waiting(writer: asyncio.StreamWriter) -> None:
        entered.set()

    async with serving({"/x": waiting}, ended) as (url, _), Client(OpenApi(spec("/x"), base_url=url)) as client:
        calling = asyncio.ensure_future(client.call_tool("x"))
        await entered.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        await asyncio.wait_for(ended.wait(), 10)


@pytest.mark.parametrize("method", ["get", "post", "put", "delete"])
async def test_a_request_without_a_body_has_no_content_type(method: str) -> None:
    async with serving({"/x": http(200)}) as (url, seen):
        await call(spec("/x", method=method), url, "x")
    assert (seen[0]["method"], seen[0]["body"]) == (method.upper(), b"")
    assert "content-type" not in seen[0]["headers"]


# ── credentials ──

SCHEMES = {
    "token": {"type": "http", "scheme": "bearer"},
    "oauth": {"type": "oauth2", "flows": {}},
    "login": {"type": "http", "scheme": "basic"},
    "header": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "query": {"type": "apiKey", "in": "query", "name": "key"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
}


@pytest.mark.parametrize(
    ("scheme", "secret", "place", "value"),
    [
        ("token", "abc", "authorization", "Bearer abc"),
        ("oauth", "abc", "authorization", "Bearer abc"),
        ("login", "ada:pw", "authorization", "Basic YWRhOnB3"),
        ("header", "abc", "x-key", "abc"),
        ("cookie", "abc", "cookie", "sid=abc"),
        ("query", "a&b", "target", "/x?key=a%26b"),
    ],
)
async def test_a_token_goes_where_its_scheme_says(scheme: str, secret: str, place: str, value: str) -> None:
    document = spec("/x", schemes=SCHEMES, security=[{scheme: []}])
    async with serving({"/x": http(200)}) as (url, seen):
        await call(document, url, "x", auth=secret)
        await call(document, url, "x", auth={scheme: lambda principal: secret})
        await call(document, url, "x")
    first, second, third = ({**each["headers"], **each} for each in seen)
    assert first[place] == second[place] == value
    assert third.get(place) != value


async def test_an_operation_without_security_gets_no_credentials() -> None:
    document = spec("/x", "/open", schemes=SCHEMES, security=[{"token": []}])
    document["paths"]["/open"]["get"]["security"] = []
    async with serving({"/x": http(200), "/open": http(200)}) as (url, seen):
        await call(document, url, "open", auth=SECRET)
        await call(document, url, "x", auth=SECRET)
        await call(spec("/x"), url, "x", auth=SECRET)  # nothing is declared
    assert [each["headers"].get("authorization") for each in seen] == [None, f"Bearer {SECRET}", f"Bearer {SECRET}"]


@pytest.mark.parametrize("auth", [None, {"token": SECRET}, {"query": SECRET}])
async def test_a_model_never_chooses_the_key_of_a_query(auth: dict[str, str] | None) -> None:
    document = spec("/x", schemes=SCHEMES, security=[{"query": []}, {"token": []}])
    document["paths"]["/x"]["get"]["parameters"] = [{"name": "any", "in": "query", "schema": {"type": "object"}}]
    async with serving({"/x": http(200)}) as (url, seen):
        await call(document, url, "x", {"any": {"key": "of the model", "a": "b"}}, auth=auth)
    assert seen[0]["target"] == "/x?a=b" + (f"&key={SECRET}" if auth and "query" in auth else "")


async def test_the_first_alternative_that_is_known_counts_and_all_of_its_schemes() -> None:
    document = spec("/x", schemes=SCHEMES, security=[{"oauth": []}, {"header": [], "query": []}])
    async with serving({"/x": http(200)}) as (url, seen):
        await call(document, url, "x", auth={"header": "h", "query": "q"})
    assert (seen[0]["headers"]["x-key"], seen[0]["target"]) == ("h", "/x?key=q")
    assert "authorization" not in seen[0]["headers"]


async def test_two_cookies_are_one_header() -> None:
    schemes = {**SCHEMES, "tenant": {"type": "apiKey", "in": "cookie", "name": "tenant"}}
    document = spec("/x", schemes=schemes, security=[{"cookie": [], "tenant": []}])
    async with serving({"/x": http(200)}) as (url, seen):
        await call(document, url, "x", auth={"cookie": "a", "tenant": "b"})
    assert seen[0]["headers"]["cookie"] == "sid=a; tenant=b"


async def test_the_credentials_of_each_caller() -> None:
    async def token_of(principal: Principal | None) -> str | None:
        return None if principal is None else f"token-of-{principal.name}"

    async with serving({"/x": http(200)}) as (url, seen):
        server = Server("desk", auth=ApiKeys({"ada": "key-of-ada-0123456789"}))
        server.mount(OpenApi(spec("/x"), base_url=url, auth=token_of), namespace="shop")
        async with Client(server, principal=Principal(subject="ada")) as client:
            await client.call_tool("shop_x")
        async with Client(OpenApi(spec("/x"), base_url=url, auth=token_of)) as client:
            await client.call_tool("x")
    assert [each["headers"].get("authorization") for each in seen] == ["Bearer token-of-ada", None]


def test_a_scheme_that_the_document_lacks_is_refused() -> None:
    with pytest.raises(SetupError, match=r"'tokn', which the document lacks \(did you mean token"):
        OpenApi(spec("/x", schemes=SCHEMES), base_url="http://x", auth={"tokn": "a"})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"auth": 5}, "auth= gives something that is no token"),
        ({"auth": ("ada", "password of ada")}, "auth= gives something that is no token"),
        ({"auth": {"token": ""}}, "auth= gives something that is no token"),
        ({"names": ["a"]}, "names=.* must be a dict by operationId, or a function"),
        ({"names": lambda *_: 5}, "names= gives 5 to GET /x"),
        ({"only": [5]}, "only=.* must be patterns"),
        ({"only": []}, "only=.* must be patterns"),
        ({"base_url": 5}, "base_url=5 is not possible; it must be a URL"),
        ({"max_desciption_tokens": 5}, "OpenApi: unknown options max_desciption_tokens .did you mean max_description"),
        ({"max_description_tokens": "9"}, "max_description_tokens=.* must be a whole number"),
        ({"source": object()}, "its source must be .* an app is given to OpenApi.from_app, not object"),
    ],
)
def test_options_that_are_not_possible_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(SetupError, match=text) as caught:
        OpenApi(**{"source": spec("/x", schemes=SCHEMES), "base_url": "http://x", **options})
    assert "password" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "secret", "shown"),
    [
        ("token", SECRET, SECRET),
        ("query", "a/key+of=ours", "a%2Fkey%2Bof%3Dours"),
        ("header", "a/key+of=ours", r"a\/key+of=ours"),
        ("login", "ada:password of ada", "YWRhOnBhc3N3b3JkIG9mIGFkYQ=="),
        ("login", "ada:password of ada", "password of ada"),
    ],
)
async def test_secrets_are_shown_nowhere(
    scheme: str, secret: str, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    echo = f'{{"message": "bad key {shown}"}}'
    answers: dict[str, Answer] = {
        "/error": http(401, echo.encode(), JSON),
        "/escaped": http(401, echo.replace("key", r"\u006bey").encode(), JSON),
        "/echo": http(200, echo.encode(), JSON),
        "/text": http(200, echo.encode("utf-16"), "Content-Type: text/plain; charset=utf-16"),
        "/away": http(302, b"", f"Location: http://127.0.0.2/{shown.replace(' ', '%20')}"),
    }
    document = spec(*answers, schemes=SCHEMES, security=[{scheme: []}])
    async with serving(answers) as (url, _):
        api = OpenApi(document, base_url=url, auth=secret)
        async with Client(api) as client:
            texts = [(await client.call_tool(path[1:], raise_on_error=False)).text for path in answers]
    assert "GET /error answered 401: bad key [redacted]" in texts
    assert all(each not in text for text in (*texts, repr(api), caplog.text) for each in (secret, shown))


async def test_an_object_of_a_query_does_not_replace_the_key() -> None:
    anything = {"name": "filter", "in": "query", "schema": {"type": "object", "additionalProperties": True}}
    document = spec("/x", schemes=SCHEMES, security=[{"query": []}], parameters=[anything])
    async with serving({"/x": http(200)}) as (url, seen):
        await call(document, url, "x", {"filter": {"key": "mine", "a": 1}}, auth="ours")
    assert [each["target"] for each in seen] == ["/x?a=1&key=ours"]


async def test_something_that_is_no_token_is_not_sent() -> None:
    async with serving({"/x": http(200)}) as (url, seen):
        result = await call(spec("/x"), url, "x", auth=lambda principal: "a\r\nHost: evil")
    assert result.is_error
    assert not seen


# ── the server ──


async def test_it_runs_alone_and_mounted_with_a_lifespan_of_its_own() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(owner: Any) -> AsyncIterator[None]:
        events.append("start")
        yield
        events.append("stop")

    async with serving({"/x": http(200, b"1", JSON)}) as (url, _):
        api = OpenApi(spec("/x"), base_url=url, lifespan=lifespan, name="shop")
        for _ in range(2):  # it may be started again
            async with Client(api) as client:
                assert (await client.call_tool("x")).text == "1"
    assert events == ["start", "stop"] * 2
    assert (api.name, api.report.tools) == ("shop", 1)


DEAD_LOOP = """
import asyncio, sys
from dovetail import Client, OpenApi

async def call():
    client = Client(api)
    await client.__aenter__()
    print((await client.call_tool("x")).text)

spec = {"openapi": "3.1.0", "paths": {"/x": {"get": {"operationId": "x"}}}}
api = OpenApi(spec, base_url=sys.argv[1])
for _ in range(2):
    loop = asyncio.new_event_loop()
    loop.run_until_complete(call())
    loop.close()  # without the end of the lifespan
"""


async def test_it_runs_again_after_its_event_loop_died() -> None:
    async with serving({"/x": http(200, b"ok")}) as (url, _):
        program = await asyncio.create_subprocess_exec(sys.executable, "-c", DEAD_LOOP, url, stdout=PIPE, stderr=PIPE)
        out, _ = await program.communicate()
    assert out.split() == [b"ok", b"ok"]


async def test_a_mount_keeps_its_urls_and_may_transform_its_tools() -> None:
    answers: dict[str, Answer] = {"/zip": http(200, b"\0", "Content-Type: application/zip"), "/x": http(404)}
    parameter = {"name": "a", "in": "query", "schema": {"type": "string"}}
    async with serving(answers) as (url, seen):
        server = Server("desk")
        api = OpenApi(spec(*answers, parameters=[parameter]), base_url=url)
        transform = ToolTransform(name="find", arguments={"a": ArgTransform(name="b")})
        server.mount(api, namespace="shop", transforms={"x": transform})
        async with Client(server) as client:
            archive = await client.call_tool("shop_zip")
            missing = await client.call_tool("shop_find", {"b": "1"}, raise_on_error=False)
    assert archive.content[0].resource.uri == f"{url}/zip"
    assert missing.text == "GET /x answered 404 Not Found"
    assert seen[1]["target"] == "/x?a=1"


async def test_a_result_may_be_text_only() -> None:
    async with (
        serving({"/x": http(200, b'{"id": 1}', JSON)}) as (url, _),
        Client(OpenApi(spec("/x", responses=WITH_SCHEMA), base_url=url, output="text")) as client,
    ):
        (tool,) = await client.list_tools()
        result = await client.call_tool("x")
    assert tool.output_schema is None
    assert (result.text, result.structured) == ('{"id":1}', None)


def test_many_operations_are_tools_in_no_time() -> None:
    """Nothing is compiled before a call: `report` counts them all, and the first call pays for its own."""
    parameters = [{"name": f"p{n}", "in": "query", "schema": {"type": "string", "pattern": "^a+$"}} for n in range(10)]
    api = OpenApi(spec(*(f"/p{n}" for n in range(845)), parameters=parameters), base_url="http://127.0.0.1:9")
    assert api.report.tools == 845


async def test_a_schema_that_can_not_be_compiled_is_not_checked() -> None:
    parameter = {"name": "a", "in": "query", "schema": {"type": "string", "pattern": "(((("}}
    async with serving({"/x": http(200, b"ok")}) as (url, seen):
        result = await call(spec("/x", parameters=[parameter]), url, "x", {"a": "b"})
    assert result.text == "ok"
    assert seen[0]["target"] == "/x?a=b"
