"""From a question of a function to its answer: the one way for every kind of question, in every revision."""

from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Raw

from dovetail import engine as late
from dovetail import registry
from dovetail.engine.exchange import BackChannel, Exchange
from dovetail.engine.interview import Interview
from dovetail.engine.options import LONGEST_ANSWER
from dovetail.errors import ProtocolError
from dovetail.protocol import jsonrpc
from dovetail.protocol.questions import Inquiry
from dovetail.protocol.session import Session

if TYPE_CHECKING:
    from dovetail.engine.core import Engine
    from dovetail.registry.roots import Root

MAX_VISITS = 100  # of one session
T = TypeVar("T")


def interview_of(engine: "Engine", exchange: Exchange) -> Interview:
    """The interview of a call, begun if there is none."""
    if exchange.interview is None:
        request = exchange.request
        if not request.row.asks:
            raise RuntimeError(f"{request.method}: only tools, prompts and resources can ask the client or take steps")
        is_replayed = request.revision.rounds
        exchange.interview = (
            late.replay.Replay(engine, exchange, None, {}) if is_replayed else late.live.Live(engine, exchange)
        )
    return exchange.interview


async def ask(engine: "Engine", exchange: Exchange, inquiry: Inquiry[T], timeout: float | None) -> T:
    """The checked answer. Raises MissingCapability before anything is sent to a client that can't answer."""
    answer = await _answer(engine, exchange, inquiry, timeout)
    return inquiry.read(answer, exchange.request.revision)


async def _answer(engine: "Engine", exchange: Exchange, inquiry: Inquiry[Any], timeout: float | None) -> Raw:
    late.steps.refuse_in_step()
    return await interview_of(engine, exchange).ask(inquiry, _seconds(engine, timeout))


def _seconds(engine: "Engine", timeout: Any) -> float:
    if timeout is None:
        return engine.options.answer_timeout
    if not isinstance(timeout, (int, float)) or not 0 < timeout <= LONGEST_ANSWER:
        raise ValueError(f"timeout={timeout!r} of a question must be a number of seconds, above 0, and a year at most")
    return float(timeout)


async def list_roots(engine: "Engine", exchange: Exchange, timeout: float | None) -> "list[Root]":
    """The client's roots; asked for once if it promises to tell of changes."""
    roots = registry.roots.Roots()
    sessions = exchange.sessions
    declared = exchange.request.capabilities.get("roots")
    if sessions is None or not isinstance(declared, dict) or declared.get("listChanged") is not True:
        return await ask(engine, exchange, roots, timeout)
    await sessions.reload()
    version = sessions.record.roots_version
    if (kept := sessions.record.roots) is not None:
        return roots.read(kept, exchange.request.revision)
    answer = await _answer(engine, exchange, roots, timeout)
    found = roots.read(answer, exchange.request.revision)

    def keep(record: Session) -> Session:  # unless they have changed meanwhile
        return record.replace(roots=bytes(answer)) if record.roots_version == version else record

    with suppress(ProtocolError):  # no room for them: then they are asked for again
        await sessions.change(keep)
    return found


class SharedVisits(Protocol):
    """Visits of clients that any worker has asked."""

    async def visit_began(self, session: str, id: str) -> None: ...

    async def visit_ended(self, id: str) -> str | None:
        """The session that waits to be told, if one does: from now on it does not."""

    async def tell_session(self, id: str, message: bytes) -> None: ...


class Elicitations:
    """Visits to URLs that clients were asked for, so that they can be told when the user is done there."""

    def __init__(self) -> None:
        self.far: SharedVisits | None = None  # where the clients of other workers are reached
        self._visits: dict[str, OrderedDict[str, BackChannel]] = {}  # by session and id, the oldest first
        self._sessions: dict[str, set[str]] = {}  # by id

    def began(self, session: str, id: str, client: BackChannel) -> None:
        visits = self._visits.setdefault(session, OrderedDict())
        if len(visits) >= MAX_VISITS and id not in visits:
            self.ended(session, next(iter(visits)))
        self._visits.setdefault(session, visits)[id] = client
        self._sessions.setdefault(id, set()).add(session)

    def ended(self, session: str, id: str) -> BackChannel | None:
        """There is nothing to be told any more."""
        visits = self._visits.get(session)
        if visits is None or id not in visits:
            return None
        client = visits.pop(id)
        if not visits:
            del self._visits[session]
        self._sessions[id].remove(session)
        if not self._sessions[id]:
            del self._sessions[id]
        return client

    def left(self, session: str) -> None:
        """The session has ended."""
        for id in tuple(self._visits.get(session, ())):
            self.ended(session, id)

    async def completed(self, id: str) -> bool:
        """Tell the clients that were asked with this id, and no others. False if there is none."""
        sessions = sorted(self._sessions.get(id, ()))
        clients = {each: client for each in sessions if (client := self.ended(each, id)) is not None}
        params: dict[str, Any] = {"elicitationId": id}
        message = jsonrpc.notification("notifications/elicitation/complete", jsonrpc.encode(params))
        if self.far is not None:
            session = await self.far.visit_ended(id)
            if session is None:  # another worker has told it
                return False
            if session not in clients:
                await self.far.tell_session(session, message)
                return True
        for client in clients.values():
            await client.tell(message)
        return bool(clients)
