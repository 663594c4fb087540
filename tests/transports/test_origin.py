"""Host, Origin and CORS: which requests are allowed, how others are refused, and what a browser page can do."""

import ipaddress
import logging
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dovetail import Server
from dovetail.errors import INVALID_REQUEST, ProtocolError, SetupError
from dovetail.protocol.headers import Headers
from dovetail.transports.http import origin as limits
from dovetail.transports.http.origin import Cors, OriginPolicy, parse_authority, parse_origin
from http_serving import serving
from http_wire import MODERN, HttpExchange, HttpWire

LOCAL = ("127.0.0.1", 8000)
PUBLIC = ("192.0.2.7", 8000)

Lines = Callable[[], list[str]]


def headers(host: str | None = "localhost:8000", origin: str | None = None) -> Headers:
    given = {"host": host, "origin": origin}
    return Headers([(name.encode(), value.encode("latin-1")) for name, value in given.items() if value is not None])


def status(policy: OriginPolicy, host: str | None, origin: str | None = None, server=LOCAL) -> int:
    """200 if the policy allows the request, else the status of the refusal."""
    try:
        policy.check(headers(host, origin), server)
    except ProtocolError as refusal:
        return refusal.http_status if refusal.code == INVALID_REQUEST else 0
    return 200


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """What the log holds by now."""
    caplog.set_level(logging.WARNING, "dovetail.http")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "dovetail.http"]


# ── Host ──


HOSTS = {
    200: [
        *("localhost", "localhost:8000", "LOCALHOST:1", "localhost.", "app.localhost:3000", "localhost:"),
        *("127.0.0.1:65535", "127.8.9.10:80", "[::1]", "[::1]:8000", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]"),
    ],
    403: [
        *("evil.example.com", "evil.example.com:8000", "localhost.evil.example", "127.0.0.1.evil.example"),
        *("128.0.0.1", "0.0.0.0", "127.1", "2130706433", "[::2]", "[::]", "[::ffff:10.0.0.1]", "xn--lcalhost-n4a"),
        *("0127.0.0.1", "localhost-.example", "10.0.0.1:8000", "notlocalhost"),
    ],
    400: [
        *("", " ", "localhost evil", "user@localhost", "user:pass@localhost", "localhost:abc", "localhost:65536"),
        *("localhost:-1", "localhost:80:80", "http://localhost", "localhost/path", "localhost?x", "localhost#x", "::1"),
        *(".localhost", "%6cocalhost", "[::1", "[localhost]", "[]", "[127.0.0.1]", "[::1%25lo]", "[::g]", "a\x00b"),
        *("a..localhost", "löcalhost", "localhost,evil.example", "*", "*.localhost", "localhost\\x", "a" * 300),
        *("a." * 5000, "localhost:000080", "localhost\r\nx: y", None),
    ],
}


@pytest.mark.rule("SH-2", "MH-2")
@pytest.mark.parametrize(
    ("expected", "host"),
    [(expected, host) for expected, hosts in HOSTS.items() for host in hosts],
    ids=lambda value: str(value)[:30],
)
def test_loopback_is_at_home_and_nothing_else(host: str | None, expected: int) -> None:
    for allowed in (None, [], ["example.com"]):
        for bound_to in (None, "127.0.0.1", "localhost", "::1"):
            assert status(OriginPolicy(allowed, [], bound_to=bound_to), host) == expected
    assert (parse_authority(host or "") is None) == (expected == 400)


def test_what_no_header_can_hold_is_no_host_either() -> None:
    assert [parse_authority(text) for text in ("\u212a", "localhost:٣")] == [None, None]
    for allowed, bound_to, expected in ((["a.example"], "0.0.0.0", 400), (None, "0.0.0.0", 200), (["*"], "::1", 200)):
        assert status(OriginPolicy(allowed, [], bound_to=bound_to), None) == expected


