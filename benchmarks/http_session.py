"""The rate of tool calls in sessions of 2025-11-25: 32 sessions, taken in turn, over 32 connections."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from benchmarks import wrk
from benchmarks.case import CannotMeasure, Case, Round, Settings
from benchmarks.http_call import ARGUMENTS, check_sum
from benchmarks.http_contender import (
    CLIENT,
    CONTENDERS,
    HANDSHAKE,
    HEADERS,
    NO_ERRORS,
    HttpServer,
    Offer,
    Post,
    serving,
)

SESSIONS = 32
FIRST_ID = 10_000_000  # ids are unique, and all as long as this one

# The requests of all sessions are put together beforehand; while time is taken only the id is filled in.
LUA = """
heads, tails, number = {}, {}, %(first)d
function init(args)
  for _, session in ipairs({%(sessions)s}) do
    wrk.headers["mcp-session-id"] = session
    local request = wrk.format()
    local first, last = string.find(request, "%(first)d", 1, true)
    table.insert(heads, string.sub(request, 1, first - 1))
    table.insert(tails, string.sub(request, last + 1))
  end
end
function request()
  number = number + 1
  local at = number %% #heads + 1
  return heads[at] .. number .. tails[at]
end
"""


@contextmanager
def _open(contender: str, settings: Settings) -> Iterator[Round]:
    with serving(contender, Offer(sessions=True)) as server:
        check_sum(server.ask(in_session(server)))
        lua = CALL.lua + _rotating([_begin(server) for _ in range(SESSIONS)])
        server.load(lua + wrk.looking(NO_ERRORS), 1, SESSIONS)  # also warms it up
        yield lambda: server.load(lua, settings.seconds, SESSIONS)


def in_session(server: HttpServer) -> Post:
    """The call, as the first of a new session."""
    return Post({**CALL.headers, "mcp-session-id": _begin(server)}, CALL.body)


def _begin(server: HttpServer) -> str:
    params = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": CLIENT}
    answer = server.ask(_post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}))
    if answer.result["protocolVersion"] != HANDSHAKE:
        raise CannotMeasure(f"it answers with revision {answer.result['protocolVersion']}")
    session = answer.headers["mcp-session-id"]
    server.ask(_post({"jsonrpc": "2.0", "method": "notifications/initialized"}, {"mcp-session-id": session}))
    return session


def _post(message: Mapping[str, object], headers: Mapping[str, str] | None = None) -> Post:
    named = {**HEADERS, "mcp-protocol-version": HANDSHAKE, **(headers or {})}
    return Post(named, json.dumps(message, separators=(",", ":")))


def _rotating(sessions: Sequence[str]) -> str:
    return LUA % {"first": FIRST_ID, "sessions": ", ".join(map(json.dumps, sessions))}


CALL_PARAMS = {"name": "add", "arguments": ARGUMENTS}
CALL = _post({"jsonrpc": "2.0", "id": FIRST_ID, "method": "tools/call", "params": CALL_PARAMS})
TARGETS = {"mcp": 9, "fastmcp": 18, "floor": 0.65}
CASES = [Case("http-session", "HTTP call in a 2025-11-25 session", "calls/s", True, CONTENDERS, _open, TARGETS)]
