"""What tokens can be made of: each way of getting them is a `TokenSource`, the same for every server."""

from typing import NamedTuple, Protocol

from dovetail.client.oauth.keys import ClientKey
from dovetail.client.oauth.token_endpoint import TokenDoor
from dovetail.client.oauth.tokens import RegisteredClient, TokenSet, TokenStore


class TokenErrand(NamedTuple):
    """One try to get tokens."""

    door: TokenDoor
    scopes: tuple[str, ...]
    client: RegisteredClient | None  # as this program is known there already, if it is

    @property
    def scope_field(self) -> dict[str, str]:
        return {"scope": " ".join(self.scopes)} if self.scopes else {}


class TokenSource(Protocol):
    """A way to get tokens."""

    issuer: str | None  # the only one that may be asked
    scopes: frozenset[str]  # that the user wants
    dpop: bool
    key: ClientKey | None
    store: TokenStore
    interactive: bool  # a person has to do something

    @property
    def who(self) -> str:
        """Whose tokens these are, in the key of a store."""
        ...

    @property
    def bound_to_issuer(self) -> bool:
        """Whether the user's own credentials belong to one issuer, and must not be shown to another."""
        ...

    def completed(self, client: RegisteredClient) -> RegisteredClient:
        """As it was kept, with the secrets that only the user keeps."""
        ...

    async def obtain(self, errand: TokenErrand) -> TokenSet:
        """Raises NotSignedIn."""
        ...
