"""What a status other than success means: a reply comes in, the failure of its request goes out.

The server's own words are used if it sent a JSON-RPC error. Statuses that pass by themselves become ConnectionLost, all
others ServerError, with the JSON-RPC code or, without one, the status as its code.
"""

from msgspec import Raw

from dovetail.client.conversation import failure_of
from dovetail.client.outgoing import Outgoing
from dovetail.client.requests import HttpReply
from dovetail.errors import BadAnswer, ConnectionLost, DovetailError, ServerError
from dovetail.protocol import jsonrpc
from dovetail.protocol.jsonrpc import BadMessage, Envelope

PASSING = frozenset({408, 425, 429, 502, 503, 504})


async def refusal(out: Outgoing, reply: HttpReply) -> tuple[DovetailError, bytes | None]:
    """The failure, and what the server said if that is a message."""
    said = await _message(reply)
    if said is None:
        text = f"{out.subject}: the server answered {reply.words}"
        return (ConnectionLost(text) if reply.status in PASSING else ServerError(reply.status, text)), None
    body, error = said
    failure = failure_of(out.subject, error.error)
    if reply.status not in PASSING:
        return failure, body
    words = failure.message if isinstance(failure, ServerError) else str(failure)
    return ConnectionLost(f"{out.subject}: the server answered {reply.words}: {words}"), body


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
    return isinstance(failure, ConnectionLost) or (isinstance(failure, ServerError) and failure.code >= 500)
