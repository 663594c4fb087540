"""Authorization of HTTP requests: who gets in, what the others are told, and what is never said."""

import asyncio
import base64
import hashlib
import json
import logging
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jwk, jws
from old_client import OldClient, connected

from dovetail import AuditEvent, Context, Server
from dovetail.auth import Auth, Principal, VerifierTrouble
from dovetail.errors import SetupError
from dovetail.transports import doorkeeper
from dovetail.transports.doorkeeper import Doorkeeper
from dovetail.transports.http import HttpApp
from dovetail.transports.options import HttpOptions
from dovetail.transports.serve import serving as over_sockets
from http_serving import serving, until
from http_stage import HANDSHAKE, MODERN, REVISIONS, Stage, open_wire, text_of
from http_wire import Exchange, HttpWire
from replaying import EVERYTHING, retry

METADATA = "http://localhost:8000/.well-known/oauth-protected-resource/mcp"
ISSUER = "https://login.example.com"
PEOPLE = {
    "ann-token": Principal(subject="ann", scopes=frozenset({"notes:read", "notes:write"})),
    "ann-other": Principal(subject="ann", scopes=frozenset({"notes:read"})),
    "bob-token": Principal(subject="bob", scopes=frozenset({"notes:read", "notes:write"})),
    "low-token": Principal(subject="low", scopes=frozenset({"other"})),
}


