"""Tokens without a browser: client credentials, JWT bearer (RFC 7523), enterprise-managed."""

from collections.abc import Awaitable, Callable
from typing import Unpack

from dovetail.client.handlers import call_maybe_async
from dovetail.client.oauth.metadata import PUBLIC, OAuthHttp
from dovetail.client.oauth.provider import TokenRequest, TokenSource, TokenSourceOptions
from dovetail.client.oauth.storage import RegisteredClient, TokenSet
from dovetail.errors import NotSignedIn, SetupError

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"

TokenText = str | Callable[[], str | Awaitable[str]]  # a text, or a function that gets a fresh one


class _MachineSource(TokenSource):
    needs_client_auth = False

    def __init__(self, client_id: str, client_secret: str | None = None, **options: Unpack[TokenSourceOptions]) -> None:
        name, key = type(self).__name__, options.get("private_key")
        if client_secret is not None and key is not None:
            raise SetupError(f"{name}: client_secret= and private_key= are two proofs for one thing; keep one of them")
        if self.needs_client_auth and client_secret is None and key is None:
            raise SetupError(f"{name}: how does it prove who it is? Give client_secret= or private_key=")
        super().__init__(client_id, client_secret, **options)
        self._client_id = client_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client_id!r})"

    @property
    def bound_to_issuer(self) -> bool:
        return True

    @property
    def store_name(self) -> str:
        return f"{type(self).__name__} {self._id}"

    async def obtain(self, token_request: TokenRequest) -> TokenSet:
        form = {**await self._grant(token_request), **token_request.scope_field}
        client = self.user_client(self._client_id, token_request.endpoint.auth_server)
        return await token_request.endpoint.request_tokens(client, form, token_request.scopes)

    async def _grant(self, token_request: TokenRequest) -> dict[str, str]:
        raise NotImplementedError


class ClientCredentials(_MachineSource):
    """A program that acts for itself.

    Client("https://notes.example.com/mcp", auth=ClientCredentials("ci", os.environ["CI_SECRET"]))

    It authenticates by a `client_secret`, or by a `private_key` (PEM or JWK), which needs `dovetail-mcp[auth]`.
    `issuer` is the only authorization server that gets the secret; without it, the one that the first server names.
    """

    needs_client_auth = True

    async def _grant(self, token_request: TokenRequest) -> dict[str, str]:  # noqa: ARG002
        return {"grant_type": "client_credentials"}


class JwtBearer(_MachineSource):
    """A program with a signed token of its platform: `assertion` is that token, or a function that gets a fresh one."""

    def __init__(self, client_id: str, assertion: TokenText, **options: Unpack[TokenSourceOptions]) -> None:
        super().__init__(client_id, **options)
        self._assertion = assertion

    async def _grant(self, token_request: TokenRequest) -> dict[str, str]:  # noqa: ARG002
        return {"grant_type": JWT_BEARER, "assertion": await _token_text(self._assertion)}


class EnterpriseManaged(_MachineSource):
    """A user who has signed in at the company's own identity provider, and need not sign in again.

    `id_token` is that of the user, or a function that gets a fresh one. The provider, with its `idp_token_endpoint` and
    `idp_client_id`, exchanges it for a grant for one MCP server.
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
        return self._secret is not None or self.key is not None  # the id token itself is not sent to an issuer

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
    token = given if isinstance(given, str) else await call_maybe_async(given)
    if not isinstance(token, str) or not token:
        raise NotSignedIn("The function that gets a token for this program gave none")
    return token
