"""A security suite, A to H, against one protected server: who comes without a right gets nothing, and learns nothing.

A: no credentials. B: forged ones. C: the authorization code flow. D: sessions. E: malformed and oversized input.
F: web pages of others. G: too much. H: what errors give away.
"""

import asyncio
import hmac
import re
import time
from typing import Any

import pytest

from authserver_stage import CALLBACK, Browser, Program
from authserver_stage import Stage as AuthStage
from dovetail import Server
from dovetail.auth import Auth, Jwt
from http_serving import Clock, serving, until
from http_stage import HANDSHAKE, MODERN, REVISIONS, open_wire, text_of
from http_wire import Exchange, HttpWire
from issuer_stage import AUDIENCE, EC, ISSUER, OTHER_RSA, RSA, claims, craft, jwks, signer, token

EVIL = "https://evil.example.com"
IDLE = 30 * 60.0


class Vault:
    """The server that is attacked."""

    def __init__(self, **options: Any) -> None:
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.stopped = asyncio.Event()
        verifier = Jwt(ISSUER, audience=AUDIENCE, jwks=jwks())
        self.server = Server("vault", version="1.0.0", auth=Auth(verifier, public_url=AUDIENCE), **options)
        for tool in (self.peek, self.work, self.break_down):
            self.server.add_tool(tool)

    async def peek(self) -> str:
        return "gold"

    async def work(self) -> str:
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        return "done"

    async def break_down(self, number: int = 0) -> str:
        raise ZeroDivisionError("/srv/vault/combination.py says 1234")


def bearer(text: str) -> dict[str, str | None]:
    return {"authorization": f"Bearer {text}"}


def as_user(name: str = "alice", **changes: Any) -> dict[str, str | None]:
    return bearer(token(claims(sub=name, **changes)))


async def is_refused(exchange: Exchange, status: int = 401) -> None:
    answer = await exchange.done()
    assert answer.status == status, answer.raw
    assert b"gold" not in answer.raw
    if status == 401:
        assert 'resource_metadata="https://' in answer.headers["www-authenticate"]


REQUESTS = {
    "call": lambda wire: wire.start_call("peek"),
    "list": lambda wire: wire.start("tools/list"),
    "GET": lambda wire: wire.raw("GET"),
    "DELETE": lambda wire: wire.raw("DELETE"),
    "SSE": lambda wire: wire.raw("GET", path="/sse"),
}
each_request = pytest.mark.parametrize("ask", REQUESTS.values(), ids=REQUESTS)


# ── A: no credentials ──


@pytest.mark.rule("AUTH-2")
@each_request
async def test_a1_no_header(ask: Any) -> None:
    async with serving(Vault().server) as app:
        await is_refused(ask(HttpWire(app)))


@pytest.mark.rule("AUTH-2", "AUTH-3")
@each_request
@pytest.mark.parametrize("header", ["Basic YWxpY2U6c2VjcmV0", "Bearer", "Bearer ", "bearer  ", "Token x", ""])
async def test_a2_another_scheme_or_an_empty_token(ask: Any, header: str) -> None:
    async with serving(Vault().server) as app:
        await is_refused(ask(HttpWire(app, headers={"authorization": header})))


# ── B: forged and expired tokens ──

HEAD = {"typ": "at+jwt", "kid": RSA.kid}
FORGED = {
    "not signed": craft({**HEAD, "alg": "none"}, claims(), lambda _: b""),
    "no signature": token().rpartition(".")[0] + ".",
    "another's key": token(key=OTHER_RSA),
    "another's key under our name": token(key=OTHER_RSA, kid=RSA.kid),
    "our public key as a secret": craft(
        {**HEAD, "alg": "HS256"}, claims(), lambda message: hmac.digest(RSA.as_pem(private=False), message, "sha256")
    ),
    "another algorithm": token(algorithm="ES256", key=EC, alg="RS256"),
    "its own key": craft(
        {**HEAD, "alg": "RS256", "jwk": OTHER_RSA.as_dict(private=False)}, claims(), signer("RS256", OTHER_RSA)
    ),
    "changed claims": ".".join([token().split(".")[0], token(claims(sub="root")).split(".")[1], token().split(".")[2]]),
    "no JWT": "x.y.z",
    "too long": "x" * 20_000,
}