class Register:
    """A verifier that counts, and does what a test wants."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failure: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def verify(self, token: str) -> Principal | None:
        self.asked.append(token)
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return PEOPLE.get(token)


def notes(register: Any = None, **options: Any) -> Server:
    options = {"authorization_servers": [ISSUER], "scopes": ["notes:read"], **options}
    server = Server("notes", version="1.0.0", auth=Auth(register or Register(), **options))

    @server.tool
    async def whoami(ctx: Context) -> str:
        return "nobody" if ctx.principal is None else ctx.principal.name

    @server.tool(scopes=["notes:write", "notes:admin"])
    async def wipe() -> str:
        return "wiped"

    return server


def bearer(token: str = "ann-token") -> dict[str, str | None]:
    return {"authorization": f"Bearer {token}"}


def challenge_of(answer: Exchange) -> dict[str, str]:
    header = answer.headers["www-authenticate"]
    assert header.startswith("Bearer ")
    return dict(re.findall(r'(\w+)="([^"]*)"', header))


# ── who gets in ──


@pytest.mark.parametrize("version", REVISIONS)
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  ", " Bearer"])
async def test_a_good_token_says_who_is_calling(version: str, scheme: str) -> None:
    async with serving(notes()) as app:
        wire = await open_wire(app, version, headers={"authorization": f"{scheme} ann-token"})
        assert text_of((await wire.call("whoami")).answer) == "ann"


Ask = Callable[[HttpWire], Exchange]
REQUESTS: dict[str, Ask] = {
    "POST": lambda wire: wire.start("tools/list"),
    "discover": lambda wire: wire.start("server/discover"),
    "listen": lambda wire: wire.start("subscriptions/listen", {"notifications": {}}),
    "notification": lambda wire: wire.raw("POST", b'{"jsonrpc":"2.0","method":"notifications/initialized"}'),
    "batch": lambda wire: wire.raw("POST", b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]'),
    "no JSON": lambda wire: wire.raw("POST", b"{"),
    "GET": lambda wire: wire.raw("GET"),
    "DELETE": lambda wire: wire.raw("DELETE"),
    "PUT": lambda wire: wire.raw("PUT"),
    "OPTIONS": lambda wire: wire.raw("OPTIONS"),
    "mount point": lambda wire: wire.raw("POST", path="/"),
    "GET /sse": lambda wire: wire.raw("GET", path="/sse"),
    "POST /messages": lambda wire: wire.raw("POST", path="/messages", query="session_id=x"),
}


@pytest.mark.rule("AUTH-2", "AUTH-3", "AUTH-5", "AUTH-6", "AUTH-10", "SEC-11")
@pytest.mark.parametrize("ask", REQUESTS.values(), ids=REQUESTS)
async def test_every_kind_of_request_needs_a_token(ask: Ask) -> None:
    async with serving(notes()) as app:
        nobody = await ask(HttpWire(app)).done()
        assert nobody.status == 401
        assert nobody.json["error"]["code"] == -32600
        about = challenge_of(nobody)
        metadata = METADATA if nobody.scope["path"] in ("/mcp", "/") else METADATA.replace("/mcp", "/sse")
        assert about == {"scope": "notes:read", "resource_metadata": metadata}
        stranger = await ask(HttpWire(app, headers=bearer("guessed"))).done()
        assert stranger.status == 401
        assert challenge_of(stranger) == {
            **about,
            "error": "invalid_token",
            "error_description": "The token is not good, or not any more",
        }
        assert b"guessed" not in stranger.raw


@pytest.mark.parametrize("path", ["/health", "/ready", "/health/live", "/page"])
async def test_probes_and_own_pages_need_none(path: str) -> None:
    server = notes()

    @server.custom_route("/page")
    async def page(request: Any) -> str:
        return "mine"

    async with serving(server) as app:
        assert (await HttpWire(app).raw("GET", path=path).done()).status == 200


async def test_a_preflight_needs_none_and_permits_the_header() -> None:
    asked = {
        "origin": "http://localhost:3000",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    async with serving(notes()) as app:
        allowed = await HttpWire(app).raw("OPTIONS", headers=asked).done()
        assert allowed.status == 204
        assert allowed.headers["access-control-allow-headers"] == "authorization"
        refused = await HttpWire(app).raw("POST", headers={"origin": "http://localhost:3000"}).done()
        assert "WWW-Authenticate" in refused.headers["access-control-expose-headers"]


HEADERS = {
    "": (401, None),
    "Bearer": (401, None),
    "Bearer ": (401, None),
    "Basic YW5uOnNlY3JldA==": (401, None),
    "DPoP ann-token": (401, None),
    "ann-token": (401, None),
    "Bearer ann-token extra": (400, "invalid_request"),
    "Bearer ann-token, Bearer bob-token": (400, "invalid_request"),
    "Bearer \xe4": (400, "invalid_request"),
    "Bearer " + "x" * 20_000: (401, "invalid_token"),
    "Bearer ann-tokeN": (401, "invalid_token"),
}


@pytest.mark.rule("AUTH-10")
@pytest.mark.parametrize("header", HEADERS, ids=[header[:30] for header in HEADERS])
async def test_other_headers_do_not_get_in(header: str) -> None:
    status, error = HEADERS[header]
    async with serving(notes()) as app:
        answer = await HttpWire(app, headers={"authorization": header}).post("tools/list")
        assert (answer.status, challenge_of(answer).get("error")) == (status, error)


async def test_the_header_may_not_come_twice() -> None:
    twice = [(b"authorization", b"Bearer ann-token"), (b"authorization", b"Bearer bob-token")]
    async with serving(notes()) as app:
        assert (await HttpWire(app).raw("POST", more=twice).done()).status == 400


@settings(max_examples=50)
@given(header=st.one_of(st.binary(max_size=60), st.binary(max_size=40).map(lambda rest: b"Bearer " + rest)))
async def test_no_header_breaks_the_door(header: bytes) -> None:
    app = notes().asgi()
    answer = await HttpWire(app).raw("POST", b"{}", more=[(b"authorization", header)]).done()
    await app.drain(0)
    assert answer.status in (400, 401)
    assert "www-authenticate" in answer.headers


# ── tokens in URLs ──


@pytest.mark.rule("AUTH-16")
@pytest.mark.parametrize("query", ["access_token=ann-token", "a=1&ACCESS_TOKEN=ann-token", "access%5Ftoken=ann-token"])
@pytest.mark.parametrize("headers", [{}, bearer()], ids=["alone", "besides"])
async def test_a_token_in_the_url_is_refused(
    query: str, headers: dict[str, str | None], caplog: pytest.LogCaptureFixture
) -> None:
    register = Register()
    async with serving(notes(register)) as app:
        with caplog.at_level(logging.DEBUG):
            for path, method in (("/mcp", "POST"), ("/mcp", "GET"), ("/sse", "GET"), ("/messages", "POST")):
                refused = await HttpWire(app, headers=headers).raw(method, path=path, query=query).done()
                assert (refused.status, challenge_of(refused)["error"]) == (400, "invalid_request")
        assert "ann-token" not in caplog.text
        assert register.asked == []


# ── scopes ──


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


# ── what is noted of it ──


@pytest.mark.parametrize("version", [HANDSHAKE[-1], MODERN])
async def test_refusals_at_the_door_are_in_the_audit(version: str) -> None:
    """Who came without a token has done nothing yet; all others are noted, without the token."""
    events: list[AuditEvent] = []
    auth = Auth(Register(), scopes=["notes:read"])
    async with serving(Server("notes", version="1.0.0", auth=auth, audit=events.append)) as app:
        assert (await HttpWire(app, version).post("tools/list")).status == 401
        for token, status in [("guessed", 401), ("low-token", 403)]:
            assert (await HttpWire(app, version, headers=bearer(token)).post("tools/list")).status == status
        in_query = await HttpWire(app, version).raw("POST", query="access_token=ann-token").done()
        assert in_query.status == 400
        await until(lambda: len(events) == 3)
    assert [(each.reason, each.subject) for each in events] == [
        ("invalid_token", None),
        ("insufficient_scope", "low"),
        ("invalid_request", None),
    ]
    for each in events:
        assert (each.outcome, each.method, each.name, each.code) == ("refused", "POST", "/mcp", -32600)
        assert each.address == "127.0.0.1"
    assert not any(secret in repr(events) for secret in ("guessed", "low-token", "ann-token"))


# ── how often verifiers are asked ──


@pytest.mark.rule("AUTH-15")
@pytest.mark.parametrize("version", REVISIONS)
async def test_a_token_is_believed_for_a_while(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register = Register()
    async with serving(notes(register)) as app:
        wire = await open_wire(app, version, headers=bearer())
        for _ in range(3):
            assert (await wire.call("whoami")).status == 200
        assert register.asked == ["ann-token"]
        monkeypatch.setattr(doorkeeper, "monotonic", lambda: time.monotonic() + doorkeeper.BELIEVED_SECONDS)
        assert (await wire.call("whoami")).status == 200
        assert register.asked == ["ann-token"] * 2
        wire.headers = bearer("taken-back")  # the session alone is worth nothing
        assert (await wire.call("whoami")).status == 401


@pytest.mark.rule("AUTH-15")
@pytest.mark.parametrize(
    ("seconds", "later", "asked"), [(0, 0, 2), (20, 19, 1), (20, 21, 2), (600, 59, 1), (600, 61, 2)]
)
async def test_a_verifier_says_how_long_it_is_believed(
    seconds: float, later: float, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But never for longer than a minute. Of several, the most cautious one decides."""
    register = Register()
    register.believed_seconds = seconds  # type: ignore[attr-defined]
    async with serving(notes([register, Register()])) as app:
        wire = HttpWire(app, headers=bearer())
        assert (await wire.call("whoami")).status == 200
        monkeypatch.setattr(doorkeeper, "monotonic", lambda: time.monotonic() + later)
        assert (await wire.call("whoami")).status == 200
    assert len(register.asked) == asked


