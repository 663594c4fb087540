"""The ways to reach a server. Each is loaded when it is first used: a server on stdio never loads HTTP."""

from typing import TYPE_CHECKING

from dovetail.late import late

if TYPE_CHECKING:
    from dovetail.transports import http as http
    from dovetail.transports import options as options
    from dovetail.transports import routes as routes
    from dovetail.transports import serve as serve
    from dovetail.transports import stdio as stdio

__getattr__ = late(__name__, "http", "options", "routes", "serve", "stdio")
