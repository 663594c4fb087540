"""Signing in, and what can go wrong with it."""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import ECKey, RSAKey
from msgspec.structs import replace
from scripted import ScriptedRequest, until
from sign_in_stage import METADATA, PRM, Notes, Person, Realm, notes, realm

from authserver_stage import payload, served
from dovetail import Client, Server
from dovetail.auth import Auth, Principal
from dovetail.auth.dpop import read_proof
from dovetail.authserver import OAuthClient
from dovetail.authserver.auth_store import AuthStore
from dovetail.client.oauth import ClientCredentials, EnterpriseManaged, JwtBearer, MemoryTokens, OAuth, TokenFile
from dovetail.client.oauth import client_credentials as machines
from dovetail.errors import NotSignedIn
from dovetail.state.memory import MemoryState
from issuer_stage import Clock
from provider_stage import SIGN_INS

pytestmark = pytest.mark.usefixtures("tidy")
MODERN = "2026-07-28"


async def connect(made: Realm | Notes, auth: Any) -> None:
    async with Client(made.url, protocol_version=MODERN, auth=auth):
        pass


def signing_in(person: Person, **options: Any) -> OAuth:
    return OAuth(**{"open_browser": person.open, "client_name": "A test", **options})


@pytest.mark.parametrize("row", ["passwords", *SIGN_INS])
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_the_whole_way(revision: str, row: str) -> None:
    """Registers, signs in, calls, steps up, renews its token, signs out, and signs in again."""
    person, tokens, clock = Person(), MemoryTokens(), Clock(time.time())
    name = "nobody" if row == "passwords" else "Ann Arbor"
    async with notes(row, is_cached=False, clock=clock) as served:
        options: dict[str, Any] = {"auth": signing_in(person, tokens=tokens), "protocol_version": revision}
        async with Client(served.url, **options) as client:
            assert (await client.call_tool("read")).data == "a note"
            assert person.scopes == [["notes:read"]]
            assert (await client.call_tool("write", {"text": "new"})).data == "new"  # which needs more
            assert person.scopes == [["notes:read"], ["notes:read", "notes:write"]]
            assert (await client.call_tool("read")).data == "a note"
            assert (await client.call_tool("ask_provider")).data == name
        clock.now += 20 * 86_400.0  # longer than any token of a provider is good
        options["auth"] = signing_in(person, tokens=tokens)  # as if the program had been started again
        async with Client(served.url, **options) as client:
            assert (await client.call_tool("ask_provider")).data == name
            assert (await client.call_tool("write", {"text": "more"})).data == "more"  # it was renewed with all scopes
            visits = 3 if row == "oidc" else 2  # it gave us no refresh token: for that, one would ask for a scope more
            assert len(person.asked) == visits
            (kept,) = tokens.items().values()
            assert kept.granted == ("notes:read", "notes:write")
            await served.sign_out(kept, kept.refresh_token)
            assert (await client.call_tool("write", {"text": "last"})).data == "last"
            assert person.scopes[visits:] == [["notes:read", "notes:write"]]
        assert served.paths.count("/register") == 1  # always as the same program
        assert {asked["resource"] for asked in person.asked} == {served.url}
        assert len({asked["state"] for asked in person.asked}) == visits + 1
        assert all("That is all" in page for page in person.pages)
        if served.way.at is not None:
            assert served.way.at.asked.count("authorize") == visits + 1
            refreshes = 0 if row in ("oidc", "github", "github enterprise") else 1
            assert served.way.at.refreshes == refreshes


@pytest.mark.parametrize("name", ["refresh_token", "access_token"])
@pytest.mark.parametrize("row", ["github", "keycloak"])
async def test_signing_out_ends_access_to_the_provider_even_for_a_token_that_is_cached(row: str, name: str) -> None:
    tokens, state = MemoryTokens(), MemoryState()
    async with notes(row, state=state) as served:
        await connect(served, signing_in(Person(), tokens=tokens))
        (kept,) = tokens.items().values()
        store, grant = AuthStore(state, served.auth_server.issuer), payload(kept.access_token)[1]["grant"]
        async with Client(served.url, protocol_version=MODERN, auth=kept.access_token) as client:
            assert (await client.call_tool("ask_provider")).data == "Ann Arbor"
            assert await store.get("upstream", grant)
            await served.sign_out(kept, getattr(kept, name))
            assert await store.get("upstream", grant) is None
            with pytest.raises(NotSignedIn, match="401"):
                await client.call_tool("ask_provider")
        assert await store.get("upstream", grant) is None


