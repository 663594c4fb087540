"""From a question of a function to its answer: the one way for every kind of question, in every revision."""

from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from dovetail.engine.exchange import BackChannel, Exchange
from dovetail.engine.interview import Interview
from dovetail.engine.live import Live
from dovetail.engine.options import LONGEST_ANSWER
from dovetail.engine.replay import Replay
from dovetail.errors import ProtocolError
from dovetail.protocol import jsonrpc
from dovetail.protocol.questions import Inquiry
from dovetail.protocol.session import Session
from dovetail.registry.roots import Root, Roots

if TYPE_CHECKING:
    from dovetail.engine.core import Engine

MAX_ELICITATIONS = 10_000
T = TypeVar("T")


def interview_of(engine: "Engine", exchange: Exchange) -> Interview:
    """The interview of a call, begun if there is none."""
    if exchange.interview is None:
        request = exchange.request
        if not request.row.asks:
            raise RuntimeError(f"{request.method}: only tools, prompts and resources can ask the client or take steps")
        is_replayed = request.revision.rounds
        exchange.interview = Replay(engine, exchange, None, {}) if is_replayed else Live(engine, exchange)
    return exchange.interview


async def ask(engine: "Engine", exchange: Exchange, inquiry: Inquiry[T], timeout: float | None) -> T:
    """The checked answer. Raises MissingCapability before anything is sent to a client that can't answer."""
    answer = await interview_of(engine, exchange).ask(inquiry, _seconds(engine, timeout))
    return inquiry.read(answer, exchange.request.revision)


def _seconds(engine: "Engine", timeout: Any) -> float:
    if timeout is None:
        return engine.options.answer_timeout
    if not isinstance(timeout, (int, float)) or not 0 < timeout <= LONGEST_ANSWER:
        raise ValueError(f"timeout={timeout!r} of a question must be a number of seconds, above 0, and a year at most")
    return float(timeout)


async def list_roots(engine: "Engine", exchange: Exchange, timeout: float | None) -> list[Root]:
    """The client's roots; asked for once if it promises to tell of changes."""
    roots = Roots()
    sessions = exchange.sessions
    declared = exchange.request.capabilities.get("roots")
    if sessions is None or not isinstance(declared, dict) or declared.get("listChanged") is not True:
        return await ask(engine, exchange, roots, timeout)
    await sessions.reload()
    version = sessions.record.roots_version
    if (kept := sessions.record.roots) is not None:
        return roots.read(kept, exchange.request.revision)
    answer = await interview_of(engine, exchange).ask(roots, _seconds(engine, timeout))
    found = roots.read(answer, exchange.request.revision)

    def keep(record: Session) -> Session:  # unless they have changed meanwhile
        return record.replace(roots=bytes(answer)) if record.roots_version == version else record

    with suppress(ProtocolError):  # no room for them: then they are asked for again
        await sessions.change(keep)
    return found


class Elicitations:
    """Visits to URLs that clients were asked for, so that they can be told when the user is done there."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, BackChannel] = OrderedDict()  # oldest first

    def began(self, id: str, client: BackChannel) -> None:
        self._clients[id] = client
        if len(self._clients) > MAX_ELICITATIONS:
            self._clients.popitem(last=False)

    async def completed(self, id: str) -> bool:
        """Tell the client that asked, and only that one. False if there is none."""
        client = self._clients.pop(id, None)
        if client is None:
            return False
        params: dict[str, Any] = {"elicitationId": id}
        await client.tell(jsonrpc.notification("notifications/elicitation/complete", jsonrpc.encode(params)))
        return True
