"""Programs that sign in without a person, and keys."""

import asyncio
from typing import Any

import pytest
from joserfc.jwk import ECKey, OKPKey, RSAKey
from served_http import Visit
from sign_in_stage import METADATA, PRM, Realm, notes, realm

from authserver_stage import served
from dovetail import Client, Server
from dovetail.auth import Auth, Principal
from dovetail.auth.dpop import read_proof
from dovetail.authserver import OAuthClient
from dovetail.client.oauth import ClientCredentials, EnterpriseManaged, JwtBearer
from dovetail.client.oauth import client_credentials as machines
from dovetail.errors import NotSignedIn

pytestmark = pytest.mark.usefixtures("tidy")
MODERN = "2026-07-28"
SECRET = "a-secret-of-some-length"

KEYS: dict[str, Any] = {
    "EC": ECKey.generate_key("P-256"),
    "RSA": RSAKey.generate_key(2048),
    "Ed25519": OKPKey.generate_key("Ed25519"),
}


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
            async with Client(app.url, auth=ClientCredentials("ci", "wrong-secret-of-some-length")):
                pass
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
        fresh = iter(["assertion-1", "assertion-2"])

        async def assertion() -> str:
            return next(fresh)

        async with Client(made.url, protocol_version=MODERN, auth=JwtBearer("job", assertion)) as client:
            await client.discover()
        (form,) = made.forms
        assert form["grant_type"] == machines.JWT_BEARER
        assert form["assertion"] == "assertion-1"
        assert form["client_id"] == "job"


async def test_the_company_vouches() -> None:
    async with realm() as made, realm() as company:
        company.token = {"access_token": "jag", "issued_token_type": machines.ID_JAG, "token_type": "N_A"}
        made.change(METADATA, token_endpoint_auth_methods_supported=["client_secret_post"])
        there = {"idp_token_endpoint": f"{company.script.origin}/token", "idp_client_id": "app-there"}
        auth = EnterpriseManaged("app", SECRET, id_token="who-i-am", **there)
        async with Client(made.url, protocol_version=MODERN, auth=auth):
            pass
        asked = company.forms[0]
        assert (asked["subject_token"], asked["audience"], asked["resource"]) == (
            "who-i-am",
            made.script.origin,
            made.url,
        )
        assert "client_secret" not in asked
        assert made.forms[0]["assertion"] == "jag"
        company.token = {"access_token": "no-jag", "token_type": "Bearer"}
        made.good = set()
        with pytest.raises(NotSignedIn, match="gave no grant"):
            async with Client(made.url, auth=EnterpriseManaged("app", SECRET, id_token="x", **there)):
                pass


class BoundTokens(Realm):
    """An authorization server that binds its tokens, and wants a nonce."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[str, str] = {}  # thumbprints by token
        self.pages["/token"] = self._bind

    def _bind(self, visit: Visit) -> None:
        proof = read_proof(visit.headers["dpop"])
        said = proof.opened()
        assert (said.htm, said.htu) == ("POST", f"{self.script.origin}/token")
        if said.nonce != "issuer-nonce":
            visit.answer(400, {"error": "use_dpop_nonce"}, DPoP_Nonce="issuer-nonce")
            return
        token = f"bound-{len(self.keys)}"
        self.keys[token] = proof.thumbprint
        visit.answer(200, {"access_token": token, "token_type": "DPoP", "expires_in": 600})

    async def verify(self, token: str) -> Principal | None:
        bound = self.keys.get(token)
        return None if bound is None else Principal(subject="ann", claims={"cnf": {"jkt": bound}})


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_tokens_are_bound_to_a_key(revision: str) -> None:
    made = BoundTokens()

    def app(root: str) -> Any:
        rules = Auth(
            made.verify,
            authorization_servers=[made.script.origin],
            public_url=f"{root}/mcp",
            dpop="required",
            dpop_nonces=True,
        )
        server = Server("bound", auth=rules)
        server.add_tool(hello)
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


def hello() -> str:
    """Greet."""
    return "hello"


async def test_a_token_that_should_be_bound_and_is_not() -> None:
    async with realm() as made:
        with pytest.raises(NotSignedIn, match="not of the type DPoP"):
            async with Client(made.url, auth=made.oauth(dpop=True)):
                pass


async def test_a_server_of_2025_03_26_has_its_own_metadata() -> None:
    async with realm() as made:
        made.pages[PRM] = 404
        made.challenge = ""
        async with Client(made.url, protocol_version=MODERN, auth=made.oauth()):
            pass
        assert made.asked[0]["resource"] == made.url


async def test_or_none_at_all() -> None:
    async with realm() as made:
        made.pages[PRM] = made.pages[METADATA] = 404
        made.challenge = ""
        async with Client(made.url, protocol_version=MODERN, auth=made.oauth()):
            pass
        assert made.forms[0]["client_id"] == "app-1"


async def test_a_published_program() -> None:
    async with realm() as made:
        made.change(METADATA, client_id_metadata_document_supported=True)
        url = "https://app.example/client.json"
        async with Client(made.url, protocol_version=MODERN, auth=made.oauth(client_metadata_url=url)):
            pass
        assert made.asked[0]["client_id"] == made.forms[0]["client_id"] == url
        assert not made.registered


async def test_scopes() -> None:
    async with realm() as made:
        made.challenge += ', scope="b a"'
        made.change(PRM, scopes_supported=["all"])
        made.change(METADATA, scopes_supported=["a", "offline_access"])
        async with Client(made.url, protocol_version=MODERN, auth=made.oauth(scopes=["mine"])):
            pass
        assert made.asked[0]["scope"] == "a b mine offline_access"
        made.challenge = made.challenge.partition(",")[0]
        made.change(METADATA, scopes_supported=None)
        async with Client(made.url, protocol_version=MODERN, auth=made.oauth()):
            pass
        assert made.asked[1]["scope"] == "all"


async def test_credentials_of_your_own() -> None:
    class Vault:
        tries = 0

        async def headers(self, request: Any) -> dict[str, str]:
            return {"Authorization": "Bearer good-token"} if self.tries else {}

        async def refused(self, request: Any, challenged: Any) -> bool:
            assert (request.method, request.url, challenged.status) == ("POST", made.url, 401)
            assert challenged.challenges[0].startswith("Bearer resource_metadata=")
            self.tries += 1
            return True

    async with realm() as made:
        async with Client(made.url, protocol_version=MODERN, auth=Vault()):
            pass
        made.good = set()
        stubborn = Vault()
        with pytest.raises(NotSignedIn, match="401"):
            async with Client(made.url, protocol_version=MODERN, auth=stubborn):
                pass
        assert stubborn.tries == 4
