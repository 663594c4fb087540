import os
from collections.abc import Iterator
from typing import Annotated

import aiohttp
import pytest

from dovetail import Client, Context, Depends, Server
from dovetail.auth import Principal
from dovetail.authserver import AuthServer, SignIn

CALENDAR = "https://www.googleapis.com/auth/calendar.readonly"
LIST = "https://www.googleapis.com/calendar/v3/users/me/calendarList"
ORIGIN = "http://127.0.0.1:8000"
sign_in = SignIn.google(os.environ["GOOGLE_CLIENT_ID"], os.environ["GOOGLE_CLIENT_SECRET"], scopes=[CALENDAR])
auth_server = AuthServer(ORIGIN, resource=f"{ORIGIN}/mcp", sign_in=sign_in)
server = Server("calendars", version="1.0.0", auth=auth_server)


async def upstream_token(ctx: Context) -> str:
    return await ctx.upstream_token()


async def calendars(token: Annotated[str, Depends(upstream_token)]) -> list[str]:
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.request("GET", LIST, headers=headers, raise_for_status=True) as answer:
        return [each["summary"] for each in (await answer.json())["items"]]


@server.tool
async def count_calendars(names: Annotated[list[str], Depends(calendars)]) -> int:
    """Count your calendars."""
    return len(names)


@pytest.fixture
def two_calendars() -> Iterator[None]:
    server.dependency_overrides[calendars] = lambda: ["work", "home"]
    yield
    server.dependency_overrides.clear()


@pytest.mark.usefixtures("two_calendars")
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_count(revision: str) -> None:
    ann = Principal(subject="google:10769150350006150715")
    async with Client(server, principal=ann, protocol_version=revision) as client:
        assert (await client.call_tool("count_calendars")).data == 2


if __name__ == "__main__":
    server.run(transport="http")
