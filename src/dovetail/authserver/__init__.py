"""OAuth 2.1 authorization server, whose users sign in at an identity provider, or with passwords of their own.

auth_server = AuthServer("https://notes.example.com", resource="https://notes.example.com/mcp",
                         sign_in=SignIn.github(client_id, client_secret), scopes={"notes:read": "Read your notes"})
server = Server("notes", auth=auth_server)
server.run("http")

Nothing of it is loaded or served unless it is asked for.
"""

from dovetail.authserver.clients import OAuthClient
from dovetail.authserver.passwords import Passwords, hash_password
from dovetail.authserver.providers import Provider
from dovetail.authserver.server import AuthServer
from dovetail.authserver.sign_in import SignIn

__all__ = ["AuthServer", "OAuthClient", "Passwords", "Provider", "SignIn", "hash_password"]