@pytest.mark.rule("AUTH-3", "AUTH-7")
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
async def test_b1_a_forged_token(forged: str) -> None:
    async with serving(Vault().server) as app:
        assert text_of((await HttpWire(app, headers=as_user()).call("peek")).answer) == "gold"
        for _ in range(2):  # also when it comes again
            await is_refused(HttpWire(app, headers=bearer(forged)).start_call("peek"))


@pytest.mark.rule("AUTH-3", "AUTH-8", "SEC-6")
@pytest.mark.parametrize(
    "changes",
    [
        {"exp": int(time.time()) - 86_400},
        {"exp": ...},
        {"nbf": int(time.time()) + 86_400},
        {"iss": EVIL},
        {"aud": EVIL},
        {"aud": ...},
    ],
    ids=["expired", "never expires", "not yet good", "another issuer", "for another server", "for nobody"],
)
async def test_b2_an_expired_or_foreign_token(changes: dict[str, Any]) -> None:
    async with serving(Vault().server) as app:
        await is_refused(HttpWire(app, headers=as_user(**changes)).start_call("peek"))


# ── C: the authorization code flow ──


@pytest.mark.parametrize("given", [None, "", "wrong-" * 10])
async def test_c1_a_code_without_its_verifier(given: str | None) -> None:
    program = Program(AuthStage())
    reply = await program.redeem(await program.code(), code_verifier=given)
    assert reply.status == 400
    assert reply.json["error"] in ("invalid_request", "invalid_grant")
    assert "access_token" not in reply.json


@pytest.mark.rule("SEC-5")
@pytest.mark.parametrize("state", ["a", "st&te=1 é", "x" * 200, "%26code%3Devil"])
async def test_c2_the_state_comes_back_as_it_was_so_that_another_one_shows(state: str) -> None:
    """A program that asked with one state and sees another knows that the answer is not for it."""
    stage = AuthStage()
    browser, program = Browser(stage), Program(stage)
    reply = await browser.sign_in(await browser.open(program.url(state=state)))
    assert reply.headers["location"].startswith(f"{CALLBACK}?")
    assert reply.sent_to["state"] == state
    declined = await browser.answer(await browser.open(program.url(state=state)), "deny")
    assert (declined.sent_to["error"], declined.sent_to["state"]) == ("access_denied", state)


async def test_c3_a_code_is_good_once() -> None:
    stage = AuthStage()
    program = Program(stage)
    code = await program.code()
    first = (await program.redeem(code)).json
    assert await stage.may_call(first["access_token"])
    again = await program.redeem(code)
    assert (again.status, again.json["error"]) == (400, "invalid_grant")
    assert not await stage.may_call(first["access_token"])  # nobody knows which of the two was the thief


# ── D: sessions ──


@pytest.mark.rule("SEC-7")
@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.parametrize("forged", ["x", "0" * 32, "../../etc/passwd", None])
async def test_d1_a_forged_session(version: str, forged: str | None) -> None:
    async with serving(Vault().server) as app:
        own = await HttpWire.session(app, version, headers=as_user())
        thief = HttpWire(app, version, headers=as_user("eve"))
        thief.session_id = forged or own.session_id  # one that is real, but not the thief's
        for attempt in (thief.start_call("peek"), thief.get(), thief.raw("DELETE")):
            await is_refused(attempt, 404)
        assert text_of((await own.call("peek")).answer) == "gold"


@pytest.mark.rule("SEC-7")
@pytest.mark.parametrize("version", HANDSHAKE)
async def test_d2_a_session_ends_when_it_is_not_used(version: str) -> None:
    clock = Clock()
    async with serving(Vault().server, clock=clock) as app:
        wire = await HttpWire.session(app, version, headers=as_user())
        clock.sleep(IDLE - 1)
        assert (await wire.call("peek")).status == 200
        clock.sleep(IDLE + 1)
        await is_refused(wire.start_call("peek"), 404)


