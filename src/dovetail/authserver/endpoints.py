"""Helpers of the OAuth endpoints: form fields and cookies, redirect URIs, JSON responses, errors and HTML pages."""

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
SIGN_IN_COOKIE = "__Host-dovetail-user"
NO_STORE = {"cache-control": "no-store", "pragma": "no-cache"}
# Clients in a browser may be on any origin. These endpoints use no cookies, so any page may read the responses.
ANY_ORIGIN = {"access-control-allow-origin": "*"}
PUBLIC_HEADERS = {"cache-control": "public, max-age=300", **ANY_ORIGIN}  # the metadata and the keys
PREFLIGHT = {
    **ANY_ORIGIN,
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "authorization, content-type, mcp-protocol-version",
    "access-control-max-age": "600",
}

_ALLOWED = re.compile(r"[!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]+")  # no spaces, quotes, backslashes, angle brackets
_LOOPBACK_URI = re.compile(r"(http://(?:127\.0\.0\.1|localhost|\[::1\]))(?::[0-9]{1,5})?((?:[/?].*)?)")

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
    def from_failure(cls, failure: "OAuthError | ProtocolError") -> "OAuthError":
        """For a body that is too long, or a store that is unavailable; an OAuthError stays as it is."""
        if isinstance(failure, OAuthError):
            return failure
        error = "temporarily_unavailable" if failure.http_status >= 500 else "invalid_request"
        return cls(error, failure.message, status=max(failure.http_status, 400))


def json_endpoint(handler: PageHandler) -> PageHandler:
    """An endpoint that clients call: errors are JSON, too."""

    async def page(request: PageRequest) -> PageResponse:
        if request.method == "OPTIONS":
            return PageResponse(b"", 204, PREFLIGHT)
        try:
            return await handler(request)
        except (OAuthError, ProtocolError) as failure:
            refusal = OAuthError.from_failure(failure)
        body: dict[str, object] = {"error": refusal.error, "error_description": refusal.description}
        return json_response(body, refusal.status, refusal.headers)

    page.__name__, page.__qualname__ = handler.__name__, handler.__qualname__  # for the log
    return page


def json_response(body: dict[str, object], status: int = 200, headers: Mapping[str, str] | None = None) -> PageResponse:
    return PageResponse(body, status, {**NO_STORE, **ANY_ORIGIN, **(headers or {})})


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def address_of(request: PageRequest) -> str:
    """The network that limits count: an IPv4 address, or the /64 of an IPv6 address."""
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


def consent_cookie_name(client_id: str) -> str:
    """One for each client, so that two consent pages can be open at a time."""
    return f"__Host-dovetail-asked-{digest(client_id)[:16]}"


def set_cookie(name: str, value: str, seconds: float) -> dict[str, str]:
    """The prefix `__Host-` makes browsers insist on Secure, on this host and on its whole path."""
    return {"set-cookie": f"{name}={value}; Path=/; Max-Age={int(seconds)}; Secure; HttpOnly; SameSite=Lax"}


def cookie(request: PageRequest, name: str) -> str | None:
    """None if there is none, or more than one, because then one may be forged."""
    pairs = [part.strip().partition("=") for line in request.headers.all("cookie") for part in line.split(";")]
    found = [value for key, _, value in pairs if key == name]
    return found[0] if len(found) == 1 else None


# ── redirect URIs ──


def url_problem(uri: object, noun: str) -> str | None:
    """The problem in words. It has to be https, or http to this machine, and to be parsed alike by all programs."""
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
    if parts.scheme != "https" and not _LOOPBACK_URI.fullmatch(uri):
        return f"{noun} must be https, or http to 127.0.0.1, localhost or [::1]"
    if {".", ".."} & set(unquote(parts.path).replace("\\", "/").split("/")):
        return f"{noun} has no . or .. in its path"
    return None


def is_registered(uri: str, registered: Iterable[str]) -> bool:
    """Compared byte by byte; but clients on the user's own machine may use any port (RFC 8252, 7.3)."""
    loopback = _without_port(uri)
    return any(uri == each or (loopback is not None and loopback == _without_port(each)) for each in registered)


def _without_port(uri: str) -> tuple[str, str] | None:
    """The parts before and after the port of a loopback URI."""
    found = _LOOPBACK_URI.fullmatch(uri)
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
HTML_HEADERS = {
    # No form-action: browsers apply it to the redirect to the program, too, and to all redirects after it.
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_DIGEST}'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer a form is sent with `Origin: null`
    "cache-control": "no-store",
}


class ConsentDetails(NamedTuple):
    """The content of the consent page."""

    program: str
    program_id: str
    scopes: Sequence[str]  # in words
    redirect_uri: str
    days: float | None  # for which the program may stay connected
    user: str | None  # who has signed in already
    form: str  # the sealed consent request


SIGN_IN_FIELDS = (
    '<label>Name <input name="name" autocomplete="username" autocapitalize="none" required></label>'
    '<label>Password <input name="password" type="password" autocomplete="current-password" required></label>'
)


def consent_page(details: ConsentDetails, path: str, problem: str | None) -> str:
    scopes = "".join(f"<li>{escape(words)}</li>" for words in details.scopes)
    name, redirect_uri = escape(details.program), details.redirect_uri
    is_local = is_loopback(redirect_uri)
    whose = ": a program on this computer. Go on only if you have just started it yourself." if is_local else "."
    user = SIGN_IN_FIELDS
    if details.user is not None:
        other = '<button name="answer" value="other" formnovalidate>Another user</button>'
        user = f"<p>You are signed in as <strong>{escape(details.user)}</strong>. {other}</p>"
    body = f"""<h1>Allow {name} to act for you?</h1>
{f'<p class="wrong" role="alert">{escape(problem)}</p>' if problem else ""}
{f"<p>It wants to:</p><ul>{scopes}</ul>" if scopes else ""}
<p>Then your browser goes to <strong>{escape(host_of(redirect_uri))}</strong>{whose}</p>
{f"<p>It may stay connected for {details.days:g} days.</p>" if details.days else ""}
<form method="post" action="{escape(path)}">
<input type="hidden" name="form" value="{escape(details.form)}">
{user}
<button name="answer" value="allow">Allow</button><button name="answer" value="deny" formnovalidate>Deny</button>
</form>
<p class="small">The program calls itself “{name}”; that was not checked.
Its id is {escape(details.program_id)}. The answer goes to {escape(redirect_uri)}.</p>"""
    return _document("Allow access?", body)


def error_page(words: str, title: str = "This can't go on") -> str:
    return _document(title, f"<h1>{escape(title)}</h1><p>{escape(words)}</p>")


def html_response(html: str, status: int, headers: dict[str, str]) -> PageResponse:
    return PageResponse(html, status, {**HTML_HEADERS, **headers}, "text/html")


def _document(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="robots" content="noindex">'
        f"<style>{STYLE}</style></head><body>{body}</body></html>"
    )
