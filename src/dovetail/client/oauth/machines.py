"""Programs that act for themselves, or for whom somebody else vouches: what they have comes in, tokens go out.

`ClientCredentials` (RFC 6749, 4.4), `JwtBearer` (RFC 7523, 2.1: a token of the platform that the program runs on) and
`EnterpriseManaged` (the company's own sign-in vouches for its user). No browser is needed for any of them.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from dovetail.client.calling import outcome_of
from dovetail.client.credentials import Credentials
from dovetail.client.oauth.documents import Provider
from dovetail.client.oauth.keys import ClientKey, require_keys
from dovetail.client.oauth.server_tokens import PerServer
from dovetail.client.oauth.source import TokenErrand
from dovetail.client.oauth.token_endpoint import PUBLIC, method_for
from dovetail.client.oauth.tokens import MemoryTokens, RegisteredClient, TokenSet, TokenStore
from dovetail.client.oauth.web import OAuthWeb
from dovetail.errors import NotSignedIn, SetupError
from dovetail.protocol.scopes import checked_scopes

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"

Given = str | Callable[[], str | Awaitable[str]]  # a text, or a function that gets a fresh one


class _Machine:
    """What they have in common."""

    interactive = False
    needs_proof = False  # of who it is, to the token endpoint

    def __init__(
        self,
        client_id: str,
        client_secret: str | None = None,
        *,
        private_key: str | bytes | Mapping[str, Any] | None = None,
        key_id: str | None = None,
        scopes: Iterable[str] = (),
        issuer: str | None = None,
        tokens: TokenStore | None = None,
        dpop: bool = False,
    ) -> None:
        name = type(self).__name__
        if client_secret is not None and private_key is not None:
            raise SetupError(f"{name}: client_secret= and private_key= are two proofs for one thing; keep one of them")
        if self.needs_proof and client_secret is None and private_key is None:
            raise SetupError(f"{name}: how does it prove who it is? Give client_secret= or private_key=")
        self.issuer = issuer
        self.scopes = checked_scopes(scopes, name)
        self.dpop = dpop
        if dpop:
            require_keys(f"{name}: dpop=True")
        self.key = None if private_key is None else ClientKey(private_key, key_id=key_id, who=name)
        self.store: TokenStore = tokens or MemoryTokens()
        self._id, self._secret = client_id, client_secret
        self._per_server = PerServer(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._id!r})"

    def for_server(self, url: str) -> Credentials:
        """Of all clients of one server: they share its tokens."""
        return self._per_server.at(url)

    @property
    def bound_to_issuer(self) -> bool:
        """What it has is for one issuer, whatever a server says later."""
        return True

    @property
    def who(self) -> str:
        return f"{type(self).__name__} {self._id}"

    def completed(self, client: RegisteredClient) -> RegisteredClient:
        return RegisteredClient(client.id, self._secret, client.method)

    async def obtain(self, errand: TokenErrand) -> TokenSet:
        form = {**await self._grant(errand), **errand.scope_field}
        return await errand.door.ask(self._client(errand.door.provider), form, errand.scopes)

    def _client(self, provider: Provider) -> RegisteredClient:
        method = method_for(provider, secret=self._secret is not None, key=self.key is not None)
        return RegisteredClient(self._id, self._secret, method)

    async def _grant(self, errand: TokenErrand) -> dict[str, str]:
        raise NotImplementedError


class ClientCredentials(_Machine):
    """A program that acts for itself.

    Client("https://notes.example.com/mcp", auth=ClientCredentials("ci", os.environ["CI_SECRET"]))

    It proves who it is by a `client_secret`, or by a `private_key` (PEM or JWK), which needs `dovetail-mcp[auth]`.
    `issuer`: the only authorization server that may see that; without it, the one that the first server names.
    """

    needs_proof = True

    async def _grant(self, errand: TokenErrand) -> dict[str, str]:  # noqa: ARG002
        return {"grant_type": "client_credentials"}


class JwtBearer(_Machine):
    """A program for which its platform vouches, by a signed token for the authorization server.

    `assertion`: that token, or a function that gets a fresh one.
    """

    def __init__(self, client_id: str, assertion: Given, **options: Any) -> None:
        super().__init__(client_id, **options)
        self._assertion = assertion

    async def _grant(self, errand: TokenErrand) -> dict[str, str]:  # noqa: ARG002
        return {"grant_type": JWT_BEARER, "assertion": await _text_of(self._assertion)}


class EnterpriseManaged(_Machine):
    """A user for whom the company's own identity provider vouches; nobody is asked anything.

    `id_token`: of the user's sign-in there, or a function that gets a fresh one. `idp_token_endpoint` and
    `idp_client_id`: of that provider, which changes it for a grant that is good for one MCP server.
    """

    def __init__(
        self,
        client_id: str,
        client_secret: str | None = None,
        *,
        id_token: Given,
        idp_token_endpoint: str,
        idp_client_id: str,
        **options: Any,
    ) -> None:
        super().__init__(client_id, client_secret, **options)
        self._id_token = id_token
        self._idp_url = idp_token_endpoint
        self._idp_client = RegisteredClient(idp_client_id, None, PUBLIC)

    @property
    def bound_to_issuer(self) -> bool:
        """Each grant is for one issuer only; a secret of its own is for one of them."""
        return self._secret is not None or self.key is not None

    async def _grant(self, errand: TokenErrand) -> dict[str, str]:
        provider = errand.door.provider
        form = {
            "grant_type": TOKEN_EXCHANGE,
            "requested_token_type": ID_JAG,
            "subject_token": await _text_of(self._id_token),
            "subject_token_type": ID_TOKEN,
            "audience": provider.issuer,
            "resource": provider.resource,
            **errand.scope_field,
        }
        company = errand.door._replace(web=OAuthWeb(self._idp_url, inside=True), proving=None)
        vouched = await company.answer(self._idp_client, form, self._idp_url)
        if vouched.issued_token_type != ID_JAG:
            raise NotSignedIn("The company's identity provider gave no grant for this server")
        return {"grant_type": JWT_BEARER, "assertion": vouched.access_token}


async def _text_of(given: Given) -> str:
    found = given if isinstance(given, str) else await outcome_of(given)
    if not isinstance(found, str) or not found:
        raise NotSignedIn("The function that gets a token for this program gave none")
    return found
