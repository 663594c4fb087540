from dovetail import Context, Server
from dovetail.auth import ApiKeys

KEYS = {
    "alice": "sha256:b233934102364980f84a2ba8d154baa77f92c915ad0d69eb18b0ec4b18673860",
    "bob": "sha256:4928cc88a4976d8e39e9c38aaca4961b721ae119da960b1458acadfe9c7b8770",
}
server = Server("notes", version="1.0.0", auth=ApiKeys(KEYS), rate_limit="60/minute per principal")


@server.tool
async def whoami(ctx: Context) -> str:
    """Tell who is calling."""
    return "anonymous" if ctx.principal is None else ctx.principal.name


if __name__ == "__main__":
    server.run(transport="http")
