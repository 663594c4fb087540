"""Console: a page in the browser that tries out a running server.

    server.run("http", routes=Console(server).routes())

It is loaded only if a server uses it.
"""

from dovetail.console.app import Console

__all__ = ["Console"]
