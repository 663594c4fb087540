from dovetail import Context, Proxy, Server
from dovetail.auth import ApiKeys, Principal

USERS = ApiKeys({"alice": "example-key-of-alice", "bob": "example-key-of-bob"})
KEYS = {"alice-at-work": "calendar-key-of-alice", "desk": "calendar-key-of-desk"}
calendar = Server("calendar", version="1.0.0", auth=ApiKeys(KEYS))
server = Server("desk", version="1.0.0", auth=USERS)


@calendar.tool
def whoami(ctx: Context) -> str:
    """Tell who is calling, as the calendar sees it."""
    return "anonymous" if ctx.principal is None else ctx.principal.name


async def calendar_key(caller: Principal | None) -> str | None:
    """The key that the calendar gets: from a vault in real life."""
    keys = {"alice": "calendar-key-of-alice"}
    return "calendar-key-of-desk" if caller is None else keys.get(caller.name)


server.mount(Proxy(calendar, auth=calendar_key), namespace="calendar")  # a URL in real life

if __name__ == "__main__":
    server.run(transport="http")
