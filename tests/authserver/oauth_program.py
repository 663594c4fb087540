"""The reference server behind its own authorization server: `python oauth_program.py --port N`.

Users sign in with a password; or, with `--row github --provider URL`, at the identity provider there. Every request
needs `reference:use`. Two more tools need a scope each that no client asks for at first. A POST to `/later` lets all
access tokens end.
What the server says is judged; if anything was malformed, that is on stderr, and the exit code is 1.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from authserver_stage import UncachedVerifier
from dovetail import Context, RouteRequest, Server, reference
from dovetail.auth import Auth
from dovetail.authserver import AuthServer, Passwords, SignIn, hash_password
from identity_provider import IdentityProvider
from official import judge_this_process
from provider_stage import SIGN_INS, name_of, standing_at

USER, PASSWORD = "ann", "correct horse battery"
ACCESS_SECONDS = 600
MAY_USE, MAY_READ, MAY_WRITE = "reference:use", "notes:read", "notes:write"
MEANINGS = {MAY_USE: "Use the tools", MAY_READ: "Read your notes", MAY_WRITE: "Change your notes"}


class Clock:
    ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


CLOCK = Clock()


def authorization_server(origin: str, sign_in: Passwords | SignIn) -> AuthServer:
    return AuthServer(
        origin,
        resource=f"{origin}/mcp",
        sign_in=sign_in,
        scopes=MEANINGS,
        access_seconds=ACCESS_SECONDS,
        clock=CLOCK,
    )


def protected(auth_server: AuthServer, at: IdentityProvider | None) -> Server:
    """All that the reference server has, a tool that asks the identity provider, and two with scopes of their own."""
    auth = Auth(UncachedVerifier(auth_server), public_url=auth_server.resource, scopes=[MAY_USE])
    server = reference.create_server(auth=auth)

    @server.tool
    async def ask_provider(ctx: Context) -> str:
        """Ask the identity provider for the name of the caller."""
        return "nobody" if at is None else await name_of(at, await ctx.upstream_token())

    @server.tool(scopes=[MAY_READ])
    def read_note(ctx: Context) -> str:
        """Read the note of the caller."""
        assert ctx.principal is not None
        return f"the note of {ctx.principal.subject}"

    @server.tool(scopes=[MAY_WRITE])
    def write_note(text: str, ctx: Context) -> str:
        """Change the note of the caller."""
        assert ctx.principal is not None
        return f"{ctx.principal.subject} wrote {text}"

    @server.custom_route("/later", methods=["POST"])
    def later(request: RouteRequest) -> str:
        CLOCK.ahead += ACCESS_SECONDS + 1
        return "later"

    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--row", choices=SIGN_INS)
    parser.add_argument("--provider", default="")
    options = parser.parse_args()
    watch = judge_this_process()
    at = None if options.row is None else standing_at(options.row, options.provider)
    sign_in = Passwords({USER: hash_password(PASSWORD, cost=16)}) if at is None else SIGN_INS[options.row](at, {})
    beside = authorization_server(f"http://127.0.0.1:{options.port}", sign_in)
    protected(beside, at).run(transport="http", port=options.port, routes=beside.routes())
    sys.exit(1 if watch is not None and any(witness.problems for witness in watch) else 0)
