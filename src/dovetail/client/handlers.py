"""Handlers of the server's requests: elicitation, sampling, roots, and the input_required loop.

A request is decoded before its handler runs, so that the user is not asked if another request of the call is malformed.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, get_args

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from dovetail.client.dispatcher import Params, RunHandler
from dovetail.client.results import decode, has_flag, result_type_of
from dovetail.client.transports.base import cancel_and_wait, page_url
from dovetail.errors import INVALID_PARAMS, METHOD_NOT_FOUND, BadResponse, MissingCapability, ProtocolError, SetupError
from dovetail.protocol import revisions
from dovetail.protocol.capabilities import require_capabilities
from dovetail.protocol.extensions import EXTENSIONS_KEY, TASKS, checked_extension, declared_extensions
from dovetail.protocol.jsonrpc import NO_PARAMS, UNREADABLE, describe_decode_error, encode
from dovetail.protocol.results import INPUT_REQUIRED
from dovetail.protocol.revisions import Revision
from dovetail.schema.validate import Validator


async def call_maybe_async(function: Callable[..., Any], *arguments: Any) -> Any:
    outcome = function(*arguments)
    return await outcome if inspect.isawaitable(outcome) else outcome


# ── elicitation ──

Action = Literal["accept", "decline", "cancel"]
Mode = Literal["form", "url"]
_WIRE_NAMES = {"schema": "requestedSchema", "elicitation_id": "elicitationId"}


class ElicitRequest(msgspec.Struct, frozen=True, kw_only=True, rename=_WIRE_NAMES.get):
    """A form to fill in or, in mode "url", a page to visit: ask the user before it is opened.

    `schema` is an object schema whose properties are the fields of the form. `elicitation_id` is passed to
    `elicitation_complete_handler` when the user is done at the page; only 2025-11-25 has it.
    """

    message: str
    mode: Mode = "form"
    schema: dict[str, Any] | None = None
    url: str | None = None
    elicitation_id: str | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        return (f"elicitation.{self.mode}",)  # capability

    @property
    def fields(self) -> dict[str, dict[str, Any]]:
        return {} if self.schema is None else self.schema["properties"]


class ElicitResult(msgspec.Struct, frozen=True):
    """What a handler returns to decline or cancel: `ElicitResult("cancel")`."""

    action: Action
    content: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.action not in get_args(Action):
            raise SetupError(f"ElicitResult({self.action!r}): use one of {', '.join(get_args(Action))}")


ElicitReturn = ElicitResult | Mapping[str, Any] | str | float | bool | list[str] | None
ElicitationHandler = Callable[[ElicitRequest], ElicitReturn | Awaitable[ElicitReturn]]
ElicitationCompleteHandler = Callable[[str], Awaitable[None] | None]


def read_elicitation(params: Raw) -> ElicitRequest:
    request = msgspec.json.decode(params, type=ElicitRequest)
    if request.mode == "url":
        url = None if request.url is None else page_url(request.url)
        if url is None:
            words = "url must be one that begins with https:// or http://, and nothing stands before its host"
            raise ProtocolError(f"Invalid params: {words}", code=INVALID_PARAMS)
        return replace(request, url=url, schema=None)
    fields = (request.schema or {}).get("properties")
    if not isinstance(fields, dict) or not all(isinstance(field, dict) for field in fields.values()):
        words = "requestedSchema.properties must be an object of schemas"
        raise ProtocolError(f"Invalid params: {words}", code=INVALID_PARAMS)
    return replace(request, url=None)


async def elicit(handler: ElicitationHandler, request: ElicitRequest) -> dict[str, Any]:
    answer = _as_result(request, await call_maybe_async(handler, request))
    if answer.action != "accept" or request.mode == "url":
        return {"action": answer.action}
    defaults = {name: field["default"] for name, field in request.fields.items() if _has_default(field)}
    content = {**defaults, **(answer.content or {})}
    try:
        sent = msgspec.json.decode(encode(content))
    except (TypeError, ValueError, OverflowError, RecursionError) as failure:
        raise SetupError(f"elicitation_handler: what it returned can't be sent: {failure}") from None
    if problems := _problems(request.schema or {}, sent):
        raise SetupError(f"elicitation_handler: what it returned does not fit: {'; '.join(problems[:5])}")
    return {"action": "accept", "content": content}


def _problems(schema: Mapping[str, Any], content: Any) -> list[str]:
    """Validation problems of the content; none if the schema is invalid: then the server has to validate."""
    try:
        return Validator(schema, where="the form", lazy=True).problems(content, root="content")
    except SetupError:
        return []


def _as_result(request: ElicitRequest, given: Any) -> ElicitResult:
    if isinstance(given, ElicitResult):
        return given
    if given is None:
        return ElicitResult("decline")
    if isinstance(given, Mapping):
        return ElicitResult("accept", given)
    if not request.fields:  # a URL, or a form that only wants a yes
        return ElicitResult("accept" if given else "decline")
    if isinstance(given, (str, int, float, list, tuple)) and len(request.fields) == 1:
        return ElicitResult("accept", dict.fromkeys(request.fields, given))
    returned = f"elicitation_handler returned {type(given).__name__} for a form of {len(request.fields)} fields"
    raise SetupError(f"{returned}; return a dict with their values, an ElicitResult, or None to decline")


def _has_default(field: Mapping[str, Any]) -> bool:
    """Whether the field has a valid default; a server may send any value."""
    default = field.get("default")
    can_hold = isinstance(default, (str, int, float))
    if isinstance(default, list):
        can_hold = all(isinstance(choice, str) for choice in default)
    return can_hold and not _problems(field, default)


# ── sampling ──


class SamplingRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A request for a model's completion. `params` holds all of it as the server sent it.

    Each message is {"role": …, "content": [blocks]}; the content is a list even if the server sent one block.
    """

    messages: list[dict[str, Any]]
    max_tokens: int
    system_prompt: str | None = None
    temperature: float | None = None
    stop_sequences: list[str] = []
    model_preferences: dict[str, Any] = {}
    include_context: str | None = None
    metadata: dict[str, Any] = {}
    tools: list[dict[str, Any]] = []
    tool_choice: dict[str, Any] | None = None
    params: dict[str, Any] = {}

    @property
    def needs(self) -> tuple[str, ...]:
        return ("sampling.tools",) if self.tools or self.tool_choice is not None else ()  # capability


