from datetime import UTC, datetime

from dovetail import Context, Server
from dovetail.auth import ApiKeys, Auth, Principal

ALICE = "sha256:b233934102364980f84a2ba8d154baa77f92c915ad0d69eb18b0ec4b18673860"
BOB = "sha256:4928cc88a4976d8e39e9c38aaca4961b721ae119da960b1458acadfe9c7b8770"
keys = ApiKeys(
    {
        "alice": {"key": ALICE, "scopes": ["notes:write"], "claims": {"team": "red"}},
        "bob": {"key": BOB, "scopes": ["notes:read"], "claims": {"team": "blue"}},
    }
)
auth = Auth(keys, scopes=["notes:read"], hierarchy={"notes:write": ["notes:read"]})
server = Server("notes", version="1.0.0", auth=auth)
notes = {"list": "milk"}


@server.resource("notes://{name}", scopes=["notes:read"])
async def note(name: str) -> str:
    """A note."""
    return notes[name]


@server.prompt(scopes=["notes:read"])
async def tidy() -> str:
    """Tidy up."""
    return f"Which of these can go? {', '.join(notes)}"


@server.tool(scopes=["notes:write"])
async def write(name: str, text: str, ctx: Context) -> str:
    """Write a note."""
    assert ctx.principal is not None  # only a principal has scopes
    notes[name] = text
    return f"{ctx.principal.name} wrote {name}."


class OfTeam:
    """For the members of one team. Those for whom `key` gives the same see the same list."""

    def __init__(self, team: str) -> None:
        self.team = team

    def __call__(self, caller: Principal | None) -> bool:
        return self.key(caller) == self.team

    def key(self, caller: Principal | None) -> str | None:
        return None if caller is None else caller.claims.get("team")


@server.tool(authorize=OfTeam("red"))
async def plan() -> str:
    """What the red team is up to."""
    return "Paint it red."


async def in_this_century(caller: Principal | None) -> bool:
    """Has no `key`: it is asked for every list and every call."""
    return datetime.now(UTC).year < 2100


@server.tool(authorize=in_this_century)
async def wait() -> str:
    """Wait for the next century."""
    return "Not yet."


if __name__ == "__main__":
    server.run()
