"""Refusals in the words of OAuth (RFC 6749, 7591): a reason comes in, and the JSON that programs read goes out."""

from collections.abc import Awaitable, Callable, Mapping

from dovetail.errors import ProtocolError
from dovetail.transports.routes import PageRequest, PageResponse

NOT_KEPT = {"cache-control": "no-store", "pragma": "no-cache"}
# Programs in a browser come from anywhere. No cookie counts at these endpoints, so any page may read the answers.
FOR_ANY_ORIGIN = {"access-control-allow-origin": "*"}
PREFLIGHT = {
    **FOR_ANY_ORIGIN,
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "authorization, content-type, mcp-protocol-version",
    "access-control-max-age": "600",
}

PageHandler = Callable[[PageRequest], Awaitable[PageResponse]]


class OAuthRefusal(Exception):
    """`error` is one of the words that the standards have for it; the description is for people."""

    def __init__(
        self, error: str, description: str, *, status: int = 400, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(description)
        self.error = error
        self.description = description
        self.status = status
        self.headers = dict(headers or {})

    @classmethod
    def too_many(cls, what: str, seconds: float) -> "OAuthRefusal":
        wait = max(1, round(seconds))
        text = f"Too many {what}; try again in {_duration(wait)}"
        return cls("temporarily_unavailable", text, status=429, headers={"retry-after": str(wait)})

    @classmethod
    def of(cls, failure: ProtocolError) -> "OAuthRefusal":
        """A body that is too long, a store that does not answer."""
        error = "temporarily_unavailable" if failure.http_status >= 500 else "invalid_request"
        return cls(error, failure.message, status=failure.http_status if failure.http_status >= 400 else 400)


def for_programs(answer: PageHandler) -> PageHandler:
    """An endpoint that programs call: all that it says is JSON, and kept by nobody."""

    async def page(request: PageRequest) -> PageResponse:
        if request.method == "OPTIONS":
            return PageResponse(b"", 204, PREFLIGHT)
        try:
            return await answer(request)
        except OAuthRefusal as refusal:
            return _told(refusal)
        except ProtocolError as failure:
            return _told(OAuthRefusal.of(failure))

    page.__name__, page.__qualname__ = answer.__name__, answer.__qualname__  # for the log
    return page


def _told(refusal: OAuthRefusal) -> PageResponse:
    body = {"error": refusal.error, "error_description": refusal.description}
    return PageResponse(body, refusal.status, {**NOT_KEPT, **FOR_ANY_ORIGIN, **refusal.headers})


def _duration(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{round(seconds / 60)} minutes"