ServerRequest = ElicitRequest | SamplingRequest
SamplingReturn = str | Mapping[str, Any] | None
SamplingHandler = Callable[[SamplingRequest], SamplingReturn | Awaitable[SamplingReturn]]


class _SamplingMessage(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant"]
    content: dict[str, Any] | list[dict[str, Any]]

    @property
    def blocks(self) -> list[dict[str, Any]]:
        return self.content if isinstance(self.content, list) else [self.content]


def read_sampling(params: Raw) -> SamplingRequest:
    whole = msgspec.json.decode(params, type=dict[str, Any])
    given = {name: value for name, value in whole.items() if value is not None}
    request = msgspec.convert(given, SamplingRequest)
    messages = msgspec.convert(request.messages, list[_SamplingMessage])
    return replace(request, messages=[{"role": each.role, "content": each.blocks} for each in messages], params=whole)


async def sample(handler: SamplingHandler, request: SamplingRequest) -> dict[str, Any]:
    given = await call_maybe_async(handler, request)
    if given is None:
        raise ProtocolError("The user rejected the sampling request", code=-1)  # the specification's own code
    whole: dict[str, Any] = {"role": "assistant", "model": "unknown"}
    if isinstance(given, str):
        return {**whole, "content": {"type": "text", "text": given}, "stopReason": "endTurn"}
    if isinstance(given, Mapping) and "content" in given:
        return {**whole, **given}
    wanted = 'return the text, a whole result such as {"content": …, "model": …}, or None to refuse'
    raise SetupError(f"sampling_handler returned {type(given).__name__}; {wanted}")


# ── roots ──

RootLike = str | Path | Mapping[str, Any]  # a path, a file:// URI, or {"uri": …, "name": …}
RootSource = Sequence[RootLike] | Callable[[], Sequence[RootLike] | Awaitable[Sequence[RootLike]]]


async def list_roots(source: RootSource) -> dict[str, Any]:
    return {"roots": _read_roots(await call_maybe_async(source) if callable(source) else source)}


def _checked_roots(source: RootSource) -> RootSource:
    return source if callable(source) else _read_roots(source)  # a function is called whenever the server asks


def _read_roots(roots: Sequence[RootLike]) -> list[dict[str, Any]]:
    if isinstance(roots, (str, bytes, Path, Mapping)) or not isinstance(roots, Sequence):
        raise SetupError(f"Client: roots= must be a list of paths, not {type(roots).__name__}")
    return [_read_root(root) for root in roots]


def _read_root(root: Any) -> dict[str, Any]:
    if isinstance(root, Path) or (isinstance(root, str) and "://" not in root):
        return {"uri": Path(root).absolute().as_uri()}
    whole = {"uri": root} if isinstance(root, str) else root
    uri = whole.get("uri") if isinstance(whole, Mapping) else None
    if isinstance(uri, str) and uri.lower().startswith("file://"):
        return {**whole}
    raise SetupError(f'Client: roots=[{root!r}]: use a path, a file:// URI or {{"uri": "file://…", "name": …}}')


# ── requests of the server ──


class UnsupportedRequest(ProtocolError):
    """A request that the client can't answer. `advice` is for the client's user; the server gets only the message."""

    def __init__(self, message: str, code: int, advice: str) -> None:
        super().__init__(message, code=code)
        self.advice = advice


class _RequestKind(NamedTuple):
    capability: str
    option: str  # of `Client`, which holds the handler
    read: Callable[[Raw], ServerRequest] | None  # None: there are no params
    answer: Callable[..., Any]


_KINDS = {
    "elicitation/create": _RequestKind("elicitation", "elicitation_handler", read_elicitation, elicit),
    "sampling/createMessage": _RequestKind("sampling", "sampling_handler", read_sampling, sample),
    "roots/list": _RequestKind("roots", "roots", None, list_roots),
}


class HandlerOptions(TypedDict, total=False):
    """Options of `Client` for requests of the server; `capabilities` override those of the handlers."""

    capabilities: Mapping[str, Any] | None
    extensions: Mapping[str, Mapping[str, Any]] | None  # that the client declares: settings by id
    tasks: bool  # False
    elicitation_handler: ElicitationHandler | None
    elicitation_complete_handler: ElicitationCompleteHandler | None
    sampling_handler: SamplingHandler | None
    roots: RootSource | None


class ClientHandlers:
    """The handlers of one client, and the capabilities that they declare."""

    def __init__(self, options: HandlerOptions) -> None:
        handlers = {name: options.get(name) for name in ("elicitation_handler", "sampling_handler")}
        for option, handler in handlers.items():
            if handler is not None and not callable(handler):
                wanted = "give a function that takes the question"
                raise SetupError(f"Client: {option}={handler!r} is not possible; {wanted}")
        roots = options.get("roots")
        self.elicitation_complete_handler = options.get("elicitation_complete_handler")
        self._handlers: dict[str, Any] = {**handlers, "roots": None if roots is None else _checked_roots(roots)}
        own = {**(options.get("capabilities") or {})}
        if declared := options.get("extensions"):
            checked = {id: checked_extension(id, each, "Client: extensions=") for id, each in declared.items()}
            own[EXTENSIONS_KEY] = {**declared_extensions(own), **checked}
        self._capabilities = {revision.name: {**self._offered(revision), **own} for revision in revisions.ALL}
        if options.get("tasks"):  # in 2025-11-25 a call asks for one, and the client declares nothing
            for name in revisions.MODERN:
                self._capabilities[name][EXTENSIONS_KEY] = {**declared_extensions(own), TASKS: {}}

    def capabilities(self, revision: Revision) -> Mapping[str, Any]:
        return self._capabilities[revision.name]

    def _offered(self, revision: Revision) -> dict[str, Any]:
        offers: dict[str, Any] = {"sampling": {}, "roots": {"listChanged": True} if revision.handshake else {}}
        if revision.elicitation:
            offers["elicitation"] = {"form": {}, "url": {}} if revision.url_elicitation else {}
        options = {kind.capability: kind.option for kind in _KINDS.values()}
        return {name: offer for name, offer in offers.items() if self._handlers[options[name]] is not None}

    def announces_roots(self, revision: Revision) -> bool:
        return has_flag(self.capabilities(revision), "roots", "listChanged")

    def set_roots(self, roots: RootSource) -> None:
        if self._handlers["roots"] is None:
            raise SetupError("Client: it did not declare the roots capability; begin with Client(…, roots=[])")
        self._handlers["roots"] = _checked_roots(roots)

    def prepare_handler(self, revision: Revision, method: str, params: Raw) -> RunHandler:
        """The run of the handler for a request. Raises UnsupportedRequest."""
        kind = _KINDS.get(method)
        if kind is None:
            raise _not_found(method, "which this client does not know")
        handler = self._handlers[kind.option]
        declared = self.capabilities(revision)
        if handler is None:
            raise _not_found(method, f"which needs {kind.option}=…, and this Client was made without")
        if kind.capability not in declared:
            raise _not_found(method, f"which a client of {revision.name} has not declared")
        if kind.read is None:
            return partial(kind.answer, handler)
        request = _read_request(method, kind.read, params)
        try:
            require_capabilities(request.needs, declared)
        except MissingCapability:
            text = f"this client has not declared {', '.join(request.needs)}"
            advice = f"the server asks {method}, but {text}"
            raise UnsupportedRequest(f"Invalid params: {text}", INVALID_PARAMS, advice) from None
        return partial(kind.answer, handler, request)


def _not_found(method: str, why: str) -> UnsupportedRequest:
    shown = method[:100]
    return UnsupportedRequest(f"Method not found: {shown}", METHOD_NOT_FOUND, f"the server asks {shown}, {why}")


def _read_request(method: str, read: Callable[[Raw], ServerRequest], params: Raw) -> ServerRequest:
    try:
        return read(params)
    except UNREADABLE as failure:
        text = f"Invalid params: {describe_decode_error(failure)}"
    except ProtocolError as malformed:
        text = malformed.message
    raise UnsupportedRequest(text, INVALID_PARAMS, f"the server asks {method} in a way that can't be read: {text}")


# ── the input_required loop, since 2026-07-28 ──

Send = Callable[[Params], Awaitable[Raw]]
PrepareHandler = Callable[[str, Raw], RunHandler]

INPUT_METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})  # that may have such a result


