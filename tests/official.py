"""The official JSON Schemas as a judge of what servers emit. They are test data beside the project, never in it.

Tests use `Watch(monkeypatch.setattr)`; a program that a test starts calls `judge_this_process()` before it serves, and
the test looks for `COMPLAINT` in what it wrote to stderr.
"""

import contextlib
import functools
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import jsonschema_rs

from dovetail.engine.connection import Connection
from dovetail.protocol.sse import SseDecoder
from dovetail.transports.http.endpoint import Endpoint
from dovetail.transports.http.get_stream import GetStream
from dovetail.transports.http.legacy_sse import STREAM_ROUTE
from dovetail.transports.http.request import HttpRequest
from dovetail.transports.http.response import HttpResponse

FOLDER = Path(
    os.environ.get("DOVETAIL_SPEC_SCHEMAS", Path(__file__).parent.parent.parent / "shared" / "spec" / "schemas")
)
MISSING = "OFFICIAL SCHEMAS ARE MISSING: the messages of the server are not checked (set DOVETAIL_SPEC_SCHEMAS)"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"

RESULTS = {
    "initialize": "InitializeResult",
    "ping": "EmptyResult",
    "server/discover": "DiscoverResult",
    "tools/list": "ListToolsResult",
    "tools/call": "CallToolResult",
    "resources/list": "ListResourcesResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "resources/read": "ReadResourceResult",
    "resources/subscribe": "EmptyResult",
    "resources/unsubscribe": "EmptyResult",
    "prompts/list": "ListPromptsResult",
    "prompts/get": "GetPromptResult",
    "completion/complete": "CompleteResult",
    "logging/setLevel": "EmptyResult",
    "subscriptions/listen": "SubscriptionsListenResult",
}
MODERN = "2026-07-28"
# In 2025-11-25 tasks are of the core; in 2026-07-28 they are an extension, whose types are not in its schema.
TASKS_2025 = {
    "tasks/get": "GetTaskResult",
    "tasks/cancel": "CancelTaskResult",
    "tasks/list": "ListTasksResult",
    "tasks/result": "CallToolResult",  # of the only requests that become tasks
}
TASKS_METHOD = "notifications/tasks"
ERRORS_2026 = {
    -32020: "HeaderMismatchError",
    -32021: "MissingRequiredClientCapabilityError",
    -32022: "UnsupportedProtocolVersionError",
}
RESERVED = range(-32768, -31999)
CODES_2026 = {-32700, -32600, -32601, -32602, -32603, *ERRORS_2026}  # of the reserved ones, no others


def available() -> bool:
    return FOLDER.is_dir()


def demand() -> None:
    """Skip loudly where the schemas are absent; in CI their absence is a failure."""
    import pytest  # late: the programs of tests are judged as well, and should start quickly

    demand_in_ci()
    if not available():
        pytest.skip(MISSING)


def demand_in_ci() -> None:
    import pytest

    if not available() and os.environ.get("CI") == "true":
        pytest.exit(f"CI: the official schemas are missing at {FOLDER}", returncode=1)


@functools.cache
def schema(revision: str) -> dict[str, Any]:
    return json.loads((FOLDER / revision / "schema.json").read_text())


@functools.cache
def validator_for(revision: str, type_name: str) -> Any:
    """A validator of one named type of one revision."""
    whole = schema(revision)
    place = "$defs" if "$defs" in whole else "definitions"
    assert type_name in whole[place], f"{revision} has no {type_name}"
    return jsonschema_rs.validator_for(
        {"$schema": whole["$schema"], place: whole[place], "$ref": f"#/{place}/{type_name}"}, offline=True
    )


def has_type(revision: str, type_name: str) -> bool:
    whole = schema(revision)
    return type_name in whole.get("$defs", whole.get("definitions", {}))


ASKING = {"tools/call", "prompts/get", "resources/read"}  # what may end with questions


