"""A server that its own authorization server protects, and others that take the same tokens by their public keys."""

import time
from typing import Any

import pytest

from authserver_stage import ISSUER, RESOURCE, Browser, Program, Stage
from dovetail import Server
from dovetail.auth import Auth, Jwt, VerifierTrouble
from dovetail.state.base import StoreTrouble
from dovetail.state.memory import MemoryState
from http_serving import serving
from http_wire import HttpWire


def notes(stage: Stage, public_url: str | None = RESOURCE) -> Server:
    server = Server("notes", auth=Auth(stage.server.verifier(), public_url=public_url, scopes=["notes:read"]))

    @server.tool(scopes=["notes:write"])
    def write(text: str) -> str:
        """Write a note."""
        return text

    return server


async def test_a_server_and_its_own_authorization_server_in_one_app() -> None:
    stage = Stage()
    async with serving(notes(stage), routes=stage.server.routes()) as app:
        refused = await HttpWire(app).post("tools/list")
        assert refused.status == 401
        assert "resource_metadata" in refused.headers["www-authenticate"]
        metadata = await HttpWire(app).raw("GET", path="/.well-known/oauth-authorization-server").done()
        assert metadata.answer["issuer"] == ISSUER
        about = await HttpWire(app).raw("GET", path="/.well-known/oauth-protected-resource/mcp").done()
        assert about.answer["authorization_servers"] == [ISSUER]
        reader = (await Program(stage).tokens(scope="notes:read"))["access_token"]
        writer = (await Program(stage).tokens(scope="notes:read notes:write"))["access_token"]
        written = await as_holder(app, writer).call("write", {"text": "hello"})
        assert written.answer["result"]["content"][0]["text"] == "hello"
        lacking = await as_holder(app, reader).call("write", {"text": "hello"})
        assert lacking.status == 403
        assert "insufficient_scope" in lacking.headers["www-authenticate"]


def as_holder(app: Any, token: str) -> HttpWire:
    return HttpWire(app, headers={"authorization": f"Bearer {token}"})


async def test_other_servers_take_its_tokens_by_the_published_key() -> None:
    stage = Stage()
    stage.clock.now = time.time()
    keys = (await stage.get("jwks")).json
    token = (await Program(stage).tokens())["access_token"]
    principal = await Jwt(ISSUER, RESOURCE, jwks=keys).verify(token)
    assert principal is not None
    own = await stage.server.verifier().verify(token)
    assert own is not None
    assert (principal.subject, principal.client, principal.scopes) == ("ann", "app", {"notes:read"})
    assert principal.key == own.key, "the same caller, whoever verified the token"
    assert await Jwt(ISSUER, "https://other.example.com/mcp", jwks=keys).verify(token) is None


async def test_clients_hear_what_tokens_are_made_for_whatever_the_request_says() -> None:
    stage = Stage()
    async with serving(notes(stage, None), routes=stage.server.routes()) as app:
        refused = await HttpWire(app, headers={"host": "localhost"}).post("tools/list")
        document = f"{RESOURCE.removesuffix('/mcp')}/.well-known/oauth-protected-resource/mcp"
        assert f'resource_metadata="{document}"' in refused.headers["www-authenticate"]
        about = await HttpWire(app).raw("GET", path="/.well-known/oauth-protected-resource/mcp").done()
        assert about.answer["resource"] == RESOURCE
        token = (await Program(stage).tokens(resource=about.answer["resource"]))["access_token"]
        assert (await as_holder(app, token).post("tools/list")).status == 200


class _FailingState(MemoryState):
    broken = False

    async def get(self, key: str) -> Any:
        if self.broken:
            raise StoreTrouble
        return await super().get(key)


async def test_a_store_that_does_not_answer_refuses_nobody_for_good() -> None:
    state = _FailingState()
    stage = Stage(state=state)
    token = (await Program(stage).tokens())["access_token"]
    state.broken = True
    with pytest.raises(VerifierTrouble):
        await stage.server.verifier().verify(token)
    registered = {"client_id": "dcr-x", "grant_type": "authorization_code"}
    assert (await stage.token(**registered)).json["error"] == "temporarily_unavailable"
    assert (await Browser(stage).open(Program(stage, "dcr-x").url())).status == 503
