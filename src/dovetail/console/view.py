"""The policy of the frame of a tool's view: an empty document, into which the console's page writes the view.

The page reads the view from the endpoint, with the rights of its user, so that nothing here reads resources. A view
gets the origins that it declares and no others, not even this server's: `'self'` is left out.
"""

from collections.abc import Mapping, Sequence

from dovetail.extensions.apps import CSP_KEYS, is_origin

# Sources of each directive: those that every view has, and the key of `csp=` that adds others.
DIRECTIVES = {
    "script-src": ("'unsafe-inline'", "resource"),
    "style-src": ("'unsafe-inline'", "resource"),
    "img-src": ("data: blob:", "resource"),
    "font-src": ("data:", "resource"),
    "media-src": ("data: blob:", "resource"),
    "connect-src": ("", "connect"),
    "frame-src": ("", "frame"),
    "base-uri": ("", "base_uri"),
}
ENDING = "form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"


def policy_of(csp: Mapping[str, Sequence[str]]) -> str:
    """The Content-Security-Policy for a view's `_meta.ui.csp`; what is no origin is left out."""
    allowed = {key: " ".join(filter(is_origin, csp.get(name, ()))) for key, name in CSP_KEYS.items()}
    parts = {name: f"{always} {allowed[key]}".strip() or "'none'" for name, (always, key) in DIRECTIVES.items()}
    return f"default-src 'none'; {'; '.join(map(' '.join, parts.items()))}; {ENDING}"