async def test_a_user_who_says_no_is_asked_once() -> None:
    person = Person(says_yes=False)
    async with notes() as served:
        with pytest.raises(NotSignedIn, match="did not let you in: access_denied"):
            await connect(served, signing_in(person))
        assert len(person.asked) == 1
        assert "Not signed in" in person.pages[0]


async def test_many_at_once_wait_for_one_sign_in() -> None:
    person = Person(thinks=0.1)
    async with notes() as served, Client(served.url, auth=signing_in(person)) as client:
        await asyncio.gather(*(client.call_tool("write", {"text": str(n)}) for n in range(8)))
        assert len(person.asked) == 2


@pytest.mark.slow
async def test_the_timeout_stands_still_while_the_user_signs_in() -> None:
    person = Person(thinks=1.0)
    async with notes() as served, Client(served.url, auth=signing_in(person), timeout=0.9) as client:
        assert (await client.call_tool("write", {"text": "new"})).data == "new"


@pytest.mark.parametrize("changes", [{"expires_at": time.time() - 1}, {"access_token": "revoked"}])
async def test_many_at_once_refresh_once(changes: dict[str, Any]) -> None:
    """Whether the client knows that its token is over, or the server says so."""
    person, tokens = Person(), MemoryTokens()
    async with notes() as served:
        auth = signing_in(person, tokens=tokens)
        async with Client(served.url, auth=auth) as client:
            await client.call_tool("read")
            mine: Any = auth.for_server(served.url)
            before = mine._tokens.refresh_token
            mine._tokens = replace(mine._tokens, **changes)
            (key,) = tokens.items()
            await tokens.save(key, mine._tokens)
            asked = served.paths.count("/token")
            results = await asyncio.gather(*(client.call_tool("read") for _ in range(10)))
            assert [result.data for result in results] == ["a note"] * 10
            assert served.paths.count("/token") == asked + 1
            assert len(person.asked) == 1
            assert mine._tokens.refresh_token != before  # which was good for one use only


async def test_two_programs_refresh_once_with_one_refresh_token(tmp_path: Path) -> None:
    """The second one takes what the first one got, because its own refresh token is used up."""
    person, place = Person(), tmp_path / "tokens.json"
    async with notes() as served:
        first, second = (signing_in(person, tokens=TokenFile(place)) for _ in range(2))
        async with Client(served.url, auth=first) as one, Client(served.url, auth=second) as two:
            for auth in (first, second):
                mine: Any = auth.for_server(served.url)
                mine._tokens = replace(mine._tokens, access_token="revoked")
                async with mine._source.store.exclusive(mine._key):
                    await mine._source.store.save(mine._key, mine._tokens)
            await asyncio.gather(*(client.call_tool("read") for client in (one, two)))
        assert served.paths.count("/token") == 2
        assert len(person.asked) == 1


async def test_a_program_that_was_forgotten_registers_again(tmp_path: Path) -> None:
    person, file = Person(), TokenFile(tmp_path / "tokens.json")
    async with notes() as served:
        await connect(served, signing_in(person, tokens=file))
        ((key, stored),) = file._read().items()
        async with file.exclusive(key):
            await file.save(key, replace(stored, access_token="over", client=replace(stored.client, id="dcr-nobody")))
        async with Client(served.url, auth=signing_in(person, tokens=file)) as client:
            assert (await client.call_tool("read")).data == "a note"
        assert served.paths.count("/register") == 2
        assert len(person.asked) == 2