HOST_PATTERNS = [
    ("example.com", ["example.com", "EXAMPLE.com.", "example.com:1"], ["www.example.com", "anexample.com"]),
    ("Example.COM:*", ["example.com", "example.com:1"], ["www.example.com"]),
    ("example.com:8443", ["example.com:8443"], ["example.com", "example.com:443"]),
    ("example.com:443", ["example.com:443", "example.com"], ["example.com:80"]),
    ("*.example.com", ["a.example.com", "a.b.example.com:9"], ["example.com", "anexample.com", "a.example.com.x"]),
    ("*.example.com:80", ["a.example.com", "a.example.com:80"], ["a.example.com:81", "example.com"]),
    ("my_service", ["my_service:8000"], ["other_service"]),
    ("192.0.2.1", ["192.0.2.1:8000"], ["192.0.2.10", "1192.0.2.1"]),
    ("[2001:DB8::1]:8000", ["[2001:db8:0:0::1]:8000"], ["[2001:db8::1]:80", "[2001:db8::2]:8000"]),
    ("xn--bcher-kva.example", ["XN--BCHER-KVA.example"], ["bcher-kva.example"]),
    ("*", ["anything.example", "a b", ""], []),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "good", "bad"), HOST_PATTERNS)
def test_patterns_of_hosts(pattern: str, good: list[str], bad: list[str]) -> None:
    policy = OriginPolicy([pattern], [], bound_to="0.0.0.0")
    assert [status(policy, host) for host in good] == [200] * len(good)
    assert [status(policy, host) for host in bad] == [403] * len(bad)


@pytest.mark.parametrize("bound_to", ["0.0.0.0", "::", "", "192.0.2.7", "my-machine.local"])
def test_bound_to_the_world_host_is_not_checked_but_origin_is(bound_to: str, lines: Lines) -> None:
    policy = OriginPolicy(None, [], bound_to=bound_to)
    assert len(lines()) == 1
    assert "allowed_hosts (DOVETAIL_ALLOWED_HOSTS)" in lines()[0]
    for server in (LOCAL, PUBLIC, None):
        assert status(policy, "anything.example", None, server) == 200
        assert status(policy, "a b", None, server) == 200
    assert len(lines()) == 1
    assert status(policy, "anything.example", "https://anything.example") == 403
    assert status(policy, "anything.example", "http://localhost:3000") == 200


MOUNTED = [
    *((("127.0.0.1", 80), 403), (("::ffff:127.0.0.1", 80), 403), (("/run/app.sock", None), 403), (None, 403)),
    *((("192.0.2.7", 80), 200), (("0.0.0.0", 80), 200), (("2001:db8::7", 80), 200)),
]


def test_a_mounted_app_goes_by_the_local_socket(lines: Lines) -> None:
    policy = OriginPolicy(None, [], bound_to=None)
    for server, expected in MOUNTED * 2:
        assert status(policy, "app.example.com", None, server) == expected
        assert status(policy, "localhost:8000", None, server) == 200
        assert status(policy, "app.example.com", "https://app.example.com", server) == 403
    assert len([line for line in lines() if "Origin" not in line]) == 1  # the refusal of the name
    assert len([line for line in lines() if "is not checked" in line]) == 1


# ── Origin ──


ORIGINS = {
    200: [
        *(None, "http://localhost", "https://localhost:5173", "http://127.0.0.1:6274", "http://[::1]:3000"),
        *("http://tool.localhost", "http://127.99.1.2", "HTTP://LocalHost:1"),
    ],
    403: [
        *("http://evil.example.com", "https://localhost.evil.example", "http://127.0.0.1.evil.example", "null"),
        *("http://0.0.0.0:8000", "vscode-webview://localhost", "ws://localhost", "file://", "javascript://localhost"),
        *("", " ", "localhost", "http://", "http:///localhost", "http://localhost/", "http://localhost/x"),
        *("http://user@localhost", "http://localhost:99999", "http://localhost http://evil.example", "//localhost"),
        *("http://localhost\r\nx: y", "http://localhost\x00", "http://[localhost]", "é", "http://localhost,x"),
        *("http://localhost?x", "http://localhost#x", "http:\\\\localhost", "http://a" + "a" * 100_000),
    ],
}


@pytest.mark.rule("SSE-1", "SH-2", "SH-3", "MH-2")
@pytest.mark.parametrize(
    ("expected", "origin"),
    [(expected, origin) for expected, origins in ORIGINS.items() for origin in origins],
    ids=lambda value: str(value)[:30],
)
def test_no_origin_or_a_loopback_one_may_come_and_no_other(origin: str | None, expected: int) -> None:
    for allowed in ([], ["https://app.example.com"]):
        for bound_to in (None, "127.0.0.1", "0.0.0.0"):
            assert status(OriginPolicy(None, allowed, bound_to=bound_to), "localhost:8000", origin) == expected


