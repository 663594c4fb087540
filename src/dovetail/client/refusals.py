"""What a status other than success means: a reply comes in, the failure of its request goes out.

The server's own words are used if it sent a JSON-RPC error. 401 becomes NotSignedIn, 429 TooManyRequests, others that
pass by themselves ConnectionLost, the rest ServerError with the JSON-RPC code or, without one, the status as its code.
"""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from msgspec import Raw

from dovetail.client.conversation import LONGEST_RETRY, failure_of
from dovetail.client.outgoing import Outgoing
from dovetail.client.requests import HttpReply
from dovetail.errors import BadAnswer, ConnectionLost, DovetailError, NotSignedIn, ServerError, TooManyRequests
from dovetail.protocol import jsonrpc
from dovetail.protocol.jsonrpc import BadMessage, Envelope

UNAUTHORIZED = 401
BUSY = 429
PASSING = frozenset({408, 425, BUSY, 502, 503, 504})


async def refusal(out: Outgoing, reply: HttpReply) -> tuple[DovetailError, bytes | None]:
    """The failure, and what the server said if that is a message."""
    said = await _message(reply)
    text = f"{out.subject}: the server answered {reply.words}"
    if said is None:
        if reply.status == UNAUTHORIZED:
            return NotSignedIn(text), None
        if reply.status == BUSY:
            return TooManyRequests(BUSY, text, retry_after=_retry_after(reply)), None
        return (ConnectionLost(text) if reply.status in PASSING else ServerError(reply.status, text)), None
    body, error = said
    failure = failure_of(out.subject, error.error)
    words = failure.message if isinstance(failure, ServerError) else str(failure)
    if reply.status == UNAUTHORIZED:
        return NotSignedIn(text if reply.detail else f"{text}: {words}"), body
    if reply.status not in PASSING:
        return failure, body
    if reply.status == BUSY and isinstance(failure, ServerError):
        told = failure.retry_after if isinstance(failure, TooManyRequests) else None
        seconds = _retry_after(reply)
        return TooManyRequests(
            failure.code, words, failure.data, retry_after=told if seconds is None else seconds
        ), body
    return ConnectionLost(f"{text}: {words}"), body


def _retry_after(reply: HttpReply) -> float | None:
    """Seconds, from either form of the header; None if there is none, or none that can be read."""
    text = (reply.header("Retry-After") or "").strip()
    try:
        seconds = float(text) if text.isdecimal() else (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), LONGEST_RETRY)


async def _message(reply: HttpReply) -> tuple[bytes, Envelope] | None:
    """The body and the JSON-RPC error in it, if that is what it is."""
    if "json" not in reply.kind:
        return None
    try:
        body = await reply.read()
        envelope = jsonrpc.decode(body)
    except (BadMessage, BadAnswer, ConnectionLost):
        return None
    if isinstance(envelope, Envelope) and isinstance(envelope.error, Raw):
        return body, envelope
    return None


def passes(failure: DovetailError) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(failure, (ConnectionLost, TooManyRequests)):
        return True
    return isinstance(failure, ServerError) and failure.code >= 500
