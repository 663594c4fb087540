"""Redaction of secrets in JSON-like values, lines of text and log records: each becomes "[redacted]".

A secret is recognised by its key (`password`, `X-Api-Key`, `access_token`) or by its shape (bearer values, JWTs, URLs
with a password, private keys). All regular expressions take time linear in the text: a run of characters is entered
only at its start (lookbehind) and without backtracking (possessive quantifiers). They are compiled at the first use and
cached by `re`: a server that logs nothing does not wait for them.
"""

import logging
import re
from collections.abc import Iterable
from itertools import islice
from operator import is_
from typing import Any

import msgspec

REDACTED = "[redacted]"
CUT = "[cut]"
MAX_DEPTH = 32  # levels of nested data; the rest is cut
MAX_VALUES = 20_000  # of one document; the rest is cut
MAX_TEXT = 256 * 1024  # characters of a line
CHARACTERS_PER_VALUE = 100  # of a text: it counts as one value more for each

# A key is secret if, without case, dashes, underscores, dots and spaces, it ends in one of these. The end decides:
# `db_password` is a secret, `password_policy` and `token_endpoint` are not.
SECRET_ENDINGS = (
    *("authorization", "cookie", "cookies", "password", "passwords", "passwd", "pwd", "passphrase", "passcode"),
    *("secret", "secrets", "credential", "credentials", "passwordhash", "secretvalue", "tokenvalue", "codeverifier"),
    *("token", "accesstokens", "refreshtokens", "idtokens", "authtokens", "apitokens", "bearer", "jwt"),
    *("apikey", "apikeys", "privatekey", "secretkey", "accesskey", "signingkey", "encryptionkey", "sessionkey"),
)
# ... unless it ends in one of these. `tokens` alone (`max_tokens`, `tokens_used`) is a count and in neither list.
INNOCENT_ENDINGS = (
    *("progresstoken", "pagetoken", "nexttoken", "continuationtoken", "synctoken", "cancellationtoken"),
    *("pertoken", "firsttoken", "lasttoken", "eostoken", "bostoken", "padtoken", "unktoken", "stoptoken"),
)
_IGNORED_IN_KEYS = str.maketrans("", "", "-_. ")

# Words that follow "bearer" in prose and in challenges, where no secret follows.
_PROSE = (
    r"(?:tokens?|auth|authentication|authorization|scheme|headers?|credentials?|realm|error|scope|resource_metadata"
    r"|is|was|are|of|and|or|for|with|in|to|not|missing|required)(?![\w.~+/-])"
)


class _SecretPattern(msgspec.Struct, frozen=True):
    """What a secret looks like. A text without `sign`, in lower case, has none: that decides for most texts."""

    sign: str
    pattern: str
    replacement: str = REDACTED


_SECRET_PATTERNS = (
    _SecretPattern(
        "private key", r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]{0,20}KEY-----|\Z)"
    ),
    _SecretPattern("://", r"""(://[^\s/?#:@"'<>]*+:)[^\s/?#"'<>]*@""", rf"\g<1>{REDACTED}@"),
    _SecretPattern("bearer", rf"(?i)(?<!\w)(bearer\s++)(?!{_PROSE})[\w.~+/=-]++", rf"\g<1>{REDACTED}"),
    # Base64 of `user:password` is long and has a capital or a digit inside; the word after "basic" in prose has not.
    _SecretPattern(
        "basic",
        r"(?<!\w)((?i:basic)\s++)(?=[\w+/=-]{8})[A-Za-z0-9+/][a-z]*+[A-Z0-9+/=][\w+/=-]*+",
        rf"\g<1>{REDACTED}",
    ),
    _SecretPattern("eyj", r"(?<![\w-])eyJ[\w-]++\.[\w-]*+\.[\w.-]*+"),  # a JWT
    # Keys that well-known services mark with a prefix, and the ids of our handles.
    _SecretPattern("", r"(?<![\w-])(?:gh[pousr]_|github_pat_|glpat-|sk-|xox[abeprs]-|AIza|hdl_)[\w-]{20,}+"),
)

