"""Which revision a message belongs to, and what is malformed about it: messages and headers in, requests out.

`modern` decides everything that carries its own version in `_meta`; what it leaves (None) is for `on_pipe` or
`on_http`, which know the handshake era. Errors are raised as ProtocolError with the HTTP status they deserve.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from dovetail.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    ProtocolError,
)
from dovetail.protocol import headers as header_rules
from dovetail.protocol import jsonrpc, revisions
from dovetail.protocol.jsonrpc import Envelope
from dovetail.protocol.methods import (
    DECODERS,
    NOTIFICATION_ROWS,
    REQUEST_ROWS,
    CancelledParams,
    InitializeParams,
    LogLevel,
    Method,
    Params,
    RequestId,
    RequestMeta,
)
from dovetail.protocol.revisions import Revision
from dovetail.protocol.session import Session

Headers = Mapping[str, str]  # lower-case names

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
HOW_TO_START = (
    f"Send initialize first, or put {VERSION_KEY} and {CAPABILITIES_KEY} into params._meta; "
    f"supported versions: {', '.join(revisions.SUPPORTED)}"
)


class Request(msgspec.Struct, kw_only=True):
    """A request that may be served: its revision is decided, its envelope and params are checked."""

    id: RequestId
    method: str
    row: Method
    params: Params
    raw_params: Raw
    revision: Revision
    capabilities: dict[str, Any]
    client: dict[str, Any] | None
    log_level: LogLevel | None = None  # of this request; a session's own level is in the session
    session: Session | None = None
    headers: Headers | None = None

    @property
    def meta(self) -> dict[str, Any]:
        """The whole `_meta` as it came."""
        params = jsonrpc.parse(self.raw_params)
        meta = params.get("_meta") if isinstance(params, dict) else None
        return meta if isinstance(meta, dict) else {}


class Opened(msgspec.Struct, frozen=True):
    """A request whose params have been read once; `problem` says why the typed reading failed."""

    id: RequestId
    method: str
    row: Method | None
    params: Params
    raw: Raw
    problem: ProtocolError | None = None


def open_request(message: Envelope) -> Opened:
    """Read a request's params by the shape of its method."""
    assert isinstance(message.id, (int, str))
    assert isinstance(message.method, str)
    row = REQUEST_ROWS.get(message.method)
    shape = Params if row is None else row.params
    try:
        params = DECODERS[shape].decode(message.params)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
        if bytes(message.params).strip() == b"null":  # some clients spell "no params" so
            return open_request(msgspec.structs.replace(message, params=jsonrpc.NO_PARAMS))
        meta, problem = _salvage(message.params, failure)
        return Opened(message.id, message.method, row, Params(meta=meta), message.params, problem)
    return Opened(message.id, message.method, row, params, message.params)


def _salvage(raw: Raw, failure: Exception) -> tuple[RequestMeta, ProtocolError]:
    """The params don't fit, but the era, and so the right error, is still decided by what can be read of `_meta`."""
    try:
        value = jsonrpc.parse(raw)
    except jsonrpc.BadMessage as bad:
        return RequestMeta(), ProtocolError(bad.message, code=PARSE_ERROR, http_status=400)
    meta = value.get("_meta") if isinstance(value, dict) else None
    version = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
    capabilities = meta.get(CAPABILITIES_KEY) if isinstance(meta, dict) else None
    readable = RequestMeta(
        version=version if isinstance(version, str) else UNSET,
        capabilities=capabilities if isinstance(capabilities, dict) else UNSET,
    )
    words = jsonrpc.in_words(failure)
    status = 400 if words.startswith("_meta") else 200
    return readable, ProtocolError(f"Invalid params: {words}", code=INVALID_PARAMS, http_status=status)


def modern(opened: Opened, headers: Headers | None = None) -> Request | None:
    """Rows 3 to 11 of the HTTP table and row 3 of the pipe's: None if the request names no version of its own."""
    meta = opened.params.meta
    version = meta.version
    if version is UNSET:
        return None
    assert isinstance(version, str)
    if headers is not None:
        _check_version_header(headers, version)
    revision = revisions.MODERN.get(version)
    if revision is None:
        raise unsupported(version)
    if headers is not None:
        name = getattr(opened.params, header_rules.MCP_NAME_FIELDS.get(opened.method, ""), None)
        header_rules.check_standard(headers, method=opened.method, name=name)
    if meta.capabilities is UNSET:
        raise _missing_meta(CAPABILITIES_KEY)
    row = opened.row
    if row is None or version not in row.since:
        raise method_not_found(opened.method, http_status=404)
    if opened.problem is not None:
        raise opened.problem
    return Request(
        id=opened.id,
        method=opened.method,
        row=row,
        params=opened.params,
        raw_params=opened.raw,
        revision=revision,
        capabilities=meta.capabilities,  # type: ignore[arg-type]  # UNSET was refused above
        client=None if meta.client is UNSET else meta.client,  # type: ignore[arg-type]
        log_level=None if meta.log_level is UNSET else meta.log_level,  # type: ignore[arg-type]
        headers=headers,
    )


