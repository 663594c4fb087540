"""All exceptions that this package raises on purpose, as one tree.

DovetailError
  ProtocolError           code, message, data, http_status; becomes a JSON-RPC error
    NotFound              raised by a resource function that finds nothing
    MissingCapability     the client did not declare a capability that a call needs
    Busy                  a limit is reached; the client may try again later
      ServerBusy          all slots of the server are taken and its queue is full; a RateLimited too
      ToolBusy            the same for one tool; a ToolError too, so that the model sees it
    RateLimited           the server accepts no more requests for now; says when to try again
    Unauthorized          the caller is unknown, or lacks scopes; carries what a challenge needs
  ToolError               raised by authors; becomes a result with isError
    ArgumentError         the arguments of a call do not fit; lists all problems
    QuestionFailed        the client could not, or would not, answer a request of the server
      AnswerTimeout       the client did not answer in time
  StateError              a value of `ctx.state` or a Handle that can't be stored, or not be read as its type
  UrlElicitationRequired  raised by authors: the user has to open a URL before the call can be made
  SetupError              a wrong registration; names the function, the parameter and the fix
  ServerError             (client side) the server responded with a JSON-RPC error, or refused a request by a status
    TooManyRequests       the server accepts no more requests for now, and has started nothing; says when to try again
  BadResponse             (client side) the server sent a response that can't be used
  ConnectionLost          (client side) the connection ended before the response
  TaskCancelled           (client side) the task was cancelled before it had a result
  NotApproved             (client side) `approve=` said no, so the tool was not called
  NotSignedIn             (client side) the server needs a token, and accepts none of the client's; says why
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

BUSY_RETRY_AFTER = 1  # seconds; how long the running calls will take is unknown


class DovetailError(Exception):
    """The base of all errors that this package raises on purpose."""


class ProtocolError(DovetailError):
    """Becomes a JSON-RPC error; `http_status` is used only over HTTP."""

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
    """The client did not declare a capability that the call needs."""

    code = MISSING_CAPABILITY

    def __init__(self, required: dict[str, Any], why: str | None = None) -> None:
        paths = [f"{name}.{part}" for name, parts in required.items() for part in parts]
        names = ", ".join(sorted([*paths, *(name for name, parts in required.items() if not parts)]))
        message = f"This needs a client that declares: {names}" if why is None else f"This needs {names}, but {why}"
        super().__init__(message, data={"requiredCapabilities": required}, http_status=400)
        self.required = required


class Busy(ProtocolError):
    """A limit is reached, and its queue is full if it has one; the client may try again later."""

    code = INTERNAL_ERROR
    without_thread = ""  # the label of the function that got no thread, and has not begun


class RateLimited(ProtocolError):
    """The server accepts no more for now, and has started nothing; it may be tried again in `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message, data={"retryAfter": retry_after}, http_status=429)
        self.retry_after = retry_after


class Unauthorized(ProtocolError):
    """The caller is unknown (401), or lacks scopes (403). A transport makes a challenge of `error` and `scopes`.

    `error` is OAuth's error code, `scopes` are all that the request needs.
    """

    code = INVALID_REQUEST

    def __init__(
        self, message: str, *, error: str | None = None, scopes: frozenset[str] = frozenset(), http_status: int = 401
    ) -> None:
        super().__init__(message, http_status=http_status)
        self.error = error
        self.scopes = scopes

    @classmethod
    def for_scopes(cls, scopes: frozenset[str]) -> "Unauthorized":
        """The refusal of a known caller who lacks some of these scopes."""
        words = " ".join(sorted(scopes))
        return cls(f"This needs the scopes: {words}", error="insufficient_scope", scopes=scopes, http_status=403)


class ToolError(DovetailError):
    """Reaches the model: a result with `isError: true` whose text is this message."""


class ServerBusy(Busy, RateLimited):
    """All slots of the server are taken and its queue is full."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=BUSY_RETRY_AFTER)


class ToolBusy(Busy, ToolError):
    """All slots of one tool are taken and its queue is full. The model may wait, or call another tool."""


class ArgumentError(ToolError):
    """The arguments of a call do not fit; `problems` holds one readable line for each problem."""

    def __init__(self, subject: str, problems: list[str]) -> None:
        self.problems = problems
        lines = "\n".join(f"- {problem}" for problem in problems)
        super().__init__(f"Invalid arguments for {subject}:\n{lines}")


class QuestionFailed(ToolError):
    """The client refused a request of the server (`code` is its error code), or its response can't be used."""

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class AnswerTimeout(QuestionFailed, TimeoutError):
    """The client did not answer a request of the server in time."""


class StateError(DovetailError):
    """A value of `ctx.state` or of a `Handle` can't be stored, or not be read as its type. Its text is for authors."""


class _ElicitUrl(Protocol):
    """The part of `ElicitUrl` that is needed here: this module imports none of the others."""

    @property
    def elicitation_id(self) -> str: ...


class UrlElicitationRequired(DovetailError):
    """The user has to open a URL before the call can be made, to sign in for example; takes one or more `ElicitUrl`."""

    def __init__(self, *elicitations: _ElicitUrl) -> None:
        super().__init__("The user has to open a URL first")
        if not elicitations or not all(hasattr(each, "elicitation_id") for each in elicitations):
            raise SetupError('UrlElicitationRequired takes pages: UrlElicitationRequired(ElicitUrl("Sign in", url), …)')
        self.elicitations: tuple[Any, ...] = elicitations


class SetupError(DovetailError):
    """A registration that can't work. The message names the function, the parameter and the fix."""


class ServerError(DovetailError):
    """The server responded to a client's request with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None, *, status: int | None = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data
        self.status = status  # of the HTTP response, if that refused the request


class TooManyRequests(ServerError):
    """The server accepts no more for now, and has started nothing; `retry_after` seconds if it says when to retry."""

    def __init__(self, code: int, message: str, data: Any = None, *, retry_after: float | None = None) -> None:
        super().__init__(code, message, data)
        self.retry_after = retry_after


class ConnectionLost(DovetailError):
    """The connection to the server ended before its response."""


class BadResponse(DovetailError):
    """The server sent a response that this client can't use."""


class TaskCancelled(DovetailError):
    """The task was cancelled before it had a result."""


class NotApproved(DovetailError):
    """`approve=` said no, so the tool was not called."""


class NotSignedIn(DovetailError):
    """The server needs a token, and accepts none of the client's. The message says why, and holds no secret."""
