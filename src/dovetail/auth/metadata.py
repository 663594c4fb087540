"""What a protected server says of itself (RFC 9728): its settings and its URL come in, the document goes out."""

from collections.abc import Iterable, Sequence

import msgspec

OFFLINE_ACCESS = "offline_access"  # belongs between a client and its authorization server, not here


class ResourceDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Under the names of RFC 9728 and RFC 9449; what is not set is left out."""

    resource: str  # byte for byte what clients have: they compare it
    authorization_servers: Sequence[str]
    bearer_methods_supported: Sequence[str] | None = None
    scopes_supported: Sequence[str] | None = None
    resource_name: str | None = None
    resource_documentation: str | None = None
    dpop_signing_alg_values_supported: Sequence[str] | None = None
    dpop_bound_access_tokens_required: bool = False

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def told_scopes(scopes: Iterable[str]) -> tuple[str, ...] | None:
    """What clients may ask their authorization server for; None if there is nothing to tell."""
    return tuple(sorted(set(scopes) - {OFFLINE_ACCESS})) or None