# ── E: malformed and oversized input ──


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":' + b"[" * 50_000, -32700),
        (b"null", -32600),
        (b'"peek"', -32600),
        (b'{"id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600),
    ],
)
async def test_e1_malformed_messages(body: bytes, code: int) -> None:
    async with serving(Vault().server) as app:
        answer = await HttpWire(app, headers=as_user()).raw("POST", body).done()
        assert (answer.status, answer.json["error"]["code"]) == (400, code)
        await is_refused(HttpWire(app).raw("POST", body))  # who is nobody does not even learn that


# ── F: web pages of others ──


@pytest.mark.parametrize("verb", ["POST", "GET", "OPTIONS", "DELETE"])
@pytest.mark.parametrize("path", ["/mcp", "/sse", "/messages"])
@pytest.mark.parametrize("origin", [EVIL, "null", "https://localhost.evil.example.com", "http://localhost:8000@evil"])
async def test_f1_an_evil_origin_gets_no_cors_headers(verb: str, path: str, origin: str) -> None:
    async with serving(Vault().server, allowed_origins=["https://app.example.com"]) as app:
        wire = HttpWire(app, headers={**as_user(), "origin": origin, "access-control-request-method": "POST"})
        answer = await wire.raw(verb, b"{}", path=path).done()
        assert answer.status == 403
        assert not [name for name in answer.headers if name.startswith("access-control-")]


# ── G: too much ──


@pytest.mark.parametrize("version", REVISIONS)
async def test_g1_rapid_requests_are_limited_for_each_caller(version: str) -> None:
    async with serving(Vault(rate_limit="20/hour per principal").server) as app:
        alice, bob = [await open_wire(app, version, headers=as_user(name)) for name in ("alice", "bob")]
        statuses = []
        for number in range(100):
            alice.headers = as_user(jti=str(number % 3))  # another token of the same user changes nothing
            statuses.append((await alice.call("peek")).status)
        assert statuses == [200] * 20 + [429] * 80
        assert int((await alice.call("peek")).headers["retry-after"]) > 0
        assert (await bob.call("peek")).status == 200


@pytest.mark.rule("AUTH-15")
@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.parametrize(("thief", "status"), [({}, 401), (as_user("eve"), 404)], ids=["nobody", "another user"])
async def test_g2_nobody_else_cancels_a_call(version: str, thief: dict[str, str | None], status: int) -> None:
    vault = Vault()
    async with serving(vault.server) as app:
        wire = await HttpWire.session(app, version, headers=as_user())
        call = wire.start_call("work", id=77)
        await until(vault.entered.is_set)
        wire.headers = thief
        await is_refused(wire.raw("POST", _cancel(77)), status)
        await is_refused(wire.raw("DELETE"), status)
        assert not vault.stopped.is_set()
        vault.go.set()
        assert text_of((await call.done()).answer) == "done"


def _cancel(id: int) -> bytes:
    return b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}' % id


# ── H: what errors give away ──

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
    "forged token": lambda wire: wire.raw("POST", b"{}", bearer(FORGED["not signed"])),
    "unknown path": lambda wire: wire.raw("GET", path="/admin"),
    "wrong verb": lambda wire: wire.raw("PATCH"),
    "wrong host": lambda wire: wire.raw("POST", b"{}", {"host": "evil.example.com"}),
}


@pytest.mark.parametrize("version", [HANDSHAKE[-1], MODERN])
@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
async def test_h1_errors_disclose_nothing(probe: Any, version: str) -> None:
    async with serving(Vault().server) as app:
        answer = await probe(await open_wire(app, version, headers=as_user())).done()
        shown = answer.raw + b"".join(b"%s: %s\n" % pair for pair in answer.sent[0]["headers"])
        assert "error" in answer.json or answer.answer["result"]["isError"]
        assert not LEAKS.search(shown), shown
        assert "server" not in answer.headers
