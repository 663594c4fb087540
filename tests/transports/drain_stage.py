"""Where what drains are watched with was."""

from http_clients import LISTEN

__all__ = ["LISTEN"]
