import os
from collections.abc import AsyncIterator
from typing import Annotated

import aiohttp
import msgspec

from dovetail import Context, Depends, Server, ToolError
from dovetail.authserver import AuthServer, SignIn

ORIGIN = os.environ.get("ORIGIN", "http://127.0.0.1:8000")  # where browsers and clients reach this server
GITHUB = os.environ.get("GITHUB_URL", "https://github.com")  # or your GitHub Enterprise Server
API = "https://api.github.com" if GITHUB == "https://github.com" else f"{GITHUB}/api/v3"
MAX_PAGES, PER_PAGE = 5, 100

sign_in = SignIn.github(os.environ["GITHUB_CLIENT_ID"], os.environ["GITHUB_CLIENT_SECRET"], url=GITHUB)
auth_server = AuthServer(
    ORIGIN, resource=f"{ORIGIN}/mcp", sign_in=sign_in, scopes={"repos:read": "List your repositories"}
)
server = Server("repositories", version="1.0.0", auth=auth_server)


class Repository(msgspec.Struct):
    full_name: str
    html_url: str
    private: bool


class Repositories(msgspec.Struct):
    found: list[Repository]
    complete: bool  # False: there are more


async def github(ctx: Context) -> AsyncIterator[aiohttp.ClientSession]:
    """GitHub's API, on behalf of the caller."""
    headers = {"Authorization": f"Bearer {await ctx.upstream_token()}", "Accept": "application/vnd.github+json"}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=10)) as session:
        yield session


async def read_page(api: aiohttp.ClientSession, page: int) -> list[Repository]:
    query = f"sort=updated&per_page={PER_PAGE}&page={page}"
    try:
        async with api.get(f"{API}/user/repos?{query}", allow_redirects=False) as answer:
            if answer.status == 401:
                raise ToolError("GitHub does not take your sign-in any more. Connect to this server anew.")
            if answer.status in (403, 429):
                raise ToolError("GitHub lets you make no more requests for now. Try again in an hour.")
            answer.raise_for_status()
            return msgspec.json.decode(await answer.read(), type=list[Repository])
    except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
        raise ToolError("GitHub does not answer as it should. Try again in a minute.") from None


@server.tool(scopes=["repos:read"])
async def list_repositories(api: Annotated[aiohttp.ClientSession, Depends(github)]) -> Repositories:
    """List your repositories on GitHub, those that changed last first."""
    found: list[Repository] = []
    for page in range(1, MAX_PAGES + 1):
        repositories = await read_page(api, page)
        found += repositories
        if len(repositories) < PER_PAGE:
            return Repositories(found, complete=True)
    return Repositories(found, complete=False)


if __name__ == "__main__":
    server.run(transport="http")
