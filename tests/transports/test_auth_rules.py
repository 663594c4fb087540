"""The rules of the specification on authorization and security: each has a test, and these are the ones left over."""

import asyncio
import gc
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from dovetail import Context, Request, Server
from dovetail.auth import ApiKeys, Auth, Principal
from dovetail.transports.options import HttpOptions
from http_serving import serving
from http_stage import HANDSHAKE, MODERN, REVISIONS, open_wire, text_of
from http_wire import HttpWire

RULES = [*(f"AUTH-{number}" for number in range(1, 21)), *(f"SEC-{number}" for number in range(1, 13))]
TOKEN, LOW = "dovetail-key-of-ann-and-nobody-else", "dovetail-key-of-ann-for-reading"
PROOF = "a.dpop.proof"
_MARK = re.compile(r"mark\.rule\(([^)]*)\)")


def test_every_rule_that_binds_a_server_has_a_test() -> None:
    marks = [mark for path in Path(__file__).parent.parent.rglob("*.py") for mark in _MARK.findall(path.read_text())]
    proven = {rule for mark in marks for rule in re.findall(r'"([A-Z]+-\d+)"', mark)}
    assert [rule for rule in RULES if rule not in proven] == []


def notes(**options: Any) -> Server:
    """What reads, what writes, and what everybody may do who gets in."""
    keys = ApiKeys(
        {"ann": [{"key": TOKEN, "scopes": ["notes:read", "notes:write"]}, {"key": LOW, "scopes": ["notes:read"]}]}
    )
    auth = Auth(keys, authorization_servers=["https://login.example.com"], scopes=["notes:read"])
    server = Server("notes", version="1.0.0", auth=auth, **options)

    @server.tool
    async def whoami(ctx: Context) -> str:
        assert ctx.principal is not None
        return ctx.principal.name

    @server.tool(scopes=["notes:write"])
    async def write() -> str:
        return "written"

    @server.resource("notes://all", scopes=["notes:write", "notes:admin"])
    async def everything() -> str:
        return "all of it"

    @server.prompt(scopes=["notes:write", "notes:admin"])
    async def tidy() -> str:
        return "Tidy up."

    return server


def bearer(token: str = TOKEN) -> dict[str, str | None]:
    return {"authorization": f"Bearer {token}"}


def challenged(header: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', header))


# ── tokens stay where they are ──


@pytest.mark.rule("AUTH-9", "AUTH-18")
@pytest.mark.parametrize("version", REVISIONS)
async def test_a_token_is_neither_kept_nor_shown(version: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not in the state, which others may read, not in what the server knows of a caller, and in no log."""
    seen: list[Any] = []
    server = notes(audit=seen.append)

    @server.middleware
    async def look(request: Request, call_next: Any) -> Any:
        seen.append((request.method, request.params, dict(request.headers)))
        shown = {*request.headers.values(), *request.headers.all("authorization"), *request.headers.all("dpop")}
        assert not any(secret in value for value in shown for secret in (TOKEN, PROOF))
        return await call_next(request)

    @server.tool
    async def tell(ctx: Context) -> str:
        seen.append((ctx.principal, ctx.meta, ctx.client.info, ctx.session_id, dict(ctx.headers)))
        assert ctx.headers["x-mine"] == "yes"
        return "told"

    with caplog.at_level(logging.DEBUG):
        async with serving(server) as app:
            wire = await open_wire(app, version, headers={**bearer(), "dpop": PROOF, "x-mine": "yes"})
            for _ in range(2):  # the token is new, and then known
                assert text_of((await wire.call("tell")).answer) == "told"
            assert (await wire.call("write", {"wrong": 1})).status == 200
            await asyncio.sleep(0.05)
            kept = [repr((name, slot.entry)) for name, slot in app._state._entries.things.items()]
            principals = [each for each in gc.get_objects() if isinstance(each, Principal)]
    assert len(seen) >= 3
    for text in (caplog.text, repr(seen), repr(kept), repr(principals), repr(server.engine.options)):
        assert TOKEN not in text
        assert PROOF not in text


# ── scopes ──


@pytest.mark.rule("AUTH-11", "AUTH-12")
@pytest.mark.parametrize("version", REVISIONS)
@pytest.mark.parametrize(
    ("method", "params"), [("resources/read", {"uri": "notes://all"}), ("prompts/get", {"name": "tidy"})]
)
async def test_resources_and_prompts_tell_all_that_they_need_too(
    version: str, method: str, params: dict[str, Any]
) -> None:
    async with serving(notes()) as app:
        refused = await (await open_wire(app, version, headers=bearer(LOW))).post(method, params)
        assert refused.status == 403
        told = challenged(refused.headers["www-authenticate"])
        assert (told["error"], told["scope"]) == ("insufficient_scope", "notes:admin notes:read notes:write")


@pytest.mark.rule("SEC-10", "SEC-11", "AUTH-6")
@pytest.mark.parametrize("version", REVISIONS)
async def test_a_client_asks_for_little_first_and_for_more_when_it_needs_it(version: str) -> None:
    async with serving(notes()) as app:
        first = await HttpWire(app, version).post("tools/list")
        assert challenged(first.headers["www-authenticate"])["scope"] == "notes:read"  # not the whole catalogue
        wire = await open_wire(app, version, headers=bearer(LOW))
        assert text_of((await wire.call("whoami")).answer) == "ann"  # less than everything is enough
        refused = await wire.call("write")
        assert challenged(refused.headers["www-authenticate"])["scope"] == "notes:read notes:write"
        wire.headers = bearer()
        assert text_of((await wire.call("write")).answer) == "written"  # in the same session


# ── servers on one's own machine ──


@pytest.mark.rule("SEC-9")
def test_a_server_listens_to_its_own_machine_unless_told_otherwise() -> None:
    assert HttpOptions().host == "127.0.0.1"


@pytest.mark.rule("SEC-9")
@pytest.mark.parametrize("version", [HANDSHAKE[-1], MODERN])
async def test_a_local_server_can_ask_for_a_token_and_is_no_pages_to_reach(version: str) -> None:
    local = Server("local", version="1.0.0", auth=ApiKeys({"me": TOKEN}))
    local.add_tool(lambda: "yours", name="mine")
    async with serving(local) as app:
        for headers, status in [
            ({}, 401),
            (bearer("dovetail-key-of-somebody-else"), 401),
            ({**bearer(), "host": "evil.example.com"}, 403),  # a name that was made to point here
            ({**bearer(), "origin": "https://evil.example.com"}, 403),
        ]:
            assert (await HttpWire(app, version, headers=headers).post("initialize", id=1)).status == status
        assert text_of((await (await open_wire(app, version, headers=bearer())).call("mine")).answer) == "yours"
