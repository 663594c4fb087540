"""Classification of inbound messages: their revision, and what is malformed about them.

`modern` handles every request that carries its version in `_meta`. For others it returns None, and `on_connection` or
`on_http` classify them by their session. Errors are ProtocolErrors with their HTTP status.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail.errors import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, UNSUPPORTED_VERSION, ProtocolError
from dovetail.protocol import headers as header_rules
from dovetail.protocol import jsonrpc, revisions
from dovetail.protocol.headers import Headers
from dovetail.protocol.jsonrpc import UNREADABLE, BadMessage, Envelope, invalid_params
from dovetail.protocol.methods import (
    DECODERS,
    REQUEST_ROWS,
    AnyObject,
    CancelledParams,
    InitializeParams,
    LogLevel,
    Method,
    Params,
    ProgressParams,
    RequestId,
    RequestMeta,
    read_params,
)
from dovetail.protocol.revisions import Revision
from dovetail.protocol.session import MAX_CLIENT, Session, bounded_client

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
MODERN_KEYS = frozenset(RequestMeta.__struct_encode_fields__) - {"progressToken"}
HOW_TO_START = (
    f"Send initialize first, or put {VERSION_KEY} and {CAPABILITIES_KEY} into params._meta; "
    f"supported versions: {', '.join(revisions.SUPPORTED)}"
)


class Request(msgspec.Struct, kw_only=True):
    """A request that may be served: its revision is decided, its envelope and params are checked."""

    id: RequestId
    method: str
    row: Method
    params: Any  # of the type that the row of the method names
    raw_params: Raw
    revision: Revision
    log_level: LogLevel | None = None  # of this request; a session has its own
    session: Session | None = None
    headers: Headers | None = None

    @property
    def capabilities(self) -> dict[str, Any]:
        """The capabilities of the session, else those in the request's `_meta`, unchecked up to 2025-11-25."""
        session = self.session
        found = self.meta.get(CAPABILITIES_KEY) if session is None else jsonrpc.parse(session.capabilities)
        return found if isinstance(found, dict) else {}

    @property
    def client(self) -> dict[str, Any] | None:
        session = self.session
        found = self.meta.get(CLIENT_KEY) if session is None else jsonrpc.parse(session.client)
        return found if isinstance(found, dict) else None

    @property
    def meta(self) -> dict[str, Any]:
        """The whole `_meta`, as the client sent it."""
        try:
            params = jsonrpc.parse(self.raw_params)
        except BadMessage:  # in a part that has not been decoded so far
            return {}
        meta = params.get("_meta") if isinstance(params, dict) else None
        return meta if isinstance(meta, dict) else {}


class ParsedRequest(msgspec.Struct, frozen=True):
    """A request with decoded params; `problem` says in words why they don't fit the method."""

    id: RequestId
    method: str
    row: Method | None
    params: Params
    raw: Raw
    problem: str | None = None

    def refuse_bad_meta(self) -> None:
        """Raises if the problem is in `_meta`, which a request without a handshake needs."""
        if self.problem is not None and self.problem.startswith("_meta"):
            raise invalid_params(self.problem, http_status=400)


def parse_request(message: Envelope, rows: Mapping[str, Method] = REQUEST_ROWS) -> ParsedRequest:
    """Decodes a request's params by the type of its method. Raises BadMessage if they are not even JSON."""
    row = rows.get(message.method)  # type: ignore[arg-type]  # a request has a method
    try:
        params = read_params(message.params) if row is None else row.read(message.params)
    except UNREADABLE as failure:
        return _parse_carefully(message, row, failure, rows)
    return ParsedRequest(message.id, message.method, row, params, message.params)  # type: ignore[arg-type]  # and an id


def _parse_carefully(
    message: Envelope, row: Method | None, failure: Exception, rows: Mapping[str, Method]
) -> ParsedRequest:
    """Parse what can be read of params that don't fit: `_meta` still decides the revision, and so the right error."""
    assert isinstance(message.id, (int, str))
    assert isinstance(message.method, str)
    try:
        value = jsonrpc.parse(message.params)
    except BadMessage as bad:
        raise BadMessage(bad.code, bad.message, message.id) from None
    if value is None:  # some clients spell "no params" so
        return parse_request(msgspec.structs.replace(message, params=jsonrpc.NO_PARAMS), rows)
    found = value.get("_meta") if isinstance(value, dict) else None
    meta: dict[str, Any] = found if isinstance(found, dict) else {}
    if VERSION_KEY not in meta and meta.keys() & MODERN_KEYS:
        plain = parse_request(msgspec.structs.replace(message, params=_without_modern_keys(message.params)), rows)
        return msgspec.structs.replace(plain, raw=message.params)
    version, capabilities = meta.get(VERSION_KEY), meta.get(CAPABILITIES_KEY)
    readable = RequestMeta(
        version=version if isinstance(version, str) else UNSET,
        capabilities=AnyObject() if isinstance(capabilities, dict) else UNSET,
    )
    problem = jsonrpc.describe_decode_error(failure)
    return ParsedRequest(message.id, message.method, row, Params(meta=readable), message.params, problem)


