"""The rules of the specification on authorization and security: those that no other file proves, and attacks.

Two of them bind proxies, which Dovetail is not; why not is written here, and held by a test too.
"""

import base64
import gc
import inspect
import logging
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dovetail
from dovetail import Context, Request, Server
from dovetail.auth import ApiKeys, Auth, Jwt, Principal
from dovetail.authserver import AuthServer
from dovetail.engine.input_required import BAD_STATE
from dovetail.transports.options import HttpOptions
from http_serving import serving
from http_wire import HANDSHAKE, MODERN, REVISIONS, Exchange, HttpWire, open_wire, text_of
from issuer_stage import AUDIENCE, ISSUER, OTHER_RSA, RSA, claims, craft, jwks, signer, token
from replaying import EVERYTHING, retry

SOURCE = Path(dovetail.__file__).parent
RULES = [*(f"AUTH-{number}" for number in range(1, 21)), *(f"SEC-{number}" for number in range(1, 13))]
TOKEN, LOW = "dovetail-key-of-ann-and-nobody-else", "dovetail-key-of-ann-for-reading"
PROOF = "a.dpop.proof"
_MARK = re.compile(r"mark\.rule\(([^)]*)\)")

NOT_APPLICABLE = {
    "AUTH-19": "It binds proxies that come to a third-party authorization server with one static client id for all of"
    " their clients. Dovetail comes to none: a resource server verifies tokens, AuthServer signs its own users in.",
    "SEC-1": "It binds the same proxies, before they begin the third-party flow, and there is no such flow. That each"
    " program needs a consent of its own at AuthServer is SEC-2.",
}
# Whatever can send a request of its own, and what for. A third-party flow would have to be among them.
REACHING_OUT = {
    "auth/introspection.py": "whether a token is good",
    "auth/jwt.py": "the keys that tokens are signed with",
    "authserver/clients.py": "what a program publishes of itself",
    "client/oauth/metadata.py": "where the client signs in",
    "client/transports/aiohttp.py": "the client, for whoever uses it",
}
_REACHES = re.compile(r"\bmake_fetch\(|\bimport aiohttp|\bimport httpx|\burlopen\b|\bhttp\.client\b")


def test_every_rule_that_binds_a_server_has_a_test() -> None:
    marks = [mark for path in Path(__file__).parent.parent.rglob("*.py") for mark in _MARK.findall(path.read_text())]
    proven = {rule for mark in marks for rule in re.findall(r'"([A-Z]+-\d+)"', mark)}
    assert [rule for rule in RULES if rule not in proven and rule not in NOT_APPLICABLE] == []
    assert NOT_APPLICABLE.keys() <= set(RULES)


def test_nothing_comes_to_an_authorization_server_for_its_clients() -> None:
    """Why two rules do not apply; with a flow of that kind they would, and this test is in the way of it."""
    reaching = {
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if _REACHES.search(path.read_text())
    }
    assert reaching - {"auth/fetch.py"} == REACHING_OUT.keys()
    taken = set(inspect.signature(AuthServer).parameters)
    assert not {name for name in taken if re.search("upstream|provider|third|proxy|authorization_url", name)}


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
            kept = [repr((name, slot.entry)) for name, slot in app._state._entries.rows.items()]
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
ASKING = {
    "tools/call": {"name": "pay", "arguments": {"amount": 100}},
    "prompts/get": {"name": "thank", "arguments": {}},
    "resources/read": {"uri": "bank://safe"},
}


class Bank:
    """Asks before it does anything, and counts what it has done."""

    def __init__(self, **options: Any) -> None:
        self.done: list[str] = []
        self.server = Server("bank", version="1.0.0", auth=CARRIERS.get, **options)
        self.server.add_tool(self.pay)
        self.server.add_prompt(self.thank)
        self.server.add_resource("bank://safe", self.safe)

    async def pay(self, amount: int, ctx: Context) -> str:
        return await self._ask(ctx)

    async def thank(self, ctx: Context) -> str:
        return await self._ask(ctx)

    async def safe(self, ctx: Context) -> str:
        return await self._ask(ctx)

    async def _ask(self, ctx: Context) -> str:
        self.done.append((await ctx.elicit("Sure?", str)).data)
        return "done"


def carrier(app: Any, token: str) -> HttpWire:
    return HttpWire(app, headers=bearer(token))


async def begun(wire: HttpWire, method: str = "tools/call") -> dict[str, Any]:
    """The request as it is made again, with the answer and the state."""
    capable = {"_meta": {"io.modelcontextprotocol/clientCapabilities": EVERYTHING}}
    params: dict[str, Any] = {**ASKING[method], **capable}
    return {**params, **retry(await wire.ask(method, params), {"Sure?": "yes"})}


async def is_not_taken(exchange: Exchange) -> bool:
    """In the same words, whatever is wrong with it."""
    error = (await exchange.done()).answer["error"]
    return (error["code"], error["message"]) == (-32602, BAD_STATE)


@pytest.mark.rule("SEC-8")
@pytest.mark.parametrize("method", ASKING)
async def test_who_has_a_handle_is_not_who_it_was_made_for(method: str) -> None:
    """It is bound to the user, the program and the issuer of the token, and never stands for a token."""
    bank = Bank()
    async with serving(bank.server) as app:
        again = await begun(carrier(app, "ann"), method)
        for headers in ({}, bearer("not-a-token"), {"authorization": f"Bearer {again['requestState']}"[:8000]}):
            assert (await HttpWire(app, headers=headers).post(method, again)).status == 401
        assert len(THIEVES) == 4
        for thief in THIEVES:
            assert await is_not_taken(carrier(app, thief).start(method, again)), thief
        assert bank.done == []
        assert "result" in (await carrier(app, "ann-other-token").post(method, again)).answer
        assert bank.done == ["yes"]


