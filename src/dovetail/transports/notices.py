"""What a client says without asking: notifications, and answers to what it was asked. They come in; nothing goes out.

Only sessions have them: elsewhere they are accepted, and there is nothing to do about them.
"""

from dovetail.engine.client_requests import PendingRequests, Reply
from dovetail.engine.sessions import HeldSession
from dovetail.protocol import inbound
from dovetail.protocol.jsonrpc import Envelope
from dovetail.transports.session_calls import SessionCalls
from dovetail.transports.visit import Visit


class Notices:
    """Brings each to whom it concerns."""

    def __init__(self, calls: SessionCalls, replies: PendingRequests, *, stateless: bool) -> None:
        self._calls = calls
        self._replies = replies
        self._stateless = stateless

    async def take(self, visit: Visit, message: Envelope, held: HeldSession | None) -> None:
        """Raises if it is not acceptable. Unknown and malformed notifications are ignored: nobody waits."""
        record = None if held is None else held.record
        inbound.notice_on_http(message, visit.headers, record, stateless=self._stateless)
        if held is None:
            return
        session = held.record.id
        if not message.is_notification:
            await self._replies.take_anywhere(session, message.id, Reply.of(message))
        elif message.method == "notifications/cancelled":
            if (id := inbound.cancelled_request(message)) is not None:
                await self._calls.cancel(session, id)
        elif message.method == "notifications/progress":
            await self._replies.take_anywhere(session, inbound.progressed_request(message))
        elif message.method == "notifications/initialized" and not held.record.initialized:
            await held.change(lambda record: record.replace(initialized=True))