def _without_modern_keys(params: Raw) -> Raw:
    """The params without the keys of 2026-07-28: up to 2025-11-25 these have no meaning, so any value is allowed."""
    members = jsonrpc.members(params)
    meta = jsonrpc.members(members["_meta"])
    members["_meta"] = Raw(jsonrpc.encode({key: value for key, value in meta.items() if key not in MODERN_KEYS}))
    return Raw(jsonrpc.encode(members))


def modern(parsed: ParsedRequest, headers: Headers | None = None) -> Request | None:
    """The request, None if it names no version. Checked in order: headers, version, `_meta`, method, params."""
    params = parsed.params
    meta = params.meta
    version = meta.version
    if version is UNSET:
        return None
    row = parsed.row
    revision = None if row is None else row.modern.get(version)
    if row is None or revision is None or parsed.problem is not None:
        raise _refusal(parsed, version, headers)
    if headers is not None and not header_rules.agree(headers.raw, revision, row, params):
        _check_headers(parsed, version, headers)
    if meta.capabilities is UNSET:
        raise _missing_meta(meta)
    if len(parsed.raw) > MAX_CLIENT:
        meta_members = jsonrpc.members(jsonrpc.members(parsed.raw)["_meta"])
        client, capabilities = meta_members.get(CLIENT_KEY, b"{}"), meta_members[CAPABILITIES_KEY]
        bounded_client(bytes(client), bytes(capabilities), http_status=400)
    return Request(
        id=parsed.id,
        method=parsed.method,
        row=row,
        params=params,
        raw_params=parsed.raw,
        revision=revision,
        log_level=None if meta.log_level is UNSET else meta.log_level,
        headers=headers,
    )


def _refusal(parsed: ParsedRequest, version: str, headers: Headers | None) -> ProtocolError:
    """The error of a request that `modern` refuses; the checks are made in the order that `modern` names."""
    if headers is not None:
        _check_headers(parsed, version, headers)
    if version not in revisions.MODERN:
        return unsupported(version)
    parsed.refuse_bad_meta()
    if parsed.params.meta.capabilities is UNSET:
        return _missing_meta(parsed.params.meta)
    if parsed.row is None or version not in parsed.row.versions:
        return method_not_found(parsed.method, http_status=404)
    return invalid_params(parsed.problem or "")


def _check_headers(parsed: ParsedRequest, version: str, headers: Headers) -> None:
    """Raises unless the headers mirror the body; an unknown version is reported before other differences."""
    header_rules.check_version(headers, version)
    if version not in revisions.MODERN:
        raise unsupported(version)
    row = parsed.row
    name = getattr(parsed.params, row.name_field or "", None) if row else None
    if row and row.name_optional and "mcp-name" not in headers:
        name = None
    header_rules.check_standard(headers, method=parsed.method, name=name)


def on_connection(parsed: ParsedRequest, session: Session | None) -> Request:
    """Classify a request without a version: `initialize` once, `ping` at any time, other methods after `initialize`."""
    if parsed.method == "initialize":
        if session is not None:
            raise ProtocolError("This connection is already initialised", code=INVALID_REQUEST)
        return _initialize(parsed)
    if parsed.method == "server/discover":
        parsed.refuse_bad_meta()
        raise _missing_meta(parsed.params.meta)
    if session is None and parsed.method == "ping":
        return _handshake(parsed, revisions.LATEST_HANDSHAKE, None)
    if session is None:
        parsed.refuse_bad_meta()
        raise ProtocolError(f"Not initialised. {HOW_TO_START}", code=INVALID_PARAMS)
    return _handshake(parsed, revisions.HANDSHAKE[session.version], session)


def on_http(parsed: ParsedRequest, headers: Headers, session: Session | None, *, stateless: bool = False) -> Request:
    """Classify an HTTP request without a version, by the version header; all but `initialize` need a session too."""
    exact = revisions.BY_HEADER.get(headers.raw.get(b"mcp-protocol-version", b""))
    revision = exact or _named_revision(headers)
    if not revision.handshake:
        parsed.refuse_bad_meta()
        raise _missing_meta(parsed.params.meta)
    if parsed.method == "initialize":
        return _initialize(parsed, headers)
    if session is not None:
        revision = revisions.HANDSHAKE[session.version]
    else:
        require_session(headers, None, stateless)
    return _handshake(parsed, revision, session, headers)


def accept_on_http(
    message: Envelope, headers: Headers, session: Session | None, *, stateless: bool = False
) -> Session | None:
    """The session of a notification or response; None: accept and ignore it. Checks the revision, then the session."""
    revision = _named_revision(headers)
    if b"mcp-protocol-version" not in headers.raw:
        revision = _meta_revision(message) or revision
    if not revision.handshake:
        if message.is_notification:
            return None  # this revision defines none over HTTP, so there is nothing to check
        text = f"A client must not send responses in {revision.name}; answers belong into the next request"
        raise ProtocolError(text, code=INVALID_REQUEST, http_status=400)
    return require_session(headers, session, stateless)


