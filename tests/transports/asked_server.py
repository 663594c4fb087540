"""Where the server that is asked was."""

from http_clients import *  # noqa: F403
