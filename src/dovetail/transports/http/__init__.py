"""MCP over HTTP as an ASGI app: Streamable HTTP of every revision, and HTTP+SSE of 2024-11-05."""

from typing import TYPE_CHECKING

from dovetail._lazy import lazy_modules

if TYPE_CHECKING:
    from dovetail.transports.http import app as app
    from dovetail.transports.http import metrics as metrics
    from dovetail.transports.http import options as options
    from dovetail.transports.http import routes as routes

__getattr__ = lazy_modules(__name__, "app", "metrics", "options", "routes")
