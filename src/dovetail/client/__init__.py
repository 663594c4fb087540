"""A small client over the same protocol core: for tests, in process, and for servers behind a pipe."""

from dovetail.client.client import Client
from dovetail.client.listening import Listening
from dovetail.client.results import CallResult, ListPage, LogMessage

__all__ = ["CallResult", "Client", "ListPage", "Listening", "LogMessage"]