# `key = value`, `"key": "value"` and `key: value` inside text. The key is matched first, the value only if the key is
# secret, so that a secret inside the value of an innocent key is found too.
_KEY = r"""(?ix)
    (?<![\w.-])
    ( (?:(?:api|private|secret|access|signing|encryption|session|client)[ ])?+ [\w.-]++ )
    (?:\\*+["'])?+
    [ \t]{0,8}+
    ( : | =[=>]? )
    [ \t]{0,8}+
    """
_VALUE = r"""(?isx)
      (?! (?:none|null|true|false) (?![\w-]) )
    (?:
      "  (?:[^"\\]|\\.)*+  (?:"|\\?\Z)
    | '  (?:[^'\\]|\\.)*+  (?:'|\\?\Z)
    | \\++"  [^"]*+  "?
    | \\++'  [^']*+  '?
    | \[ [^\]]*+ \]?
    | \{ [^}]*+  \}?
    | (?:(?:bearer|basic|digest|token)\s{1,8}+)?+ [^\s,;&"'<>)\]}]++
    )
    """
# Without quotes, `Cookie: a=b; c=d` goes to the end of the line.
_HEADER_VALUE = r"""(?!\\*+["'])\S[^\r\n"']*+"""
_CONTROLS = r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
_RECORD_MARKS = ("__struct_fields__", "__dataclass_fields__", "__attrs_attrs__")


class Redactor:
    """Replaces secrets. `extra_keys` are more secret keys, matched whole."""

    def __init__(self, extra_keys: Iterable[str] = ()) -> None:
        self._extra_keys = frozenset(map(_normal_key, extra_keys))

    def value(self, data: Any) -> Any:
        """`data` itself if it has no secrets, else a copy without them. Cut off below MAX_DEPTH, after MAX_VALUES."""
        return _Walk(self).value(data, MAX_DEPTH)

    def text(self, line: str) -> str:
        """`line` without its secrets; a very long one is cut."""
        if len(line) > MAX_TEXT:
            line = line[:MAX_TEXT] + CUT
        lowered = line.lower()
        for secret in _SECRET_PATTERNS:
            if secret.sign in lowered:
                line = re.sub(secret.pattern, secret.replacement, line)
        return self._without_keyed_values(line) if ":" in line or "=" in line else line

    def is_secret_key(self, key: str) -> bool:
        key = _normal_key(key)
        return key in self._extra_keys or (key.endswith(SECRET_ENDINGS) and not key.endswith(INNOCENT_ENDINGS))

    def _without_keyed_values(self, line: str) -> str:
        parts: list[str] = []
        done = position = 0
        next_key = re.compile(_KEY).search
        while (key := next_key(line, position)) is not None:
            position = key.end()
            if not self.is_secret_key(key[1]):
                continue
            is_header = key[2] == ":" and _normal_key(key[1]).endswith(("authorization", "cookie"))
            header, value = re.compile(_HEADER_VALUE), re.compile(_VALUE)
            secret = (is_header and header.match(line, position)) or value.match(line, position)
            if secret is not None:
                quote = re.match(r"""\\*+["']""", secret[0])
                parts += (line[done:position], REDACTED if quote is None else quote[0] + REDACTED + quote[0])
                done = position = secret.end()
        return "".join(parts) + line[done:] if parts else line


