"""The official Python client finds its own way to a token, renews it, and comes back with more scopes, in both eras.

The server and the client are processes in groups of their own; what the client saw comes back as JSON.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oauth_program import MAY_READ, MAY_USE, MAY_WRITE, USER
from oauth_stage import METADATA, Protected, protected_server
from process_groups import end_group, run_apart

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "oauth_client_program.py"
SECONDS = 60.0  # for one program; only a hanging one needs them
PRM, METADATA_PATH = "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"
OPEN_TOOLS = ["calculate", "roll_dice", "tell_fortune"]
REFUSED, FORBIDDEN, ANSWERED = (["POST", "/mcp", status] for status in (401, 403, 200))
GRANTED, REGISTERED = ["POST", "/token", 200], ["POST", "/register", 201]
DISCOVERY = [["GET", PRM, 200], ["GET", METADATA_PATH, 200]]
ASKED_FOR = [{MAY_USE}, {MAY_USE, MAY_READ}, {MAY_USE, MAY_READ, MAY_WRITE}]
ERAS = ("2025-11-25", "2026-07-28")
both_eras = pytest.mark.parametrize("revision", ERAS)


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protected]:
    with protected_server(tmp_path_factory.mktemp("oauth")) as served:
        yield served


def flow(served: Protected, scenario: str, revision: str = ERAS[-1], **more: Any) -> dict[str, Any]:
    """What the client saw; it is gone then, and had nothing to complain about."""
    task = {"scenario": scenario, "revision": revision, "origin": served.origin, "metadata": METADATA, **more}
    ran = run_apart([sys.executable, str(PROGRAM), json.dumps(task)], SECONDS)
    assert (ran.code, ran.stderr) == (0, ""), ran.stderr[-3000:]
    said: dict[str, Any] = json.loads(ran.stdout)
    if os.name == "posix":
        assert len({said["group"], served.group, os.getpgrp()}) == 3, "three groups"
        assert said["group"] == ran.group
    return said


def is_answered(part: dict[str, Any]) -> bool:
    return '"result":5' in part["text"]


def grants(said: dict[str, Any]) -> list[str]:
    return [form["grant_type"] for form in said["forms"]]


# ── the whole way ──


@both_eras
@pytest.mark.rule("AUTH-1", "AUTH-2", "AUTH-4", "AUTH-5", "AUTH-6", "AUTH-11", "AUTH-12")
def test_the_whole_way(protected: Protected, revision: str) -> None:
    said = flow(protected, "whole", revision)
    assert said["negotiated"] == revision
    assert said["found"][:6] == [REFUSED, *DISCOVERY, REGISTERED, GRANTED, ANSWERED]
    assert is_answered(said["first"])
    assert said["first"]["tools"] == OPEN_TOOLS
    assert said["registered"]["issuer"] == protected.origin
    check_requests(said, protected)
    check_renewal(said)
    check_step_up(said)
    check_challenges(said["challenges"], f"{protected.origin}{PRM}")


def check_requests(said: dict[str, Any], served: Protected) -> None:
    for asked in said["visited"]:
        assert asked["code_challenge_method"] == "S256"
        assert asked["resource"] == served.url
    assert len({asked["code_challenge"] for asked in said["visited"]}) == len(said["visited"])
    by_code = [form for form in said["forms"] if form["grant_type"] == "authorization_code"]
    assert len(by_code) == len(said["visited"])
    for form in by_code:
        assert form["resource"] == served.url
        assert form["code_verifier"]


def check_renewal(said: dict[str, Any]) -> None:
    assert is_answered(said["renewed"])
    assert said["renewed"]["steps"][-1] == ANSWERED
    assert FORBIDDEN not in said["renewed"]["steps"]
    first, second, *_ = grants(said)
    assert (first, second) == ("authorization_code", "refresh_token"), "nobody was asked again"
    for kind in ("access_token", "refresh_token"):
        assert len({tokens[kind] for tokens in said["tokens"]}) == len(said["tokens"]), "each is another"


def check_step_up(said: dict[str, Any]) -> None:
    for name, text in (("step_up", f"the note of {USER}"), ("further", f"{USER} wrote hello")):
        assert said[name]["text"] == text
        steps = said[name]["steps"]
        assert steps[steps.index(FORBIDDEN) :][:3] == [FORBIDDEN, GRANTED, ANSWERED]
    assert said["step_up"]["tools"] == sorted([*OPEN_TOOLS, "read_note"])
    assert said["further"]["tools"] == sorted([*OPEN_TOOLS, "read_note", "write_note"])
    assert [set(asked["scope"].split()) for asked in said["visited"]] == ASKED_FOR
    given = [set(tokens["scope"].split()) for tokens in said["tokens"]]
    assert [scopes for place, scopes in enumerate(given) if scopes not in given[:place]] == ASKED_FOR
    assert said["passwords"] == 3, "at a loopback issuer no sign-in is remembered: cookies know no ports"


def check_challenges(challenges: dict[str, list[str]], metadata_url: str) -> None:
    for challenge in challenges["401"]:
        assert f'scope="{MAY_USE}"' in challenge
    for challenge, scope in zip(challenges["403"], (MAY_READ, MAY_WRITE), strict=True):
        assert 'error="insufficient_scope"' in challenge
        assert f'scope="{scope} {MAY_USE}"' in challenge, "all that the call needs, at once"
    for challenge in (*challenges["401"], *challenges["403"]):
        assert challenge.startswith("Bearer ")
        assert f'resource_metadata="{metadata_url}"' in challenge


# ── other programs, other ways ──


@both_eras
def test_a_client_that_publishes_what_it_is(protected: Protected, revision: str) -> None:
    said = flow(protected, "call", revision, document=protected.document)
    assert is_answered(said["first"])
    assert REGISTERED not in said["steps"]
    assert [asked["client_id"] for asked in said["visited"]] == [protected.document]


@pytest.mark.parametrize(
    ("wanted", "given"),
    [(None, "client_secret_basic"), *((method,) * 2 for method in ("client_secret_basic", "client_secret_post"))],
)
def test_a_client_with_a_secret(protected: Protected, wanted: str | None, given: str) -> None:
    said = flow(protected, "call", metadata={**METADATA, "token_endpoint_auth_method": wanted})
    assert is_answered(said["first"])
    assert said["registered"]["token_endpoint_auth_method"] == given
    assert said["registered"]["client_secret"]
    assert ("client_secret" in said["forms"][0]) == (given == "client_secret_post")


def test_the_oldest_transport(protected: Protected) -> None:
    """A request is answered in the stream there, so that a client hears which scopes it needs, but as an error."""
    said = flow(protected, "oldest")
    assert said["steps"][0] == ["GET", "/sse", 401]
    assert is_answered(said["first"])
    assert MAY_READ in said["refusal"]
    assert len(said["visited"]) == grants(said).count("authorization_code") == 1


@both_eras
def test_a_client_that_comes_back_needs_nobody(protected: Protected, revision: str) -> None:
    said = flow(protected, "back", revision)
    assert said["first"]["text"] == f"the note of {USER}"
    assert said["visited"] == []
    assert not {401, 403} & set(said["statuses"])


# ── nothing stays ──

FAMILY = """
import subprocess, sys, time
seconds, output = {"hangs": (60, None), "leaves": (0, subprocess.DEVNULL)}[sys.argv[1]]
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdout=output, stderr=output)
time.sleep(seconds)
"""


@pytest.mark.skipif(os.name != "posix", reason="there are no such groups")
@pytest.mark.parametrize(
    ("how", "seconds", "failure"), [("hangs", 1.0, subprocess.TimeoutExpired), ("leaves", 30.0, AssertionError)]
)
def test_a_program_that_fails_is_ended_with_its_group(how: str, seconds: float, failure: type[Exception]) -> None:
    """A child that is left holds our pipes: that they are closed in time is the proof that it is gone."""
    with pytest.raises(failure):
        run_apart([sys.executable, "-c", FAMILY, how], seconds)


@pytest.mark.skipif(os.name != "posix", reason="there are no such groups")
def test_a_server_is_gone_also_when_a_test_fails(tmp_path: Path) -> None:
    groups = []
    with contextlib.suppress(ZeroDivisionError), protected_server(tmp_path) as served:
        groups.append(served.group)
        raise ZeroDivisionError
    assert groups
    assert not end_group(groups[0])
