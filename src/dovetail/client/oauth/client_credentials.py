"""Tokens without a browser: client credentials, JWT bearer, and enterprise-managed authorization.

RFC 6749 4.4; RFC 7523 2.1, for a token of the platform that the program runs on; and the company's own identity
provider, which vouches for its user.
"""

from collections.abc import Awaitable, Callable
from typing import Unpack

from dovetail.client.handlers import call_maybe_async
from dovetail.client.oauth.metadata import PUBLIC, AuthorizationServer, OAuthHttp
from dovetail.client.oauth.provider import TokenRequest, TokenSource, TokenSourceOptions, auth_method_for
from dovetail.client.oauth.storage import RegisteredClient, TokenSet
from dovetail.errors import NotSignedIn, SetupError

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"

TokenText = str | Callable[[], str | Awaitable[str]]  # a text, or a function that gets a fresh one


class _MachineSource(TokenSource):
    """What they have in common."""

    needs_client_auth = False  # of who it is, to the token endpoint

    def __init__(self, client_id: str, client_secret: str | None = None, **options: Unpack[TokenSourceOptions]) -> None:
        name, key = type(self).__name__, options.get("private_key")
        if client_secret is not None and key is not None:
            raise SetupError(f"{name}: client_secret= and private_key= are two proofs for one thing; keep one of them")
        if self.needs_client_auth and client_secret is None and key is None:
            raise SetupError(f"{name}: how does it prove who it is? Give client_secret= or private_key=")
        super().__init__(**options)
        self._id, self._secret = client_id, client_secret

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._id!r})"

    @property
    def bound_to_issuer(self) -> bool:
        """What it has is for one issuer, whatever a server says later."""
        return True

    @property
    def who(self) -> str:
        return f"{type(self).__name__} {self._id}"

    def with_secret(self, client: RegisteredClient) -> RegisteredClient:
        return RegisteredClient(client.id, self._secret, client.method)

    async def obtain(self, token_request: TokenRequest) -> TokenSet:
        form = {**await self._grant(token_request), **token_request.scope_field}
        return await token_request.endpoint.request_tokens(
            self._client(token_request.endpoint.auth_server), form, token_request.scopes
        )

    def _client(self, auth_server: AuthorizationServer) -> RegisteredClient:
        method = auth_method_for(auth_server, secret=self._secret is not None, key=self.key is not None)
        return RegisteredClient(self._id, self._secret, method)

    async def _grant(self, token_request: TokenRequest) -> dict[str, str]:
        raise NotImplementedError


class ClientCredentials(_MachineSource):
    """A program that acts for itself.

    Client("https://notes.example.com/mcp", auth=ClientCredentials("ci", os.environ["CI_SECRET"]))

    It proves who it is by a `client_secret`, or by a `private_key` (PEM or JWK), which needs `dovetail-mcp[auth]`.
    `issuer`: the only authorization server that may see that; without it, the one that the first server names.
    """

    needs_client_auth = True

    async def _grant(self, token_request: TokenRequest) -> dict[str, str]:  # noqa: ARG002
        return {"grant_type": "client_credentials"}


class JwtBearer(_MachineSource):
    """A program for which its platform vouches, by a signed token for the authorization server.

    `assertion`: that token, or a function that gets a fresh one.
    """

    def __init__(self, client_id: str, assertion: TokenText, **options: Unpack[TokenSourceOptions]) -> None:
        super().__init__(client_id, **options)
        self._assertion = assertion

    async def _grant(self, token_request: TokenRequest) -> dict[str, str]:  # noqa: ARG002
        return {"grant_type": JWT_BEARER, "assertion": await _token_text(self._assertion)}


class EnterpriseManaged(_MachineSource):
    """A user for whom the company's own identity provider vouches; nobody is asked anything.

    `id_token`: of the user's sign-in there, or a function that gets a fresh one. `idp_token_endpoint` and
    `idp_client_id`: of that provider, which changes it for a grant that is good for one MCP server.
    """

    def __init__(
        self,
        client_id: str,
        client_secret: str | None = None,
        *,
        id_token: TokenText,
        idp_token_endpoint: str,
        idp_client_id: str,
        **options: Unpack[TokenSourceOptions],
    ) -> None:
        super().__init__(client_id, client_secret, **options)
        self._id_token = id_token
        self._idp_url = idp_token_endpoint
        self._idp_client = RegisteredClient(idp_client_id, None, PUBLIC)

    @property
    def bound_to_issuer(self) -> bool:
        """Each grant is for one issuer only; a secret of its own is for one of them."""
        return self._secret is not None or self.key is not None

    async def _grant(self, token_request: TokenRequest) -> dict[str, str]:
        auth_server = token_request.endpoint.auth_server
        form = {
            "grant_type": TOKEN_EXCHANGE,
            "requested_token_type": ID_JAG,
            "subject_token": await _token_text(self._id_token),
            "subject_token_type": ID_TOKEN,
            "audience": auth_server.issuer,
            "resource": auth_server.resource,
            **token_request.scope_field,
        }
        company = token_request.endpoint._replace(http=OAuthHttp(self._idp_url, allow_private=True), proofs=None)
        grant = await company.post(self._idp_client, form, self._idp_url)
        if grant.issued_token_type != ID_JAG:
            raise NotSignedIn("The company's identity provider gave no grant for this server")
        return {"grant_type": JWT_BEARER, "assertion": grant.access_token}


async def _token_text(given: TokenText) -> str:
    found = given if isinstance(given, str) else await call_maybe_async(given)
    if not isinstance(found, str) or not found:
        raise NotSignedIn("The function that gets a token for this program gave none")
    return found
