"""The rules of the specification on authorization and security: those that no other file proves, and attacks.

Two of them bind proxies, which Dovetail is not; why not is written here, and held by a test too.
"""

import gc
import inspect
import logging
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from door_stage import bearer, notes

from dovetail import Context, Request, Server
from dovetail.auth import Principal
from dovetail.authserver import AuthServer
from dovetail.engine.input_required import BAD_STATE
from dovetail.state.memory import MemoryState
from dovetail.transports.options import HttpOptions
from http_serving import serving
from http_wire import HANDSHAKE, MODERN, REVISIONS, Exchange, HttpWire, open_wire, text_of
from replaying import EVERYTHING, retry

RULES = [*(f"AUTH-{number}" for number in range(1, 21)), *(f"SEC-{number}" for number in range(1, 13))]
TOKEN = "ann-token"
PROOF = "a.dpop.proof"
_MARK = re.compile(r"mark\.rule\(([^)]*)\)")

NOT_APPLICABLE = {
    "AUTH-19": "It binds proxies that come to a third-party authorization server with one static client id for all of"
    " their clients. Dovetail comes to none: a resource server verifies tokens, AuthServer signs its own users in.",
    "SEC-1": "It binds the same proxies, before they begin the third-party flow, and there is no such flow. That each"
    " program needs a consent of its own at AuthServer is SEC-2.",
}


def test_every_rule_that_binds_a_server_has_a_test() -> None:
    marks = [mark for path in Path(__file__).parent.parent.rglob("*.py") for mark in _MARK.findall(path.read_text())]
    proven = {rule for mark in marks for rule in re.findall(r'"([A-Z]+-\d+)"', mark)}
    assert [rule for rule in RULES if rule not in proven and rule not in NOT_APPLICABLE] == []
    assert NOT_APPLICABLE.keys() <= set(RULES)


def test_nothing_comes_to_an_authorization_server_for_its_clients() -> None:
    """Why two rules do not apply; with a flow of that kind they would, and this test is in the way of it."""
    taken = set(inspect.signature(AuthServer).parameters)
    assert not {name for name in taken if re.search("upstream|provider|third|proxy|authorization_url", name)}


# ── tokens stay where they are ──


class NotingState(MemoryState):
    """Remembers all that it is given to keep."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    async def put(self, key: str, value: bytes, **options: Any) -> int:
        self.kept.append((key, value))
        return await super().put(key, value, **options)

    async def append(self, log: str, data: bytes, **options: Any) -> int:
        self.kept.append((log, data))
        return await super().append(log, data, **options)


@pytest.mark.rule("AUTH-9", "AUTH-18")
@pytest.mark.parametrize("version", REVISIONS)
async def test_a_token_is_neither_kept_nor_shown(version: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not in the state, which others may read, not in what the server knows of a caller, and in no log."""
    seen, state = list[Any](), NotingState()
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
        async with serving(server, state=state) as app:
            wire = await open_wire(app, version, headers={**bearer(), "dpop": PROOF, "x-mine": "yes"})
            for _ in range(2):  # the token is new, and then known
                assert text_of((await wire.call("tell")).answer) == "told"
            assert (await wire.call("whoami", {"wrong": 1})).status == 200
            principals = [each for each in gc.get_objects() if isinstance(each, Principal)]
    assert len(seen) >= 3
    for text in (caplog.text, repr(seen), repr(state.kept), repr(principals), repr(server.engine.options)):
        assert TOKEN not in text
        assert PROOF not in text


# ── what clients carry for us ──

OF_ANN = Principal(subject="ann", client="editor", issuer="https://login.example.com", scopes=frozenset({"write"}))
CARRIERS = {  # by their token
    "ann": OF_ANN,
    "ann-other-token": msgspec.structs.replace(OF_ANN, scopes=frozenset()),
    "bob": Principal(subject="bob", client="editor", issuer=OF_ANN.issuer),
    "ann-other-program": Principal(subject="ann", client="browser", issuer=OF_ANN.issuer),
    "ann-other-issuer": Principal(subject="ann", client="editor", issuer="https://other.example.com"),
    "program-called-ann": Principal(client="ann", issuer=OF_ANN.issuer),
}
THIEVES = [token for token, each in CARRIERS.items() if each.key != OF_ANN.key]