class InputRequest(msgspec.Struct, frozen=True):
    method: str
    params: Raw = NO_PARAMS


class RequiredInput(msgspec.Struct, frozen=True, rename="camel"):
    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None


async def run_rounds(
    method: str,
    params: Params,
    send: Send,
    prepare_handler: PrepareHandler,
    max_rounds: int,
    *,
    first_delay: float = 0.1,
    max_delay: float = 5.0,
) -> Raw:
    """The complete result of a call, which is sent again with the user's input for as long as the server requires it.

    `send` makes one round. A result without input requests only asks to wait: the delay doubles each time.
    """
    delay, added = first_delay, dict[str, Any]()
    for rounds in count():
        raw = await send({**params, **added})
        if result_type_of(method, raw) != INPUT_REQUIRED:
            break
        if rounds == max_rounds:
            asks = f"the server still asks for more after {max_rounds} rounds"
            raise BadResponse(f"{method}: {asks}; max_rounds= allows no others")
        result = read_input_required(method, raw)
        added = {}
        if result.input_requests:
            added["inputResponses"] = await _answer_all(method, result.input_requests, prepare_handler)
            delay = first_delay
        else:
            await asyncio.sleep(delay)
            delay = min(2 * delay, max_delay)
        if result.request_state is not None:
            added["requestState"] = result.request_state
    return raw


