"""`OpenApi`: a server whose tools are the operations of an HTTP API, or of a web app in this process."""

import asyncio
import logging
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from dovetail import __version__
from dovetail.auth.principal import Principal
from dovetail.client.handlers import call_maybe_async
from dovetail.client.transports.base import ServerUrl
from dovetail.client.transports.environment import find_proxy, tls_context
from dovetail.engine.context import Context
from dovetail.engine.options import Options
from dovetail.engine.redaction import REDACTED
from dovetail.errors import BadResponse, ConnectionLost, SetupError, ToolError
from dovetail.openapi.apps import AppSender, describe_app
from dovetail.openapi.document import Document
from dovetail.openapi.operations import Names, Operation, read_operations
from dovetail.openapi.requests import (
    HEADER_VALUE,
    JSON_TYPE,
    ApiRequest,
    ApiResponse,
    ResponseTooLong,
    add_query,
    build_request,
)
from dovetail.protocol.jsonrpc import UNREADABLE
from dovetail.protocol.results import ToolResult
from dovetail.protocol.types import Audio, Content, EmbeddedResource, Image, ResourceContents, Text
from dovetail.registry.arguments import LenientDecoder
from dovetail.registry.functions import Invocation
from dovetail.registry.tools import Tool, closed_choices
from dovetail.schema.validate import Validator
from dovetail.server import Server

log = logging.getLogger("dovetail")
MAX_RESPONSE_BYTES = 16 * 1024 * 1024  # decompressed
MAX_BLOB_BYTES = 1024 * 1024  # of a result that is no text, image or audio
MAX_MESSAGE = 1_000  # characters of an API's error
MAX_REDIRECTS = 5
REDIRECTS, KEEPING_METHOD = (301, 302, 303, 307, 308), (307, 308)
KEEPALIVE_SECONDS = 4.0  # common servers close an idle connection after 5; a request must not meet that
HEADERS = {"Accept": "application/json, */*;q=0.8", "User-Agent": f"dovetail/{__version__}"}
BEARER = {"type": "http", "scheme": "bearer"}
TEXT_TYPE = re.compile(r"text/.*|.*[/+](xml|x?-?yaml|javascript|x-ndjson|x-www-form-urlencoded)")
MESSAGE_KEYS = ("detail", "message", "error_description", "errorMessage", "msg", "title", "error", "errors", "reason")