async def test_a_token_is_not_believed_beyond_its_own_end() -> None:
    async def verify(token: str) -> Principal:
        asked.append(token)
        return Principal(subject="ann", expires_at=ends)

    asked: list[str] = []
    ends = time.time() + 0.2
    async with serving(Server("short", auth=verify)) as app:
        wire = HttpWire(app, headers=bearer("t"))
        assert (await wire.post("tools/list")).status in (200, 404)
        await asyncio.sleep(0.25)
        assert (await wire.post("tools/list")).status == 401
        assert asked == ["t", "t"]


async def test_a_verifier_may_allow_for_clocks_that_differ() -> None:
    class Lenient:
        async def verify(self, token: str) -> Principal:
            return Principal(subject="ann", expires_at=time.time() - 5)

    async with serving(Server("lenient", auth=Lenient())) as app:
        assert (await HttpWire(app, headers=bearer("t")).post("server/discover")).status == 200


async def test_who_comes_together_waits_for_one_answer() -> None:
    register = Register()
    register.gate = asyncio.Event()
    async with serving(notes(register)) as app:
        crowd = [HttpWire(app, headers=bearer()).start_call("whoami") for _ in range(20)]
        impatient = HttpWire(app, headers=bearer()).start_call("whoami")
        await asyncio.sleep(0.01)
        await impatient.cut()  # it takes nothing from the others
        register.gate.set()
        assert {text_of((await each.done()).answer) for each in crowd} == {"ann"}
        assert register.asked == ["ann-token"]


