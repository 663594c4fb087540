"""The ways to reach a server. Each is loaded when it is first used: a server on stdio never loads HTTP."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.transports.http import HttpApp as HttpApp
    from dovetail.transports.options import HttpOptions as HttpOptions
    from dovetail.transports.routes import check_page as check_page
    from dovetail.transports.routes import route_app as route_app
    from dovetail.transports.serve import serve_http as serve_http
    from dovetail.transports.stdio import serve_stdio as serve_stdio

_HOME_OF = {
    "HttpApp": "http",
    "HttpOptions": "options",
    "check_page": "routes",
    "route_app": "routes",
    "serve_http": "serve",
    "serve_stdio": "stdio",
}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'dovetail.transports' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"dovetail.transports.{home}"), name)
    return value
