"""Endpoints of OAuth over HTTP: fields and cookies of a request, redirect URIs, JSON answers and errors."""

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from dovetail.engine.rate_limits import network_of
from dovetail.errors import ProtocolError
from dovetail.transports.http.routes import PageRequest, PageResponse

FORM = "application/x-www-form-urlencoded"
MAX_BYTES = 32 * 1024  # of a form or a query
MAX_URL = 2000  # characters
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
SIGNED_IN = "__Host-dovetail-user"
NOT_KEPT = {"cache-control": "no-store", "pragma": "no-cache"}
# Clients in a browser may be on any origin. No cookie counts at these endpoints, so any page may read the answers.
FOR_ANY_ORIGIN = {"access-control-allow-origin": "*"}
PUBLIC = {"cache-control": "public, max-age=300", **FOR_ANY_ORIGIN}  # the metadata and the keys
PREFLIGHT = {
    **FOR_ANY_ORIGIN,
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "authorization, content-type, mcp-protocol-version",
    "access-control-max-age": "600",
}

_ALLOWED = re.compile(r"[!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]+")  # no blanks, quotes, backslashes, angle brackets
_NATIVE = re.compile(r"(http://(?:127\.0\.0\.1|localhost|\[::1\]))(?::[0-9]{1,5})?((?:[/?].*)?)")

PageHandler = Callable[[PageRequest], Awaitable[PageResponse]]


class OAuthError(Exception):
    """An error response. `error` is a code of RFC 6749 or RFC 7591; the description is for people."""

    def __init__(
        self, error: str, description: str, *, status: int = 400, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(description)
        self.error = error
        self.description = description
        self.status = status
        self.headers = dict(headers or {})

    @classmethod
    def too_many(cls, what: str, seconds: float) -> "OAuthError":
        wait = max(1, round(seconds))
        text = f"Too many {what}; try again in {f'{wait} s' if wait < 120 else f'{round(wait / 60)} minutes'}"
        return cls("temporarily_unavailable", text, status=429, headers={"retry-after": str(wait)})

    @classmethod
    def of(cls, failure: "OAuthError | ProtocolError") -> "OAuthError":
        """For a body that is too long, or a state store that does not answer; a refusal stays as it is."""
        if isinstance(failure, OAuthError):
            return failure
        error = "temporarily_unavailable" if failure.http_status >= 500 else "invalid_request"
        return cls(error, failure.message, status=max(failure.http_status, 400))


def json_endpoint(answer: PageHandler) -> PageHandler:
    """An endpoint that clients call: each answer is JSON, errors too, and no cache keeps it."""

    async def page(request: PageRequest) -> PageResponse:
        if request.method == "OPTIONS":
            return PageResponse(b"", 204, PREFLIGHT)
        try:
            return await answer(request)
        except (OAuthError, ProtocolError) as failure:
            refusal = OAuthError.of(failure)
        body = {"error": refusal.error, "error_description": refusal.description}
        return PageResponse(body, refusal.status, {**NOT_KEPT, **FOR_ANY_ORIGIN, **refusal.headers})

    page.__name__, page.__qualname__ = answer.__name__, answer.__qualname__  # for the log
    return page


def json_answer(body: dict[str, object], status: int = 200) -> PageResponse:
    return PageResponse(body, status, {**NOT_KEPT, **FOR_ANY_ORIGIN})


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def address_of(request: PageRequest) -> str:
    """What limits count: an IPv4 address, or the /64 of an IPv6 address."""
    return network_of(request.client or "") or "unknown"


def query_fields(request: PageRequest) -> dict[str, str]:
    return _fields(request.scope.get("query_string", b""))


async def form_fields(request: PageRequest) -> dict[str, str]:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != FORM:
        raise OAuthError("invalid_request", f"The body must be {FORM}", status=415)
    return _fields(await request.body())


def _fields(raw: bytes) -> dict[str, str]:
    """Each field once; an empty one counts as not given (RFC 6749, 3.1)."""
    if len(raw) > MAX_BYTES:
        raise OAuthError("invalid_request", f"More than {MAX_BYTES} bytes", status=413)
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=50)
    except ValueError:
        raise OAuthError("invalid_request", "The fields can't be read") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise OAuthError("invalid_request", "A field came more than once")
    return {name: value for name, value in fields.items() if value}


def consent_cookie(client_id: str) -> str:
    """One for each client, so that two consent pages at a time do not disturb each other."""
    return f"__Host-dovetail-asked-{digest(client_id)[:16]}"


def set_cookie(name: str, value: str, seconds: float) -> dict[str, str]:
    """`__Host-` makes browsers insist on Secure, this host and the whole of it."""
    return {"set-cookie": f"{name}={value}; Path=/; Max-Age={int(seconds)}; Secure; HttpOnly; SameSite=Lax"}


def cookie(request: PageRequest, name: str) -> str | None:
    """None if there is none, or more than one: then it is not known which is ours."""
    pairs = [part.strip().partition("=") for line in request.headers.all("cookie") for part in line.split(";")]
    found = [value for key, _, value in pairs if key == name]
    return found[0] if len(found) == 1 else None


# --- redirect URIs


