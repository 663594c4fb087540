"""The client's side of a question: the handlers come in, and with them what is declared and what is answered.

A question is read first and answered later, so that nobody is asked what can't be answered as a whole.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from msgspec import Raw

from dovetail.client.elicitation import (
    ElicitationCompleteHandler,
    ElicitationHandler,
    ElicitQuestion,
    elicit,
    read_elicitation,
)
from dovetail.client.open_questions import Answer
from dovetail.client.roots import RootList, RootSource
from dovetail.client.sampling import SamplingHandler, SamplingRequest, read_sampling, sample
from dovetail.errors import INVALID_PARAMS, METHOD_NOT_FOUND, MissingCapability, ProtocolError, SetupError
from dovetail.protocol import revisions
from dovetail.protocol.features import require_capabilities
from dovetail.protocol.jsonrpc import UNREADABLE, in_words
from dovetail.protocol.revisions import Revision


class Unanswerable(ProtocolError):
    """`advice` is for the client's user; a server is told only the message."""

    def __init__(self, message: str, code: int, advice: str) -> None:
        super().__init__(message, code=code)
        self.advice = advice


class _Kind(NamedTuple):
    """One method that a server may ask with."""

    capability: str
    option: str  # of `Client`, which holds the handler
    read: Callable[[Raw], ElicitQuestion | SamplingRequest] | None  # None: nothing of the params matters
    answer: Callable[..., Any]


_KINDS = {
    "elicitation/create": _Kind("elicitation", "elicitation_handler", read_elicitation, elicit),
    "sampling/createMessage": _Kind("sampling", "sampling_handler", read_sampling, sample),
    "roots/list": _Kind("roots", "roots", None, RootList.answer),
}


class Answering:
    """All that a client can answer. `capabilities` is what the user wants to be declared, and wins."""

    def __init__(
        self,
        *,
        elicitation_handler: ElicitationHandler | None = None,
        sampling_handler: SamplingHandler | None = None,
        roots: RootSource | None = None,
        elicitation_complete_handler: ElicitationCompleteHandler | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> None:
        _refuse_uncallable("elicitation_handler", elicitation_handler)
        _refuse_uncallable("sampling_handler", sampling_handler)
        self.elicitation_complete_handler = elicitation_complete_handler
        self._handlers: dict[str, Any] = {
            "elicitation_handler": elicitation_handler,
            "sampling_handler": sampling_handler,
            "roots": None if roots is None else RootList(roots),
        }
        self._declared = {
            revision.name: {**self._offered(revision), **(capabilities or {})} for revision in revisions.ALL
        }

    # ── what the server is told ──

    def declared(self, revision: Revision) -> Mapping[str, Any]:
        """The client's capabilities."""
        return self._declared[revision.name]

    def _offered(self, revision: Revision) -> dict[str, Any]:
        offers: dict[str, dict[str, Any]] = {
            "sampling": {},
            "roots": {"listChanged": True} if revision.handshake else {},
        }
        if revision.elicitation:
            offers["elicitation"] = {"form": {}, "url": {}} if revision.url_elicitation else {}
        options = {kind.capability: kind.option for kind in _KINDS.values()}
        return {name: offer for name, offer in offers.items() if self._handlers[options[name]] is not None}

    def announces_roots(self, revision: Revision) -> bool:
        roots = self.declared(revision).get("roots")
        return isinstance(roots, Mapping) and bool(roots.get("listChanged"))

    def set_roots(self, roots: RootSource) -> None:
        if self._handlers["roots"] is None:
            raise SetupError("Client: it has told its server that it has no roots; begin with Client(…, roots=[])")
        self._handlers["roots"] = RootList(roots)

    # ── what the server asks ──

    def prepare(self, revision: Revision, method: str, params: Raw) -> Answer:
        """What answers the question when it is called. Raises ProtocolError if nothing does."""
        kind = _KINDS.get(method)
        if kind is None:
            raise _not_found(method, "which this client does not know")
        handler = self._handlers[kind.option]
        declared = self.declared(revision)
        if handler is None:
            raise _not_found(method, f"which needs {kind.option}=…, and this Client was made without")
        if kind.capability not in declared:
            raise _not_found(method, f"which a client of {revision.name} has not declared")
        if kind.read is None:
            return partial(kind.answer, handler)
        asked = _read(method, kind.read, params)
        try:
            require_capabilities(asked.needs, declared)
        except MissingCapability:
            text = f"this client has not declared {', '.join(asked.needs)}"
            raise Unanswerable(
                f"Invalid params: {text}", INVALID_PARAMS, f"the server asks {method}, but {text}"
            ) from None
        return partial(kind.answer, handler, asked)


def _refuse_uncallable(option: str, handler: object) -> None:
    if handler is not None and not callable(handler):
        raise SetupError(f"Client: {option}={handler!r} is not possible; give a function that takes the question")


def _not_found(method: str, why: str) -> Unanswerable:
    shown = method[:100]
    return Unanswerable(f"Method not found: {shown}", METHOD_NOT_FOUND, f"the server asks {shown}, {why}")


def _read(
    method: str, read: Callable[[Raw], ElicitQuestion | SamplingRequest], params: Raw
) -> ElicitQuestion | SamplingRequest:
    try:
        return read(params)
    except UNREADABLE as failure:
        text = f"Invalid params: {in_words(failure)}"
    except ProtocolError as malformed:
        text = malformed.message
    raise Unanswerable(text, INVALID_PARAMS, f"the server asks {method} in a way that can't be read: {text}")
