"""HTML pages of the authorization server: consent and refusal. Nothing in them is loaded from elsewhere.

What others wrote is escaped; no page can be shown inside another, and none runs a script.
"""

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from dovetail.authserver.endpoints import host_of, is_loopback
from dovetail.transports.http.routes import PageResponse

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