ORIGIN_PATTERNS = [
    ("https://a.example", ["https://a.example", "https://a.example:443", "HTTPS://A.example"], ["http://a.example"]),
    ("https://a.example", [], ["https://a.example:8443", "https://x.a.example", "https://example"]),
    ("https://a.example:8443", ["https://a.example:8443"], ["https://a.example"]),
    ("https://a.example:*", ["https://a.example:1", "https://a.example"], ["http://a.example"]),
    ("http://192.0.2.1:*", ["http://192.0.2.1:5173"], ["http://192.0.2.2:5173"]),
    (
        "https://*.a.com",
        ["https://x.a.com", "https://x.y.a.com"],
        ["https://a.com", "https://xa.com", "http://x.a.com"],
    ),
    ("https://*.a.com", [], ["https://x.a.com:444"]),
    (
        "a.example",
        ["https://a.example", "http://a.example:3000"],
        ["vscode-webview://a.example", "https://x.a.example"],
    ),
    ("a.example:3000", ["http://a.example:3000"], ["http://a.example"]),
    ("*.a.com", ["http://x.a.com:1"], ["http://a.com"]),
    ("https://*", ["https://anything.example:1"], ["http://anything.example"]),
    ("null", ["null"], ["null://", "file://", "https://null"]),
    ("vscode-webview://*", ["vscode-webview://1ab2", "vscode-webview://"], ["vscode-file://1ab2", "https://x.example"]),
    ("chrome-extension://abcdef", ["chrome-extension://abcdef"], ["chrome-extension://abcdefg", "https://abcdef"]),
    ("file://", ["file://"], ["null", "file://x"]),
    ("*", ["https://anything.example", "null", "nonsense", "\xff", ""], []),
]


@pytest.mark.parametrize(("pattern", "good", "bad"), ORIGIN_PATTERNS)
def test_patterns_of_origins(pattern: str, good: list[str], bad: list[str]) -> None:
    for bound_to in ("127.0.0.1", "0.0.0.0"):
        policy = OriginPolicy(None, [pattern], bound_to=bound_to)
        assert [status(policy, "localhost", origin) for origin in good] == [200] * len(good)
        assert [status(policy, "localhost", origin) for origin in bad] == [403] * len(bad)
        assert status(policy, "localhost", "http://localhost:1") == 200


@pytest.mark.rule("SH-2", "MH-2")
def test_the_same_origin_may_come_if_its_host_is_vouched_for_by_a_check() -> None:
    for host, origin, expected in [
        *(("a.example.com", "https://a.example.com", 200), ("a.example.com", "http://a.example.com", 200)),
        *(("a.example.com:443", "https://a.example.com", 200), ("a.example.com:80", "http://A.example.com:80", 200)),
        *(("a.example.com", "https://a.example.com:8443", 403), ("a.example.com:80", "https://a.example.com", 403)),
        *(("a.example.com:443", "http://a.example.com", 403), ("a.example.com", "https://b.example.com", 403)),
        *(("a.example.com:0", "https://a.example.com", 403), ("localhost:8000", "https://a.example.com", 403)),
    ]:
        assert status(OriginPolicy(["*.example.com"], [], bound_to="0.0.0.0"), host, origin) == expected
    for allowed, bound_to in ((None, "0.0.0.0"), (["*"], "127.0.0.1"), (["*", "a.example"], None)):
        assert (
            status(OriginPolicy(allowed, [], bound_to=bound_to), "rebound.example:80", "http://rebound.example:80")
            == 403
        )


# ── what refusals say, and settings that can't be meant ──


@pytest.mark.rule("SH-3", "MH-2")
def test_a_refusal_names_the_value_and_the_setting(lines: Lines) -> None:
    policy = OriginPolicy(None, [], bound_to="127.0.0.1")
    for host, setting in (("evil.example.com", "allowed_hosts"), ("localhost", "allowed_origins")):
        with pytest.raises(ProtocolError) as refused:
            policy.check(headers(host, "https://evil.example.com"), LOCAL)
        assert "evil.example.com" in refused.value.message
        assert setting in refused.value.message
        assert lines()[-1] == refused.value.message


def test_values_are_harmless_in_the_log_which_is_not_flooded(lines: Lines) -> None:
    policy = OriginPolicy(None, [], bound_to="127.0.0.1")
    for value in ("\x1b[2J\r\nfake line\x00", "é\x85", "x" * 100_000, "\x9b" * 5000):
        assert (status(policy, value), status(policy, "localhost", value)) == (400, 403)
    assert len(lines()) == 8
    assert all(line.isascii() and line.isprintable() and len(line) < 1000 for line in lines())
    for number in range(3 * limits.MAX_LOGGED):
        assert status(policy, f"host{number // 2}.example") == 403
    assert len(lines()) == len(set(lines())) == limits.MAX_LOGGED + 4  # four of those before were origins
    assert status(policy, "localhost", "https://app.example") == 403  # a flood of hosts hides no origin
    assert "https://app.example" in lines()[-1]


