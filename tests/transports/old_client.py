"""Where the oldest kind of client was."""

from http_clients import OldClient, connected

__all__ = ["OldClient", "connected"]
