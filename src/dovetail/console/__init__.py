"""Console: a page in the browser that tries out a running server.

    server.run("http", routes=Console(server).routes())

Nothing of it is loaded, served or measured unless it is asked for.
"""

from dovetail.console.app import Console

__all__ = ["Console"]
