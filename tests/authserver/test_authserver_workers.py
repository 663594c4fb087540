"""An authorization server beside several workers: whichever answers, a token is good at all of them, or at none."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import stores
from authserver_stage import CLIENTS, ISSUER, RESOURCE, SCOPES, SECRET, USERS, Browser, Program, Reply, Stage, basic
from dovetail import Context, Server
from dovetail.auth import Jwt, VerifierUnavailable
from dovetail.authserver import AuthServer, Passwords
from http_wire import HttpExchange, HttpWire, text_of
from provider_stage import SIGN_INS, Signing, signing
from remote_state import RemoteState

CREDENTIALS = {"grant_type": "client_credentials"}


# ── in one process: apps of the same fleet ──


def beside(state: str | None = None) -> AuthServer:
    return AuthServer(ISSUER, resource=RESOURCE, sign_in=Passwords(USERS), clients=CLIENTS, scopes=SCOPES, state=state)


def notes(auth: Any) -> Server:
    server = Server("notes", auth=auth)

    @server.tool
    def ping() -> str:
        """Tell that it is there."""
        return "pong"

    return server


class Worker(Stage):
    """An app with the pages of an authorization server; browsers and programs come to it as to a stage."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.base = ""
        self.address = "203.0.113.7"
        self.table = self

    def find(self, path: str) -> Any:
        return self.app

    async def request(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Reply:
        return await super().request(method, target, body, {"host": "127.0.0.1", **(headers or {})})

    async def own_token(self) -> str:
        reply = await self.token(basic("ci", SECRET), **CREDENTIALS)
        return str(reply.json["access_token"])

    async def revoke(self, token: str) -> None:
        assert (await self.post("revoke", {"token": token}, basic("ci", SECRET))).status == 200

    async def may_call(self, token: str) -> bool:
        return (await HttpWire(self.app, headers={"authorization": f"Bearer {token}"}).call("ping")).status == 200


@asynccontextmanager
async def started(app: Any) -> AsyncIterator[Worker]:
    await app.start()
    try:
        yield Worker(app)
    finally:
        await app.drain(1)


def worker(url: str, issuing: AuthServer) -> Any:
    """With both, the pages and the verifier."""
    return started(notes(issuing).asgi(state=url))


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/state.db"


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stores.StoreServer]:
    stores.demand()
    server = stores.StoreServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite"))
    server = request.getfixturevalue("redis")
    server.command("FLUSHALL")
    return str(server.url)


async def test_a_flow_goes_from_worker_to_worker(url: str) -> None:
    async with worker(url, beside()) as first, worker(url, beside()) as second:
        program = Program(first)
        code = await program.code()
        program.stage = second
        tokens = [(await program.redeem(code)).json]
        for stage in (first, second, first):
            program.stage = stage
            tokens.append((await program.refresh(tokens[-1]["refresh_token"])).json)
        for stage, token in zip((first, second, first, second), tokens, strict=True):
            assert await stage.may_call(token["access_token"])
        program.stage = second  # where the copy of a thief is used
        assert (await program.refresh(tokens[0]["refresh_token"])).json["error"] == "invalid_grant"
        assert (await program.refresh(tokens[-1]["refresh_token"])).json["error"] == "invalid_grant"
        for stage, token in zip((second, first, second, first), tokens, strict=True):  # which have not met it before
            assert not await stage.may_call(token["access_token"])


@pytest.mark.parametrize("ending", [0, 1], ids=["the first", "the second"])
async def test_two_apps_with_one_authorization_server_do_not_know_each_other(url: str, ending: int) -> None:
    """When one of them ends, the other goes on to see what is revoked elsewhere."""
    issuing = beside()
    async with worker(url, beside()) as elsewhere, AsyncExitStack() as here:
        apps = [await here.enter_async_context(worker(url, issuing)) for _ in range(2)]
        token, other = await elsewhere.own_token(), await apps[0].own_token()
        await apps.pop(ending).app.drain(1)
        assert await apps[0].may_call(other)
        assert await elsewhere.may_call(other)
        await elsewhere.revoke(token)
        assert not await apps[0].may_call(token)