def _named_revision(headers: Headers) -> Revision:
    """The revision that the header names, which must be known; without the header, the last one that had none."""
    sent = headers.raw.get(b"mcp-protocol-version")
    if sent is None:
        return revisions.HTTP_DEFAULT
    revision = revisions.BY_HEADER.get(sent.strip(b" \t"))
    if revision is None:
        raise unsupported(headers["mcp-protocol-version"])
    return revision


def _meta_revision(message: Envelope) -> Revision | None:
    """The revision in the `_meta` of a notification, if it is one without a handshake."""
    try:
        version = read_params(message.params).meta.version
    except UNREADABLE:
        return None
    return None if isinstance(version, UnsetType) else revisions.MODERN.get(version)


def require_session(headers: Headers, session: Session | None, stateless: bool) -> Session | None:
    """The session, or None if the server is stateless. Raises 404 if the session is unknown, 400 if none is named."""
    if session is not None or stateless:
        return session
    if b"mcp-session-id" in headers.raw:
        raise ProtocolError("There is no such session; it may have ended", code=INVALID_REQUEST, http_status=404)
    raise ProtocolError(f"Mcp-Session-Id is missing. {HOW_TO_START}", code=INVALID_REQUEST, http_status=400)


def check_get_or_delete(headers: Headers, session: Session | None) -> None:
    """Raises unless the version header and the session are known: GET and DELETE exist in sessions only."""
    named = _named_revision(headers)
    if not named.handshake:
        raise unsupported(named.name)
    require_session(headers, session, stateless=False)


def allow_batch(revision: Revision | None) -> None:
    """Raises unless the revision has batches."""
    if revision is None or not revision.batches:
        raise ProtocolError("Batches are not part of this protocol revision", code=INVALID_REQUEST, http_status=400)


def http_batch_revision(headers: Headers, session: Session | None) -> Revision | None:
    """The revision that decides whether an HTTP body may be a batch: the session's, unless the header differs."""
    version = headers.get("mcp-protocol-version")
    named = revisions.HTTP_DEFAULT if version is None else revisions.BY_NAME.get(version)
    if session is None or named is None or not named.handshake:
        return named
    return session.revision


def _initialize(parsed: ParsedRequest, headers: Headers | None = None) -> Request:
    if parsed.problem is not None:
        raise invalid_params(parsed.problem)
    assert isinstance(parsed.params, InitializeParams)
    # For an unknown version, or one without a handshake, the response offers the newest with one.
    revision = revisions.HANDSHAKE.get(parsed.params.protocol_version, revisions.LATEST_HANDSHAKE)
    return _handshake(parsed, revision, None, headers)


def _handshake(
    parsed: ParsedRequest, revision: Revision, session: Session | None, headers: Headers | None = None
) -> Request:
    row = parsed.row
    if row is None or revision.name not in row.versions:
        raise method_not_found(parsed.method)
    if parsed.problem is not None:
        raise invalid_params(parsed.problem)
    return Request(
        id=parsed.id,
        method=parsed.method,
        row=row,
        params=parsed.params,
        raw_params=parsed.raw,
        revision=revision,
        session=session,
        headers=headers,
    )


def read_cancelled_id(message: Envelope) -> RequestId | None:
    """The request id in a `notifications/cancelled`; None if it is malformed, which is ignored."""
    return _read_id(message, CancelledParams, "request_id")


def read_progress_token(message: Envelope) -> RequestId | None:
    """The progress token in a client's `notifications/progress`; None if it is malformed."""
    return _read_id(message, ProgressParams, "progress_token")


def _read_id(message: Envelope, params: type[Params], field: str) -> RequestId | None:
    try:
        found = getattr(DECODERS[params].decode(message.params), field)
    except UNREADABLE:
        return None
    return None if found is UNSET else found


def method_not_found(method: str, *, http_status: int = 200) -> ProtocolError:
    shown = method if len(method) <= 100 else method[:100] + "…"
    return ProtocolError(f"Method not found: {shown}", code=METHOD_NOT_FOUND, http_status=http_status)


def refuse_modern(parsed: ParsedRequest) -> None:
    """Raises if a request names its version: HTTP+SSE knows only the handshake."""
    version = parsed.params.meta.version
    if not isinstance(version, UnsetType):
        raise unsupported(version, revisions.HANDSHAKE_VERSIONS)


def unsupported(requested: str, supported: Sequence[str] = revisions.SUPPORTED) -> ProtocolError:
    hint = "; use initialize for it" if requested in revisions.HANDSHAKE else ""
    shown = requested if len(requested) <= 100 else requested[:100] + "…"
    return ProtocolError(
        f"Unsupported protocol version: {shown}{hint}",
        code=UNSUPPORTED_VERSION,
        data={"supported": list(supported), "requested": requested},
        http_status=400,
    )


def _missing_meta(meta: RequestMeta) -> ProtocolError:
    found = {VERSION_KEY: meta.version, CAPABILITIES_KEY: meta.capabilities}
    missing = " and ".join(key for key, value in found.items() if value is UNSET)
    return invalid_params(f"_meta must hold {missing}. {HOW_TO_START}", http_status=400)
