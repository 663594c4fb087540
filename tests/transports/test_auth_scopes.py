"""Scopes over HTTP: what a caller may not do, and that it is told all that it needs at once."""

import json

import pytest
from door_stage import METADATA, PEOPLE, Register, bearer, challenge_of, notes

from dovetail.auth import Auth, Principal
from dovetail.errors import SetupError
from http_serving import serving
from http_stage import REVISIONS, open_wire, text_of
from http_wire import HttpWire


@pytest.mark.rule("AUTH-11", "AUTH-12", "SEC-11")
@pytest.mark.parametrize("version", REVISIONS)
async def test_what_a_tool_needs_is_told_at_once(version: str) -> None:
    async with serving(notes()) as app:
        wire = await open_wire(app, version, headers=bearer())
        refused = await wire.call("wipe")
        assert refused.status == 403
        assert refused.json["error"]["code"] == -32600
        about = challenge_of(refused)
        assert about.pop("error_description")
        assert about == {
            "error": "insufficient_scope",
            "scope": "notes:admin notes:read notes:write",  # what every request needs is part of it
            "resource_metadata": METADATA,
        }
        assert (await wire.call("whoami")).status == 200  # the session goes on


@pytest.mark.rule("AUTH-11")
@pytest.mark.parametrize("version", REVISIONS)
async def test_what_every_request_needs(version: str) -> None:
    async with serving(notes()) as app:
        for _ in range(2):  # also when the token is known
            refused = await HttpWire(app, version, headers=bearer("low-token")).post("initialize", id=1)
            assert refused.status == 403
            assert challenge_of(refused)["error"] == "insufficient_scope"
            assert challenge_of(refused)["scope"] == "notes:read"


async def test_in_a_batch_it_is_an_error_like_others() -> None:
    async with serving(notes()) as app:
        wire = await HttpWire.session(app, "2025-03-26", headers=bearer())
        calls = [wire.message("tools/call", {"name": name, "arguments": {}}, id=name) for name in ("wipe", "whoami")]
        answer = await wire.raw("POST", json.dumps(calls).encode()).done()
        assert answer.status == 200
        assert "www-authenticate" not in answer.headers
        answers = {each["id"]: each for each in answer.json}
        assert answers["wipe"]["error"]["code"] == -32600
        assert text_of(answers["whoami"]) == "ann"


@pytest.mark.rule("AUTH-13")
async def test_scopes_hold_others() -> None:
    hierarchy = {"notes:write": ["notes:read", "notes:admin"]}
    PEOPLE["writer"] = Principal(subject="writer", scopes=frozenset({"notes:write"}))
    try:
        async with serving(notes(hierarchy=hierarchy)) as app:
            assert text_of((await HttpWire(app, headers=bearer("writer")).call("wipe")).answer) == "wiped"
    finally:
        del PEOPLE["writer"]


@pytest.mark.rule("AUTH-14")
def test_nobody_asks_for_offline_access() -> None:
    for option in ("scopes", "scopes_supported"):
        with pytest.raises(SetupError, match="offline_access"):
            Auth(Register(), **{option: ["offline_access"]})


@pytest.mark.rule("AUTH-14")
async def test_no_challenge_asks_for_offline_access_either() -> None:
    server = notes()
    server.add_tool(lambda: "", name="odd", scopes=["offline_access", "notes:odd"])
    async with serving(server) as app:
        refused = await HttpWire(app, headers=bearer()).call("odd")
        assert (refused.status, challenge_of(refused)["scope"]) == (403, "notes:odd notes:read")


async def test_without_an_authorization_server_there_is_no_metadata() -> None:
    async with serving(notes(authorization_servers=[])) as app:
        refused = await HttpWire(app).post("tools/list")
        assert challenge_of(refused) == {"scope": "notes:read"}
        assert (await HttpWire(app).raw("GET", path="/.well-known/oauth-protected-resource").done()).status == 404