def why_not_a_url(uri: object, noun: str) -> str | None:
    """What is wrong with it, in words. It has to be https, or http to this machine, and hold nothing that two programs
    could read in two ways.
    """
    if not isinstance(uri, str) or not 0 < len(uri) <= MAX_URL:
        return f"{noun} is a text of at most {MAX_URL} characters"
    if not _ALLOWED.fullmatch(uri) or "#" in uri:
        return f"{noun} has no fragment, blanks or other odd characters"
    try:
        parts = urlsplit(uri)
        name, _ = parts.hostname, parts.port
    except ValueError:
        return f"{noun} must be a whole URL"
    if not name:
        return f"{noun} must be a whole URL, https://… or, on the user's own machine, http://127.0.0.1/…"
    if "@" in parts.netloc or "*" in parts.netloc:
        return f"{noun} names a host, without a user or wildcards"
    if parts.scheme != "https" and not _NATIVE.fullmatch(uri):
        return f"{noun} must be https, or http to 127.0.0.1, localhost or [::1]"
    if {".", ".."} & set(unquote(parts.path).replace("\\", "/").split("/")):
        return f"{noun} has no . or .. in its path"
    return None


def is_registered(uri: str, registered: Iterable[str]) -> bool:
    """Compared letter by letter; but clients on the user's own machine take any port (RFC 8252, 7.3)."""
    native = _without_port(uri)
    return any(uri == each or (native is not None and native == _without_port(each)) for each in registered)


def _without_port(uri: str) -> tuple[str, str] | None:
    """Nothing but the port may differ, so what stands around it is compared as it is."""
    found = _NATIVE.fullmatch(uri)
    return None if found is None else (found[1], found[2])


def is_loopback(uri: str) -> bool:
    return urlsplit(uri).hostname in LOOPBACK


def host_of(uri: str) -> str:
    return urlsplit(uri).netloc


def with_parameters(uri: str, **parameters: str | None) -> str:
    joint = "&" if "?" in uri else "?"
    return uri + joint + urlencode({name: value for name, value in parameters.items() if value is not None})


# ── HTML pages ──

STYLE = (
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:30rem;margin:3rem auto;padding:0 1rem;color:#222}"
    "h1{font-size:1.4rem;overflow-wrap:anywhere}li,p{overflow-wrap:anywhere}"
    "label{display:block;margin:.8rem 0}"
    "input{display:block;width:100%;box-sizing:border-box;font:inherit;padding:.4rem}"
    "button{font:inherit;padding:.5rem 1.2rem;margin:1rem .6rem 0 0}"
    ".wrong{color:#a00}.small{font-size:.9rem;color:#555}"
)
_STYLE_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
# No form-action: browsers hold it against the redirect to the program too, and against all that follows it.
POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_DIGEST}'; base-uri 'none'; frame-ancestors 'none'"
HEADERS = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer a form is sent with `Origin: null`
    "cache-control": "no-store",
}


class Consent(NamedTuple):
    """What a user is asked."""

    program: str
    program_id: str
    scopes: Sequence[str]  # in words
    redirect_uri: str
    days: float | None  # for which it may stay connected
    user: str | None  # who has signed in already
    form: str  # sealed, what the answer is about


def consent_page(asked: Consent, path: str, *, wrong: str | None = None) -> tuple[str, int]:
    """The HTML and the status."""
    scopes = "".join(f"<li>{escape(words)}</li>" for words in asked.scopes)
    name = escape(asked.program)
    is_local = is_loopback(asked.redirect_uri)
    whose = ": a program on this computer. Go on only if you have just started it yourself." if is_local else "."
    body = f"""<h1>Allow {name} to act for you?</h1>
{f'<p class="wrong" role="alert">{escape(wrong)}</p>' if wrong else ""}
{f"<p>It wants to:</p><ul>{scopes}</ul>" if scopes else ""}
<p>Then your browser goes to <strong>{escape(host_of(asked.redirect_uri))}</strong>{whose}</p>
{f"<p>It may stay connected for {asked.days:g} days.</p>" if asked.days else ""}
<form method="post" action="{escape(path)}">
<input type="hidden" name="form" value="{escape(asked.form)}">
{_who(asked.user)}
<button name="answer" value="allow">Allow</button><button name="answer" value="deny" formnovalidate>Deny</button>
</form>
<p class="small">The program calls itself “{name}”; nobody has checked that.
Its id is {escape(asked.program_id)}. The answer goes to {escape(asked.redirect_uri)}.</p>"""
    return _document("Allow access?", body), 403 if wrong else 200


def refusal_page(words: str, title: str = "This can't go on") -> str:
    return _document(title, f"<h1>{escape(title)}</h1><p>{escape(words)}</p>")


def shown(html: str, status: int, headers: dict[str, str] | None = None) -> PageResponse:
    return PageResponse(html, status, {**HEADERS, **(headers or {})}, "text/html")


def _who(user: str | None) -> str:
    if user is not None:
        other = '<button name="answer" value="other" formnovalidate>Somebody else</button>'
        return f"<p>You are signed in as <strong>{escape(user)}</strong>. {other}</p>"
    return (
        '<label>Name <input name="name" autocomplete="username" autocapitalize="none" required></label>'
        '<label>Password <input name="password" type="password" autocomplete="current-password" required></label>'
    )


def _document(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="robots" content="noindex">'
        f"<style>{STYLE}</style></head><body>{body}</body></html>"
    )
