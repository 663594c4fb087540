"""FastMCP's names."""

from dovetail.server import Server

__path__: list[str] = []


class FastMCP(Server):
    """FastMCP's server."""
