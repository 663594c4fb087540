"""Signing in: OAuth for the client. A server's refusal comes in, tokens that it takes go out, and are kept safely.

The public names. Nothing of this is loaded by a client that needs no tokens.
"""

from dovetail.client.oauth.machines import ClientCredentials, EnterpriseManaged, JwtBearer
from dovetail.client.oauth.sign_in import OAuth
from dovetail.client.oauth.token_file import TokenFile
from dovetail.client.oauth.tokens import MemoryTokens, TokenSet, TokenStore

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
