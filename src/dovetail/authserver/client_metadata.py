"""What a program says of itself, when it registers or in a document of its own: JSON comes in, a record goes out."""

import msgspec

from dovetail.auth.confidential import Confidential
from dovetail.auth.signing import check_public_keys
from dovetail.authserver.client_record import AUTH_METHODS, CODE, REFRESH, OAuthClient
from dovetail.authserver.redirects import why_not_registrable
from dovetail.authserver.refusals import OAuthRefusal

MAX_REDIRECTS = 10
MAX_NAME = 200  # characters


class ClientMetadata(Confidential, frozen=True):
    """The fields of RFC 7591 that count here; all others are ignored."""

    harmless = ("client_id", "client_name", "redirect_uris")

    client_id: str | None = None
    client_name: str | None = None
    redirect_uris: tuple[str, ...] = ()
    grant_types: tuple[str, ...] = (CODE,)
    response_types: tuple[str, ...] = ("code",)
    token_endpoint_auth_method: str | None = None
    jwks: dict[str, object] | None = None
    client_secret: str | None = None

    @classmethod
    def read(cls, raw: bytes) -> "ClientMetadata":
        """Raises OAuthRefusal."""
        try:
            return msgspec.json.decode(raw, type=cls)
        except msgspec.ValidationError as misfit:
            raise bad_metadata(f"The metadata do not fit: {misfit}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise bad_metadata("The metadata must be a JSON object") from None


def as_client(said: ClientMetadata, id: str, method: str) -> OAuthClient:
    """The record of a program that acts for users, by codes. Raises OAuthRefusal for what it may not be."""
    if not 0 < len(said.redirect_uris) <= MAX_REDIRECTS:
        raise OAuthRefusal("invalid_redirect_uri", f"There must be 1 to {MAX_REDIRECTS} redirect_uris")
    for uri in said.redirect_uris:
        if (why := why_not_registrable(uri)) is not None:
            raise OAuthRefusal("invalid_redirect_uri", f"redirect_uris: {why}")
    if CODE not in said.grant_types or "code" not in said.response_types:
        raise bad_metadata("Only authorization_code, with or without refresh_token, can be registered")
    if method not in AUTH_METHODS:
        raise bad_metadata(f"token_endpoint_auth_method must be one of {', '.join(AUTH_METHODS)}")
    jwks = said.jwks if method == "private_key_jwt" else None
    if method == "private_key_jwt" and (why := check_public_keys(jwks)) is not None:
        raise bad_metadata(why)
    return OAuthClient(
        id=id,
        name=_plain(said.client_name or ""),
        redirect_uris=said.redirect_uris,
        grant_types=tuple(grant for grant in (CODE, REFRESH) if grant in said.grant_types),
        jwks=jwks,
    )


def bad_metadata(description: str) -> OAuthRefusal:
    return OAuthRefusal("invalid_client_metadata", description)


def _plain(name: str) -> str:
    """On one line, and short: nothing in it can turn a page around or push its words away."""
    return "".join(letter if letter.isprintable() else " " for letter in name[:MAX_NAME]).strip()
