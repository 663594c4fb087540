"""What is a secret, what is not, and what happens to odd and hostile input."""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail import Server
from dovetail.engine import redaction
from dovetail.engine.redaction import CUT, REDACTED, RedactingFilter, Redactor
from secret_examples import JWT, SECRET_KEYS, TEXTS

INNOCENT_KEYS = [
    *("tokens", "tokens_used", "max_tokens", "maxTokens", "token_count", "tokenCount", "total_tokens", "progressToken"),
    *("progress_token", "next_page_token", "cost_per_token", "token_type", "token_endpoint", "tokenizer", "compass"),
    *("password_policy", "passwordless", "secretary", "secret_name", "cookie_domain", "authorization_servers", "user"),
    *("continuation_token", "syncToken", "cancellationToken", "first_token", "last_token", "eos_token", "bosToken"),
    *("padToken", "unk_token", "stop_token", "next_token", "nextPageToken"),
    *("authorization_endpoint", "author", "authenticated", "key", "keys", "public_key", "monkey", "name"),
]

redactor = Redactor()


# ── values ──


@pytest.mark.rule("LOG-6")
@pytest.mark.parametrize("key", [*SECRET_KEYS, "api key", "Private Key"])
def test_secret_keys(key: str) -> None:
    assert redactor.value({key: "x", "other": 1}) == {key: REDACTED, "other": 1}


@pytest.mark.parametrize("key", INNOCENT_KEYS)
def test_innocent_keys(key: str) -> None:
    data = {key: "x"}
    assert redactor.value(data) is data


@pytest.mark.parametrize(
    ("data", "clean"),
    [
        ({"password": 1234}, {"password": REDACTED}),
        ({"credentials": {"user": "u", "key": "k"}}, {"credentials": REDACTED}),
        ({"secrets": ["a", "b"]}, {"secrets": REDACTED}),
        ([{"a": [{"token": "x"}]}], [{"a": [{"token": REDACTED}]}]),
        ({"headers": [("Cookie", "a=b"), ("Accept", "*/*")]}, {"headers": [["Cookie", REDACTED], ("Accept", "*/*")]}),
        ([(b"cookie", b"a=b")], [[b"cookie", REDACTED]]),
        ({"note": f"use {JWT} now"}, {"note": f"use {REDACTED} now"}),
        ("Bearer abc", f"Bearer {REDACTED}"),
        ({1: {"password": "x"}}, {1: {"password": REDACTED}}),
    ],
)
def test_values_with_secrets(data: Any, clean: Any) -> None:
    assert redactor.value(data) == clean


@pytest.mark.parametrize(
    "data",
    [None, True, 7, 1.5, "a plain text", b"bytes", [], {}, {"has_password": True, "token": None, "password": False},
     {"required": ["password", "email"]}, [1, ["a", {"b": (1, 2)}]],
     {"usage": {"input_tokens": 3, "max_tokens": 4}, "_meta": {"progressToken": "p"}}],
)  # fmt: skip
def test_values_without_secrets_are_not_copied(data: Any) -> None:
    assert redactor.value(data) is data


def test_only_what_changes_is_copied_and_the_original_stays() -> None:
    kept = {"a": [1, 2]}
    data = {"kept": kept, "changed": {"token": "x", "z": 1}, "last": 1}
    clean = redactor.value(data)
    assert clean == {"kept": {"a": [1, 2]}, "changed": {"token": REDACTED, "z": 1}, "last": 1}
    assert list(clean) == list(data)
    assert clean["kept"] is kept
    assert data["changed"] == {"token": "x", "z": 1}


class Login(msgspec.Struct):
    user: str
    password: str


@dataclass
class Account:
    name: str
    login: Login


def test_records_are_read_as_dicts() -> None:
    account = Account("a", Login("u", "p"))
    assert redactor.value([account]) == [{"name": "a", "login": {"user": "u", "password": REDACTED}}]
    harmless = Account("a", Login("u", None))  # type: ignore[arg-type]
    assert redactor.value(harmless) is harmless
    assert redactor.value(Account("a", object())) == REDACTED  # type: ignore[arg-type]


def test_depth_is_bounded() -> None:
    data: Any = "x"
    for _ in range(10_000):
        data = [data]
    clean = redactor.value(data)
    for _ in range(redaction.MAX_DEPTH):
        (clean,) = clean
    assert clean == CUT