async def test_a_key_of_before_gives_way_to_that_of_the_fleet(sqlite: str) -> None:
    here = beside()
    assert await here.verify("too.early.token") is None
    async with worker(sqlite, beside()) as second, worker(sqlite, here) as first:
        assert await first.may_call(await second.own_token())


async def test_a_memory_of_its_own_in_a_fleet_is_reported(sqlite: str, caplog: pytest.LogCaptureFixture) -> None:
    async with started(notes(Stage().server).asgi(state=sqlite)):
        assert "AuthServer: state=" in caplog.text


# ── a server that is protected by it ──


async def test_other_servers_take_its_tokens_by_the_published_key(stage: Stage) -> None:
    stage.clock.now = time.time()
    keys = (await stage.get("jwks")).json
    token = (await Program(stage).tokens())["access_token"]
    principal = await Jwt(ISSUER, RESOURCE, jwks=keys).verify(token)
    assert principal is not None
    own = await stage.server.verify(token)
    assert own is not None
    assert (principal.subject, principal.client, principal.scopes) == ("ann", "app", {"notes:read"})
    assert principal.key == own.key, "the same caller, at every worker that verifies the token"
    assert await Jwt(ISSUER, "https://other.example.com/mcp", jwks=keys).verify(token) is None


async def test_a_store_that_does_not_answer_refuses_no_caller_for_good() -> None:
    state = RemoteState()
    stage = Stage(state=state)
    token = (await Program(stage).tokens())["access_token"]
    state.break_down()
    with pytest.raises(VerifierUnavailable):
        await stage.server.verify(token)
    registered = {"client_id": "dcr-x", "grant_type": "authorization_code"}
    assert (await stage.token(**registered)).json["error"] == "temporarily_unavailable"
    assert (await Browser(stage).open(Program(stage, "dcr-x").url())).status == 503


# ── what a provider gives once ──


class WritableState(RemoteState):
    remote = (*RemoteState.remote, "put")


@asynccontextmanager
async def refreshing(state: RemoteState) -> AsyncIterator[tuple[Signing, Any, HttpExchange]]:
    """An app, and a call for which the provider is refreshing a token; it takes each refresh token once."""
    async with signing("auth0", stage={"state": state, "access_seconds": 100_000}) as here:
        server = Server("notes", auth=here.stage.server)

        @server.tool
        async def upstream_token(ctx: Context) -> str:
            return await ctx.upstream_token()

        bearer = {"authorization": f"Bearer {(await here.tokens())['access_token']}"}
        here.stage.clock.now += 86_400
        here.at.failures["refresh"] = "slow"
        async with started(server.asgi(state=state)) as worker:
            call = HttpWire(worker.app, headers=bearer).start_call("upstream_token")
            await until(lambda: here.at.refreshes)
            yield here, worker.app, call


async def until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def token_elsewhere(here: Signing, call: HttpExchange) -> str:
    """The token that the caller gets from another worker."""
    beside = Stage(clock=here.stage.clock, sign_in=SIGN_INS["auth0"](here.at, {}), state=here.stage.state)
    verifier = beside.server
    principal = await verifier.verify(dict(call.scope["headers"])[b"authorization"].decode().removeprefix("Bearer "))
    assert principal is not None
    return str(await verifier.upstream_token(principal, here.stage.state))  # type: ignore[attr-defined]


async def test_a_refreshed_token_is_stored_even_if_the_store_is_away_for_a_moment() -> None:
    state = WritableState()
    async with refreshing(state) as (here, _, call):
        state.break_down()
        known = state.calls["put"]
        here.at.go.set()
        await until(lambda: state.calls["put"] > known)
        state.error = None
        token = text_of((await call.done()).answer)
        assert here.at.is_good(token)
        assert await token_elsewhere(here, call) == token
        assert here.at.refreshes == 1


async def test_a_worker_that_ends_waits_for_a_refresh_even_if_its_caller_has_left() -> None:
    async with refreshing(RemoteState()) as (here, app, call):
        call.leave()
        ending = asyncio.create_task(app.drain(10))
        await asyncio.wait({ending}, timeout=0.2)
        assert call.ended
        assert not ending.done(), "what the provider gives now would be lost with this process"
        here.at.go.set()
        await ending
        assert here.at.is_good(await token_elsewhere(here, call))
        assert here.at.refreshes == 1