BAD_PATTERNS = [
    *("https://a.example/", "example.com/mcp", "a.*.com", "*example.com", "*.*", "**", "", "a b", "user@example.com"),
    *("example.com:99999", "example.com:http", "a..b", "[::g]", "2001:db8::1", "bücher.example"),
]
BAD_ORIGINS = ["https://", "https://a.*.com", "https://a.example:99999", "app://a*", "app://x/y", "1x://y", "https://ü"]


@pytest.mark.parametrize("option", ["allowed_hosts", "allowed_origins"])
def test_bad_patterns_are_refused_at_once(option: str) -> None:
    for entry in [*BAD_PATTERNS, *(["https://example.com"] if option == "allowed_hosts" else BAD_ORIGINS)]:
        with pytest.raises(SetupError) as refused:
            OriginPolicy(
                **{"allowed_hosts": None, "allowed_origins": [], option: ["fine.example", entry]}, bound_to=None
            )
        assert str(refused.value).startswith(f"{option} holds {entry!r}")


LATIN = st.text(st.characters(max_codepoint=255), max_size=60)
PIECES = st.sampled_from(
    ["localhost", "127.0.0.1", "[::1]", "evil", "null", "8000", "http://", "https://", *".:@/* %é"]
)
HOSTILE = st.one_of(st.none(), LATIN, st.lists(PIECES, max_size=6).map("".join))
POLICIES = [
    OriginPolicy(None, [], bound_to=None),
    OriginPolicy(["*.example.com", "[::2]:1"], ["https://*.example.com", "null", "app://*"], bound_to="0.0.0.0"),
]