class Witness:
    """Sees both directions of one connection and judges what the server says."""

    on_problem: ClassVar[Callable[[str], None] | None] = None  # is called at once

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.session_revision: str | None = None
        self.replays = False  # an answer may be sent again to a client that comes back for it
        self._asked: dict[Any, tuple[str, str]] = {}  # id -> method, revision

    def see(self, direction: str, message: bytes) -> None:
        """As a client's `transcript=`."""
        (self.sent if direction == "sent" else self.received)(bytes(message))

    # ── what the client says, only to know what the server is answering ──

    def admitted(self, request: Any) -> None:
        """A request that the server has taken in."""
        self._asked[_key(request.id)] = (request.method, request.revision.name)

    def sent(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return
        for item in message if isinstance(message, list) else [message]:
            if isinstance(item, dict) and isinstance(item.get("method"), str) and "id" in item:
                self._remember(item)

    def _remember(self, request: dict[str, Any]) -> None:
        params = request.get("params")
        meta = params.get("_meta") if isinstance(params, dict) else None
        version = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
        if request["method"] == "initialize" and version is None:
            version = "2025-11-25"
        revision = version if isinstance(version, str) else self.session_revision or "2025-11-25"
        self._asked[_key(request["id"])] = (request["method"], revision)

    # ── what the server says ──

    def received(self, line: bytes) -> None:
        if not available():
            return
        try:
            message = json.loads(line)
        except ValueError:
            self._object(f"not JSON: {line[:200]!r}")
            return
        if b"\n" in line.rstrip(b"\n"):
            self._object(f"a raw newline inside a message: {line[:200]!r}")
        for item in message if isinstance(message, list) else [message]:
            self._judge(item)

    def _judge(self, message: dict[str, Any]) -> None:
        if "method" in message:
            self._judge_notification(message)
        elif "error" in message:
            self._judge_error(message)
        else:
            self._judge_result(message)

    def _judge_notification(self, message: dict[str, Any]) -> None:
        revision = MODERN if _is_modern(message) or self.session_revision is None else self.session_revision
        if "id" in message and revision == MODERN:
            self._object(f"{revision} knows no requests of a server: {str(message)[:300]}")
        elif "id" in message:
            self._check(revision, "ServerRequest", message)
        elif message["method"] == TASKS_METHOD:
            self._check_task(message["params"])
        else:
            self._check(revision, "ServerNotification", message)
            self._check(revision, "JSONRPCNotification", message)

    def _judge_error(self, message: dict[str, Any]) -> None:
        id = message.get("id")
        if id is None:
            # The one exemption: the id could not be read, and older schemas demand one all the same.
            self._check("2025-11-25", "JSONRPCErrorResponse", {k: v for k, v in message.items() if k != "id"})
            return
        _, revision = self._asked.get(_key(id), ("", self.session_revision or "2025-11-25"))
        revision = revision if (FOLDER / revision).is_dir() else MODERN
        name = "JSONRPCErrorResponse" if has_type(revision, "JSONRPCErrorResponse") else "JSONRPCError"
        self._check(revision, name, message)
        code = message["error"]["code"]
        if revision == MODERN and code in ERRORS_2026:
            self._check(revision, ERRORS_2026[code], message)
        if revision == MODERN and code in RESERVED and code not in CODES_2026:
            self._object(f"{revision} has no error {code}: {str(message)[:300]}")

    def _judge_result(self, message: dict[str, Any]) -> None:
        key = _key(message.get("id"))
        asked = self._asked.get(key) if self.replays else self._asked.pop(key, None)
        if asked is None:
            self._object(f"an answer to nothing that was asked: {str(message)[:200]}")
            return
        method, revision = asked
        if method == "initialize":
            revision = self.session_revision = message["result"]["protocolVersion"]
        name = "JSONRPCResultResponse" if has_type(revision, "JSONRPCResultResponse") else "JSONRPCResponse"
        self._check(revision, name, message)
        if revision == "2025-11-25" and (method in TASKS_2025 or "task" in message["result"]):
            self._check(revision, TASKS_2025.get(method, "CreateTaskResult"), message["result"])
            return
        if revision == MODERN and (method == "tasks/get" or message["result"].get("resultType") == "task"):
            self._check_task(message["result"], is_new=method == "tools/call")
            return
        asks = method in ASKING and revision == MODERN and message["result"].get("resultType") == "input_required"
        self._check(revision, "InputRequiredResult" if asks else RESULTS.get(method, "Result"), message["result"])
        if asks and not message["result"].keys() & {"inputRequests", "requestState"}:
            self._object(f"an input_required without questions and without a state: {str(message)[:200]}")
        if asks and message["result"].keys() & {"ttlMs", "cacheScope"}:
            self._object(f"an input_required with hints for caches: {str(message)[:200]}")
        if method == "tools/call" and revision in ("2024-11-05", "2025-03-26"):
            self._check(revision, "CallToolResult", message["result"])

    def _check_task(self, task: dict[str, Any], *, is_new: bool = False) -> None:
        """The shapes of the extension, in the words of its text."""
        status, outcome = task.get("status"), task.keys() & {"inputRequests", "result", "error"}
        parts = {"input_required": {"inputRequests"}, "completed": {"result"}, "failed": {"error"}}
        durations = [task.get("ttlMs"), task.get("pollIntervalMs", 1)]
        is_right = (
            status in ("working", "input_required", "completed", "failed", "cancelled")
            and all(isinstance(task.get(name), str) for name in ("taskId", "createdAt", "lastUpdatedAt"))
            and all(type(each) is int and each > 0 for each in durations)
            and outcome == (set() if is_new else parts.get(status, set()))
            and not task.keys() & {"task", "ttl", "pollInterval", "requestState"}
        )
        if not is_right:
            self._object(f"no Task of the extension: {str(task)[:300]}")
        if "result" in outcome:
            self._check(MODERN, "CallToolResult", task["result"])
        for request in task.get("inputRequests", {}).values():
            self._check(MODERN, "InputRequest", request)

    def _check(self, revision: str, name: str, instance: Any) -> None:
        try:
            validator_for(revision, name).validate(instance)
        except jsonschema_rs.ValidationError as failure:
            self._object(f"{revision} {name}: {failure.message[:300]} in {str(instance)[:300]}")

    def _object(self, problem: str) -> None:
        self.problems.append(problem)
        if Witness.on_problem is not None:
            Witness.on_problem(problem)

    def assert_clean(self) -> None:
        assert not self.problems, "the official schema disagrees:\n" + "\n".join(self.problems[:10])


def _key(id: Any) -> Any:
    return (type(id).__name__, str(id))


def _is_modern(message: dict[str, Any]) -> bool:
    meta = (message.get("params") or {}).get("_meta") or {}
    acknowledges = message["method"] in ("notifications/subscriptions/acknowledged", TASKS_METHOD)
    return acknowledges or "io.modelcontextprotocol/subscriptionId" in meta


# ── every message that a server in this process emits, over pipes and over HTTP ──

COMPLAINT = "the official schema disagrees: "
Patch = Callable[[Any, str, Any], None]  # as `setattr` takes it, or `monkeypatch.setattr`


class _WatchedPipe:
    """Hands everything on, and shows it to the witness."""

    def __init__(self, pipe, witness: Witness) -> None:
        self._pipe = pipe
        self._witness = witness
        self.drain = pipe.drain

    def write(self, message: bytes) -> None:
        self._witness.received(bytes(message))
        self._pipe.write(message)

    def __getattr__(self, name: str):
        return getattr(self._pipe, name)


class Watch:
    """The witnesses of everything since the watch began."""

    def __init__(self, patch: Patch) -> None:
        self._over_pipes = _watch_pipes(patch)
        self._over_http = _watch_http(patch)

    def __iter__(self) -> Iterator[Witness]:
        yield from self._over_pipes
        yield from self._over_http


def _watch_pipes(patch: Patch) -> list[Witness]:
    witnesses: list[Witness] = []
    original_init, original_admit = Connection.__init__, Connection._admit

    def watched_init(self: Connection, engine, pipe, **options: Any) -> None:
        witness = Witness()
        witnesses.append(witness)
        self.witness = witness
        original_init(self, engine, _WatchedPipe(pipe, witness), **options)

    def watched_admit(self: Connection, *arguments: Any, **options: Any):
        call = original_admit(self, *arguments, **options)
        self.witness.admitted(call.context.request)
        return call

    patch(Connection, "__init__", watched_init)
    patch(Connection, "_admit", watched_admit)
    return witnesses


class _Gallery:
    """One witness for each response; those of one session know what was asked in it."""

    def __init__(self) -> None:
        self.witnesses: list[Witness] = []
        self._of_session: dict[str, dict[Any, tuple[str, str]]] = {}

    def new(self) -> Witness:
        witness = Witness()
        self.witnesses.append(witness)
        return witness

    def in_session(self, witness: Witness, session: Any) -> None:
        witness.session_revision = session.version
        witness.replays = True
        witness._asked = self._of_session.setdefault(session.id, witness._asked)


def _watch_http(patch: Patch) -> list[Witness]:
    gallery = _Gallery()
    watched: dict[int, tuple[HttpResponse, Witness]] = {}  # the response is kept: ids are used again

    make_request, stream_init = HttpRequest.from_scope.__func__, GetStream.__init__  # type: ignore[attr-defined]
    make_context = Endpoint._context
    send_json, send_event = HttpResponse.json, HttpResponse.event

    def watched_request(kind: type[HttpRequest], *arguments: Any) -> HttpRequest:
        request: HttpRequest = make_request(kind, *arguments)
        if request.route != STREAM_ROUTE:  # what that stream carries is judged where its connection writes it
            watched[id(request.response)] = (request.response, gallery.new())
        return request

    def watched_context(self: Endpoint, http_request: HttpRequest, request: Any, *arguments: Any) -> Any:
        witness = watched[id(http_request.response)][1]
        if request.session is not None:
            gallery.in_session(witness, request.session)
        elif request.revision.handshake:
            witness.session_revision = request.revision.name
        witness.admitted(request)
        return make_context(self, http_request, request, *arguments)

    def watched_stream(self: GetStream, source, session, response, *others) -> None:
        stream_init(self, source, session, response, *others)
        gallery.in_session(watched[id(response)][1], session.record)

    def watched_json(self: HttpResponse, status: int, body: bytes, headers: Any = None) -> Awaitable[None]:
        if id(self) in watched and body and b'"jsonrpc"' in body:
            watched[id(self)][1].received(body)
        return send_json(self, status, body, headers)

    async def watched_event(self: HttpResponse, frame: bytes, **options: Any) -> None:
        for event in SseDecoder(max_bytes=1 << 26).feed(frame):
            if event.data and id(self) in watched:
                watched[id(self)][1].received(event.data)
        await send_event(self, frame, **options)

    patch(HttpRequest, "from_scope", classmethod(watched_request))
    patch(Endpoint, "_context", watched_context)
    patch(GetStream, "__init__", watched_stream)
    patch(HttpResponse, "json", watched_json)
    patch(HttpResponse, "event", watched_event)
    return gallery.witnesses


def judge_this_process() -> Watch | None:
    """From now on, and in every process forked from it; a problem is written to stderr at once. None: no schemas."""
    if not available():
        return None
    Witness.on_problem = _complain
    return Watch(setattr)


def _complain(problem: str) -> None:
    with contextlib.suppress(OSError):  # stderr may be closed
        os.write(2, f"{COMPLAINT}{problem}\n".encode(errors="backslashreplace"))


# ── forms, more strictly than the schemas by themselves, which let unknown keywords pass ──

FORM_REVISIONS = ("2025-06-18", "2025-11-25", "2026-07-28")  # those that have forms


def assert_official(params: dict[str, Any], revision: str) -> None:
    """The parameters of an `elicitation/create` are right, and each property has only keywords of one definition."""
    demand()
    request = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": params}
    validator_for(revision, "ElicitRequest").validate(request)
    for name, part in params.get("requestedSchema", {}).get("properties", {}).items():
        assert any(_is_wholly(part, kind, revision) for kind in _kinds(revision)), f"{revision}, {name}: {part}"


def _kinds(revision: str) -> list[str]:
    branches = _definitions(revision)["PrimitiveSchemaDefinition"]["anyOf"]
    return [branch["$ref"].rpartition("/")[2] for branch in branches]


def _is_wholly(part: dict[str, Any], kind: str, revision: str) -> bool:
    definition = _definitions(revision)[kind]["properties"]
    inner = definition.get("items", {}).get("properties", {})
    known = part.keys() <= definition.keys() and part.get("items", {}).keys() <= inner.keys()
    return known and validator_for(revision, kind).is_valid(part)


def _definitions(revision: str) -> dict[str, Any]:
    whole = schema(revision)
    return whole.get("$defs", whole.get("definitions"))
