"""The document of a program that users know: what its host must answer before it is forgotten."""

import json

import pytest

from authserver_stage import CALLBACK, Program, Stage
from dovetail.auth.fetch import Fetched, FetchRequest

DOCUMENT = "https://good.example.com/client.json"
BODY = json.dumps(
    {"client_id": DOCUMENT, "redirect_uris": [CALLBACK], "grant_types": ["authorization_code", "refresh_token"]}
).encode()
FOUND = Fetched(status=200, headers={"content-type": "application/json"}, body=BODY)


class Host:
    def __init__(self, stage: Stage) -> None:
        self.answer = FOUND
        stage.server._authorization.clients._published._fetch = self  # type: ignore[union-attr]

    async def __call__(self, _: FetchRequest) -> Fetched:
        return self.answer


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_a_host_that_does_not_answer_now_takes_nothing_back(status: int) -> None:
    stage = Stage()
    host, program = Host(stage), Program(stage, DOCUMENT)
    token = (await program.tokens())["refresh_token"]
    host.answer = Fetched(status=status, headers={"content-type": "application/json"}, body=b"{}")
    for _ in range(3):
        stage.clock.now += 301
        reply = await program.refresh(token)
        assert reply.status == 200, reply.text
        token = reply.json["refresh_token"]
    host.answer = FOUND
    stage.clock.now += 301
    assert (await program.refresh(token)).status == 200
    assert await stage.server._marks.holds("document", DOCUMENT)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 410])
async def test_a_document_that_is_gone_counts_no_more(status: int) -> None:
    stage = Stage()
    host, program = Host(stage), Program(stage, DOCUMENT)
    token = (await program.tokens())["refresh_token"]
    host.answer = Fetched(status=status)
    stage.clock.now += 301
    assert (await program.refresh(token)).json["error"] == "invalid_client"
    assert not await stage.server._marks.holds("last document", DOCUMENT)


@pytest.mark.parametrize("status", [408, 425, 429, 503])
async def test_a_document_that_nobody_knows_yet_has_to_be_there(status: int) -> None:
    stage = Stage()
    Host(stage).answer = Fetched(status=status)
    reply = await stage.get(Program(stage, DOCUMENT).url())
    assert (reply.status, "location" in reply.headers) == (400, False)
