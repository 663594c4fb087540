"""What a page in a browser may ask for, send and read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.protocol.headers import Headers
from dovetail.transports.cors import MAX_HEADERS, MAX_HEADERS_LENGTH, METHODS, REQUEST_HEADERS, Cors

APP = "https://app.example.com"


def preflight(requested: str | None = None, origin: str | None = APP, method: str | None = "POST", **more: str):
    """The headers of the answer as a dict, or None."""
    given = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": requested,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    raw = [(name.encode(), value.encode("latin-1")) for name, value in given.items() if value is not None]
    answer = Cors(True).preflight(Headers(raw))
    if answer is None:
        return None
    assert len(dict(answer)) == len(answer)
    return {name.decode(): value.decode() for name, value in answer}


def test_a_preflight_without_headers() -> None:
    assert preflight() == {
        "access-control-allow-origin": APP,
        "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
        "access-control-max-age": "600",
        "vary": "Origin, Access-Control-Request-Headers",
    }


REQUESTED = [
    ("content-type", "content-type"),
    ("Content-Type,MCP-Protocol-Version", "Content-Type, MCP-Protocol-Version"),
    ("authorization, last-event-id ,\tmcp-session-id", "authorization, last-event-id, mcp-session-id"),
    ("mcp-method,mcp-name,mcp-param-region", "mcp-method, mcp-name, mcp-param-region"),
    ("Mcp-Param-A.b_c~1, mcp-param-", "Mcp-Param-A.b_c~1"),
    ("traceparent,tracestate,baggage,dpop,accept", "traceparent, tracestate, baggage, dpop, accept"),
    ("x-evil, cookie, content-type", "content-type"),
    ("content-type,Content-Type,CONTENT-TYPE", "content-type"),
    ("mcp-param-a b, mcp-param-a:b, mcp-param-é, mcp-param-\x00, mcp-param-a\r\nset-cookie: x", None),
    ("*", None),
    ("", None),
    (",,,", None),
]


@pytest.mark.parametrize(("requested", "allowed"), REQUESTED)
def test_known_headers_are_echoed_as_they_are_spelt(requested: str, allowed: str | None) -> None:
    assert preflight(requested).get("access-control-allow-headers") == allowed


def test_thousands_of_headers_are_cut() -> None:
    names = [f"mcp-param-{number}" for number in range(10_000)]
    assert preflight(",".join(names))["access-control-allow-headers"] == ", ".join(names[:MAX_HEADERS])
    long = [f"mcp-param-{'x' * 150}{number}" for number in range(10_000)]
    allowed = preflight(",".join(long))["access-control-allow-headers"]
    assert len(allowed) <= MAX_HEADERS_LENGTH + MAX_HEADERS
    assert set(allowed.split(", ")) < set(long)  # no half of one
    assert "access-control-allow-headers" not in preflight("mcp-param-" + "x" * 100_000)


def test_switched_off() -> None:
    raw = [(b"origin", APP.encode()), (b"access-control-request-method", b"POST")]
    assert Cors(False).preflight(Headers(raw)) is None
    assert Cors(False).response_headers(APP) == []


def test_responses() -> None:
    headers = dict(Cors(True).response_headers(APP))
    assert headers[b"access-control-allow-origin"] == APP.encode()
    assert headers[b"vary"] == b"Origin"
    exposed = headers[b"access-control-expose-headers"].decode().split(", ")
    assert {"Mcp-Session-Id", "WWW-Authenticate", "Retry-After"} <= set(exposed)
    assert Cors(True).response_headers(None) == []


@pytest.mark.parametrize("origin", ["", "a b", "https://x\r\nset-cookie: y", "é", "x\x00", "x" * 10_000])
def test_what_can_be_no_origin_is_never_echoed(origin: str) -> None:
    """The guard lets such a thing through only where every origin may come."""
    assert Cors(True).response_headers(origin) == []
    assert preflight(origin=origin) is None


LATIN = st.text(st.characters(max_codepoint=255), max_size=100)


@given(LATIN, LATIN, LATIN)
def test_nothing_can_be_smuggled_into_the_answer(requested: str, origin: str, method: str) -> None:
    answer = preflight(requested, origin, method) or {}
    answer.update((name.decode(), value.decode()) for name, value in Cors(True).response_headers(origin))
    assert all(value.isascii() and value.isprintable() for value in answer.values())
    assert "access-control-allow-credentials" not in answer
    assert answer.get("access-control-allow-methods", METHODS.decode()) == METHODS.decode()
    given = origin.strip(" \t")  # blanks around a value are not part of it
    assert answer.get("access-control-allow-origin", given) == given
    for name in answer.get("access-control-allow-headers", "accept").split(", "):
        assert name.lower() in REQUEST_HEADERS or name.lower().startswith("mcp-param-")