def trusted(name: str) -> bool:
    """Loopback, decided by other means than the policy's."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.split(".")[-1] == "localhost"


@given(HOSTILE, HOSTILE)
@example("localhost:8000", "http://localhost:8000")
@example("localhost@evil", "http://localhost@evil")
@example("LOCALHOST ", None)
@example("localhost", " http://localhost")
def test_nothing_but_loopback_passes_and_nothing_breaks(host: str | None, origin: str | None) -> None:
    for policy in POLICIES:
        for server in (LOCAL, None):
            status(policy, host, origin, server)
    if status(POLICIES[0], host, origin) == 200:
        authority = parse_authority((host or "").strip(" \t"))  # blanks around a value are no part of it
        assert authority is not None
        assert trusted(authority.name)
        if origin is not None:
            parsed = parse_origin(origin.strip(" \t"))
            assert parsed is not None
            assert parsed.scheme in ("http", "https")
            assert trusted(parsed.name)


# ── CORS ──

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


REQUESTED = [
    (None, None),
    ("content-type", "content-type"),
    ("Content-Type,MCP-Protocol-Version", "Content-Type, MCP-Protocol-Version"),
    ("authorization, last-event-id ,\tmcp-session-id", "authorization, last-event-id, mcp-session-id"),
    ("Mcp-Param-A.b_c~1, mcp-param-", "Mcp-Param-A.b_c~1"),
    ("traceparent,tracestate,baggage,dpop,accept", "traceparent, tracestate, baggage, dpop, accept"),
    ("Idempotency-Key, content-type", "Idempotency-Key, content-type"),
    ("x-evil, cookie, content-type", "content-type"),
    ("content-type,Content-Type,CONTENT-TYPE", "content-type"),
    ("mcp-param-a b, mcp-param-a:b, mcp-param-é, mcp-param-\x00, mcp-param-a\r\nset-cookie: x", None),
    ("*", None),
    (",,,", None),
]


def test_known_headers_are_echoed_as_they_are_spelt() -> None:
    always = {
        "access-control-allow-origin": APP,
        "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
        "access-control-max-age": "600",
        "vary": "Origin, Access-Control-Request-Headers",
    }
    for requested, allowed in REQUESTED:
        assert preflight(requested) == always | ({} if allowed is None else {"access-control-allow-headers": allowed})
    asking = {"access_control_request_private_network": "true"}
    assert preflight(**asking) == {**always, "access-control-allow-private-network": "true"}
    names = [f"mcp-param-{number}" for number in range(10_000)]
    assert preflight(",".join(names))["access-control-allow-headers"] == ", ".join(
        names[: limits.MAX_REQUESTED_HEADERS]
    )
    assert "access-control-allow-headers" not in preflight("mcp-param-" + "x" * 100_000)


def test_what_can_be_no_origin_is_never_echoed() -> None:
    """The policy allows such an origin only where it allows every origin."""
    for origin in ("", "a b", "https://x\r\nset-cookie: y", "é", "x\x00", "x" * 10_000):
        assert Cors(True).response_headers(origin) == []
        assert preflight(origin=origin) is None


@given(LATIN, LATIN, LATIN)
def test_nothing_can_be_smuggled_into_the_answer(requested: str, origin: str, method: str) -> None:
    answer = preflight(requested, origin, method) or {}
    answer.update((name.decode(), value.decode()) for name, value in Cors(True).response_headers(origin))
    assert all(value.isascii() and value.isprintable() for value in answer.values())
    assert "access-control-allow-credentials" not in answer
    assert answer.get("access-control-allow-methods", limits.METHODS.decode()) == limits.METHODS.decode()
    given = origin.strip(" \t")  # blanks around a value are not part of it
    assert answer.get("access-control-allow-origin", given) == given
    for name in answer.get("access-control-allow-headers", "accept").split(", "):
        assert name.lower() in limits.REQUEST_HEADERS or name.lower().startswith("mcp-param-")


# ── pages of browsers ──

ASKING = {"access-control-request-method": "POST", "access-control-request-headers": "content-type,mcp-param-region"}


def permissions(answer: HttpExchange) -> list[str]:
    return [name.decode() for name, _ in answer.sent[0]["headers"] if name.startswith(b"access-control")]


PAGES = [([], "http://localhost:5173"), ([APP], APP), (["https://*.example.com"], APP), (["*"], "null")]


@pytest.mark.parametrize(("allowed", "origin"), PAGES)
async def test_a_page_can_ask_call_and_read_why_it_was_refused(allowed: list[str], origin: str) -> None:
    async with serving(Server("browsed", version="1.0.0"), allowed_origins=allowed, max_body_bytes=1000) as app:
        wire = HttpWire(app, headers={"origin": origin})
        asked = await wire.raw("OPTIONS", b"", ASKING).done()
        assert (asked.status, asked.headers["access-control-allow-origin"]) == (204, origin)
        assert asked.headers["access-control-allow-headers"] == "content-type, mcp-param-region"
        assert (await wire.ask("server/discover"))["supportedVersions"]
        session = await HttpWire.session(app, "2025-11-25", headers={"origin": origin})
        refused = [
            *((wire.raw("POST", b"{"), 400), (wire.raw("POST", b"x" * 1001), 413), (wire.start("nonsense"), 404)),
            *((wire.raw("GET", path="/nothing"), 404), (wire.raw("GET", b"", {"mcp-protocol-version": MODERN}), 405)),
            (wire.raw("POST", b"{}", path="/messages", query="session_id=x"), 404),
            (session.raw("DELETE"), 204),
        ]
        for exchange, expected in refused:
            answer = await exchange.done()
            assert answer.status == expected
            assert permissions(answer) == ["access-control-allow-origin", "access-control-expose-headers"]
            assert answer.headers["access-control-allow-origin"] == origin
            assert "origin" in answer.headers["vary"].lower()


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
async def test_an_unknown_page_learns_nothing(origin: str) -> None:
    """Not even why: a page that reads that may know what runs on a visitor's machine. The log tells."""
    async with serving(Server("browsed", version="1.0.0"), allowed_origins=[APP]) as app:
        wire = HttpWire(app, headers={"origin": origin, **ASKING})
        for method, path in (("OPTIONS", "/mcp"), ("POST", "/mcp"), ("GET", "/sse"), ("GET", "/health")):
            answer = await wire.raw(method, path=path).done()
            assert answer.status == (200 if path == "/health" else 403)
            assert permissions(answer) == []


async def test_without_cors() -> None:
    async with serving(Server("browsed", version="1.0.0"), allowed_origins=[APP], cors=False) as app:
        wire = HttpWire(app, headers={"origin": APP})
        for answer in (await wire.raw("OPTIONS", b"", ASKING).done(), await wire.post("server/discover")):
            assert permissions(answer) == []
        assert (await HttpWire(app).post("server/discover")).status == 200  # a page of the same origin needs none
