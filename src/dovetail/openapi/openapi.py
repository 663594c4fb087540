"""`OpenApi`: a server whose tools are the operations of an HTTP API, or of a web app in this process."""

import asyncio
import inspect
import logging
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote_to_bytes, urlsplit

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from dovetail import __version__
from dovetail.auth.fetch import FetchRequest
from dovetail.auth.principal import Principal
from dovetail.client.handlers import call_maybe_async
from dovetail.client.transports.aiohttp import KEEPALIVE_SECONDS
from dovetail.client.transports.base import ServerUrl, cancel_and_wait
from dovetail.client.transports.environment import find_proxy, tls_context
from dovetail.engine.context import Context
from dovetail.engine.options import Options
from dovetail.errors import BadResponse, ConnectionLost, SetupError, ToolError
from dovetail.openapi import requests
from dovetail.openapi.document import Document, as_object
from dovetail.openapi.operations import Names, Operation, read_operations
from dovetail.openapi.requests import ApiResponse, black_out
from dovetail.protocol.jsonrpc import UNREADABLE
from dovetail.protocol.results import ToolResult
from dovetail.protocol.types import Audio, Content, EmbeddedResource, Image, ResourceContents, Text
from dovetail.registry.arguments import RawArguments
from dovetail.registry.functions import Invocation
from dovetail.registry.registration import checked_options, did_you_mean
from dovetail.registry.tools import Tool, closed_choices
from dovetail.schema.validate import Validator
from dovetail.server import Server

log = logging.getLogger("dovetail")
OWN_OPTIONS = ("base_url", "auth", "only", "names", "max_description_tokens", "name")  # the others are a server's
MAX_RESPONSE = 16 * 1024 * 1024  # bytes, decompressed
TOO_LONG = f"the response has more than {MAX_RESPONSE} bytes"
MAX_MESSAGE = 1_000  # characters of an API's error
MAX_REDIRECTS = 5
REDIRECTS, KEEPING_METHOD = (301, 302, 303, 307, 308), (307, 308)
MIN_SECRET = 6  # characters: a shorter one may stand in a body by chance
CLOSE_TIMEOUT = 5.0  # seconds for what an app does after its response
HEADERS = {"Accept": "application/json, */*;q=0.8", "User-Agent": f"dovetail/{__version__}"}
TEXT_TYPE = re.compile(r"text/.*|.*[/+](xml|x?-?yaml|javascript|x-ndjson|x-www-form-urlencoded)")
MESSAGE_KEYS = ("detail", "message", "error_description", "errorMessage", "msg", "title", "error", "errors", "reason")

Secret = str | Callable[[Principal | None], Any] | None  # or a function, plain or async, that gives one
Signed = tuple[FetchRequest, tuple[str, ...]]  # with all spellings of its secrets


