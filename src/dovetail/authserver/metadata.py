"""What the authorization server says of itself (RFC 8414): an issuer comes in, paths and a document go out."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from dovetail.auth.signing import ASSERTIONS
from dovetail.authserver.client_record import AUTH_METHODS, GRANTS
from dovetail.authserver.redirects import why_not_a_url
from dovetail.errors import SetupError

WELL_KNOWN = "/.well-known/oauth-authorization-server"


class Places:
    """The issuer, byte for byte as it was given, and the endpoints below it. Raises SetupError for no good issuer."""

    def __init__(self, issuer: str) -> None:
        why = why_not_a_url(issuer, "an issuer")
        if why is None and "?" in issuer:
            why = "an issuer has no query"
        if why is not None:
            raise SetupError(f'AuthServer: issuer={issuer!r} is not possible: {why}; "https://login.example.com" is')
        self.issuer = issuer
        self._path = urlsplit(issuer).path.rstrip("/")
        self.metadata = WELL_KNOWN + self._path

    def path(self, name: str) -> str:
        return f"{self._path}/{name}"

    def url(self, name: str) -> str:
        return f"{self.issuer.rstrip('/')}/{name}"


def describe(places: Places, scopes: Iterable[str], *, registration: bool, cimd: bool) -> dict[str, object]:
    methods = list(AUTH_METHODS)
    signed = {"signing_alg_values_supported": list(ASSERTIONS)}
    return {
        "issuer": places.issuer,
        "authorization_endpoint": places.url("authorize"),
        "token_endpoint": places.url("token"),
        "revocation_endpoint": places.url("revoke"),
        "jwks_uri": places.url("jwks"),
        **({"registration_endpoint": places.url("register")} if registration else {}),
        "scopes_supported": sorted(scopes),
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": list(GRANTS),
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": methods,
        **{f"token_endpoint_auth_{name}": value for name, value in signed.items()},
        "revocation_endpoint_auth_methods_supported": methods,
        **{f"revocation_endpoint_auth_{name}": value for name, value in signed.items()},
        "authorization_response_iss_parameter_supported": True,
        "client_id_metadata_document_supported": cimd,
    }
