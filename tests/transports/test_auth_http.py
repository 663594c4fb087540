"""Authentication of HTTP requests: which are served, how others are refused, what is never shown, and attacks."""

import gc
import inspect
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from auth_stage import METADATA, ProtectedApp, Register, bearer, challenge_of, notes
from http_clients import connected
from hypothesis import given
from hypothesis import strategies as st

from dovetail import AuditEvent, Context, Request, Server
from dovetail.auth import Auth, Principal
from dovetail.authserver import AuthServer
from dovetail.engine.input_required import BAD_STATE
from dovetail.errors import SetupError
from dovetail.state.memory import MemoryState
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http.request import HttpRequest
from dovetail.transports.http.response import HttpResponse, PostResponse
from http_serving import Stage, serving, until
from http_wire import HANDSHAKE, MODERN, REVISIONS, HttpExchange, HttpWire, open_wire, text_of
from server_requests import CAPABILITIES, retry

# ── who gets in ──


Ask = Callable[[HttpWire], HttpExchange]
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
async def test_every_kind_of_request_needs_a_token() -> None:
    async with serving(notes()) as app:
        for name, ask in REQUESTS.items():
            refused = await ask(HttpWire(app)).done()
            assert (refused.status, refused.json["error"]["code"]) == (401, -32600), name
            about = challenge_of(refused)
            metadata = METADATA if refused.scope["path"] in ("/mcp", "/") else METADATA.replace("/mcp", "/sse")
            assert about == {"scope": "notes:read", "resource_metadata": metadata}, name
            stranger = await ask(HttpWire(app, headers=bearer("guessed"))).done()
            challenge = challenge_of(stranger)
            assert (stranger.status, bool(challenge.pop("error_description"))) == (401, True), name
            assert challenge == {**about, "error": "invalid_token"}, name
            assert b"guessed" not in stranger.raw, name


