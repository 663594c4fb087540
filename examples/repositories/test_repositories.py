import os
from collections.abc import Iterator
from typing import Any

os.environ |= {"GITHUB_CLIENT_ID": "an-id", "GITHUB_CLIENT_SECRET": "a-secret"}

import msgspec
import pytest
from dovetail import Client, ElicitRequest, ServerError, ToolError
from dovetail.auth import Principal

import repositories

ISSUE = {"number": 7, "title": "Red hats fade", "html_url": "https://github.com/ada/hats/issues/7"}
REPOSITORY = {"full_name": "ada/hats", "private": False, "open_issues_count": 1}
DRAFT = {"repository": "ada/hats", "title": "Red hats fade", "text": "In the sun."}
ADA = Principal(subject="github:1", scopes=frozenset({"repos:read", "issues:write"}))
READER = Principal(subject="github:2", scopes=frozenset({"repos:read"}))


class FakeGitHub:
    """Remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def ask(self, verb: str, path: str, kind: Any, **options: Any) -> Any:
        self.asked.append((verb, path))
        found = ISSUE if verb == "POST" else [ISSUE] if "/issues" in path else [REPOSITORY]
        return msgspec.convert(found, kind)


@pytest.fixture(autouse=True)
def github() -> Iterator[FakeGitHub]:
    fake = FakeGitHub()
    repositories.server.dependency_overrides[repositories.sign_in_at_github] = lambda: fake
    yield fake
    repositories.server.dependency_overrides.clear()


async def test_repositories_and_issues_are_listed() -> None:
    async with Client(repositories.server, principal=READER) as client:
        assert (await client.call_tool("list_repositories")).data == [REPOSITORY]
        text = (await client.call_tool("list_issues", {"repository": "ada/hats"})).text
    assert "data from an untrusted source" in text
    assert "Red hats fade" in text


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("answer", [True, False])
async def test_an_issue_is_opened_once_and_only_if_the_user_agrees(
    revision: str, answer: bool, github: FakeGitHub
) -> None:
    asked: list[str] = []

    def user(request: ElicitRequest) -> dict[str, bool]:
        asked.append(request.message)
        return {"value": answer}

    async with Client(
        repositories.server, principal=ADA, protocol_version=revision, elicitation_handler=user
    ) as client:
        result = await client.call_tool("open_issue", DRAFT)
    assert "In the sun." in asked[0]
    assert (result.data == ISSUE["html_url"]) is answer
    assert github.asked == ([("POST", "/repos/ada/hats/issues")] if answer else [])


async def test_who_may_only_read_opens_nothing(github: FakeGitHub) -> None:
    async with Client(repositories.server, principal=READER) as client:
        with pytest.raises(ServerError, match="issues:write"):
            await client.call_tool("open_issue", DRAFT)
    assert github.asked == []


@pytest.mark.parametrize("name", ["hats", "ada/..", "ada/hats/../../user", "ada/hats?x=1", ""])
async def test_a_name_that_leads_elsewhere_is_refused(name: str, github: FakeGitHub) -> None:
    async with Client(repositories.server, principal=READER) as client:
        with pytest.raises(ToolError, match="repository"):
            await client.call_tool("list_issues", {"repository": name})
    assert github.asked == []
