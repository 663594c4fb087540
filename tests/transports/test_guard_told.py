"""Host and Origin: what those are told who may not come in, settings that can't be meant, and whatever comes."""

import ipaddress
import logging
from contextlib import suppress

import pytest
from guard_stage import LOCAL, Lines, headers, status
from hypothesis import example, given
from hypothesis import strategies as st

from dovetail.errors import ProtocolError, SetupError
from dovetail.transports import guard as guard_module
from dovetail.transports.guard import (
    MAX_LINES,
    MAX_VERDICTS,
    TOO_MANY,
    Guard,
    _Journal,
    is_loopback,
    parse_authority,
    parse_origin,
)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """What the log holds by now."""
    caplog.set_level(logging.WARNING, "dovetail.http")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "dovetail.http"]


# --- what is told


@pytest.mark.rule("SH-3", "MH-2")
def test_a_refusal_names_the_value_and_the_setting(lines: Lines) -> None:
    guard = Guard(None, [], bound_to="127.0.0.1")
    told = [
        "The Host header 'evil.example.com' is not allowed here: add it to allowed_hosts (DOVETAIL_ALLOWED_HOSTS)",
        "The Origin header 'https://evil.example.com' is not allowed here: "
        "add it to allowed_origins (DOVETAIL_ALLOWED_ORIGINS)",
    ]
    with pytest.raises(ProtocolError) as refused:
        guard.check(headers("evil.example.com", "https://evil.example.com"), LOCAL)
    assert refused.value.message == told[0]
    with pytest.raises(ProtocolError) as refused:
        guard.check(headers("localhost", "https://evil.example.com"), LOCAL)
    assert refused.value.message == told[1]
    assert lines() == told


@pytest.mark.parametrize("value", ["\x1b[2J\r\nfake line\x00", "é\x85", "x" * 100_000, "\x9b" * 5000])
def test_values_are_harmless_in_the_log(value: str, lines: Lines) -> None:
    guard = Guard(None, [], bound_to="127.0.0.1")
    assert status(guard, value) == 400
    assert status(guard, "localhost", value) == 403
    assert len(lines()) == 2
    assert all(line.isascii() and line.isprintable() and len(line) < 1000 for line in lines())


def test_the_same_line_comes_once_a_minute(lines: Lines) -> None:
    now = [0.0]
    journal = _Journal(lambda: now[0])
    for second in range(0, 150, 10):
        now[0] = second
        journal.warn("same")
    assert lines() == ["same"] * 3


def test_the_log_and_its_memory_are_bounded(lines: Lines) -> None:
    now = [0.0]
    journal = _Journal(lambda: now[0])
    for number in range(5 * MAX_LINES):
        journal.warn(f"line {number}")
    assert lines() == [*(f"line {number}" for number in range(MAX_LINES)), TOO_MANY]
    assert len(journal._told) == MAX_LINES + 1
    now[0] = 61.0
    journal.warn("line 7")
    assert lines()[-1] == "line 7"
    assert len(journal._told) == 1


def test_the_memory_of_verdicts_is_bounded() -> None:
    guard = Guard(None, [], bound_to="127.0.0.1")
    for number in range(2 * MAX_VERDICTS):
        assert not guard.allows(headers(f"h{number}.example"), LOCAL)
    assert len(guard._verdicts) <= MAX_VERDICTS
    before = len(guard._verdicts)
    assert not guard.allows(headers("x" * 10_000), LOCAL)
    assert len(guard._verdicts) == before


def test_the_usual_case_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guard(None, [], bound_to="127.0.0.1")
    guard.check(headers("localhost:8000", "http://localhost:8000"), LOCAL)
    monkeypatch.setattr(guard_module, "parse_authority", None)
    monkeypatch.setattr(guard_module, "parse_origin", None)
    guard.check(headers("localhost:8000", "http://localhost:8000"), ("127.0.0.1", 1))


# --- settings that can't be meant


