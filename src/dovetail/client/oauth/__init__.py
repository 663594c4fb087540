"""Signing in: OAuth for the client. A server's refusal comes in, tokens that it takes go out, and are kept safely.

The public names. Nothing of this is loaded by a client that needs no tokens.
"""

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
