"""The official JSON Schemas as a judge of what the server emits. They are test data beside the project, never in it."""

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import jsonschema_rs

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
        asks = method in ASKING and revision == MODERN and message["result"].get("resultType") == "input_required"
        self._check(revision, "InputRequiredResult" if asks else RESULTS[method], message["result"])
        if asks and not message["result"].keys() & {"inputRequests", "requestState"}:
            self._object(f"an input_required without questions and without a state: {str(message)[:200]}")
        if asks and message["result"].keys() & {"ttlMs", "cacheScope"}:
            self._object(f"an input_required with hints for caches: {str(message)[:200]}")
        if method == "tools/call" and revision in ("2024-11-05", "2025-03-26"):
            self._check(revision, "CallToolResult", message["result"])

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
    acknowledges = message["method"] == "notifications/subscriptions/acknowledged"
    return acknowledges or "io.modelcontextprotocol/subscriptionId" in meta
