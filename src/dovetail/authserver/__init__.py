"""OAuth 2.1 authorization server for development and small deployments.

auth_server = AuthServer("https://notes.example.com", resource="https://notes.example.com/mcp", users="users.json",
                         scopes={"notes:read": "Read your notes"})
server = Server("notes", auth=Auth(auth_server.verifier()))
server.run("http", routes=auth_server.routes())

Nothing of it is loaded or served unless it is asked for.
"""

from dovetail.authserver.clients import OAuthClient
from dovetail.authserver.server import AuthServer
from dovetail.authserver.users import hash_password

__all__ = ["AuthServer", "OAuthClient", "hash_password"]
