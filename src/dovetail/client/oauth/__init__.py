"""OAuth for the client: sign-in, token refresh, token stores; loaded only if a token is needed."""

from dovetail.client.oauth.authorization_code import OAuth
from dovetail.client.oauth.client_credentials import ClientCredentials, EnterpriseManaged, JwtBearer
from dovetail.client.oauth.storage import MemoryTokens, TokenFile, TokenSet, TokenStore

__all__ = [
    "ClientCredentials",
    "EnterpriseManaged",
    "JwtBearer",
    "MemoryTokens",
    "OAuth",
    "TokenFile",
    "TokenSet",
    "TokenStore",
]