@pytest.mark.rule("SEC-8")
async def test_handles_are_random_and_show_and_allow_nothing() -> None:
    bank = Bank()
    async with serving(bank.server) as app:
        ann = carrier(app, "ann")
        again = await begun(ann)
        states = [again["requestState"], *[(await begun(ann))["requestState"] for _ in range(20)]]
        raw = [base64.urlsafe_b64decode(each + "=" * (-len(each) % 4)) for each in states]
        assert len({each[9:25] for each in raw}) == len(raw)  # 128 bits of chance in each, behind version and key id
        for text in (b"ann", b"pay", b"amount", b"Sure?", OF_ANN.key.encode()):
            assert not any(text in each for each in raw)
        state = states[0]
        for place in range(0, len(state), 7):
            other = "A" if state[place] != "A" else "B"
            forged = f"{state[:place]}{other}{state[place + 1 :]}"
            assert await is_not_taken(ann.start("tools/call", {**again, "requestState": forged})), place
        assert bank.done == []


@pytest.mark.rule("SEC-8")
async def test_a_cursor_is_a_place_in_a_list_and_no_right_to_see_it() -> None:
    server = notes(page_size=1)
    async with serving(server) as app:
        ann, low = HttpWire(app, headers=bearer()), HttpWire(app, headers=bearer(LOW))
        first = await ann.ask("tools/list")
        behind = {"cursor": first["nextCursor"]}
        assert [tool["name"] for tool in (await ann.ask("tools/list", behind))["tools"]] == ["write"]
        assert (await low.ask("tools/list", behind))["tools"] == []
        assert (await HttpWire(app).post("tools/list", behind)).status == 401
        forged = {"cursor": f"{behind['cursor'][:-4]}AAA="}
        assert (await ann.post("tools/list", forged)).answer["error"]["code"] == -32602


# ── servers on one's own machine ──


@pytest.mark.rule("SEC-9")
async def test_a_local_server_can_ask_for_a_token_and_is_no_pages_to_reach() -> None:
    assert HttpOptions().host == "127.0.0.1"
    local = Server("local", version="1.0.0", auth=ApiKeys({"me": TOKEN}))
    local.add_tool(lambda: "yours", name="mine")
    async with serving(local) as app:
        for headers, status in [
            ({}, 401),
            (bearer("dovetail-key-of-somebody-else"), 401),
            ({**bearer(), "host": "evil.example.com"}, 403),  # a name that was made to point here
            ({**bearer(), "origin": "https://evil.example.com"}, 403),
        ]:
            assert (await HttpWire(app, headers=headers).post("tools/list")).status == status
        assert text_of((await HttpWire(app, headers=bearer()).call("mine")).answer) == "yours"


# ── attacks: callers without a right get nothing, and learn nothing ──


def vault() -> Server:
    verifier = Jwt(ISSUER, audience=AUDIENCE, jwks=jwks())
    server = Server("vault", version="1.0.0", auth=Auth(verifier, public_url=AUDIENCE))

    @server.tool
    async def peek() -> str:
        return "gold"

    @server.tool
    async def break_down(number: int = 0) -> str:
        raise ZeroDivisionError("/srv/vault/combination.py says 1234")

    return server


HEAD = {"typ": "at+jwt", "kid": RSA.kid}
FORGED = {
    "not signed": craft({**HEAD, "alg": "none"}, claims(), lambda _: b""),
    "another's key": token(key=OTHER_RSA, kid=RSA.kid),
    "its own key": craft(
        {**HEAD, "alg": "RS256", "jwk": OTHER_RSA.as_dict(private=False)}, claims(), signer("RS256", OTHER_RSA)
    ),
    "expired": token(claims(exp=int(time.time()) - 86_400)),
    "another issuer": token(claims(iss="https://evil.example.com")),
    "for another server": token(claims(aud="https://evil.example.com")),
    "no JWT": "x.y.z",
}


@pytest.mark.rule("AUTH-3", "AUTH-7", "AUTH-8", "SEC-6")
async def test_forged_and_foreign_tokens() -> None:
    async with serving(vault()) as app:
        assert text_of((await HttpWire(app, headers=bearer(token())).call("peek")).answer) == "gold"
        for name, forged in (*FORGED.items(), *FORGED.items()):  # also when one comes again
            answer = await HttpWire(app, headers=bearer(forged)).call("peek")
            assert answer.status == 401, name
            assert b"gold" not in answer.raw
            assert 'resource_metadata="https://' in answer.headers["www-authenticate"]


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
async def test_errors_disclose_nothing(probe: Any, version: str) -> None:
    async with serving(vault()) as app:
        answer = await probe(await open_wire(app, version, headers=bearer(token()))).done()
        shown = answer.raw + b"".join(b"%s: %s\n" % pair for pair in answer.sent[0]["headers"])
        assert "error" in answer.json or answer.answer["result"]["isError"]
        assert not LEAKS.search(shown), shown
        assert "server" not in answer.headers