Secret = str | Callable[[Principal | None], Any] | None  # or a function, plain or async, that gives one


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
        only: Sequence[str] = (),
        names: Names = None,
        max_description_tokens: int = 200,
        timeout: float | None = 30.0,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        name: str | None = None,
        **options: Any,
    ) -> None:
        document = Document.load(source)
        self.operations, self.report = read_operations(
            document, base_url=base_url, only=only, names=names, max_description_tokens=max_description_tokens
        )
        self._auth = ApiAuth(auth, document)
        self._timeout, self._max_bytes = timeout, max_response_bytes
        self._sender: HttpSender | AppSender = HttpSender()
        info = document.spec.get("info")
        title, version = (str(info.get(key) or "") if isinstance(info, Mapping) else "" for key in ("title", "version"))
        lifespan = options.pop("lifespan", None)
        super().__init__(
            name or re.sub(r"[^A-Za-z0-9_.-]+", "-", title).strip("-")[:64] or "api",
            lifespan=partial(self._serving, lifespan),
            **{"version": version or "0.0.0", **options},
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
        return Tool(
            definition=endpoint.definition,
            invocation=Invocation(
                function=partial(self._call, endpoint),
                is_async=True,
                in_thread=False,
                context_names=("ctx",),
                by_name=False,
                timeout=None,
            ),
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
        request, secrets = build_request(endpoint.operation, arguments), list[str]()
        try:
            async with asyncio.timeout(self._timeout):
                request, secrets = await self._auth.sign(request, endpoint.operation, ctx.principal)
                response = await self._exchange(replace(request, headers={**HEADERS, **request.headers}))
        except TimeoutError:
            problem = f"{urlsplit(request.url).hostname} did not answer within {self._timeout:g} s"
        except ResponseTooLong:
            problem = f"the response has more than {self._max_bytes} bytes"
        except (BadResponse, ConnectionLost) as failure:
            problem = str(failure)
        else:
            if 200 <= response.status < 300:
                return endpoint.result(response.without(secrets), request.url.partition("?")[0])
            raise ToolError(f"{endpoint.place} answered {self._failure(response, secrets)}")
        raise ToolError(f"{endpoint.place}: {self._clean(problem, secrets)}")

    async def _exchange(self, request: ApiRequest) -> ApiResponse:
        """The response, after redirects at the same origin. A request that is no GET is never turned into one."""
        for _ in range(1 + MAX_REDIRECTS):
            response = await self._sender.send(request, self._max_bytes)
            location = response.headers.get("location")
            if response.status not in REDIRECTS or location is None:
                return response
            url = ServerUrl.parse(request.url).join(location, request.url)
            if request.method not in ("GET", "HEAD") and response.status not in KEEPING_METHOD:
                raise BadResponse(f"it answered {response.status_text}, which leads to {url.partition('?')[0]}")
            request = replace(request, url=url)
        raise BadResponse(f"it redirects more than {MAX_REDIRECTS} times")

    def _failure(self, response: ApiResponse, secrets: Sequence[str]) -> str:
        """The status of an error, with the message of the API."""
        message = self._clean(error_message(response), secrets)
        when = response.headers.get("retry-after", "") if response.status in (429, 503) else ""
        later = f"in {when} s" if when.isdecimal() else f"after {self._clean(when, secrets)}"
        return (f"{response.status}: {message}" if message else response.status_text) + (
            f"; try again {later}" if when else ""
        )

    def _clean(self, text: str, secrets: Sequence[str]) -> str:
        """A text of the API, for a model: bounded, on one line, without secrets."""
        for secret in secrets:
            text = text.replace(secret, REDACTED)
        text = "".join(each if each.isprintable() else " " for each in self.engine.redactor.text(text)).strip()
        return f"{text[:MAX_MESSAGE]}…" if len(text) > MAX_MESSAGE else text


class Endpoint(LenientDecoder):
    """An operation as a tool. Its validators are compiled by its first call: a document has hundreds of operations."""

    def __init__(self, operation: Operation, options: Options) -> None:
        self.operation = operation
        self.place = f"{operation.method} {operation.path}"
        self.subject, self.lenient = operation.name, options.lenient_arguments
        self.schema = dict(operation.definition.input_schema)
        self._output = None if options.output == "text" else operation.definition.output_schema
        self.definition = replace(operation.definition, output_schema=self._output)
        self._text_copy = options.output != "structured"
        self._is_reported = False  # that the API does not answer as it should

    @cached_property
    def _validator(self) -> Validator:  # type: ignore[override]  # the base class only reads it
        return self._compiled(self.schema, {"type": "object"}, "its arguments")

    @cached_property
    def _output_validator(self) -> Validator:
        return self._compiled(self._output or {}, {}, "its results")

    def _compiled(self, schema: Mapping[str, Any], otherwise: Mapping[str, Any], what: str) -> Validator:
        try:
            return Validator(schema, where=f"tool {self.subject}, {what}")
        except SetupError as problem:  # the API has checks of its own
            log.warning("%s; they are not checked", problem)
            return Validator(otherwise, where=what)

    def decode(self, raw: bytes | Raw) -> dict[str, Any]:
        """The arguments as the client sent them: defaults are for the API to fill in. Raises ArgumentError."""
        value: dict[str, Any] = self._parse(raw)
        return value if self._validator.is_valid(value) else self._decode_again(raw)

    def _from_value(self, value: Any) -> dict[str, Any] | None:
        return value if self._validator.is_valid(value) else None

    def result(self, response: ApiResponse, url: str) -> ToolResult:
        """The result for a successful response."""
        compact, problems = "", ["it is no JSON"]
        if JSON_TYPE.match(response.content_type) and response.body:
            with suppress(*UNREADABLE):
                compact = msgspec.json.format(response.text, indent=-1)
        if self._output is None:
            return ToolResult(content=(Text(compact) if compact else self._content(response, url),))
        with suppress(*UNREADABLE):
            problems = self._output_validator.problems(msgspec.json.decode(compact), root="value")
        if not problems:
            wrap = self._output.get("type") != "object"
            return ToolResult(structured=Raw(compact.encode()), wrap=wrap, text_copy=self._text_copy)
        if not self._is_reported:
            self._is_reported = True
            log.warning("%s does not answer as its specification says: %s", self.place, "; ".join(problems))
        said = (
            f"{self.place} answered {response.status_text}, but not as its specification says: {'; '.join(problems)}."
        )
        text = f"{said} The call has had its effect. The response:\n{compact or response.text}"
        return ToolResult(content=(Text(text),), is_error=True, has_schema=True)

    def _content(self, response: ApiResponse, url: str) -> Content:
        """A response that is no JSON, by its content type."""
        body, kind = response.body, response.content_type or "text/plain"
        if not body:
            return Text(response.status_text)
        if kind.startswith(("image/", "audio/")):
            return Image(body, kind) if kind.startswith("image/") else Audio(body, kind)
        if TEXT_TYPE.fullmatch(kind) or JSON_TYPE.match(kind):
            return Text(response.text)
        if len(body) > MAX_BLOB_BYTES:
            raise ToolError(
                f"{self.place} answered {response.status}, with {len(body)} bytes of {kind}: too many to show"
            )
        return EmbeddedResource(ResourceContents(uri=url, mime_type=kind, blob=body))


def error_message(response: ApiResponse) -> str:
    """The words of an error response; those of a page for people are left out."""
    try:
        value = msgspec.json.decode(response.text)
    except UNREADABLE:
        return response.text if response.content_type == "text/plain" else ""
    return _words(value) or msgspec.json.encode(value).decode()


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

    def __init__(self, given: Any, document: Document) -> None:
        self._given, self._schemes = given, document.security_schemes
        named = list(given) if isinstance(given, Mapping) else []
        for unknown in (each for each in named if each not in self._schemes):
            near = get_close_matches(str(unknown), self._schemes, 1) or list(self._schemes)
            has = f"did you mean {near[0]!r}?" if near else "it has none; give a token"
            raise SetupError(f"OpenApi: auth= names the security scheme {unknown!r}, which the document lacks; {has}")
        self._undeclared = named or (list(self._schemes) if len(self._schemes) == 1 else [""])  # "": Bearer
        self._is_declared = declares_security(document.spec)

    async def sign(
        self, request: ApiRequest, operation: Operation, principal: Principal | None
    ) -> tuple[ApiRequest, list[str]]:
        """The request with credentials, and all spellings of its secrets."""
        wanted = operation.security if self._is_declared else [self._undeclared]
        for names in wanted if self._given is not None else ():
            found = {each: await self._secret(each, principal) for each in names}
            if found and None not in found.values():
                secrets: set[str] = set()
                for name, secret in found.items():
                    request = _signed(request, self._schemes.get(name, BEARER), str(secret), secrets)
                return request, sorted(secrets, key=len, reverse=True)
        return request, []

    async def _secret(self, scheme: str, principal: Principal | None) -> str | None:
        source = self._given.get(scheme) if isinstance(self._given, Mapping) else self._given
        secret = await call_maybe_async(source, principal) if callable(source) else source
        if secret is not None and not (isinstance(secret, str) and secret and HEADER_VALUE.fullmatch(secret)):
            raise SetupError("OpenApi: auth= gives something that is no token; it must be one line of ASCII text")
        return secret


def _signed(request: ApiRequest, scheme: Mapping[str, Any], secret: str, secrets: set[str]) -> ApiRequest:
    header, value = "Authorization", f"Bearer {secret}"
    match scheme:
        case {"type": "apiKey", "in": "query", "name": str(name)}:
            secrets |= {secret, quote(secret, safe="")}
            return replace(request, url=add_query(request.url, f"{quote(name, safe='')}={quote(secret, safe='')}"))
        case {"type": "apiKey", "in": "cookie", "name": str(name)}:
            header, value = "Cookie", "; ".join(filter(None, (request.headers.get("Cookie"), f"{name}={secret}")))
        case {"type": "apiKey", "name": str(name)}:
            header, value = name, secret
        case {"type": "http", "scheme": str(word)} if word.lower() == "basic":
            value = f"Basic {b64encode(secret.encode()).decode()}"
            secrets.add(secret.partition(":")[2] or secret)
        case {"type": "http", "scheme": str(word)} if word.lower() != "bearer":
            value = f"{word} {secret}"
    secrets |= {secret, quote(secret, safe=""), value.rpartition(" ")[2]}
    return replace(request, headers={**request.headers, header: value})


def declares_security(spec: Mapping[str, Any]) -> bool:
    """Whether a document says of any operation that it needs credentials."""
    items = [each for each in (spec.get("paths") or {}).values() if isinstance(each, dict)]
    operations = [each for item in items for each in item.values() if isinstance(each, dict)]
    return any(each.get("security") for each in [spec, *operations])


class HttpSender:
    """Sends requests over HTTP, in a session that the first of them opens; it loads aiohttp, too."""

    def __init__(self) -> None:
        self._session: Any = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            session, self._session = self._session, None
            if session is not None:
                await session.close()

    async def send(self, request: ApiRequest, max_bytes: int) -> ApiResponse:
        try:
            import aiohttp
        except ImportError:
            raise SetupError('OpenApi: a URL needs aiohttp; install it: pip install "dovetail-mcp[openapi]"') from None
        self._session = self._session or aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(keepalive_timeout=KEEPALIVE_SECONDS, ssl=tls_context("https:") or True),
            cookie_jar=aiohttp.DummyCookieJar(),  # a cookie would pass from caller to caller
            timeout=aiohttp.ClientTimeout(total=None),  # `_call` has one
        )
        origin = ServerUrl.parse(request.url).origin
        proxy, body = find_proxy(origin), bytearray()
        way: dict[str, Any] = {} if proxy is None else {"proxy": proxy.url, "proxy_headers": proxy.headers}
        added = proxy.headers if proxy is not None and origin[0] == "http" else {}
        url = aiohttp.client.URL(request.url, encoded=True)  # type: ignore[attr-defined]  # yarl's
        try:
            async with self._session.request(
                request.method,
                url,
                headers={**request.headers, **added},
                data=request.body,
                allow_redirects=False,
                **way,
            ) as raw:
                async for chunk in raw.content.iter_any():
                    body += chunk
                    if len(body) > max_bytes:
                        raise ResponseTooLong
                return ApiResponse(raw.status, {name.lower(): each for name, each in raw.headers.items()}, bytes(body))
        except aiohttp.ClientConnectorDNSError:
            raise ConnectionLost(f"there is no host {origin[1]}") from None
        except aiohttp.ClientSSLError:
            raise ConnectionLost(f"{origin[1]} has no certificate that is valid here, or does not speak TLS") from None
        except (aiohttp.ClientConnectorError, ConnectionError):
            raise ConnectionLost(f"{origin[1]} can't be reached, or closed the connection") from None
        except (aiohttp.ClientError, ValueError):
            raise ConnectionLost(f"{origin[1]} does not speak HTTP as it should") from None