class OpenApi(Server):
    """An HTTP API, described by OpenAPI 3.0 or 3.1, as a server: run it, or mount it.

    server.mount(OpenApi("openapi.yaml", auth=token, only=["GET *"]), namespace="shop")

    `auth` is a token, a function of the caller (a Principal or None) that gives one, or a dict of these by security
    scheme. `report` says what was cut or left out of the specification.
    """

    def __init__(
        self,
        source: str | Path | Mapping[str, Any],
        *,
        base_url: str | None = None,
        auth: Secret | Mapping[str, Secret] = None,
        only: Collection[str] | None = None,
        names: Names = None,
        max_description_tokens: int = 200,
        name: str | None = None,
        **options: Any,
    ) -> None:
        checked_options(options, [*Options.__struct_fields__, *OWN_OPTIONS], "OpenApi", {})
        document = Document.load(source)
        self.operations, self.report = read_operations(
            document, base_url=base_url, only=only, names=names, max_description_tokens=max_description_tokens
        )
        self._auth = ApiAuth(auth, document.security_schemes, self.operations)
        self._sender: HttpSender | AppSender = HttpSender()
        info = as_object(document.spec.get("info"))
        title, version = (str(info.get(key) or "") for key in ("title", "version"))
        lifespan = options.pop("lifespan", None)
        super().__init__(
            name or re.sub(r"[^A-Za-z0-9_.-]+", "-", title).strip("-")[:64] or "api",
            lifespan=partial(self._serving, lifespan),
            **{"version": version or "0.0.0", "timeout": 30.0, **options},
        )
        self.engine.tools.swap((), {each.name: self._tool(each) for each in self.operations})

    @classmethod
    def from_app(cls, app: Any, *, lifespan: bool = True, base_url: str = "http://localhost", **options: Any) -> Self:
        """A FastAPI or Starlette app, called in process. `lifespan=False` if it is run by another server as well."""
        api = cls(describe_app(app), base_url=base_url, **options)
        api._sender = AppSender(app, has_lifespan=lifespan)
        return api

    def _tool(self, operation: Operation) -> Tool:
        endpoint = Endpoint(operation, self.engine.options)
        call = partial(self._call, endpoint)
        return Tool(
            definition=endpoint.definition,
            invocation=Invocation(function=call, is_async=True, in_thread=False, context_names=("ctx",), by_name=False),
            decode=endpoint.decode,
            to_result=lambda result: result,
            label=f"tool {operation.name}",
            lenient=endpoint.lenient,
            choices=closed_choices(endpoint.schema),
        )

    @asynccontextmanager
    async def _serving(self, lifespan: Callable[[Any], Any] | None, owner: Any) -> AsyncIterator[Any]:
        async with self._sender.running(), nullcontext() if lifespan is None else lifespan(owner) as value:
            yield value

    async def _call(self, endpoint: "Endpoint", arguments: dict[str, Any], *, ctx: Context) -> ToolResult:
        request = requests.build_request(endpoint.operation, arguments)
        request, secrets = await self._auth.sign(request, endpoint.operation, ctx.principal)
        try:
            response = replace(await self._send(request), secrets=secrets)
        except (BadResponse, ConnectionLost) as failure:
            problem = f": {failure}"
        else:
            if 200 <= response.status < 300:
                return endpoint.result(response, request.url.partition("?")[0])
            problem = f" answered {error_message(response)}"
        raise ToolError(endpoint.place + self._clean(problem, secrets))

    async def _send(self, request: FetchRequest) -> ApiResponse:
        """The response, after redirects at the same origin. A request that is no GET is never turned into one."""
        for _ in range(1 + MAX_REDIRECTS):
            response = await self._sender.send(request)
            location = response.headers.get("location")
            if response.status not in REDIRECTS or location is None:
                return response
            url = ServerUrl.parse(request.url).join(location, request.url, advice="")  # a model reads it
            if request.method not in ("GET", "HEAD") and response.status not in KEEPING_METHOD:
                raise BadResponse(f"it answered {response.status_text}, which leads to {url.partition('?')[0]}")
            request = replace(request, url=url)
        raise BadResponse(f"it redirects more than {MAX_REDIRECTS} times")

    def _clean(self, text: str, secrets: tuple[str, ...]) -> str:
        """A text of the API, for a model: bounded, on one line, without secrets."""
        text = self.engine.redactor.text(black_out(text, secrets))
        text = f"{text[:MAX_MESSAGE]}…" if len(text) > MAX_MESSAGE else text
        return "".join(each if each.isprintable() else " " for each in text).rstrip()


