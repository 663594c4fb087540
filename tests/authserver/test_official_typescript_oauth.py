"""The official TypeScript client finds its own way to a token, renews it, and comes back for more, in both eras."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from oauth_program import ACCESS_SECONDS, MAY_READ, MAY_USE, MAY_WRITE, PASSWORD, USER
from oauth_stage import METADATA, Protected, protected_server

import nodejs

pytestmark = pytest.mark.slow

PRM, METADATA_PATH = "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"
OPEN_TOOLS = ["calculate", "roll_dice", "tell_fortune"]
REFUSED, FORBIDDEN, ANSWERED = (["POST", "/mcp", status, None] for status in (401, 403, 200))
BY_CODE, BY_REFRESH = (["POST", "/token", 200, grant] for grant in ("authorization_code", "refresh_token"))
REGISTERED = ["POST", "/register", 201, None]
DISCOVERY = [["GET", PRM, 200, None], ["GET", METADATA_PATH, 200, None]]


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protected]:
    nodejs.demand()
    with protected_server(tmp_path_factory.mktemp("oauth")) as served:
        yield served


def flow(served: Protected, revision: str, *document: str) -> dict[str, Any]:
    wait = str((ACCESS_SECONDS + 1) * 1000 + 500)  # a token ends at a whole second
    said = nodejs.run("oauth.mjs", served.url, revision, USER, PASSWORD, wait, json.dumps(METADATA), *document)
    assert said["negotiated"] == revision
    return said


@pytest.mark.parametrize(("revision", "is_published"), [("2025-11-25", True), ("2026-07-28", False)])
@pytest.mark.rule("AUTH-1", "AUTH-2", "AUTH-4", "AUTH-5", "AUTH-6", "AUTH-11", "AUTH-12")
def test_the_whole_way(protected: Protected, revision: str, is_published: bool) -> None:
    said = flow(protected, revision, *([protected.document] if is_published else []))
    registered = [] if is_published else [REGISTERED]
    assert said["first"]["steps"][: 5 + len(registered)] == [REFUSED, *DISCOVERY, *registered, BY_CODE, ANSWERED]
    assert '"result":5' in said["first"]["text"]
    assert said["first"]["tools"] == OPEN_TOOLS
    assert said["renewed"]["steps"] == [REFUSED, BY_REFRESH, ANSWERED], "nobody was asked again"
    assert '"result":5' in said["renewed"]["text"]
    check_step_up(said)
    assert ['"result":5' in text for text in said["together"]] == [True] * 3, "calls at once renew the same token"
    check_challenges(said["challenges"], f"{protected.origin}{PRM}")
    check_requests(said["visited"], protected)
    assert {asked["client_id"] == protected.document for asked in said["visited"]} == {is_published}


def check_step_up(said: dict[str, Any]) -> None:
    for part, text in (("stepUp", f"the note of {USER}"), ("further", f"{USER} wrote hello")):
        assert said[part]["text"] == text
        assert said[part]["steps"][:3] == [FORBIDDEN, BY_CODE, ANSWERED]
    assert said["stepUp"]["tools"] == [*OPEN_TOOLS, "read_note"]
    asked_for = [{MAY_USE}, {MAY_USE, MAY_READ}, {MAY_USE, MAY_READ, MAY_WRITE}]
    assert [set(asked["scope"].split()) for asked in said["visited"]] == asked_for
    given = [set(tokens["scope"].split()) for tokens in said["tokens"]]
    assert given == [asked_for[0], *asked_for], "the second came by a refresh, which gives no more"
    assert len({tokens["refresh_token"] for tokens in said["tokens"]}) == len(given)
    assert said["passwords"] == 3, "at a loopback issuer no sign-in is remembered: cookies know no ports"


def check_challenges(challenges: dict[str, list[str]], metadata_url: str) -> None:
    without, expired = challenges["401"]
    assert "error=" not in without
    assert 'error="invalid_token"' in expired
    for challenge in (without, expired):
        assert f'scope="{MAY_USE}"' in challenge
    for challenge, scope in zip(challenges["403"], (MAY_READ, MAY_WRITE), strict=True):
        assert 'error="insufficient_scope"' in challenge
        assert f'scope="{scope} {MAY_USE}"' in challenge, "all that the call needs, at once"
    for challenge in (*challenges["401"], *challenges["403"]):
        assert challenge.startswith("Bearer ")
        assert f'resource_metadata="{metadata_url}"' in challenge


def check_requests(visited: list[dict[str, str]], served: Protected) -> None:
    for asked in visited:
        assert asked["code_challenge_method"] == "S256"
        assert asked["resource"] == served.url
    assert len({asked["code_challenge"] for asked in visited}) == len(visited)
