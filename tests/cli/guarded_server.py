"""A server that wants people to sign in, with its authorization server: `python guarded_server.py --port N`.

`python guarded_server.py URL` is the browser of a user who signs in there and agrees.
"""

import asyncio
import sys
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))

from authserver_stage import SCOPES, USERS, say_yes
from dovetail import Context, Server
from dovetail.auth import Auth
from dovetail.authserver import AuthServer, Passwords


def serve(port: int) -> None:
    origin = f"http://127.0.0.1:{port}"
    auth_server = AuthServer(origin, resource=f"{origin}/mcp", sign_in=Passwords(USERS), scopes=SCOPES)
    server = Server("guarded", auth=Auth(auth_server, scopes=["notes:read"]))

    @server.tool(annotations={"readOnlyHint": True})
    async def whoami(ctx: Context) -> str:
        """Tell who is calling."""
        return "nobody" if ctx.principal is None else ctx.principal.name

    server.run(transport="http", port=port)


async def visit(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(await say_yes(url)) as page:
        assert page.status == 200


if __name__ == "__main__":
    serve(int(sys.argv[2])) if sys.argv[1] == "--port" else asyncio.run(visit(sys.argv[1]))
