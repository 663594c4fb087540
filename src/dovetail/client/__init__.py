"""A small client over the same protocol core: for tests, in process, and for servers behind a pipe."""

from dovetail.client.client import Client
from dovetail.client.elicitation import ElicitQuestion, ElicitReply
from dovetail.client.listening import Listening
from dovetail.client.results import CallResult, ListPage, LogMessage
from dovetail.client.sampling import SamplingRequest

__all__ = [
    "CallResult",
    "Client",
    "ElicitQuestion",
    "ElicitReply",
    "ListPage",
    "Listening",
    "LogMessage",
    "SamplingRequest",
]