class Endpoint(RawArguments):
    """An operation as a tool. Its validators are compiled by its first call: a document has hundreds of operations."""

    def __init__(self, operation: Operation, options: Options) -> None:
        self.operation = operation
        self.place = f"{operation.method} {operation.path}"
        self.subject, self.lenient = operation.name, options.lenient_arguments
        self.schema = dict(operation.definition.input_schema)
        self._names, self._defaults = None, {}  # all arguments, and defaults are for the API to fill in
        self._output = None if options.output == "text" else operation.definition.output_schema
        self.definition = replace(operation.definition, output_schema=self._output)
        self._text_copy = options.output != "structured"

    @cached_property
    def _validator(self) -> Validator:  # type: ignore[override]  # the base class only reads it
        return Validator(self.schema, where=f"tool {self.subject}")

    @cached_property
    def _output_validator(self) -> Validator:
        return Validator(self._output or {}, where=f"tool {self.subject}, its results")

    def result(self, response: ApiResponse, url: str) -> ToolResult:
        """The result for a successful response."""
        compact, problems = "", ["it is no JSON"]
        with suppress(*UNREADABLE):
            if requests.JSON_TYPE.match(response.content_type):
                compact = msgspec.json.format(response.text, indent=-1)
            if self._output is not None:
                problems = self._output_validator.problems(msgspec.json.decode(compact), root="value")
        if self._output is None:
            return ToolResult(content=(Text(compact) if compact else self._content(response, url),))
        if not problems:
            return ToolResult(structured=Raw(compact.encode()), text_copy=self._text_copy)
        said = f"{self.place} answered {response.status_text}, but not as its specification says: {'; '.join(problems)}"
        text = f"{said}. The call has had its effect. The response:\n{compact or response.text}"
        return ToolResult(content=(Text(text),), is_error=True, has_schema=True)

    def _content(self, response: ApiResponse, url: str) -> Content:
        """A response that is no JSON, by its content type."""
        body, kind = response.body, response.content_type or "text/plain"
        if not body:
            return Text(response.status_text)
        if kind.startswith(("image/", "audio/")):
            return Image(body, kind) if kind.startswith("image/") else Audio(body, kind)
        if TEXT_TYPE.fullmatch(kind) or requests.JSON_TYPE.match(kind):
            return Text(response.text)
        return EmbeddedResource(ResourceContents(uri=url, mime_type=kind, blob=body))


def error_message(response: ApiResponse) -> str:
    """The status of an error, with the message of the API, and when to try again."""
    try:
        value = msgspec.json.decode(response.text)
        words = _words(value) or msgspec.json.encode(value).decode()
    except UNREADABLE:  # a page for people is left out
        words = response.text if response.content_type == "text/plain" else ""
    when = response.headers.get("retry-after", "") if response.status in (429, 503) else ""
    later = f"; try again {f'in {when} s' if when.isdecimal() else f'after {when}'}" if when else ""
    return f"{response.status}{later}: {words}" if words else response.status_text + later


def _words(value: Any, depth: int = 6) -> str:
    """The message in an error, where APIs usually have it: problem+json, OAuth, FastAPI, JSON:API, GraphQL …"""
    if isinstance(value, list) and depth:
        return "; ".join(filter(None, (_words(each, depth - 1) for each in value[:5])))
    if not isinstance(value, dict) or not depth:
        return value if isinstance(value, str) else ""
    words = next(filter(None, (_words(value.get(key), depth - 1) for key in MESSAGE_KEYS)), "")
    place, title = value.get("loc"), value.get("title")  # of a validation error of FastAPI; of problem+json
    head = ".".join(map(str, place)) if isinstance(place, list) else title if isinstance(title, str) else ""
    return f"{head}: {words}" if head and words and head != words else words


class ApiAuth:
    """The credentials of `auth=`, and where the security schemes of a document put them."""

    def __init__(self, given: Any, schemes: Mapping[str, Any], operations: Sequence[Operation]) -> None:
        self._given, self._schemes = given, schemes
        named = list(given) if isinstance(given, Mapping) else []
        for source in given.values() if isinstance(given, Mapping) else [given]:
            if not (source is None or callable(source)):
                _checked_token(source)
        for unknown in (each for each in named if each not in schemes):
            hint = did_you_mean(unknown, schemes)
            raise SetupError(f"OpenApi: auth= names the security scheme {unknown!r}, which the document lacks{hint}")
        keys = [each for each in schemes.values() if (each.get("type"), each.get("in")) == ("apiKey", "query")]
        self._query_keys = {requests.encode(str(each.get("name"))) for each in keys}
        self._is_declared = any(each.security for each in operations)
        self._undeclared = named or (list(schemes) if len(schemes) == 1 else [""])  # "": Bearer

    async def sign(self, request: FetchRequest, operation: Operation, principal: Principal | None) -> Signed:
        """The request with the credentials of the first alternative for which there are some."""
        url, _, query = request.url.partition("?")  # in which an object may hold the name of a key
        pairs = [each for each in query.split("&") if each.partition("=")[0] not in self._query_keys]
        request = replace(request, url=requests.with_query(url, pairs))
        wanted = operation.security if self._is_declared else [self._undeclared]
        for names in wanted if self._given is not None else ():
            found = {each: await self._secret(each, principal) for each in names}
            if found and None not in found.values():
                for name, secret in found.items():
                    request = _signed(request, self._schemes.get(name, {}), str(secret))
                return request, _spellings(map(str, found.values()))
        return request, ()

    async def _secret(self, scheme: str, principal: Principal | None) -> str | None:
        source = self._given.get(scheme) if isinstance(self._given, Mapping) else self._given
        secret = await call_maybe_async(source, principal) if callable(source) else source
        return None if secret is None else _checked_token(secret)