class _Walk(msgspec.Struct, eq=False):
    """One pass over one value. It counts the values, which also ends every cycle."""

    _redactor: Redactor
    _remaining: int = MAX_VALUES

    def value(self, data: Any, depth: int) -> Any:
        self._remaining -= 1
        if isinstance(data, str):
            self._remaining -= len(data) // CHARACTERS_PER_VALUE
            clean = self._redactor.text(data)
            return data if clean == data else clean
        if isinstance(data, dict):
            return self._mapping(data, depth - 1) if depth else CUT
        if isinstance(data, list | tuple | set | frozenset):
            return self._sequence(data, depth - 1) if depth else CUT
        if isinstance(data, int | float | None) or not any(hasattr(type(data), mark) for mark in _RECORD_MARKS):
            return data
        return self._record(data, depth)

    def _mapping(self, data: dict[Any, Any], depth: int) -> dict[Any, Any]:
        changes: dict[Any, Any] = {}
        for seen, (key, value) in enumerate(data.items()):
            if self._remaining <= 0:
                return {**dict(islice(data.items(), seen)), **changes, CUT: CUT}
            clean = REDACTED if self._is_secret(key, value) else self.value(value, depth)
            if clean is not value:
                changes[key] = clean
        return {**data, **changes} if changes else data

    def _sequence(self, data: Any, depth: int) -> Any:
        if isinstance(data, tuple) and len(data) == 2 and self._is_secret(*data):
            return [data[0], REDACTED]  # a header as (name, value)
        clean: list[Any] = []
        for item in data:
            if self._remaining <= 0:
                return [*clean, CUT]
            clean.append(self.value(item, depth))
        return data if all(map(is_, clean, data)) else clean

    def _record(self, data: Any, depth: int) -> Any:
        """A dataclass or a msgspec Struct, redacted as the dict it will be encoded as."""
        try:
            plain = msgspec.to_builtins(data)
        except Exception:
            return REDACTED  # what can't be encoded is not shown
        clean = self.value(plain, depth)
        return data if clean is plain else clean

    def _is_secret(self, key: Any, value: Any) -> bool:
        if value is None or isinstance(value, bool):
            return False  # `has_password: true` is no secret
        if isinstance(key, bytes):
            key = key.decode("latin-1")  # a header of ASGI
        return isinstance(key, str) and self._redactor.is_secret_key(key)


class RedactingFilter(logging.Filter):
    """Redacts every record, and escapes line breaks. For a handler, or each logger: loggers inherit no filters."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor
        self._formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "is_redacted", False):  # value by value: as one text its JSON might break
            return True
        record.msg, record.args = escaped(self._message(record)), None
        try:
            if record.exc_info and not record.exc_text:
                lines = self._formatter.formatException(record.exc_info).split("\n")
                record.exc_text = "\n".join("  " + escaped(line) for line in lines)
            if record.exc_text:
                record.exc_text = self._redactor.text(record.exc_text)
            if record.stack_info:
                record.stack_info = self._redactor.text(record.stack_info)
        except Exception:
            record.exc_info, record.exc_text, record.stack_info = None, "[the traceback can't be shown]", None
        return True

    def _message(self, record: logging.LogRecord) -> str:
        """The formatted message. Logging must not fail if `__str__` of an argument does."""
        try:
            if not isinstance(record.msg, str):  # a template is redacted once it is filled in
                record.msg = self._redactor.value(record.msg)
            if isinstance(record.args, tuple):
                record.args = tuple(map(self._redactor.value, record.args))
            else:
                record.args = self._redactor.value(record.args)
            return self._redactor.text(record.getMessage())
        except Exception:
            shown = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
            return self._redactor.text(shown) + " [its arguments can't be shown]"


def escaped(text: str) -> str:
    """`text` on one line, with control characters, also those of direction, written as in JSON."""
    return re.sub(_CONTROLS, lambda found: {"\n": r"\n", "\r": r"\r"}.get(found[0], f"\\u{ord(found[0]):04x}"), text)


def _normal_key(key: str) -> str:
    return key.lower().translate(_IGNORED_IN_KEYS)


LOGGERS = ("", "access", "auth", "authserver", "client", "compat", "files", "http", "state", "threads", "watch")
_extra_keys: set[str] = set()


def guard_loggers(secret_keys: Iterable[str] = ()) -> None:
    """Redact all records of Dovetail's loggers. The secret keys of one server count for the whole process."""
    _extra_keys.update(secret_keys)
    guard = RedactingFilter(Redactor(_extra_keys))
    for name in LOGGERS:
        logger = logging.getLogger(f"dovetail.{name}".rstrip("."))
        for earlier in [each for each in logger.filters if isinstance(each, RedactingFilter)]:
            logger.removeFilter(earlier)
        logger.addFilter(guard)
