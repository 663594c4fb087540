"""What a person sees who opens the endpoint in a browser: a visit comes in, a page goes out that says how to connect.

Nothing in it is loaded from elsewhere, nothing runs, and where callers need a token it tells the server's name alone.
"""

import base64
import hashlib
from html import escape

import msgspec

from dovetail.engine.core import Engine
from dovetail.transports.options import HttpOptions
from dovetail.transports.routes import MOUNT, AnnouncedApp, PageResponse
from dovetail.transports.visit import Visit
from dovetail.transports.well_known import ResourceUrls, root_of

STYLE = (
    ":root{color-scheme:light dark}h1{font-size:1.5rem}small{font-weight:normal;opacity:.7}"
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:3rem auto;padding:0 1rem;overflow-wrap:anywhere}"
    "pre{padding:.8rem 1rem;border:1px solid #8886;border-radius:.5rem;white-space:pre-wrap}"
)
SHA = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{SHA}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "vary": "accept",
}


def front_page(engine: Engine, options: HttpOptions, urls: ResourceUrls, visit: Visit) -> PageResponse:
    info, auth = engine.info, engine.options.auth
    url, above = urls.resource(visit.scope, visit.route), root_of(visit.scope)
    entry: dict[str, object] = {"type": "http", "url": url}
    about = f"<small>{escape(info.version)}</small></h1><p>{escape(info.description or '')}"
    if auth is not None and auth.authorization_servers:
        about = "</h1><p>You have to sign in: your host opens the page for that when it connects."
    elif auth is not None:
        about = "</h1><p>You need a key: ask who runs this server for one."
        entry["headers"] = {"Authorization": "Bearer <your key>"}
    settings = msgspec.json.format(msgspec.json.encode({"mcpServers": {info.name: entry}}), indent=2).decode()
    pages = [(escape(app.name), path) for path, app in options.routes.items() if isinstance(app, AnnouncedApp)]
    links = (f'<p><a href="{escape(above + path.removesuffix(MOUNT))}/">Open the {name}</a>' for name, path in pages)
    title = escape(info.title or info.name)
    html = f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><style>{STYLE}</style><h1>{title} {about}
<p>This is an MCP server: Claude, Cursor, VS Code and other hosts connect to it at <pre>{escape(url)}</pre>
<p>Many of them take it from a file with settings: <pre>{escape(settings)}</pre>{"".join(links)}"""
    return PageResponse(html, 200, HEADERS, "text/html")
