"""What the adapters of both peers share: components, adapted functions, access tokens, outcomes of elicitation."""

import functools
import inspect
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, Union, cast

import msgspec

from dovetail import compat
from dovetail.auth.principal import Principal, normalized_url
from dovetail.engine.current_context import get_context
from dovetail.errors import SetupError
from dovetail.protocol import types
from dovetail.registry.elicitation import Elicited
from dovetail.registry.files import ServedFile
from dovetail.registry.functions import members, outermost

T = TypeVar("T")
HTTP_OPTIONS = {
    "streamable_http_path": "path", "stateless_http": "stateless", "max_request_body_size": "max_body_bytes",
    "session_idle_timeout": "session_timeout",
}  # fmt: skip
# Clients choose between JSON and a stream, whose events are always stored; what runs the app is our own server.
PASSED_OVER = {"json_response", "event_store", "retry_interval", "uvicorn_config", "show_banner"}


def not_possible(what: str, page: str, instead: str = "") -> SetupError:
    """The error for what works in another way here; `page` of the docs compares the peer with Dovetail."""
    return SetupError(f'{what} is not possible here{instead and f": {instead}"}; see the page "{page}" of the docs')


def check_keywords(given: Iterable[str], known: Iterable[str], where: str, page: str) -> None:
    """Raises TypeError for keywords that are not known."""
    if others := sorted(set(given).difference(known)):
        shown = ", ".join(f"{name}=" for name in others)
        raise TypeError(f'{where}: {shown} has no equal in Dovetail; see the page "{page}" of its docs')


def given(**options: Any) -> dict[str, Any]:
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def wire(value: Any) -> Any:
    """Objects of mcp_types as JSON; other values as they are."""
    if isinstance(value, list | tuple):
        return [wire(each) for each in value]
    dump = getattr(value, "model_dump", None)
    return value if dump is None else dump(mode="json", by_alias=True, exclude_none=True)


def http_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of HTTP by our names, which are checked where they are used."""
    return given(**{HTTP_OPTIONS.get(name, name): each for name, each in options.items() if name not in PASSED_OVER})


# ── components, and their functions ──


class Component:
    """A tool or prompt that a program makes itself: a function with the options of its registration."""

    kind = ""

    def __init__(self, fn: Callable[..., Any], name: str | None = None, **options: Any) -> None:
        self.fn, self.options = fn, options
        self.name = str(name or getattr(fn, "__name__", type(fn).__name__))
        self.tags = set(options.get("tags") or ())

    @classmethod
    def from_function(cls, fn: Callable[..., Any], name: str | None = None, **options: Any) -> Any:
        return cls(fn=fn, name=name, **options)


class Resource(Component):
    """A resource that a program makes itself: what its function returns."""

    kind = "resource"

    def __init__(self, uri: Any, fn: Callable[..., Any], name: str | None = None, **options: Any) -> None:
        super().__init__(fn, name or str(uri), **{"description": "", **options})
        self.uri = str(uri)

    @classmethod
    def from_function(  # type: ignore[override]  # the URI comes before the name
        cls, fn: Callable[..., Any], uri: Any = None, name: str | None = None, uri_template: Any = None, **options: Any
    ) -> Any:
        own = Component(fn, name, **{"description": inspect.getdoc(fn), **options})
        return cls(uri or uri_template, fn, own.name, **own.options)


def TextResource(uri: Any, text: str, **options: Any) -> Resource:
    return Resource(uri, lambda: text, **options)


def FileResource(uri: Any, path: str | Path, mime_type: str | None = None, **options: Any) -> Resource:
    file = ServedFile(path, str(uri), mime_type or "text/plain")
    return Resource(uri, lambda: file.read().data, mime_type=mime_type, **options)


FunctionResource = Resource


class PathFirst(type(types.Image)):  # type: ignore[misc]  # the metaclass of media
    """Lets the path be the first argument: `Image(path)`, `Image(data=…, format="png")`."""

    def __call__(cls, path: Any = None, data: Any = None, format: str | None = None, annotations: Any = None) -> Any:
        return super().__call__(data, path=path, format=format or "", annotations=annotations)


class Image(types.Image, metaclass=PathFirst, frozen=True):
    """A picture."""


class Audio(types.Audio, metaclass=PathFirst, frozen=True):
    """A sound."""


def without_questions(returns: Any, nothing: Any = None) -> Any:
    """A return annotation without `InputRequiredResult`; `nothing` if there is nothing else."""
    kept = [each for each in members(returns) if getattr(each, "__name__", "") != "InputRequiredResult"]
    return returns if len(kept) == len(members(returns)) else functools.reduce(operator.or_, kept or [nothing])


def adapted(function: Callable[..., Any], convert: Callable[[Any], Any] = lambda value: value) -> Any:
    """The function with converted results; an `InputRequiredResult` of mcp_types becomes ours."""

    def finish(value: Any) -> Any:
        is_question = type(value).__name__ == "InputRequiredResult"
        return compat.mcp_context.to_input_required(value) if is_question else convert(value)

    def call(*args: Any, **named: Any) -> Any:
        return finish(function(*args, **named))

    async def call_async(*args: Any, **named: Any) -> Any:
        return finish(await function(*args, **named))

    is_async = inspect.iscoroutinefunction(outermost(function))
    return functools.update_wrapper(call_async if is_async else call, function)


def completer(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that suggests values for all arguments, and takes models of mcp_types, as ours."""

    async def complete(ref: Any, argument: Any, context: Any) -> Any:
        import mcp_types

        whole = msgspec.to_builtins({"ref": ref, "argument": argument, "context": context})
        params = mcp_types.CompleteRequestParams.model_validate(whole)
        found = function(params.ref, params.argument, params.context)
        return (await found if inspect.isawaitable(found) else found) or []

    return complete