def test_cycles_end() -> None:
    ring: list[Any] = []
    ring += [ring, ring, {"ring": ring}]
    table: dict[str, Any] = {}
    table["table"] = table
    for cyclic in (ring, table):
        assert CUT.encode() in msgspec.json.encode(redactor.value(cyclic))  # and can be encoded


@pytest.mark.parametrize("data", [[7] * 100_000, dict.fromkeys(map(str, range(100_000))), ["x" * 10_000] * 1_000])
def test_size_is_bounded(data: Any) -> None:
    clean = redactor.value(data)
    assert isinstance(clean, type(data))
    assert len(clean) <= redaction.MAX_VALUES + 1
    assert list(clean)[-1] == CUT


# ── text ──


@pytest.mark.rule("LOG-6")
@pytest.mark.parametrize(
    ("line", "clean"),
    TEXTS,
)
def test_text_with_secrets(line: str, clean: str) -> None:
    assert redactor.text(line) == clean
    assert redactor.text(clean) == clean


@pytest.mark.parametrize(
    "line",
    ["", "an ordinary line: nothing = here", "missing bearer token", "The bearer of good news", "password: ",
     'WWW-Authenticate: Bearer realm="mcp", error="invalid_request"', "token_count=5 max_tokens: 7 progressToken=9",
     "Basic usage; a basic HTTP server; basic Understanding; basic understanding", "secret = None; token: null",
     "http://host:8080/path?x=1 mail@example.com", "ssh://git@github.com/x", "eyJust a word, eyJ.x",
     "12:30:05 INFO started"],
)  # fmt: skip
def test_text_without_secrets(line: str) -> None:
    assert redactor.text(line) == line


def test_long_text_is_cut() -> None:
    clean = redactor.text("x" * (redaction.MAX_TEXT + 1))
    assert clean == "x" * redaction.MAX_TEXT + CUT


@pytest.mark.long
@pytest.mark.parametrize(
    "part",
    ["a", "a.", "-", " ", "\\", "eyJ", "eyJa.", "eyJa.eyJa ", "://", "://a:", "://a:@", "bearer ", "basic aaaaaaaa",
     "basic A", "api ", "api", "a=", "a= ", 'token="', "token='\\", "token=\\", "token=[", "token={", "token: ",
     "cookie:", "cookie:'", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "sk-a", "sk-a ", 'a\\\\"', "token:token "],
)  # fmt: skip
@pytest.mark.timeout(20)  # quadratic would be minutes
def test_hostile_text_takes_linear_time(part: str) -> None:
    redactor.text((part * redaction.MAX_TEXT)[: redaction.MAX_TEXT])


@given(st.text(alphabet=st.sampled_from("abc token=\"':\\[]{},;&@/-eyJ.\n"), max_size=80))
def test_text_never_fails_and_twice_is_once(line: str) -> None:
    clean = redactor.text(line)
    assert redactor.text(clean) == clean


@given(
    st.text(alphabet="abcXYZ019!$%*+^~|", min_size=8, max_size=20).map("s3cr3t".__add__),
    st.sampled_from(SECRET_KEYS),
    st.sampled_from(["{}={}", "{}: {}", '"{}": "{}"', "{{'{}': '{}'}}", "x=1&{}={}&y=2", '\\"{}\\":\\"{}\\"']),
    st.text(alphabet="abc ,;\n", max_size=10),
)
def test_a_keyed_secret_never_survives(secret: str, key: str, form: str, around: str) -> None:
    assert secret not in redactor.text(f"{around} {form.format(key, secret)} {around}")


def test_extra_keys() -> None:
    own = Redactor(extra_keys=["Social-Security Number", "tokens"])
    clean = {"social_security_number": REDACTED, "tokens": REDACTED, "pin": 2}
    assert own.value({"social_security_number": "1", "tokens": [1], "pin": 2}) == clean
    assert own.text("CUST-123 has socialSecurityNumber=1") == "CUST-123 has socialSecurityNumber=[redacted]"


# ── log records ──


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("no text for you")