def on_pipe(opened: Opened, session: Session | None) -> Request:
    """Rows 4 to 10 of the pipe's table: a request that names no version of its own."""
    if opened.method == "initialize":
        if session is not None:
            raise ProtocolError("This connection is already initialised", code=INVALID_REQUEST)
        return _initialize(opened)
    if opened.method == "server/discover":
        raise opened.problem or _missing_meta(VERSION_KEY)
    if session is None and opened.method == "ping":
        return _handshake(opened, revisions.LATEST_HANDSHAKE, None)
    if session is None:
        raise ProtocolError(f"Not initialised. {HOW_TO_START}", code=INVALID_PARAMS)
    return _handshake(opened, session.revision, session)


def on_http(opened: Opened, headers: Headers, session: Session | None, *, stateless: bool = False) -> Request:
    """Rows 12 to 18 of the HTTP table: a request that names no version of its own.

    `session` is the record that `Mcp-Session-Id` names, or None if there is none.
    """
    version = headers.get("mcp-protocol-version")
    if version in revisions.MODERN:
        raise opened.problem or _missing_meta(VERSION_KEY)
    if version is not None and version not in revisions.HANDSHAKE:
        raise unsupported(version)
    if opened.method == "initialize":
        return _initialize(opened, headers)
    if session is not None:
        return _handshake(opened, session.revision, session, headers)
    if stateless:
        return _handshake(opened, revisions.HANDSHAKE.get(version or "", revisions.UNNAMED), None, headers)
    if "mcp-session-id" in headers:
        raise ProtocolError("There is no such session; it may have ended", code=INVALID_REQUEST, http_status=404)
    message = f"Mcp-Session-Id is missing. {HOW_TO_START}"
    raise ProtocolError(message, code=INVALID_REQUEST, http_status=400)


def allow_batch(revision: Revision | None) -> None:
    """Row 2 of both tables: raises unless the revision has batches."""
    if revision is None or not revision.batches:
        raise ProtocolError("Batches are not part of this protocol revision", code=INVALID_REQUEST, http_status=400)


def http_batch_revision(headers: Headers, session: Session | None) -> Revision | None:
    """The revision that decides whether an HTTP body may be an array."""
    if session is not None:
        return session.revision
    return revisions.BY_NAME.get(headers.get("mcp-protocol-version", revisions.UNNAMED.name))


def _initialize(opened: Opened, headers: Headers | None = None) -> Request:
    if opened.problem is not None:
        raise opened.problem
    assert isinstance(opened.params, InitializeParams)
    # A version that we don't know, or that has no handshake, is answered with the newest that has one.
    revision = revisions.HANDSHAKE.get(opened.params.protocol_version, revisions.LATEST_HANDSHAKE)
    return _handshake(opened, revision, None, headers)


def _handshake(opened: Opened, revision: Revision, session: Session | None, headers: Headers | None = None) -> Request:
    row = opened.row
    if row is None or revision.name not in row.since:
        raise method_not_found(opened.method)
    if opened.problem is not None:
        raise opened.problem
    return Request(
        id=opened.id,
        method=opened.method,
        row=row,
        params=opened.params,
        raw_params=opened.raw,
        revision=revision,
        capabilities={} if session is None else session.capabilities,
        client=None if session is None else session.client,
        session=session,
        headers=headers,
    )


def cancelled_request(message: Envelope) -> RequestId | None:
    """The id that a `notifications/cancelled` names; None if it is malformed, for such are ignored."""
    try:
        params = DECODERS[CancelledParams].decode(message.params)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    assert isinstance(params, CancelledParams)
    return None if params.request_id is UNSET else params.request_id  # type: ignore[return-value]


def known_notification(message: Envelope) -> Method | None:
    assert isinstance(message.method, str)
    return NOTIFICATION_ROWS.get(message.method)


def method_not_found(method: str, *, http_status: int = 200) -> ProtocolError:
    shown = method if len(method) <= 100 else method[:100] + "…"
    return ProtocolError(f"Method not found: {shown}", code=METHOD_NOT_FOUND, http_status=http_status)


def unsupported(requested: str) -> ProtocolError:
    hint = "; use initialize for it" if requested in revisions.HANDSHAKE else ""
    shown = requested if len(requested) <= 100 else requested[:100] + "…"
    return ProtocolError(
        f"Unsupported protocol version: {shown}{hint}",
        code=UNSUPPORTED_VERSION,
        data={"supported": list(revisions.SUPPORTED), "requested": requested},
        http_status=400,
    )


def _missing_meta(key: str) -> ProtocolError:
    message = f"Invalid params: _meta.{key} is missing or not of the right type. {HOW_TO_START}"
    return ProtocolError(message, code=INVALID_PARAMS, http_status=400)


def _check_version_header(headers: Headers, version: str) -> None:
    header = headers.get("mcp-protocol-version")
    if header is None:
        raise ProtocolError("The header MCP-Protocol-Version is missing", code=HEADER_MISMATCH, http_status=400)
    if header.strip() != version:
        message = "The header MCP-Protocol-Version differs from params._meta"
        raise ProtocolError(message, code=HEADER_MISMATCH, http_status=400)