def read_input_required(method: str, raw: Raw) -> RequiredInput:
    """What a server asks, or BadResponse if that is nothing or too much."""
    result = decode(method, raw, RequiredInput)
    if not result.input_requests and result.request_state is None:
        raise BadResponse(f"{method}: the server wants an answer, but asks nothing")
    if len(result.input_requests or ()) > 100:
        raise BadResponse(f"{method}: the server asks more than 100 questions at once")
    return result


def prepare_answers(
    method: str, requests: Mapping[str, InputRequest], prepare_handler: PrepareHandler
) -> dict[str, RunHandler]:
    """The runs of the handlers; none of them runs if one of the requests is not supported: then this is BadResponse."""
    try:
        return {key: prepare_handler(request.method, request.params) for key, request in requests.items()}
    except UnsupportedRequest as unsupported:
        raise BadResponse(f"{method}: {unsupported.advice}") from None


async def _answer_all(
    method: str, requests: Mapping[str, InputRequest], prepare_handler: PrepareHandler
) -> dict[str, Any]:
    """The user's input for all requests."""
    handlers = prepare_answers(method, requests, prepare_handler)
    tasks = [asyncio.ensure_future(run_handler()) for run_handler in handlers.values()]
    try:
        return dict(zip(requests, await asyncio.gather(*tasks), strict=True))
    finally:  # the first failure, or a cancellation, cancels them all
        await cancel_and_wait(*tasks)