def logged(message: object, *arguments: object, exc_info: Any = None, stack: str | None = None) -> logging.LogRecord:
    record = logging.LogRecord("dovetail", logging.INFO, "file.py", 1, message, arguments, exc_info)
    record.stack_info = stack
    assert RedactingFilter(redactor).filter(record) is True
    return record


@pytest.mark.parametrize(
    ("message", "arguments", "shown"),
    [
        ("plain %d%%", (5,), "plain 5%"),
        ("a 100% plain line", (), "a 100% plain line"),
        ("password=%s", ("hunter2",), "password=[redacted]"),
        ("%s=%s", ("password", "hunter2"), "password=[redacted]"),
        ("got %s", ({"token": "x", "n": 1},), "got {'token': '[redacted]', 'n': 1}"),
        ("got %(token)s %(n)d", ({"token": "x", "n": 1},), "got [redacted] 1"),
        ("got %s", (Login("u", "p"),), "got {'user': 'u', 'password': '[redacted]'}"),
        ("headers %s", ([(b"cookie", b"a=b")],), "headers [[b'cookie', '[redacted]']]"),
        ({"token": "x"}, (), "{'token': '[redacted]'}"),
        ("Bearer abc", (), "Bearer [redacted]"),
        ("too few %s %s", ("password=x",), "too few %s %s [its arguments can't be shown]"),
        ("bad %s", (Unprintable(),), "bad %s [its arguments can't be shown]"),
        (Unprintable(), (), "Unprintable [its arguments can't be shown]"),
        ("who: %s", ("x\nERROR forged",), r"who: x\nERROR forged"),
        ("who: %s", ("a\r\n\tb\x00\x1b[31m\x7f\x9b1m",), "who: a\\r\\n\tb\\u0000\\u001b[31m\\u007f\\u009b1m"),
        ("who: %s", ("\u202eexe.\u2066\u061c\u2028\x85",), r"who: \u202eexe.\u2066\u061c\u2028\u0085"),
        ("who: %s", ("Ünïcode 中文 👍",), "who: Ünïcode 中文 👍"),
    ],
)
def test_messages(message: object, arguments: tuple[object, ...], shown: str) -> None:
    assert logged(message, *arguments).getMessage() == shown


def test_tracebacks() -> None:
    try:
        raise ConnectionError("redis://user:hunter2@host")
    except ConnectionError as error:
        record = logged("failed", exc_info=(type(error), error, error.__traceback__), stack="token=abc")
    text = logging.Formatter().format(record)
    assert "redis://user:[redacted]@host" in text
    assert "token=[redacted]" in text
    assert "hunter2@" not in text.replace('raise ConnectionError("redis://user:hunter2@host")', "")
    odd = logged("failed", exc_info=("not", "an", "exception"))
    assert "can't be shown" in logging.Formatter().format(odd)


CONTROLS = "\x1b\x9b\x7f\r\x85\u2028\u202e"


@pytest.mark.parametrize("kind", ["plain", "note", "cause", "group"])
def test_no_line_of_a_traceback_can_be_taken_for_a_record(kind: str) -> None:
    forged = f"x\nERROR dovetail: forged {CONTROLS}"
    error = ExceptionGroup(forged, [ValueError(forged)]) if kind == "group" else ValueError(forged)
    if kind == "note":
        error.add_note(forged)
    try:
        raise error from (KeyError(forged) if kind == "cause" else None)
    except Exception as failure:
        record = logged("failed", exc_info=(type(failure), failure, failure.__traceback__))
    RedactingFilter(redactor).filter(record)  # a handler may have one, too
    _, *lines = logging.Formatter().format(record).split("\n")
    assert all(line.startswith("  ") for line in lines)  # which say that they belong to the first
    assert not any(each in "".join(lines) for each in CONTROLS)
    assert lines[0] == "  Traceback (most recent call last):" or kind in ("group", "cause")
    assert "ERROR dovetail: forged \\u001b\\u009b" in "".join(lines)


def test_every_logger_of_ours_is_guarded() -> None:
    modules = Path(dovetail.__file__).parent.rglob("*.py")
    named = {name for each in modules for name in re.findall(r'getLogger\("([^"]+)"\)', each.read_text("utf-8"))}
    Server("s")
    unguarded = {name for name in named if not logging.getLogger(name).filters}
    assert unguarded == {"dovetail.audit"}  # whose records are JSON already
