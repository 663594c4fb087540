"""The official SDK's names."""

from dovetail.server import Server

__path__: list[str] = []


class MCPServer(Server):
    """The SDK's server."""