async def test_a_bad_token_is_remembered_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    register = Register()
    async with serving(notes(register)) as app:
        wire = HttpWire(app, headers=bearer("bad"))
        for _ in range(3):
            assert (await wire.post("tools/list")).status == 401
        assert register.asked == ["bad"]
        monkeypatch.setattr(doorkeeper, "monotonic", lambda: time.monotonic() + doorkeeper.REFUSED_SECONDS)
        monkeypatch.setitem(PEOPLE, "bad", PEOPLE["ann-token"])
        assert (await wire.post("tools/list")).status == 200


async def test_guesses_take_no_memory_and_drive_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "MOST_TOKENS", 10)
    doors: list[Doorkeeper] = []
    made = Doorkeeper.before

    def before(self: Doorkeeper, place: Any) -> Any:
        doors.append(self)
        return made(self, place)

    monkeypatch.setattr(Doorkeeper, "before", before)
    register = Register()
    async with serving(notes(register)) as app:
        ann = HttpWire(app, headers=bearer())
        assert (await ann.post("tools/list")).status == 200
        for number in range(30):
            assert (await HttpWire(app, headers=bearer(f"guess-{number}")).post("tools/list")).status == 401
        assert (await ann.post("tools/list")).status == 200
        assert register.asked.count("ann-token") == 1
        assert (len(doors[0]._good), len(doors[0]._bad), doors[0]._asking) == (1, 10, {})
        kept = repr([*doors[0]._good.items(), *doors[0]._bad.items()])
        assert "ann-token" not in kept
        assert "guess" not in kept


async def test_the_number_of_questions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "MOST_QUESTIONS", 2)
    register = Register()
    register.gate = asyncio.Event()
    async with serving(notes(register)) as app:
        waiting = [HttpWire(app, headers=bearer(token)).start("tools/list") for token in ("ann-token", "bob-token")]
        await asyncio.sleep(0.01)
        assert (await HttpWire(app, headers=bearer("third")).post("tools/list")).status == 503
        register.gate.set()
        assert [(await each.done()).status for each in waiting] == [200, 200]


# ── verifiers that fail ──


async def test_nobody_can_tell_is_a_503(caplog: pytest.LogCaptureFixture) -> None:
    register = Register()
    register.failure = VerifierTrouble("the issuer is silent about ann-token")
    async with serving(notes(register)) as app:
        wire = HttpWire(app, headers=bearer())
        answer = await wire.post("tools/list")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert "the issuer is silent" in caplog.text
        assert "ann-token" not in caplog.text
        register.failure = None
        assert (await wire.post("tools/list")).status == 200  # it is not remembered


async def test_a_verifier_that_takes_too_long_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "VERIFY_SECONDS", 0.05)
    register = Register()
    register.gate = asyncio.Event()
    async with serving(notes(register)) as app:
        assert (await HttpWire(app, headers=bearer()).post("tools/list")).status == 503


async def test_a_verifier_that_breaks_is_a_500_and_says_no_token(caplog: pytest.LogCaptureFixture) -> None:
    register = Register()
    register.failure = ValueError("can't read ann-token")
    async with serving(notes(register)) as app:
        answer = await HttpWire(app, headers=bearer()).post("tools/list")
        assert answer.status == 500
        assert answer.json["error"]["message"] == "Internal error"
        assert "ValueError" in caplog.text
        assert "in verify" in caplog.text
        assert "ann-token" not in caplog.text


async def test_a_function_that_gives_nonsense(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Server("nonsense", auth=lambda token: token)) as app:  # type: ignore[arg-type,return-value]
        assert (await HttpWire(app, headers=bearer("abc-token")).post("tools/list")).status == 500
        assert "abc-token" not in caplog.text


# ── what belongs to whom ──


def stage_with_people() -> Stage:
    return Stage(auth=Register())


