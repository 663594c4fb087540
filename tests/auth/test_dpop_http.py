"""DPoP over HTTP: the whole way from the headers of a request to its answer, or to a challenge."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from dovetail import AuditEvent, Context, Server
from dovetail.auth import Auth, Principal, dpop
from dovetail.state.memory import MemoryState
from http_serving import Stage, serving, until
from http_wire import HANDSHAKE, MODERN, HttpExchange, HttpWire, open_wire, text_of
from issuer_stage import Prover

ORIGIN, PUBLIC = "http://localhost:8000", "https://notes.example.com"
OWNED, PLAIN = "a-bound-token", "plain-token"
OWNER, THIEF = Prover(), Prover()
SOON = 0.5  # seconds that a proof is good for, where a test waits for its end
PING = b'{"jsonrpc":"2.0","id":7,"method":"ping"}'
LISTEN = {"notifications": {"toolsListChanged": True}}
Headers = dict[str, str | None]


class Notary:
    """Knows a token that is bound to the key of its owner and one that is not; wants to be asked several times."""

    cache_seconds = SOON / 4

    def __init__(self) -> None:
        self.expires_at: float | None = None

    async def verify(self, token: str) -> Principal | None:
        claims = {OWNED: OWNER.bound, PLAIN: {}}.get(token)
        is_over = self.expires_at is not None and self.expires_at <= time.time()
        return (
            None if claims is None or is_over else Principal(subject="ada", claims=claims, expires_at=self.expires_at)
        )


class SharedMemory(MemoryState):
    """As if other processes were at it too."""

    shared = True


def app_of(dpop: Any, nonces: bool = False, audit: Any = False, **options: Any) -> Any:
    auth = Auth(Notary(), dpop=dpop, dpop_nonces=nonces)
    server = Server("notes", version="1.0.0", secret="the secret of a whole fleet", auth=auth, audit=audit)

    @server.tool
    async def who(ctx: Context) -> str:
        return ctx.principal.name if ctx.principal is not None else "nobody"

    return server.asgi(**options)


def proved(method: str = "POST", path: str = "/mcp", *, origin: str = ORIGIN, **words: Any) -> Headers:
    """The headers of a request with a proof of its own."""
    return {**OWNER.headers(method, f"{origin}{path}", OWNED, **words)}


class ProvedWire(HttpWire):
    """Each request has a proof of its own, or the headers that a test gives it."""

    def __init__(self, *arguments: Any, origin: str = ORIGIN) -> None:
        super().__init__(*arguments)
        self._origin = origin

    def raw(self, method: str, body: Any = b"", headers: Any = None, **options: Any) -> HttpExchange:
        given = proved(method, options.get("path") or self.path, origin=self._origin)
        return super().raw(method, body, {**given, **(headers or {})}, **options)


def challenges(answer: HttpExchange) -> dict[str, str]:
    """By scheme."""
    [start] = [message for message in answer.sent if message["type"] == "http.response.start"]
    lines = [value.decode() for name, value in start["headers"] if name == b"www-authenticate"]
    return {line.partition(" ")[0]: line.partition(" ")[2] for line in lines}


async def challenge_of(refused: HttpExchange) -> str:
    """What a 401 of DPoP asks for."""
    await refused.done()
    assert refused.status == 401, refused.raw
    given = challenges(refused)["DPoP"]
    assert f'algs="{" ".join(dpop.ALGORITHMS)}"' in given
    assert OWNED.encode() not in refused.raw
    return given


async def refused(app: Any, headers: Headers, error: str) -> None:
    assert f'error="{error}"' in await challenge_of(HttpWire(app).raw("POST", b"{}", headers))


# ── one app, or several of a fleet ──


@pytest.mark.parametrize("version", [HANDSHAKE[-1], MODERN])
async def test_who_knows_no_proofs_may_have_a_token_that_needs_none(version: str) -> None:
    wire = await open_wire(app_of("optional"), version, headers={"authorization": f"Bearer {PLAIN}"})
    assert text_of((await wire.call("who")).answer) == "ada"
    await refused(app_of("required"), {"authorization": f"Bearer {PLAIN}"}, "invalid_token")


async def test_a_proof_is_good_once_in_a_whole_fleet() -> None:
    state = SharedMemory()
    first, second = (app_of("required", state=state) for _ in range(2))
    headers = proved()
    assert (await HttpWire(first, headers=headers).call("who")).status == 200
    await refused(second, headers, "invalid_dpop_proof")
    await first.drain()
    await second.drain()


async def test_proofs_do_not_take_the_room_of_sessions() -> None:
    """In a state of one process, which is no larger than sessions need; and they are known after a restart."""
    state = MemoryState()
    app = app_of("required", state=state)
    wire, headers = ProvedWire(app), proved()
    for _ in range(5):
        assert (await wire.call("who")).status == 200
    assert (await HttpWire(app, headers=headers).call("who")).status == 200
    assert state.held == 0
    await app.drain()
    await app.start()
    await refused(app, headers, "invalid_dpop_proof")


async def test_with_nonces_a_client_is_refused_with_the_one_to_take() -> None:
    """RFC 9449, 9: any worker with the same secret takes it."""
    app, other = app_of("required", nonces=True), app_of("required", nonces=True)
    first = await HttpWire(app, headers=proved()).call("who")
    nonce = first.headers["dpop-nonce"]
    assert text_of((await HttpWire(other, headers=proved(nonce=nonce)).call("who")).answer) == "ada"
    assert "dpop-nonce" not in (await HttpWire(app_of("required")).call("who")).headers


async def test_the_audit_has_bad_proofs_but_no_first_steps() -> None:
    events: list[AuditEvent] = []
    app = app_of("required", nonces=True, audit=events.append)
    assert (await HttpWire(app).call("who")).status == 401
    assert (await HttpWire(app, headers=proved()).call("who")).status == 401  # it gets its nonce
    await refused(app, proved("GET"), "invalid_dpop_proof")
    await until(lambda: bool(events))
    await app.drain()
    assert [(each.reason, each.subject) for each in events] == [("invalid_dpop_proof", "ada")]


@pytest.mark.parametrize(
    ("dpop", "schemes"), [("off", {"Bearer"}), ("optional", {"Bearer", "DPoP"}), ("required", {"DPoP"})]
)
async def test_who_has_no_token_learns_which_ones_are_taken(dpop: str, schemes: set[str]) -> None:
    answer = await HttpWire(app_of(dpop)).call("who")
    assert answer.status == 401
    given = challenges(answer)
    assert set(given) == schemes
    assert all("error" not in each for each in given.values())


# ── every way in ──


class LegacyClient(NamedTuple):
    """A caller with a session and a stream of HTTP+SSE, who can go every way in."""

    wire: HttpWire
    session: HttpWire
    query: str

    @classmethod
    async def connect(cls, app: Any, **options: Any) -> "LegacyClient":
        wire = ProvedWire(app, **options)
        first = await wire.raw("GET", path="/sse").event()
        return cls(wire, await ProvedWire.session(app, **options), first.data.decode().partition("?")[2])

    def messages(self, headers: Headers) -> HttpExchange:
        return self.wire.raw("POST", PING, headers, path="/messages", query=self.query)


Go = Callable[[LegacyClient, Headers], HttpExchange]
WAYS: dict[str, tuple[Go, str, str, int]] = {
    "a call": (lambda who, sent: who.wire.start("tools/list", {}, headers=sent), "POST", "/mcp", 200),
    "GET of a session": (lambda who, sent: who.session.get(headers=sent), "GET", "/mcp", 200),
    "DELETE": (lambda who, sent: who.session.raw("DELETE", b"", sent), "DELETE", "/mcp", 204),
    "listen": (lambda who, sent: who.wire.start("subscriptions/listen", LISTEN, headers=sent), "POST", "/mcp", 200),
    "GET /sse": (lambda who, sent: who.wire.raw("GET", b"", sent, path="/sse"), "GET", "/sse", 200),
    "POST /messages": (LegacyClient.messages, "POST", "/messages", 202),
}
each_way = pytest.mark.parametrize(("go", "method", "path", "status"), WAYS.values(), ids=WAYS)
STREAMS = {name: WAYS[name] for name in ("GET of a session", "listen", "GET /sse")}
each_stream = pytest.mark.parametrize(("go", "method", "path", "status"), STREAMS.values(), ids=STREAMS)


@asynccontextmanager
async def guarded(notary: Notary | None = None, *, nonces: bool = False, **options: Any) -> AsyncIterator[Any]:
    auth = Auth(notary or Notary(), dpop="required", dpop_nonces=nonces, **options)
    async with serving(Stage(auth=auth).server, allowed_hosts=["localhost:8000"]) as app:
        yield app


@each_way
@pytest.mark.parametrize("origin", [ORIGIN, PUBLIC])
async def test_a_good_proof_passes_and_only_once(go: Go, method: str, path: str, status: int, origin: str) -> None:
    """Under the URL that clients know, which is another one behind a proxy."""
    async with guarded(public_url=None if origin == ORIGIN else f"{PUBLIC}/mcp") as app:
        client = await LegacyClient.connect(app, origin=origin)
        headers = proved(method, path, origin=origin)
        assert (await go(client, headers).started()).status == status
        assert 'error="invalid_dpop_proof"' in await challenge_of(go(client, headers))


@each_way
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda method, url: {"dpop": None}, "invalid_dpop_proof"),
        (lambda method, url: OWNER.headers("PUT", url, OWNED), "invalid_dpop_proof"),
        (lambda method, url: OWNER.headers(method, f"{ORIGIN}/other", OWNED), "invalid_dpop_proof"),
        (lambda method, url: THIEF.headers(method, url, OWNED), "invalid_token"),
        (lambda method, url: {"authorization": f"Bearer {OWNED}"}, "invalid_token"),
    ],
    ids=["none", "method", "URL", "the key of a thief", "as a plain token"],
)
async def test_any_other_proof_is_refused_and_changes_nothing(
    go: Go, method: str, path: str, status: int, change: Any, error: str
) -> None:
    async with guarded() as app:
        client = await LegacyClient.connect(app)
        bad = {**proved(method, path), **change(method, f"{ORIGIN}{path}")}
        assert f'error="{error}"' in await challenge_of(go(client, bad))
        assert (await go(client, {}).started()).status == status  # with a proof of its own: all is as it was


# ── as long as a stream is open ──


def nearly_over() -> float:
    """When a proof was made that is good for a moment yet."""
    return time.time() - dpop.LEEWAY + SOON


@pytest.mark.long
@each_stream
@pytest.mark.rule("AUTH-15", "AUTH-3")
async def test_a_stream_outlives_its_proof_and_ends_with_its_token(go: Go, method: str, path: str, status: int) -> None:
    notary = Notary()
    async with guarded(notary) as app:
        client = await LegacyClient.connect(app)
        notary.expires_at, made = time.time() + 2 * SOON, nearly_over()
        stream = await go(client, proved(method, path, iat=made)).started()
        assert stream.status == status
        await asyncio.sleep(1.2 * SOON)
        late = go(client, proved(method, path, iat=made))
        assert 'error="invalid_dpop_proof"' in await challenge_of(late)  # one of that age opens nothing any more
        assert not stream.ended or time.time() >= notary.expires_at
        await stream.done(5)
        assert time.time() >= notary.expires_at
        assert stream.sent[-1].get("more_body") is False
        assert 'error="invalid_token"' in await challenge_of(go(client, {}))