@pytest.mark.rule("SEC-8")
async def test_who_has_a_handle_is_not_who_it_was_made_for() -> None:
    """It is bound to the user, the program and the issuer of the token, and never stands for a token."""
    done: list[str] = []
    bank = Server("bank", version="1.0.0", auth=CARRIERS.get)

    @bank.tool
    async def pay(amount: int, ctx: Context) -> str:
        done.append((await ctx.elicit("Sure?", str)).data)
        return "done"

    def ask(token: str, params: dict[str, Any]) -> Exchange:
        return HttpWire(app, headers=bearer(token)).start("tools/call", params)

    async with serving(bank) as app:
        capable = {"_meta": {"io.modelcontextprotocol/clientCapabilities": EVERYTHING}}
        params: dict[str, Any] = {"name": "pay", "arguments": {"amount": 100}, **capable}
        asked = (await ask("ann", params).done()).answer["result"]
        again = {**params, **retry(asked, {"Sure?": "yes"})}
        for token in ("not-a-token", again["requestState"][:8000]):
            assert (await ask(token, again).done()).status == 401
        assert len(THIEVES) == 4
        for thief in THIEVES:
            error = (await ask(thief, again).done()).answer["error"]
            assert (error["code"], error["message"]) == (-32602, BAD_STATE), thief
        assert done == []
        assert "result" in (await ask("ann-other-token", again).done()).answer
        assert done == ["yes"]


@pytest.mark.rule("SEC-8")
async def test_a_cursor_is_a_place_in_a_list_and_no_right_to_see_it() -> None:
    server = notes(page_size=1)
    async with serving(server) as app:
        ann, low = HttpWire(app, headers=bearer("admin-token")), HttpWire(app, headers=bearer("ann-other"))
        first = await ann.ask("tools/list")
        behind = {"cursor": first["nextCursor"]}
        assert [tool["name"] for tool in (await ann.ask("tools/list", behind))["tools"]] == ["wipe"]
        assert (await low.ask("tools/list", behind))["tools"] == []
        assert (await HttpWire(app).post("tools/list", behind)).status == 401
        forged = {"cursor": f"{behind['cursor'][:-4]}AAA="}
        assert (await ann.post("tools/list", forged)).answer["error"]["code"] == -32602


# ── servers on one's own machine ──


@pytest.mark.rule("SEC-9")
async def test_a_local_server_can_ask_for_a_token_and_is_no_pages_to_reach() -> None:
    assert HttpOptions().host == "127.0.0.1"
    async with serving(notes()) as app:
        for headers, status in [
            ({}, 401),
            (bearer("guessed"), 401),
            ({**bearer(), "host": "evil.example.com"}, 403),  # a name that was made to point here
            ({**bearer(), "origin": "https://evil.example.com"}, 403),
            (bearer(), 200),
        ]:
            assert (await HttpWire(app, headers=headers).post("tools/list")).status == status


# ── attacks: callers without a right get nothing, and learn nothing ──


LEAKS = re.compile(
    rb"Traceback|File \"|\.py\b|line \d+|site-packages|/srv/|/usr/|0x[0-9a-f]{6}|ZeroDivision|1234"
    rb"|msgspec|joserfc|aiohttp|httptools|uvicorn|cryptography|jsonschema|pydantic|asyncio|python",
    re.IGNORECASE,
)
PROBES = {
    "unknown tool": lambda wire: wire.start_call("nothing"),
    "unknown method": lambda wire: wire.start("vault/open"),
    "wrong arguments": lambda wire: wire.start_call("break_down", {"number": "x"}),
    "a tool that fails": lambda wire: wire.start_call("break_down"),
    "unknown resource": lambda wire: wire.start("resources/read", {"uri": "file:///etc/passwd"}),
    "unknown prompt": lambda wire: wire.start("prompts/get", {"name": "nothing"}),
    "wrong params": lambda wire: wire.start("tools/list", {"cursor": "nonsense"}),
    "no JSON": lambda wire: wire.raw("POST", b'{"jsonrpc": "2.0", "id": 1, "method": "ping"'),
    "no token": lambda wire: wire.raw("POST", b"{}", {"authorization": None}),
    "guessed token": lambda wire: wire.raw("POST", b"{}", bearer("guessed")),
    "unknown path": lambda wire: wire.raw("GET", path="/admin"),
    "wrong verb": lambda wire: wire.raw("PATCH"),
    "wrong host": lambda wire: wire.raw("POST", b"{}", {"host": "evil.example.com"}),
}


@pytest.mark.parametrize("version", [HANDSHAKE[-1], MODERN])
async def test_errors_disclose_nothing(version: str) -> None:
    server = notes()

    @server.tool
    async def break_down(number: int = 0) -> str:
        raise ZeroDivisionError("/srv/vault/combination.py says 1234")

    async with serving(server) as app:
        wire = await open_wire(app, version, headers=bearer())
        for name, probe in PROBES.items():
            answer = await probe(wire).done()
            shown = answer.raw + b"".join(b"%s: %s\n" % pair for pair in answer.sent[0]["headers"])
            assert "error" in answer.json or answer.answer["result"]["isError"], name
            assert not LEAKS.search(shown), (name, shown)
            assert "server" not in answer.headers, name
