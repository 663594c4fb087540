"""What the adapters of both peers share: access tokens, outcomes of elicitation, content, adapted functions."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, Union, cast

import msgspec

from dovetail.auth.principal import Principal, normalized_url
from dovetail.engine.current_context import get_context
from dovetail.errors import SetupError
from dovetail.registry.elicitation import Elicited

T = TypeVar("T")


def not_possible(what: str, page: str, instead: str = "") -> SetupError:
    """The error for what works in another way here; `page` of the docs compares the peer with Dovetail."""
    return SetupError(f'{what} is not possible here{instead and f": {instead}"}; see the page "{page}" of the docs')


def given(**options: Any) -> dict[str, Any]:
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def wire(value: Any) -> Any:
    """Objects of mcp_types as JSON; other values as they are."""
    if isinstance(value, list | tuple):
        return [wire(each) for each in value]
    dump = getattr(value, "model_dump", None)
    return value if dump is None else dump(mode="json", by_alias=True, exclude_none=True)


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
        return Principal(subject=self.subject, client=self.client_id, scopes=scopes, claims=self.claims, **own)


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