# ── access ──


class AccessToken:
    """What a peer's verifier returns for a token, and what `get_access_token` gives to tools."""

    def __init__(
        self, token: str | None = None, client_id: str = "", scopes: Sequence[str] = (), expires_at: int | None = None,
        resource: str | None = None, subject: str | None = None, claims: Mapping[str, Any] | None = None, **more: Any,
    ) -> None:  # fmt: skip
        self._token, self.client_id, self.scopes, self.expires_at = token, client_id, list(scopes), expires_at
        self.resource, self.subject, self.claims = resource, subject, dict(claims or {})
        vars(self).update(more)

    @property
    def token(self) -> str:
        """The token, for the verifier that has made this; that of a caller stays with the server."""
        if self._token is None:
            raise SetupError(
                "AccessToken.token: the token of a caller is not passed on to tools, because it was made for this "
                'server alone; ctx.upstream_token() is for other APIs, see the page "Authorization" of the docs'
            )
        return self._token

    def __repr__(self) -> str:
        return f"AccessToken(client_id={self.client_id!r}, scopes={self.scopes!r}, subject={self.subject!r})"

    @classmethod
    def from_principal(cls, caller: Principal) -> "AccessToken":
        expires_at = None if caller.expires_at is None else int(caller.expires_at)
        client_id, scopes = caller.client or caller.subject or "", sorted(caller.scopes)
        return cls(None, client_id, scopes, expires_at, subject=caller.subject, claims=caller.claims)

    def to_principal(self) -> Principal:
        scopes, own = frozenset(self.scopes), given(issuer=self.claims.get("iss"), expires_at=self.expires_at)
        named = self.claims.get("sub")  # else all users of a client would be one caller
        subject = named if self.subject is None and isinstance(named, str) else self.subject
        return Principal(subject=subject, client=self.client_id, scopes=scopes, claims=self.claims, **own)


def get_access_token() -> AccessToken | None:
    """What is known of the caller of the running tool, prompt or resource; None if the caller is unknown."""
    try:
        caller = get_context().principal
    except LookupError:
        return None
    return None if caller is None else AccessToken.from_principal(caller)


class PeerVerifier:
    """A verifier of a peer, an object with `verify_token`, as one of ours.

    A token that names another resource is refused; with `needs_resource` one that names none, too.
    """

    def __init__(self, verifier: Any, issuer: str | None, resource: str | None, *, needs_resource: bool) -> None:
        self._verifier, self._needs_resource = verifier, needs_resource
        self.issuer, self.resource = issuer, resource

    async def verify(self, token: str) -> Principal | None:
        found = await self._verifier.verify_token(token)
        if found is None or (found.expires_at is not None and found.expires_at <= time.time()):
            return None
        if found.resource is None:
            is_ours = not self._needs_resource
        else:
            is_ours = self.resource is None or normalized_url(found.resource) == normalized_url(self.resource)
        return cast(Principal, found.to_principal()) if is_ours else None


# ── elicitation ──


class AcceptedElicitation(msgspec.Struct, Generic[T], frozen=True):
    data: T
    action: str = "accept"


class DeclinedElicitation(msgspec.Struct, frozen=True):
    action: str = "decline"


class CancelledElicitation(msgspec.Struct, frozen=True):
    action: str = "cancel"


ElicitationResult = Union[AcceptedElicitation[T], DeclinedElicitation, CancelledElicitation]  # noqa: UP007  # generic
OUTCOMES = (AcceptedElicitation, DeclinedElicitation, CancelledElicitation)


def outcome(answer: Elicited[T]) -> ElicitationResult[T]:
    """The outcome of an elicitation, as an object of the class that peers' programs look for."""
    if answer.action == "accept":
        return AcceptedElicitation(cast(T, answer.data))
    return DeclinedElicitation() if answer.action == "decline" else CancelledElicitation()
