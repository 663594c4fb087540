import time

from dovetail import Context, Server
from dovetail.auth import Principal

TICKETS = {"ticket-of-ada": ("ada", 3600.0)}  # yours are in a database


async def by_ticket(token: str) -> Principal | None:
    """The principal of the token. None: it is not good."""
    found = TICKETS.get(token)
    if found is None:
        return None
    name, seconds = found
    return Principal(subject=name, scopes=frozenset({"notes:read"}), expires_at=time.time() + seconds)


server = Server("notes", version="1.0.0", auth=by_ticket)


@server.tool(scopes=["notes:read"])
async def count(ctx: Context) -> str:
    """Count your notes."""
    return "anonymous" if ctx.principal is None else f"{ctx.principal.name} has 3"


if __name__ == "__main__":
    server.run(transport="http")