@pytest.mark.rule("SEC-7", "SEC-12", "AUTH-15")
@pytest.mark.parametrize("version", HANDSHAKE)
async def test_a_session_is_there_for_its_owner_only(version: str) -> None:
    stage = stage_with_people()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, version, headers=bearer())
        stage.go.set()
        call = await wire.start_call("tell").done()
        event = next((each.id for each in call.events if each.id), None)
        thief = HttpWire(app, version, headers=bearer("bob-token"))
        thief.session_id = wire.session_id
        attempts = [
            thief.start_call("add", {"a": 1, "b": 1}),
            thief.get(),
            thief.get(event),
            thief.raw("DELETE"),
            thief.raw("POST", b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'),
            thief.raw("POST", b'{"jsonrpc":"2.0","id":"dovetail-1","result":{}}'),
        ]
        assert [(await each.done()).status for each in attempts] == [404] * len(attempts)
        thief.headers = {}
        assert (await thief.delete()).status == 401
        assert (await wire.call("add", {"a": 1, "b": 1})).status == 200
        wire.headers = bearer("ann-other")  # another token of the same user is as good
        assert (await wire.call("add", {"a": 1, "b": 1})).status == 200
        assert (await wire.delete()).status == 204


@pytest.mark.rule("SEC-8")
async def test_a_request_state_is_good_for_its_owner_only() -> None:
    server = Server("bank", version="1.0.0", auth=Register())

    @server.tool
    async def pay(ctx: Context) -> str:
        return f"paid: {(await ctx.elicit('Sure?', str)).data}"

    async with serving(server) as app:
        ann, bob = (HttpWire(app, headers=bearer(token)) for token in ("ann-token", "bob-token"))
        meta = {"io.modelcontextprotocol/clientCapabilities": EVERYTHING}
        params: dict[str, Any] = {"name": "pay", "arguments": {}, "_meta": meta}
        again = {**params, **retry(await ann.ask("tools/call", params), {"Sure?": "yes"})}
        refused = await bob.post("tools/call", again)
        assert "error" in refused.answer
        ann.headers = bearer("ann-other")
        assert text_of({"result": await ann.ask("tools/call", again)}) == "paid: yes"


@pytest.mark.rule("SEC-7", "SEC-12")
async def test_the_stream_of_http_sse_is_its_owners() -> None:
    async with serving(stage_with_people().server) as app, connected(app, authorization="Bearer ann-token") as ann:
        ping = {"jsonrpc": "2.0", "id": 99, "method": "ping"}
        for header, status in (("Bearer bob-token", 404), ("Bearer bad", 401), (None, 401)):
            assert (await ann.post(ping, headers={"authorization": header}).done()).status == status
        # What is posted runs with the rights of the stream, so it takes the same rights to post.
        assert (await ann.post(ping, headers=bearer("ann-other")).done()).status == 404
        assert (await ann.ask("ping"))["result"] == {}


async def test_http_sse_knows_who_is_calling() -> None:
    async with serving(notes()) as app, connected(app, authorization="Bearer ann-token") as ann:
        assert await ann.call("whoami") == "ann"
        refused = await ann.ask("tools/call", {"name": "wipe", "arguments": {}})
        assert refused["error"]["code"] == -32600


# ── setting it up ──


def test_only_one_thing_says_who_is_asking() -> None:
    with pytest.raises(SetupError, match="choose one"):
        notes().asgi(identify=lambda scope: "ann")


@pytest.mark.parametrize("auth", ["token", 5, [], [None], Register, object()])
def test_auth_has_to_be_something_that_verifies(auth: Any) -> None:
    with pytest.raises(SetupError, match="auth="):
        Server("wrong", auth=auth)


@pytest.mark.rule("AUTH-1")
async def test_without_auth_nothing_is_asked() -> None:
    async with serving(Stage().server) as app:
        for headers in ({}, bearer("anything")):
            assert (await HttpWire(app, headers=headers).call("add", {"a": 1, "b": 1})).status == 200


Verify = Callable[[str], Awaitable[Principal | None]]


async def test_several_verifiers_are_asked_in_turn() -> None:
    def knows(name: str) -> Verify:
        async def verify(token: str) -> Principal | None:
            return Principal(subject=name) if token == name else None

        return verify

    async with serving(Server("both", auth=[knows("ann"), knows("bob")])) as app:
        for name, status in (("ann", 200), ("bob", 200), ("eve", 401)):
            assert (await HttpWire(app, MODERN, headers=bearer(name)).post("server/discover")).status == status


async def test_the_oldest_clients_are_refused_before_there_is_a_stream() -> None:
    async with serving(notes()) as app:
        client = OldClient(app)
        assert (await client.stream.done()).status == 401


# ── tokens that are bound to a key ──

KEY = jwk.ECKey.generate_key("P-256")
BOUND = Principal(subject="ann", scopes=frozenset({"notes:read"}), claims={"cnf": {"jkt": KEY.thumbprint()}})
FREE = Principal(subject="bob", scopes=frozenset({"notes:read"}))


async def verify_bound(token: str) -> Principal | None:
    return {"bound": BOUND, "free": FREE}.get(token)


def proof(method: str = "POST", url: str = "http://localhost:8000/mcp", token: str = "bound") -> str:
    header = {"typ": "dpop+jwt", "alg": "ES256", "jwk": KEY.as_dict(private=False)}
    digest = base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=").decode()
    said = {"jti": secrets.token_hex(), "htm": method, "htu": url, "iat": int(time.time()), "ath": digest}
    return jws.serialize_compact(header, json.dumps(said).encode(), KEY)


def dpop(text: str | None = None, token: str = "bound") -> dict[str, str | None]:
    return {"authorization": f"DPoP {token}", "dpop": proof(token=token) if text is None else text}


async def test_a_bound_token_comes_with_a_proof_for_each_request() -> None:
    async with serving(notes(verify_bound, dpop="optional")) as app:
        used = dpop()
        assert text_of((await HttpWire(app, headers=used).call("whoami")).answer) == "ann"
        assert text_of((await HttpWire(app, headers=dpop()).call("whoami")).answer) == "ann"
        for headers, error in (
            (used, "invalid_dpop_proof"),
            (dpop(proof("GET")), "invalid_dpop_proof"),
            (dpop(proof(url="http://localhost:8000/other")), "invalid_dpop_proof"),
            ({"authorization": "DPoP bound"}, "invalid_dpop_proof"),
            (dpop("nonsense"), "invalid_dpop_proof"),
            (dpop(token="free"), "invalid_token"),
            (bearer("bound"), "invalid_token"),
        ):
            refused = await HttpWire(app, headers=headers).post("tools/list")
            assert refused.status == 401
            told = [value.decode() for name, value in refused.sent[0]["headers"] if name == b"www-authenticate"]
            assert [each.partition(" ")[0] for each in told] == ["Bearer", "DPoP"]
            assert f'error="{error}"' in told[1]
            assert 'algs="ES256' in told[1]
            assert (f'error="{error}"' in told[0]) == (error == "invalid_token")
        assert text_of((await HttpWire(app, headers=bearer("free")).call("whoami")).answer) == "bob"


async def test_proofs_can_be_required() -> None:
    async with serving(notes(verify_bound, dpop="required"), public_url="https://notes.example.com/mcp") as app:
        for _ in range(2):
            refused = await HttpWire(app, headers=bearer("free")).post("tools/list")
            assert refused.status == 401
            assert refused.headers["www-authenticate"].startswith("DPoP ")
        outside = proof(url="https://notes.example.com/mcp")  # as the client sees it
        assert (await HttpWire(app, headers=dpop(outside)).post("tools/list")).status == 200
        assert (await HttpWire(app, headers=dpop()).post("tools/list")).status == 401


def test_an_open_server_loads_nothing_of_it() -> None:
    program = (
        "import sys; from dovetail import Server; Server('open').asgi(); "
        "print(*sorted(name for name in sys.modules if name.startswith('dovetail.auth')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["dovetail.auth", "dovetail.auth.principal"]


@pytest.mark.rule("AUTH-16")
async def test_over_a_real_connection(caplog: pytest.LogCaptureFixture) -> None:
    """Our own HTTP has shorter ways; and its log tells nothing of what is in a query."""
    options = HttpOptions(port=0, access_log=True)
    app = HttpApp(notes().engine, options, bound_to="127.0.0.1")
    message = json.dumps(HttpWire(app).message("tools/call", {"name": "whoami", "arguments": {}}))
    names = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "whoami"}
    with caplog.at_level(logging.DEBUG):
        async with over_sockets(app, options) as url, aiohttp.ClientSession(url) as session:
            for query, headers, status in (
                ("", {}, 401),
                ("", bearer(), 200),
                ("", bearer(), 200),
                ("?access_token=ann-token", {}, 400),
            ):
                typed = {**names, **headers, "content-type": "application/json"}
                async with session.post(f"/mcp{query}", data=message, headers=typed) as answer:
                    assert answer.status == status
                    assert ("www-authenticate" in answer.headers) == (status != 200)
    assert '"POST /mcp HTTP/1.1" 400' in caplog.text
    assert "ann-token" not in "".join(record.getMessage() for record in caplog.records)
