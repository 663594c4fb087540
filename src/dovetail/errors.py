"""Every exception that this package raises on purpose, as one tree.

DovetailError
  ProtocolError           code, message, data, http_status; becomes a JSON-RPC error
    NotFound              raised by a resource function that finds nothing
    MissingCapability     the client did not declare what a call needs
    Busy                  too much at once; to be tried again later
      ServerBusy          all slots of the server are taken and its queue is full; a RateLimited too
      ToolBusy            the same of one tool; a ToolError too, so that the model is told
    RateLimited           the server takes no more for now; says when to try again
    Unauthorized          nobody knows who is asking, or it may not do this; carries what would help
  ToolError               raised by users; becomes a result with isError
    ArgumentError         the arguments of a call do not fit; says all that is wrong
    QuestionFailed        the client could not, or would not, answer a question
      AnswerTimeout       nor did it say so in time
  UrlElicitationRequired  raised by users: the user has to open a URL before the call can be made
  SetupError              a wrong registration; names the function, the parameter and the fix
  ServerError             (client side) the server answered with a JSON-RPC error
    TooManyRequests       the server takes no more for now, and has begun nothing; says when to try again
  BadAnswer               (client side) the server answered with something that can't be used
  ConnectionLost          (client side) the server went away before it answered
  NotApproved             (client side) `approve=` said no, so the tool was not called
  NotSignedIn             (client side) the server wants a token, and there is none that it takes; says why
"""

import operator
from typing import Any, Protocol

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
RESOURCE_NOT_FOUND = -32002  # up to 2025-11-25; forbidden since
HEADER_MISMATCH = -32020  # since 2026-07-28
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
URL_ELICITATION_REQUIRED = -32042  # in 2025-11-25; forbidden since

BUSY_RETRY_AFTER = 1  # after which one may try again; nobody knows how long the calls take that are running


class DovetailError(Exception):
    """Anything this package raises on purpose."""


class ProtocolError(DovetailError):
    """Becomes a JSON-RPC error; `http_status` counts only where HTTP carries it."""

    code = INTERNAL_ERROR

    def __init__(self, message: str, *, code: int | None = None, data: Any = None, http_status: int = 200) -> None:
        super().__init__(message)
        self.message = str(message)
        if code is not None:
            self.code = operator.index(code)  # TypeError for anything but an integer
        self.data = data
        self.http_status = http_status


class NotFound(ProtocolError):
    """There is no such resource. The code on the wire depends on the revision; the engine adds the URI."""

    code = RESOURCE_NOT_FOUND

    def __init__(self, message: str = "Resource not found", *, uri: str | None = None) -> None:
        super().__init__(message, data=None if uri is None else {"uri": uri})


class MissingCapability(ProtocolError):
    """The client did not declare a capability that the call can't do without."""

    code = MISSING_CAPABILITY

    def __init__(self, required: dict[str, Any], why: str | None = None) -> None:
        paths = [f"{name}.{part}" for name, parts in required.items() for part in parts]
        names = ", ".join(sorted([*paths, *(name for name, parts in required.items() if not parts)]))
        message = f"This needs a client that declares: {names}" if why is None else f"This needs {names}, but {why}"
        super().__init__(message, data={"requiredCapabilities": required}, http_status=400)
        self.required = required


class Busy(ProtocolError):
    """Too much at once: a limit is reached, and its queue is full if it has one; the caller may try again later."""

    code = INTERNAL_ERROR


class RateLimited(ProtocolError):
    """The server takes no more for now, and nothing was begun; good again in `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message, data={"retryAfter": retry_after}, http_status=429)
        self.retry_after = retry_after


class Unauthorized(ProtocolError):
    """Nobody knows who is asking (401), or it is known and may not do this (403).

    `error` is the word that OAuth has for it, `scopes` are all that are needed; a transport makes a challenge of them.
    """

    code = INVALID_REQUEST

    def __init__(
        self,
        message: str,
        *,
        error: str | None = None,
        scopes: frozenset[str] = frozenset(),
        http_status: int = 401,
    ) -> None:
        super().__init__(message, http_status=http_status)
        self.error = error
        self.scopes = scopes

    @classmethod
    def for_scopes(cls, scopes: frozenset[str]) -> "Unauthorized":
        """Whoever asks is known, but lacks some of the scopes that this needs."""
        words = " ".join(sorted(scopes))
        return cls(f"This needs the scopes: {words}", error="insufficient_scope", scopes=scopes, http_status=403)


class ToolError(DovetailError):
    """Reaches the model: a result with `isError: true` whose text is this message."""


class ServerBusy(Busy, RateLimited):
    """All slots of the server are taken and its queue is full."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=BUSY_RETRY_AFTER)


class ToolBusy(Busy, ToolError):
    """The same of one tool. Other tools can be called, so it is the model's to wait, or to do something else."""


class ArgumentError(ToolError):
    """The arguments of a call do not fit; `problems` holds one readable line for each thing that is wrong."""

    def __init__(self, subject: str, problems: list[str]) -> None:
        self.problems = problems
        lines = "\n".join(f"- {problem}" for problem in problems)
        super().__init__(f"Invalid arguments for {subject}:\n{lines}")


class QuestionFailed(ToolError):
    """A question to the client has no usable answer: refused, or not what was asked for. `code` is the client's own."""

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class AnswerTimeout(QuestionFailed, TimeoutError):
    """The client did not answer a question in time."""


class _Page(Protocol):
    """What an `ElicitUrl` is, seen from here."""

    @property
    def elicitation_id(self) -> str: ...


class UrlElicitationRequired(DovetailError):
    """Nothing can be done before the user has been at a URL, to sign in for example; takes one or more `ElicitUrl`."""

    def __init__(self, *elicitations: _Page) -> None:
        super().__init__("The user has to open a URL first")
        if not elicitations or not all(hasattr(each, "elicitation_id") for each in elicitations):
            raise SetupError('UrlElicitationRequired takes pages: UrlElicitationRequired(ElicitUrl("Sign in", url), …)')
        self.elicitations: tuple[Any, ...] = elicitations


class SetupError(DovetailError):
    """A registration that can't work. The message names the function, the parameter and the fix."""


class ServerError(DovetailError):
    """The server answered a client's request with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data


class TooManyRequests(ServerError):
    """The server takes no more for now, and has begun nothing; good again in `retry_after` seconds, if it says so."""

    def __init__(self, code: int, message: str, data: Any = None, *, retry_after: float | None = None) -> None:
        super().__init__(code, message, data)
        self.retry_after = retry_after


class ConnectionLost(DovetailError):
    """The server went away before it answered."""


class BadResponse(DovetailError):
    """The server answered with something that this client can't use."""


class NotApproved(DovetailError):
    """`approve=` said no, so the tool was not called."""


class NotSignedIn(DovetailError):
    """The server wants a token, and there is none that it takes. The message says why, and holds no secret."""