BAD_HOSTS = [
    ("https://example.com", 'write "example.com"'),
    ("https://example.com:8443/mcp", 'write "example.com:8443"'),
    ("example.com/mcp", 'write "example.com"'),
    ("a.*.com", "at the front"),
    ("*example.com", "at the front"),
    ("*.*", "at the front"),
    ("**", "at the front"),
    ("", "not a host name"),
    ("a b", "not a host name"),
    ("user@example.com", "not a host name"),
    ("example.com:99999", "65535"),
    ("example.com:http", "not a host name"),
    ("a..b", "not a host name"),
    ("[::g]", "not a host name"),
    ("2001:db8::1", 'write "[2001:db8::1]"'),
    ("bücher.example", "xn--"),
    (7, "not a string"),
    (None, "not a string"),
]
BAD_ORIGINS = [
    ("https://app.example.com/", 'write "https://app.example.com"'),
    ("https://app.example.com/x?y", 'write "https://app.example.com"'),
    ("app.example.com/x", 'write "app.example.com"'),
    ("https://a.*.com", "at the front"),
    ("https://", "not a host name"),
    ("https://example.com:99999", "65535"),
    ("https://bücher.example", "xn--"),
    ("vscode-webview://a*", 'write it like "vscode-webview://name" or "vscode-webview://*"'),
    ("app://x/y", "not an origin"),
    ("1x://y", "not an origin"),
    ("", "not a host name"),
    (b"https://x", "not a string"),
]


@pytest.mark.parametrize(("entry", "fix"), BAD_HOSTS)
def test_bad_patterns_of_hosts_are_refused_at_once(entry, fix: str) -> None:
    with pytest.raises(SetupError) as refused:
        Guard(["fine.example", entry], [], bound_to=None)
    assert str(refused.value).startswith(f"allowed_hosts holds {entry!r}")
    assert fix in str(refused.value)


@pytest.mark.parametrize(("entry", "fix"), BAD_ORIGINS)
def test_bad_patterns_of_origins_are_refused_at_once(entry, fix: str) -> None:
    with pytest.raises(SetupError) as refused:
        Guard(None, [entry], bound_to=None)
    assert str(refused.value).startswith(f"allowed_origins holds {entry!r}")
    assert fix in str(refused.value)


def test_a_string_is_not_a_list() -> None:
    with pytest.raises(SetupError, match="must be a list of strings"):
        Guard("example.com", [], bound_to=None)
    with pytest.raises(SetupError, match="must be a list of strings"):
        Guard(None, "example.com", bound_to=None)


# --- whatever comes


LATIN = st.text(st.characters(max_codepoint=255), max_size=60)
PIECES = st.sampled_from(
    ["localhost", "127.0.0.1", "[::1]", "evil", "null", "8000", "http://", "https://", *".:@/* %é"]
)
HOSTILE = st.one_of(st.none(), LATIN, st.lists(PIECES, max_size=6).map("".join))
GUARDS = [
    Guard(None, [], bound_to=None),
    Guard(["*.example.com", "[::2]:1"], ["https://*.example.com", "null", "app://*"], bound_to="0.0.0.0"),
]


def trusted(name: str) -> bool:
    """Loopback, decided by other means than the guard's."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.split(".")[-1] == "localhost"


@given(HOSTILE, HOSTILE)
@example("localhost:8000", "http://localhost:8000")
@example("localhost@evil", "http://localhost@evil")
def test_nothing_but_loopback_passes_and_nothing_breaks(host: str | None, origin: str | None) -> None:
    for guard in GUARDS:
        for server in (LOCAL, None):
            status(guard, host, origin, server)
    if status(GUARDS[0], host, origin) == 200:
        authority = parse_authority(host or "")
        assert authority is not None
        assert trusted(authority.name)
        if origin is not None:
            parsed = parse_origin(origin)
            assert parsed is not None
            assert parsed.scheme in ("http", "https")
            assert trusted(parsed.name)


@given(st.text(max_size=60))
def test_reading_never_fails(text: str) -> None:
    parse_authority(text)
    parse_origin(text)
    is_loopback(text)


@given(st.from_regex(r"[a-z0-9-]{1,20}(\.[a-z0-9-]{1,20}){0,3}", fullmatch=True), st.integers(0, 65535))
def test_what_is_listed_may_come(name: str, port: int) -> None:
    guard = Guard([name, f"{name}:{port}", f"*.{name}"], [f"https://{name}:{port}"], bound_to=None)
    for host in (f"{name}:{port}", name.upper(), f"www.{name}"):
        assert status(guard, host, f"https://{name}:{port}") == 200


@given(st.text(max_size=40))
def test_patterns_are_read_or_refused(text: str) -> None:
    for hosts, origins in (([text], []), (None, [text])):
        with suppress(SetupError):
            Guard(hosts, origins, bound_to=None)
