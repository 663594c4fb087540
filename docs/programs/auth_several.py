from dovetail import Context, Server
from dovetail.auth import ApiKeys, Auth, Jwt

URL = "https://notes.example.com/mcp"
scripts = ApiKeys({"backup": "sha256:4928cc88a4976d8e39e9c38aaca4961b721ae119da960b1458acadfe9c7b8770"})
people = Jwt("https://login.example.com", audience=URL)
server = Server("notes", version="1.0.0", auth=Auth([scripts, people], public_url=URL))


@server.tool
async def whoami(ctx: Context) -> str:
    """Tell who is calling."""
    return "anonymous" if ctx.principal is None else ctx.principal.name


if __name__ == "__main__":
    server.run(transport="http", allowed_hosts=["notes.example.com"])
