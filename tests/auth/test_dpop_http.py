"""DPoP over HTTP: the whole way from the headers of a request to its answer, or to a challenge."""

import time
from typing import Any

import pytest
from proof_making import KEY, OTHER, TOKEN, bound, proof

from dovetail import AuditEvent, Context, Server
from dovetail.auth import Auth, Principal
from dovetail.auth.dpop import ALGORITHMS
from dovetail.state.memory import MemoryState
from http_serving import until
from http_stage import HANDSHAKE, MODERN, open_wire, text_of
from http_wire import HttpWire

URL = "http://localhost:8000/mcp"
PLAIN = "plain-token"
SECRET = "the secret of a whole fleet"
EVERY_REVISION = pytest.mark.parametrize("version", [HANDSHAKE[-1], MODERN])


async def verify(token: str) -> Principal | None:
    claims = {TOKEN: bound(), PLAIN: {}}.get(token)
    return None if claims is None else Principal(subject="ada", claims=claims)


class SharedMemory(MemoryState):
    """As if other processes were at it too."""

    shared = True


def app_of(dpop: Any, nonces: bool = False, audit: Any = False, **options: Any) -> Any:
    auth = Auth(verify, dpop=dpop, dpop_nonces=nonces)
    server = Server("notes", version="1.0.0", secret=SECRET, auth=auth, audit=audit)

    @server.tool
    async def who(ctx: Context) -> str:
        return ctx.principal.name if ctx.principal is not None else "nobody"

    return server.asgi(**options)


def proved(token: str = TOKEN, *, key: Any = KEY, **said: Any) -> dict[str, str | None]:
    """The headers of a request with a proof of its own."""
    fresh = proof(said={"htu": URL, "iat": time.time(), **said}, key=key)
    return {"authorization": f"DPoP {token}", "dpop": fresh}


class ProvingWire(HttpWire):
    """Every request has a proof of its own, as a client that knows DPoP has it."""

    def raw(self, method: str, body: Any = b"", headers: Any = None, **options: Any) -> Any:
        return super().raw(method, body, {**proved(htm=method), **(headers or {})}, **options)


def challenges(answer: Any) -> dict[str, str]:
    """By scheme."""
    [start] = [message for message in answer.sent if message["type"] == "http.response.start"]
    lines = [value.decode() for name, value in start["headers"] if name == b"www-authenticate"]
    return {line.partition(" ")[0]: line.partition(" ")[2] for line in lines}


async def refused(
    app: Any, headers: dict[str, str | None], error: str, more: list[tuple[bytes, bytes]] | None = None
) -> None:
    answer = await HttpWire(app).raw("POST", b"{}", headers, more=more).done()
    assert answer.status == 401
    given = challenges(answer)["DPoP"]
    assert f'error="{error}"' in given
    assert f'algs="{" ".join(ALGORITHMS)}"' in given
    assert TOKEN.encode() not in answer.raw


@EVERY_REVISION
async def test_who_knows_no_proofs_may_have_a_token_that_needs_none(version: str) -> None:
    wire = await open_wire(app_of("optional"), version, headers={"authorization": f"Bearer {PLAIN}"})
    assert text_of((await wire.call("who")).answer) == "ada"
    await refused(app_of("required"), {"authorization": f"Bearer {PLAIN}"}, "invalid_token")


@pytest.mark.parametrize("dpop", ["optional", "required"])
async def test_a_stolen_token_is_worth_nothing(dpop: str) -> None:
    """As a plain one, even with a proof at its side; with the thief's own key; and after the owner used it."""
    app = app_of(dpop)
    own = proved()
    assert (await HttpWire(app, headers=own).call("who")).status == 200
    await refused(app, {"authorization": f"Bearer {TOKEN}"}, "invalid_token")
    await refused(app, {**proved(), "authorization": f"Bearer {TOKEN}"}, "invalid_token")
    await refused(app, {**proved(), "authorization": f"bearer {TOKEN}"}, "invalid_token")
    await refused(app, proved(key=OTHER), "invalid_token")
    await refused(app, own, "invalid_dpop_proof")


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
    wire, headers = ProvingWire(app), proved()
    for _ in range(5):
        assert (await wire.call("who")).status == 200
    assert (await HttpWire(app, headers=headers).call("who")).status == 200
    assert state.held == 0
    await app.drain()
    await app.start()
    await refused(app, headers, "invalid_dpop_proof")


async def test_with_nonces_a_client_is_told_which_one_to_take() -> None:
    """RFC 9449, 9: refused once, with what to come back with; any worker with the same secret takes it."""
    app, other = app_of("required", nonces=True), app_of("required", nonces=True)
    told = await HttpWire(app, headers=proved()).call("who")
    assert told.status == 401
    assert 'error="use_dpop_nonce"' in challenges(told)["DPoP"]
    nonce = told.headers["dpop-nonce"]
    assert text_of((await HttpWire(other, headers=proved(nonce=nonce)).call("who")).answer) == "ada"
    for wrong in ("guess", ""):
        assert (await HttpWire(app, headers=proved(nonce=wrong)).call("who")).headers["dpop-nonce"] == nonce
    assert "dpop-nonce" not in (await HttpWire(app_of("required")).call("who")).headers


async def test_the_audit_tells_of_bad_proofs_but_not_of_first_steps() -> None:
    events: list[AuditEvent] = []
    app = app_of("required", nonces=True, audit=events.append)
    assert (await HttpWire(app).call("who")).status == 401
    assert (await HttpWire(app, headers=proved()).call("who")).status == 401  # it gets its nonce
    await refused(app, proved(htm="GET"), "invalid_dpop_proof")
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
