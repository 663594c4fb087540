"""Whatever comes in, by a pipe or a POST: it is served, or refused in words."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inbound_stage import CLIENT_KEY, HANDSHAKE, LOG_KEY, MODERN, from_pipe, from_post, message, session

from dovetail.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    ProtocolError,
)
from dovetail.protocol import jsonrpc
from dovetail.protocol.inbound import CAPABILITIES_KEY, VERSION_KEY, Request
from dovetail.protocol.methods import REQUESTS, Params

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
METHODS = st.sampled_from([row.name for row in REQUESTS]) | st.text(max_size=10)
VERSIONS = st.sampled_from([MODERN, *HANDSHAKE, "x", ""])
META_KEYS = st.sampled_from([VERSION_KEY, CAPABILITIES_KEY, LOG_KEY, CLIENT_KEY, "progressToken"])
METAS = st.dictionaries(META_KEYS, VERSIONS | VALUES | st.just({}), max_size=5)
FIELDS = st.sampled_from(["name", "arguments", "uri", "cursor", "level", "ref", "argument", "context", "notifications"])
PARAMS = VALUES | st.dictionaries(FIELDS, VALUES, max_size=4).flatmap(
    lambda fields: METAS.map(lambda found: {**fields, "_meta": found})
)
HEADERS = st.dictionaries(
    st.sampled_from(["mcp-protocol-version", "mcp-session-id", "mcp-method", "mcp-name"]),
    VERSIONS | METHODS,
    max_size=4,
)
KNOWN_CODES = {INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, UNSUPPORTED_VERSION, HEADER_MISMATCH, PARSE_ERROR}


def served_or_refused(act: Any, *arguments: Any) -> None:
    try:
        request = act(*arguments)
    except ProtocolError as failure:
        check_refusal(failure)
        return
    assert isinstance(request, Request)
    assert isinstance(request.params, Params)
    assert request.revision.name in request.row.since
    assert request.revision.handshake == (VERSION_KEY not in request.meta)
    assert isinstance(request.capabilities, dict)


def check_refusal(failure: ProtocolError) -> None:
    assert json.loads(jsonrpc.error(1, failure))["error"]["code"] in KNOWN_CODES
    assert failure.http_status in (200, 400, 404)


@pytest.mark.rule("BASE-20", "LIFE-7", "LIFE-21")
@given(METHODS, PARAMS, st.none() | st.sampled_from(HANDSHAKE))
def test_pipe_serves_or_refuses_anything(method: str, params: Any, live: str | None) -> None:
    served_or_refused(from_pipe, message(method, params), None if live is None else session(live))


@pytest.mark.rule("BASE-20", "LIFE-7", "LIFE-21")
@given(METHODS, PARAMS, HEADERS, st.none() | st.sampled_from(HANDSHAKE), st.booleans())
def test_post_serves_or_refuses_anything(
    method: str, params: Any, headers: dict[str, str], live: str | None, stateless: bool
) -> None:
    served_or_refused(from_post, message(method, params), headers, None if live is None else session(live), stateless)