def _checked_token(secret: Any) -> str:
    if not (isinstance(secret, str) and secret and requests.HEADER_VALUE.fullmatch(secret)):
        raise SetupError("OpenApi: auth= gives something that is no token; it must be one line of ASCII text")
    return secret


def _signed(request: FetchRequest, scheme: Mapping[str, Any], secret: str) -> FetchRequest:
    header, value = "Authorization", f"Bearer {secret}"
    match scheme:
        case {"type": "apiKey", "in": "query", "name": str(name)}:
            url, _, query = request.url.partition("?")
            pairs = [query, f"{requests.encode(name)}={requests.encode(secret)}"]
            return replace(request, url=requests.with_query(url, pairs))
        case {"type": "apiKey", "in": "cookie", "name": str(name)}:
            cookies = filter(None, (request.headers.get("Cookie"), f"{name}={secret}"))
            header, value = "Cookie", "; ".join(cookies)
        case {"type": "apiKey", "name": str(name)}:
            header, value = name, secret
        case {"type": "http", "scheme": str(word)} if word.lower() == "basic":
            value = f"Basic {b64encode(secret.encode()).decode()}"
        case {"type": "http", "scheme": str(word)} if word.lower() != "bearer":
            value = f"{word} {secret}"
    return replace(request, headers={**request.headers, header: value})


def _spellings(secrets: Iterable[str]) -> tuple[str, ...]:
    """Secrets as they may stand in a response: also in a URL, in JSON, in `Basic`, and a password alone."""
    spellings: set[str] = set()
    for secret in secrets:
        encoded, password = b64encode(secret.encode()).decode(), secret.partition(":")[2]
        spellings |= {secret, requests.encode(secret), secret.replace("/", r"\/"), encoded, password}
    return tuple(sorted((each for each in spellings if len(each) >= MIN_SECRET), key=len, reverse=True))


class HttpSender:
    """Sends requests over HTTP, in a session that the first of them opens; it loads aiohttp, too."""

    def __init__(self) -> None:
        self._session: Any = None
        self._find_proxy = cache(find_proxy)  # it reads the whole environment

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._session = None  # one of a loop that died can't be used
        try:
            yield
        finally:
            if self._session is not None:
                await self._session.close()

    async def send(self, request: FetchRequest) -> ApiResponse:
        try:
            import aiohttp
        except ImportError:
            raise SetupError('OpenApi: a URL needs aiohttp; install it: pip install "dovetail-mcp[openapi]"') from None
        self._session = self._session or aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(keepalive_timeout=KEEPALIVE_SECONDS, ssl=tls_context("https:") or True),
            cookie_jar=aiohttp.DummyCookieJar(),  # a cookie would pass from caller to caller
            timeout=aiohttp.ClientTimeout(total=None),  # each call has one
            headers=HEADERS,
            skip_auto_headers=["Content-Type"],  # of requests without a body: some servers refuse it by 415
        )
        scheme, host, _ = origin = ServerUrl.parse(request.url).origin
        options: dict[str, Any] = {"headers": request.headers, "data": request.body, "allow_redirects": False}
        if (proxy := self._find_proxy(origin)) is not None:
            options |= {"proxy": proxy.url, "proxy_headers": proxy.headers}
            options |= {"headers": {**request.headers, **proxy.headers}} if scheme == "http" else {}
        url, body = aiohttp.client.URL(request.url, encoded=True), bytearray()  # type: ignore[attr-defined]  # yarl's
        try:
            async with self._session.request(request.method, url, **options) as raw:
                async for chunk in raw.content.iter_any():
                    body += chunk
                    if len(body) > MAX_RESPONSE:
                        raise BadResponse(TOO_LONG)
                headers = {name.lower(): each for name, each in raw.headers.items()}
                return ApiResponse(status=raw.status, headers=headers, body=bytes(body))
        except (aiohttp.ClientError, OSError, ValueError) as failure:  # its text may hold the URL
            raise ConnectionLost(f"{host} gave no response ({type(failure).__name__})") from None