async def test_probes_own_pages_and_preflights_need_none() -> None:
    server = notes()

    @server.custom_route("/page")
    async def page(request: Any) -> str:
        return "mine"

    page_of = {"origin": "http://localhost:3000"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    async with serving(server) as app:
        for path in ("/health", "/ready", "/page"):
            assert (await HttpWire(app).raw("GET", path=path).done()).status == 200
        allowed = await HttpWire(app).raw("OPTIONS", headers={**page_of, **asked}).done()
        assert allowed.status == 204
        assert allowed.headers["access-control-allow-headers"] == "authorization"
        refused = await HttpWire(app).raw("POST", headers=page_of).done()
        assert "WWW-Authenticate" in refused.headers["access-control-expose-headers"]


HEADERS = {  # the status of each, and the error in the challenge
    (200, None): ["bEARER ann-token", " Bearer  ann-token"],
    (401, None): ["", "Bearer", "Bearer ", "Basic YW5uOnNlY3JldA==", "DPoP ann-token", "ann-token"],
    (400, "invalid_request"): ["Bearer ann-token extra", "Bearer ann-token, Bearer bob-token", "Bearer \xe4"],
    (401, "invalid_token"): ["Bearer " + "x" * 20_000, "Bearer ann-tokeN"],
    (403, "insufficient_scope"): ["Bearer low-token"] * 2,  # also when the token is known
}


@pytest.mark.rule("AUTH-10", "AUTH-11")
async def test_which_headers_get_in() -> None:
    twice = [(b"authorization", b"Bearer ann-token"), (b"authorization", b"Bearer bob-token")]
    async with serving(notes()) as app:
        assert (await HttpWire(app).raw("POST", more=twice).done()).status == 400
        for (status, error), headers in HEADERS.items():
            for header in headers:
                answer = await HttpWire(app, headers={"authorization": header}).call("whoami")
                assert answer.status == status, header
                assert status == 200 or challenge_of(answer).get("error") == error, header


@given(header=st.one_of(st.binary(max_size=60), st.binary(max_size=40).map(lambda rest: b"Bearer " + rest)))
async def test_no_header_breaks_authentication(header: bytes) -> None:
    answer = await HttpWire(ProtectedApp(Register())).raw("POST", b"{}", more=[(b"authorization", header)]).done()
    assert answer.status in (400, 401)
    assert "www-authenticate" in answer.headers


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


async def test_refused_tokens_are_in_the_audit() -> None:
    """Who came without a token has done nothing yet; all others are noted, without the token."""
    events: list[AuditEvent] = []
    auth = Auth(Register(), scopes=["notes:read"])
    server = Server("notes", version="1.0.0", auth=auth, audit=events.append)
    async with serving(server, trusted_proxies=["127.0.0.1"]) as app:
        assert (await HttpWire(app).post("tools/list")).status == 401
        for token, status in [("guessed", 401), ("low-token", 403)]:
            assert (await HttpWire(app, headers=bearer(token)).post("tools/list")).status == status
        behind = {"x-forwarded-for": "203.0.113.9, 198.51.100.7"}
        in_query = await HttpWire(app).raw("POST", b"", behind, query="access_token=ann-token").done()
        assert in_query.status == 400
        await until(lambda: len(events) == 3)
    assert [(each.reason, each.subject, each.address) for each in events] == [
        ("invalid_token", None, "127.0.0.1"),
        ("insufficient_scope", "low", "127.0.0.1"),
        ("invalid_request", None, "198.51.100.7"),
    ]
    for each in events:
        assert (each.outcome, each.method, each.name, each.code) == ("refused", "POST", "/mcp", -32600)
    assert not any(secret in repr(events) for secret in ("guessed", "low-token", "ann-token"))


def test_only_one_option_identifies_the_caller() -> None:
    with pytest.raises(SetupError, match="choose one"):
        notes().asgi(identify=lambda scope: "ann")


@pytest.mark.parametrize("auth", ["token", 5, [], [None], Register, object()])
def test_auth_has_to_be_something_that_verifies(auth: Any) -> None:
    with pytest.raises(SetupError, match="auth="):
        Server("wrong", auth=auth)


@pytest.mark.rule("AUTH-1")
async def test_an_open_server_asks_for_nothing() -> None:
    async with serving(Stage().server) as app:
        assert (await HttpWire(app, headers=bearer("anything")).call("add", {"a": 1, "b": 1})).status == 200


def test_an_open_server_loads_nothing_of_it() -> None:
    names = "sorted(name for name in sys.modules if name.startswith('dovetail.auth'))"
    program = f"import sys; from dovetail import Server; Server('open').asgi(); print(*{names})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["dovetail.auth", "dovetail.auth.principal"]


# ── scopes ──


NEEDING = {
    "tools/call": {"name": "wipe", "arguments": {}},
    "resources/read": {"uri": "notes://all"},
    "prompts/get": {"name": "tidy"},
}


@pytest.mark.rule("AUTH-6", "AUTH-11", "AUTH-12", "SEC-10", "SEC-11")
@pytest.mark.parametrize("version", REVISIONS)
async def test_a_client_asks_for_little_first_and_is_refused_with_all_that_it_needs(version: str) -> None:
    async with serving(notes()) as app:
        first = await HttpWire(app, version).post("tools/list")
        assert challenge_of(first)["scope"] == "notes:read"  # not the whole catalog
        wire = await open_wire(app, version, headers=bearer("ann-other"))
        assert text_of((await wire.call("whoami")).answer) == "ann"  # less than everything is enough
        for method, params in NEEDING.items():
            refused = await wire.post(method, params)
            assert (refused.status, refused.json["error"]["code"]) == (403, -32600)
            about = challenge_of(refused)
            assert about.pop("error_description")
            scope = "notes:admin notes:read notes:write"  # what every request needs is part of it
            assert about == {"error": "insufficient_scope", "scope": scope, "resource_metadata": METADATA}
        wire.headers = bearer("admin-token")
        assert text_of((await wire.call("wipe")).answer) == "wiped"  # in the same session


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
    register = Register()
    register.people["writer"] = Principal(subject="writer", scopes=frozenset({"notes:write"}))
    async with serving(notes(register, hierarchy={"notes:write": ["notes:read", "notes:admin"]})) as app:
        assert text_of((await HttpWire(app, headers=bearer("writer")).call("wipe")).answer) == "wiped"


@pytest.mark.rule("AUTH-14")
async def test_offline_access_is_never_asked_for() -> None:
    for option in ("scopes", "scopes_supported"):
        with pytest.raises(SetupError, match="offline_access"):
            Auth(Register(), **{option: ["offline_access"]})
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


# ── what belongs to whom ──


@pytest.mark.rule("SEC-7", "SEC-12", "AUTH-15")
@pytest.mark.parametrize("version", HANDSHAKE)
async def test_a_session_exists_for_its_owner_only(version: str) -> None:
    stage = Stage(auth=Register())
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, version, headers=bearer())
        stage.go.set()
        call = await wire.start_call("warn").done()
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