async def test_no_token_is_ever_shown(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    person, tokens = Person(), MemoryTokens()
    auth = signing_in(person, tokens=tokens)
    with caplog.at_level(logging.DEBUG):
        async with notes() as served, Client(served.url, auth=auth) as client:
            await client.call_tool("read")
            (stored,) = tokens.items().values()
            shown = repr((auth, tokens, stored, stored.client, vars(auth.for_server(served.url))))
    printed = capfd.readouterr()
    for secret in (stored.access_token, stored.refresh_token):
        assert secret not in shown + caplog.text + printed.out + printed.err


async def test_a_token_as_text() -> None:
    async with realm() as made:
        await connect(made, "good-token")
        with pytest.raises(NotSignedIn, match="401 Unauthorized"):
            await connect(made, "wrong")
        assert not made.asked


@pytest.mark.parametrize("kind", ["secret", "assertion", "person"])
async def test_a_secret_goes_to_the_issuer_of_the_first_server_only(kind: str) -> None:
    async with realm() as good, realm() as evil:
        for made in (good, evil):
            made.change(METADATA, token_endpoint_auth_methods_supported=["client_secret_post"])
        auth: Any = {
            "secret": lambda: ClientCredentials("ci", "app-secret"),
            "assertion": lambda: JwtBearer("ci", "app-secret"),
            "person": lambda: good.oauth(client_id="app", client_secret="app-secret"),
        }[kind]()
        await connect(good, auth)
        assert "app-secret" in str(good.forms)
        with pytest.raises(NotSignedIn, match="is not shown to others") as caught:
            await connect(evil, auth)
        assert not evil.forms
        assert "app-secret" not in str(caught.value)
        evil.change(PRM, authorization_servers=[evil.script.origin, good.script.origin])
        await connect(evil, auth)  # a neighbour, with the same issuer
        assert not evil.forms
        good.good = set()
        good.change(PRM, authorization_servers=[evil.script.origin])  # the first server names another one by now
        with pytest.raises(NotSignedIn):
            await connect(good, auth)
        assert not evil.forms


REFUSALS: list[Any] = [(200, "bad_refresh_token"), (400, "token_reuse"), (400, "invalid_grant")]
FRESH = {"access_token": "good-token", "token_type": "Bearer", "refresh_token": "refresh-1"}


@pytest.mark.parametrize(("status", "word"), REFUSALS)
async def test_a_refused_refresh_leads_to_a_sign_in(status: int, word: str) -> None:
    async with realm() as made:
        fresh, auth = {**FRESH}, made.oauth()
        made.token = lambda form: (status, {"error": word}) if form["grant_type"] == "refresh_token" else fresh
        await connect(made, auth)
        made.good, fresh["access_token"] = {"second"}, "second"
        await connect(made, auth)
        assert (len(made.asked), len(made.registered)) == (2, 1)


NO_REFUSALS: dict[str, Any] = {
    "busy": (429, {"error": "later"}),
    "down": (503, {"error": "later"}),
    "down, in words": (400, {"error": "temporarily_unavailable"}),
    "a firewall": (403, b"<html>"),
    "a gateway": (404, b"no such page"),
    "something of its own": (400, {"detail": "not now"}),
}


@pytest.mark.parametrize("case", NO_REFUSALS)
async def test_what_says_nothing_about_a_refresh_token_does_not_take_it_away(case: str, tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    async with realm() as made:
        answers: list[Any] = [FRESH, NO_REFUSALS[case], {**FRESH, "access_token": "second"}]
        made.token = lambda form: answers[len(made.forms) - 1]
        await connect(made, made.oauth(tokens=file))
        made.good = {"second"}
        with pytest.raises(NotSignedIn, match="try again later"):
            await connect(made, made.oauth(tokens=file))
        await connect(made, made.oauth(tokens=file))
        assert [form["grant_type"] for form in made.forms] == ["authorization_code", "refresh_token", "refresh_token"]
        assert len(made.asked) == 1


async def test_who_is_cancelled_in_a_refresh_does_not_lose_what_came_of_it() -> None:
    """The old refresh token is used up by then."""
    tokens = MemoryTokens()
    async with realm() as made:
        made.token = lambda form: {
            **FRESH,
            "access_token": "good-token" if form["grant_type"] != "refresh_token" else "second",
            "refresh_token": f"refresh-{len(made.forms)}",
        }
        auth = made.oauth(tokens=tokens)
        async with Client(made.url, protocol_version=MODERN, auth=auth) as client:
            made.good = {"second"}
            go_on = asyncio.Event()

            async def think(request: ScriptedRequest) -> None:
                await go_on.wait()
                made._token(request)

            made.pages["/token"] = think
            call = asyncio.create_task(client.discover(fresh=True))
            await until(lambda: made.paths()[-1] == "/token")
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            go_on.set()
            await until(lambda: [stored.refresh_token for stored in tokens.items().values()] == ["refresh-2"])
            await client.discover(fresh=True)
        assert [form["grant_type"] for form in made.forms] == ["authorization_code", "refresh_token"]


SECRET = "a-secret-of-some-length"
KEYS: dict[str, Any] = {"EC": ECKey.generate_key("P-256"), "RSA": RSAKey.generate_key(2048)}


def machine(**options: Any) -> OAuthClient:
    return OAuthClient(id="ci", grant_types=["client_credentials"], scopes=["notes:read"], **options)


async def test_a_secret() -> None:
    async with notes(clients=[machine(secret=SECRET)]) as app:
        async with Client(app.url, auth=ClientCredentials("ci", SECRET, issuer=app.auth_server.issuer)) as client:
            assert (await client.call_tool("read")).data == "a note"
            with pytest.raises(NotSignedIn, match="invalid_scope"):
                await client.call_tool("write", {"text": "it may not"})
        assert app.paths.count("/authorize") == 0
        with pytest.raises(NotSignedIn, match="invalid_client") as caught:
            await connect(app, ClientCredentials("ci", "wrong-secret-of-some-length"))
        assert "wrong-secret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["EC", "RSA"])
@pytest.mark.parametrize("form", ["pem", "jwk"])
async def test_a_key(kind: str, form: str) -> None:
    key = KEYS[kind]
    given = key.as_pem(private=True).decode() if form == "pem" else key.as_dict(private=True)
    known = machine(jwks={"keys": [key.as_dict(private=False)]})
    auth = ClientCredentials("ci", private_key=given)
    async with notes(clients=[known]) as app, Client(app.url, auth=auth) as client:
        assert (await client.call_tool("read")).data == "a note"


async def test_a_token_that_is_over_is_asked_for_before_the_server_says_so() -> None:
    async with realm() as made:
        made.token = lambda form: {"access_token": f"t{len(made.forms)}", "token_type": "Bearer", "expires_in": 0.05}
        made.good = {f"t{n}" for n in range(1, 9)}
        made.change(METADATA, token_endpoint_auth_methods_supported=["client_secret_basic"])
        async with Client(made.url, protocol_version=MODERN, auth=ClientCredentials("a:b", "c d")) as client:
            await asyncio.sleep(0.06)
            await asyncio.gather(*(client.discover() for _ in range(5)))
        assert len(made.forms) == 2
        assert made.forms[0]["authorization"] == "Basic YSUzQWI6Yytk"  # each part is encoded on its own
        assert sum("authorization" not in headers for headers in made.headers) == 1


async def test_the_platform_vouches() -> None:
    async with realm() as made:

        async def assertion() -> str:
            return "assertion-1"

        await connect(made, JwtBearer("job", assertion))
        (form,) = made.forms
        found = [form[name] for name in ("grant_type", "assertion", "client_id")]
        assert found == [machines.JWT_BEARER, "assertion-1", "job"]


async def test_the_company_vouches() -> None:
    async with realm() as made, realm() as company:
        company.token = {"access_token": "jag", "issued_token_type": machines.ID_JAG, "token_type": "N_A"}
        made.change(METADATA, token_endpoint_auth_methods_supported=["client_secret_post"])
        there = {"idp_token_endpoint": f"{company.script.origin}/token", "idp_client_id": "app-there"}
        auth = EnterpriseManaged("app", SECRET, id_token="who-i-am", **there)
        await connect(made, auth)
        asked = company.forms[0]
        found = [asked.get(name) for name in ("subject_token", "audience", "resource", "client_secret")]
        assert found == ["who-i-am", made.script.origin, made.url, None]
        assert made.forms[0]["assertion"] == "jag"
        company.token = {"access_token": "no-jag", "token_type": "Bearer"}
        made.good = set()
        with pytest.raises(NotSignedIn, match="gave no grant"):
            await connect(made, EnterpriseManaged("app", SECRET, id_token="x", **there))


class BoundTokens(Realm):
    """An authorization server that binds its tokens, and wants a nonce."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[str, str] = {}  # thumbprints by token
        self.pages["/token"] = self._bind

    def _bind(self, request: ScriptedRequest) -> None:
        proof = read_proof(request.headers["dpop"])
        said = proof.verified()
        assert (said.htm, said.htu) == ("POST", f"{self.script.origin}/token")
        if said.nonce != "issuer-nonce":
            request.answer(400, {"error": "use_dpop_nonce"}, DPoP_Nonce="issuer-nonce")
            return
        token = f"bound-{len(self.keys)}"
        self.keys[token] = proof.thumbprint
        request.answer(200, {"access_token": token, "token_type": "DPoP", "expires_in": 600})

    async def verify(self, token: str) -> Principal | None:
        bound = self.keys.get(token)
        return None if bound is None else Principal(subject="ann", claims={"cnf": {"jkt": bound}})


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_tokens_are_bound_to_a_key(revision: str) -> None:
    made = BoundTokens()

    def app(root: str) -> Any:
        known = {"authorization_servers": [made.script.origin], "public_url": f"{root}/mcp"}
        server = Server("bound", auth=Auth(made.verify, **known, dpop="required", dpop_nonces=True))
        server.add_tool(lambda: "hello", name="hello", description="Greet.")
        return server.asgi()

    async with made.script, served(app) as root:
        auth = made.oauth(dpop=True)
        async with Client(f"{root}/mcp", auth=auth, protocol_version=revision) as client:
            for _ in range(3):
                assert (await client.call_tool("hello")).data == "hello"
        assert len(made.keys) == 1
        with pytest.raises(NotSignedIn, match="bound to a key"):
            async with Client(f"{root}/mcp", auth="bound-0"):
                pass


async def test_a_token_that_should_be_bound_and_is_not() -> None:
    async with realm() as made:
        with pytest.raises(NotSignedIn, match="not of the type DPoP"):
            await connect(made, made.oauth(dpop=True))


@pytest.mark.parametrize("metadata", [True, False])
async def test_a_server_of_2025_03_26_has_metadata_of_its_own_or_none_at_all(metadata: bool) -> None:
    async with realm() as made:
        made.pages[PRM] = 404
        made.challenge = ""
        if not metadata:
            made.pages[METADATA] = 404
        await connect(made, made.oauth())
        assert made.asked[0]["resource"] == made.url
        assert made.forms[0]["client_id"] == "app-1"


async def test_a_published_program() -> None:
    async with realm() as made:
        made.change(METADATA, client_id_metadata_document_supported=True)
        url = "https://app.example/client.json"
        await connect(made, made.oauth(client_metadata_url=url))
        assert made.asked[0]["client_id"] == made.forms[0]["client_id"] == url
        assert not made.registered


async def test_scopes() -> None:
    async with realm() as made:
        made.challenge += ', scope="b a"'
        made.change(PRM, scopes_supported=["all"])
        made.change(METADATA, scopes_supported=["a", "offline_access"])
        await connect(made, made.oauth(scopes=["mine"]))
        assert made.asked[0]["scope"] == "a b mine offline_access"
        made.challenge = made.challenge.partition(",")[0]
        made.change(METADATA, scopes_supported=None)
        await connect(made, made.oauth())
        assert made.asked[1]["scope"] == "all"


async def test_credentials_of_your_own() -> None:
    class Vault:
        tries = 0

        async def headers(self, request: Any) -> dict[str, str]:
            return {"Authorization": "Bearer good-token"} if self.tries else {}

        async def refused(self, request: Any, challenge: Any) -> bool:
            assert (request.method, request.url, challenge.status) == ("POST", made.url, 401)
            assert challenge.challenges[0].startswith("Bearer resource_metadata=")
            self.tries += 1
            return True

    async with realm() as made:
        await connect(made, Vault())
        made.good = set()
        stubborn = Vault()
        with pytest.raises(NotSignedIn, match="401"):
            await connect(made, stubborn)
        assert stubborn.tries == 4