def describe_app(app: Any) -> dict[str, Any]:
    """The OpenAPI document of an app: its own, as FastAPI's, or what the routes of a Starlette app tell."""
    if not hasattr(app, "router"):
        raise SetupError(f"OpenApi.from_app: a {type(app).__name__} is neither a FastAPI nor a Starlette app")
    if callable(getattr(app, "openapi", None)):
        return dict(app.openapi())
    paths: dict[str, Any] = {}
    any_value = {"type": ["string", "number"]}
    any_query = {"name": "query", "in": "query", "schema": {"type": "object"}}
    for route in app.routes:
        methods = sorted((getattr(route, "methods", None) or set()) - {"HEAD"})  # none: a mount, or a WebSocket
        for method in methods:
            variables = [{"name": each, "in": "path", "schema": any_value} for each in route.param_convertors]
            paths.setdefault(route.path_format, {})[method.lower()] = {
                "operationId": route.name if len(methods) == 1 else f"{method.lower()}_{route.name}",
                "description": inspect.getdoc(route.endpoint) or "",
                "parameters": [*variables, any_query],
                "requestBody": {"content": {requests.JSON: {}} if method in ("POST", "PUT", "PATCH") else {}},
            }
    return {"openapi": "3.1.0", "info": {"title": type(app).__name__}, "paths": paths}


class AppSender:
    """Calls an app for each request. Its lifespan is that of the server, unless the app is run elsewhere too."""

    def __init__(self, app: Any, *, has_lifespan: bool) -> None:
        self._app, self._has_lifespan = app, has_lifespan
        self._state: Mapping[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._tasks = set()
        async with self._app.router.lifespan_context(self._app) if self._has_lifespan else nullcontext() as state:
            self._state = state or {}
            try:
                yield
            finally:
                if self._tasks:
                    await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT)
                await cancel_and_wait(*self._tasks)

    async def send(self, request: FetchRequest) -> ApiResponse:
        exchange = _Exchange(request.body or b"")
        task = asyncio.ensure_future(self._run(self._scope(request), exchange))
        self._tasks.add(task)  # it may go on after its response
        task.add_done_callback(self._tasks.discard)
        try:
            return await exchange.response
        except BaseException:  # cancelled, or too long
            task.cancel()
            raise

    async def _run(self, scope: dict[str, Any], exchange: "_Exchange") -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            log.exception("the app failed")
        if not exchange.response.done():
            exchange.response.set_result(ApiResponse(status=500))

    def _scope(self, request: FetchRequest) -> dict[str, Any]:
        url = urlsplit(request.url)
        own = {"Host": url.netloc, "Content-Length": str(len(request.body or b"")), **HEADERS}
        headers = {name.lower(): value for name, value in [*own.items(), *request.headers.items()]}  # each once
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": url.scheme,
            "path": unquote_to_bytes(url.path).decode(errors="replace"),
            "raw_path": url.path.encode(),
            "query_string": url.query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("dovetail", 0),  # no address: apps may trust that of this machine
            "state": dict(self._state),
        }


class _Exchange:
    """The messages of one request to an app."""

    def __init__(self, body: bytes) -> None:
        self.response: asyncio.Future[ApiResponse] = asyncio.get_running_loop().create_future()
        self._unread: list[dict[str, Any]] = [{"type": "http.request", "body": body}]
        self._start: Any = {}
        self._content = bytearray()

    async def receive(self) -> dict[str, Any]:
        if not self._unread:
            await asyncio.wait([self.response])
        return self._unread.pop() if self._unread else {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif not self.response.done():
            self._content += message.get("body", b"")
            if len(self._content) > MAX_RESPONSE:
                self.response.set_exception(BadResponse(TOO_LONG))
            elif not message.get("more_body", False):
                pairs = self._start.get("headers", ())
                headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in pairs}
                response = ApiResponse(status=self._start["status"], headers=headers, body=bytes(self._content))
                self.response.set_result(response)
        await asyncio.sleep(0)  # an endless response lets others run, and can be cancelled
