"""The caller's repositories on GitHub: users sign in there, and each call is made in the name of its caller."""

import os
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypeVar

import aiohttp
import msgspec

from dovetail import Context, Depends, Field, Server, ToolError
from dovetail.authserver import AuthServer, SignIn

ORIGIN = os.environ.get("ORIGIN", "http://127.0.0.1:8000")  # where browsers and clients reach this server
GITHUB = os.environ.get("GITHUB_URL", "https://github.com")  # or your GitHub Enterprise Server
API = "https://api.github.com" if GITHUB == "https://github.com" else f"{GITHUB}/api/v3"
SCOPES = {"repos:read": "See your repositories and their issues", "issues:write": "Open issues in your name"}
T = TypeVar("T")

auth_server = AuthServer(
    ORIGIN,
    resource=f"{ORIGIN}/mcp",
    sign_in=SignIn.github(
        os.environ["GITHUB_CLIENT_ID"], os.environ["GITHUB_CLIENT_SECRET"], url=GITHUB, scopes=["public_repo"]
    ),
    scopes=SCOPES,
)
server = Server("repositories", version="1.0.0", auth=auth_server, rate_limit="60/minute per principal")

FullName = Annotated[str, Field(pattern=r"^\w[\w-]*/[\w.-]*\w$", description="Owner and name, as in octocat/hello")]


class Repository(msgspec.Struct):
    full_name: str
    private: bool
    open_issues_count: int


class Issue(msgspec.Struct):
    number: int
    title: str
    html_url: str


class GitHub:
    """Requests in the name of one user. What fails is told in words for that user, and without secrets."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, verb: str, path: str, kind: type[T], **options: Any) -> T:
        try:
            async with self._session.request(verb, f"{API}{path}", allow_redirects=False, **options) as answer:
                if answer.status == 401:
                    raise ToolError("GitHub does not take your sign-in any more. Connect to this server anew.")
                if answer.status in (403, 429):
                    raise ToolError("GitHub does not let you do that, or not so often. Try again in an hour.")
                if answer.status in (404, 410):
                    raise ToolError("There is no such repository, it takes no issues, or you may not see it.")
                answer.raise_for_status()
                return msgspec.json.decode(await answer.read(), type=kind)
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
            raise ToolError("GitHub does not answer as it should. Try again in a minute.") from None


async def sign_in_at_github(ctx: Context) -> AsyncIterator[GitHub]:
    headers = {"Authorization": f"Bearer {await ctx.upstream_token()}", "Accept": "application/vnd.github+json"}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=10)) as session:
        yield GitHub(session)


Api = Annotated[GitHub, Depends(sign_in_at_github)]


@server.tool(scopes=["repos:read"], annotations={"readOnlyHint": True})
async def list_repositories(github: Api) -> list[Repository]:
    """List the user's repositories, those that changed last first."""
    return await github.ask("GET", "/user/repos?sort=updated&per_page=50", list[Repository])


@server.tool(scopes=["repos:read"], annotations={"readOnlyHint": True}, untrusted_output="fence", output="text")
async def list_issues(repository: FullName, github: Api) -> list[Issue]:
    """List the open issues of a repository. Strangers write them, so the result is fenced."""
    return await github.ask("GET", f"/repos/{repository}/issues?state=open&per_page=30", list[Issue])


@server.tool(scopes=["issues:write"], annotations={"destructiveHint": False})
async def open_issue(
    repository: FullName,
    title: Annotated[str, Field(min_length=1, max_length=200, description="What it is about, in a line")],
    text: Annotated[str, Field(max_length=20_000, description="The issue, in Markdown")],
    github: Api,
    ctx: Context,
) -> str:
    """Open an issue, after the user has read it. All that can see the repository see it."""
    answer = await ctx.elicit(f"Open this issue in {repository}?\n\n{title}\n\n{text}", bool)
    if not answer.data:
        return "The user does not want that. Nothing was opened."

    async def post() -> str:
        issue = await github.ask("POST", f"/repos/{repository}/issues", Issue, json={"title": title, "body": text})
        return issue.html_url

    return await ctx.step("open the issue", post)


if __name__ == "__main__":
    server.run(transport="http")