@pytest.mark.rule("SEC-7", "SEC-12")
async def test_the_stream_of_http_sse_is_its_owners() -> None:
    async with serving(Stage(auth=Register()).server) as app, connected(app, authorization="Bearer ann-token") as ann:
        ping = {"jsonrpc": "2.0", "id": 99, "method": "ping"}
        for header, status in (("Bearer bob-token", 404), ("Bearer bad", 401), (None, 401)):
            assert (await ann.post(ping, headers={"authorization": header}).done()).status == status
        # What is posted runs with the rights of the stream, so it takes the same rights to post.
        assert (await ann.post(ping, headers=bearer("ann-other")).done()).status == 404
        assert (await ann.ask("ping"))["result"] == {}


# ── rules that no other file proves, and attacks ──


RULES = [*(f"AUTH-{number}" for number in range(1, 21)), *(f"SEC-{number}" for number in range(1, 13))]
TOKEN = "ann-token"
PROOF = "a.dpop.proof"

NOT_APPLICABLE = {
    "AUTH-19": "It binds proxies that come to a third-party authorization server with one static client id for all of"
    " their clients. Dovetail comes to none: a resource server verifies tokens, AuthServer signs its own users in.",
    "SEC-1": "It binds the same proxies, before they begin the third-party flow, and there is no such flow. That each"
    " program needs a consent of its own at AuthServer is SEC-2.",
}


def test_every_rule_that_binds_a_server_has_a_test() -> None:
    texts = [path.read_text() for path in Path(__file__).parent.parent.rglob("*.py")]
    marks = [mark for text in texts for mark in re.findall(r"mark\.rule\(([^)]*)\)", text)]
    proven = {rule for mark in marks for rule in re.findall(r'"([A-Z]+-\d+)"', mark)}
    assert [rule for rule in RULES if rule not in proven and rule not in NOT_APPLICABLE] == []
    assert NOT_APPLICABLE.keys() <= set(RULES)
    taken = inspect.signature(AuthServer).parameters  # with a flow of that kind the two would apply
    assert not [name for name in taken if re.search("upstream|provider|third|proxy|authorization_url", name)]


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
    async def warn(ctx: Context) -> str:
        seen.append((ctx.principal, ctx.meta, ctx.client.info, ctx.session_id, dict(ctx.headers)))
        assert ctx.headers["x-mine"] == "yes"
        seen.append(repr(vars(ctx)))
        seen.extend(
            repr(each) for each in gc.get_objects() if isinstance(each, (HttpRequest, HttpResponse, PostResponse))
        )
        return "warned"

    with caplog.at_level(logging.DEBUG):
        async with serving(server, state=state) as app:
            wire = await open_wire(app, version, headers={**bearer(), "dpop": PROOF, "x-mine": "yes"})
            for _ in range(2):  # the token is new, and then known
                assert text_of((await wire.call("warn")).answer) == "warned"
            assert (await wire.call("whoami", {"wrong": 1})).status == 200
            principals = [each for each in gc.get_objects() if isinstance(each, Principal)]
    assert len(seen) >= 3
    for text in (caplog.text, repr(seen), repr(state.kept), repr(principals), repr(server.engine.options)):
        assert TOKEN not in text
        assert PROOF not in text


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

    def ask(token: str, params: dict[str, Any]) -> HttpExchange:
        return HttpWire(app, headers=bearer(token)).start("tools/call", params)

    async with serving(bank) as app:
        capable = {"_meta": {"io.modelcontextprotocol/clientCapabilities": CAPABILITIES}}
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
