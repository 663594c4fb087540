"""The console: a page in the browser that tries out a running server. A server comes in, pages to hand in go out.

    server.run("http", routes=Console(server).routes())

Nothing of it is loaded, served or measured unless it is asked for.
"""

from dovetail.console.console import Console

__all__ = ["Console"]
