"""What servers publish about signing in, under the names of the standards: RFC 9728, RFC 8414, RFC 7591, RFC 6749.

All of it is said by strangers: only the shape is checked here, and what is not known is ignored.
"""

from typing import NamedTuple

import msgspec

from dovetail.auth.principal import Confidential

Texts = tuple[str, ...] | None

OFFLINE_ACCESS = "offline_access"


class ResourceMetadata(msgspec.Struct, frozen=True):
    """Of an MCP server."""

    resource: str
    authorization_servers: Texts = None
    scopes_supported: Texts = None


class IssuerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Of an authorization server."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    scopes_supported: Texts = None
    code_challenge_methods_supported: Texts = None
    token_endpoint_auth_methods_supported: Texts = None
    token_endpoint_auth_signing_alg_values_supported: Texts = None
    authorization_response_iss_parameter_supported: bool | None = None
    client_id_metadata_document_supported: bool | None = None


class Provider(NamedTuple):
    """Where tokens for one MCP server come from."""

    metadata: IssuerMetadata
    resource: str  # byte for byte what the server calls itself
    scopes: Texts  # that the server names, if it names any
    is_guessed: bool = False  # nothing says that there is an authorization server

    @property
    def issuer(self) -> str:
        return self.metadata.issuer


class RegistrationAnswer(Confidential, frozen=True):
    """What comes of a registration."""

    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None


class TokenAnswer(Confidential, frozen=True):
    """What comes of a good request for tokens."""

    access_token: str
    token_type: str
    expires_in: float | str | None = None  # some servers write numbers as texts
    refresh_token: str | None = None
    scope: str | None = None
    issued_token_type: str | None = None


class OAuthProblem(msgspec.Struct, frozen=True):
    """What comes of a bad one."""

    error: str
    error_description: str | None = None
