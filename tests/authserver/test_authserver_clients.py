"""Programs: those that register themselves, those that publish a document, and those that sign."""

import json
import logging
import re
import socket
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey

from authserver_stage import CALLBACK, ISSUER, NATIVE, RESOURCE, Browser, Program, Stage, basic
from dovetail.auth.jose import SigningKey, check_public_keys, read_assertion, unverified_subject
from dovetail.authserver import OAuthClient
from dovetail.protocol.pagination import encode_base64url
from http_serving import hosted

# ── registration ──


async def test_a_program_registers_itself(stage: Stage) -> None:
    reply = await stage.register(
        redirect_uris=[NATIVE],
        client_name="Inspector",
        grant_types=["authorization_code", "refresh_token"],
        token_endpoint_auth_method="none",
        software_id="ignored",
    )
    assert reply.status == 201
    assert reply.headers["cache-control"] == "no-store"
    assert "client_secret" not in reply.json
    tokens = await Program(stage, reply.json["client_id"], "http://127.0.0.1:3000/callback").tokens()
    assert tokens["refresh_token"]


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post", None])
async def test_a_program_may_have_a_secret(method: str | None, stage: Stage) -> None:
    chosen = {} if method is None else {"token_endpoint_auth_method": method}
    known = (await stage.register(redirect_uris=[CALLBACK], **chosen)).json
    assert known["token_endpoint_auth_method"] == (method or "client_secret_basic")
    program = Program(stage, known["client_id"])
    code = await program.code()
    assert (await program.redeem(code)).json["error"] == "invalid_client"
    reply = await program.redeem(code, basic(known["client_id"], known["client_secret"]), client_id=None)
    assert reply.status == 200


BAD_URIS = [
    "http://app.example.com/cb", "https://a.example/#x", "https://u:p@a.example/", "https://*.example.com/",
    "https://a.example/x/../y", "https://a.example/%2e%2E/y", "javascript:alert(1)//https://x", "data:text/html,x",
    "myapp://callback", "https:///x", "https://a.example/\r\nX: y", "https://a.example:x/",
    "https://a.example/" + "x" * 2000,
]  # fmt: skip
BAD_METADATA: list[dict[str, Any]] = [
    {"client_name": 3}, {"grant_types": ["client_credentials"]}, {"response_types": ["token"]},
    {"token_endpoint_auth_method": "tls"}, {"token_endpoint_auth_method": "private_key_jwt"},
    {"redirect_uris": CALLBACK},
]  # fmt: skip


@pytest.mark.rule("AUTH-20")
@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        *(
            ({"redirect_uris": uris}, "invalid_redirect_uri")
            for uris in ([], [CALLBACK] * 11, *([uri] for uri in BAD_URIS))
        ),
        *(({"redirect_uris": [CALLBACK], **wrong}, "invalid_client_metadata") for wrong in BAD_METADATA),
    ],
)
async def test_what_can_not_be_registered(metadata: dict[str, Any], error: str) -> None:
    reply = await Stage().register(**metadata)
    assert (reply.status, reply.json["error"]) == (400, error)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 5000, b'"x"'])
async def test_what_is_no_metadata(body: bytes) -> None:
    reply = await Stage().request("POST", "/register", body, {"content-type": "application/json"})
    assert (reply.status, reply.json["error"]) == (400, "invalid_client_metadata")


async def test_an_unused_program_is_forgotten(stage: Stage) -> None:
    known = (await stage.register(redirect_uris=[CALLBACK], token_endpoint_auth_method="none")).json["client_id"]
    unused = (await stage.register(redirect_uris=[CALLBACK], token_endpoint_auth_method="none")).json["client_id"]
    assert await Program(stage, known).tokens()
    stage.clock.now += 80 * 86_400
    assert (await Browser(stage).open(Program(stage, unused).url())).status == 400
    assert await Program(stage, known).tokens()
    stage.clock.now += 91 * 86_400
    assert (await Browser(stage).open(Program(stage, known).url())).status == 400


# ── documents ──


class Website:
    """Serves one document, and counts how often."""

    def __init__(self) -> None:
        self.document: Any = {}
        self.asked = 0
        self.kind = b"application/json"
        self.status = 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.asked += 1
        headers = [(b"content-type", self.kind), (b"location", b"/elsewhere")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        body = self.document if isinstance(self.document, bytes) else json.dumps(self.document).encode()
        await send({"type": "http.response.body", "body": body})


async def test_a_program_is_known_by_its_document() -> None:
    website = Website()
    async with hosted(website, lifespan="off") as root:
        stage = Stage(allow_loopback_cimd=True)
        url = f"{root}/client.json"
        website.document = {
            "client_id": url, "client_name": "Published", "redirect_uris": [NATIVE],
            "grant_types": ["authorization_code", "refresh_token"],
        }  # fmt: skip
        program = Program(stage, url, "http://127.0.0.1:9/callback")
        page = await Browser(stage).open(program.url())
        assert "Published" in page.text
        assert (await program.tokens())["refresh_token"]
        assert website.asked == 1
        stage.clock.now += 301
        assert (await program.tokens())["refresh_token"]
        assert website.asked == 2


GOOD = {"redirect_uris": [CALLBACK], "client_name": "x"}


@pytest.mark.parametrize(
    ("document", "status", "kind"),
    [
        ({**GOOD, "client_id": "https://other.example.com/client.json"}, 200, "application/json"),
        (GOOD, 200, "application/json"),
        ({**GOOD, "client_id": None, "token_endpoint_auth_method": "client_secret_post"}, 200, "application/json"),
        ({**GOOD, "client_id": None, "client_secret": "x"}, 200, "application/json"),
        ({"client_id": None, "redirect_uris": ["http://app.example.com/cb"]}, 200, "application/json"),
        ({**GOOD, "client_id": None}, 404, "application/json"),
        ({**GOOD, "client_id": None}, 302, "application/json"),
        ({**GOOD, "client_id": None}, 200, "text/html"),
        (b"[" * 2000, 200, "application/json"),
        (b"{" + b" " * 20_000 + b"}", 200, "application/json"),
    ],
)
async def test_a_document_that_does_not_do(document: Any, status: int, kind: str) -> None:
    website = Website()
    async with hosted(website, lifespan="off") as root:
        url = f"{root}/client.json"
        website.status, website.kind = status, kind.encode()
        website.document = (
            {**document, "client_id": document["client_id"] or url} if "client_id" in document else document
        ) if isinstance(document, dict) else document  # fmt: skip
        page = await Browser(stage := Stage(allow_loopback_cimd=True)).open(Program(stage, url).url())
        assert (page.status, "location" in page.headers) == (400, False)


@pytest.mark.parametrize(
    "url",
    [
        "http://app.example.com/client.json", "http://127.0.0.1:1/client.json", "https://127.0.0.1/client.json",
        "https://localhost/client.json", "https://[::1]/client.json", "https://169.254.169.254/latest/meta-data",
        "https://10.0.0.1/client.json", "https://[::ffff:127.0.0.1]/client.json", "https://2130706433/client.json",
        "https://user@app.example.com/client.json", "https://app.example.com/../client.json",
        "https://app.example.com/client.json#x", "https://app.example.com", "https://app.example.com/",
        "https://app.example.com/" + "x" * 1000,
    ],
)  # fmt: skip
async def test_a_document_is_never_fetched_from_within(url: str, stage: Stage) -> None:
    page = await Browser(stage).open(Program(stage, url).url())
    assert (page.status, "location" in page.headers) == (400, False)


# ── signed assertions ──


KEY = ECKey.generate_key("P-256", private=True)
ROBOT = OAuthClient(
    id="robot", grant_types=["client_credentials"], scopes=["notes:read"],
    jwks={"keys": [{**KEY.as_dict(private=False), "kid": "1", "alg": "ES256"}]},
)  # fmt: skip
ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


def signed(stage: Stage, key: Any = KEY, alg: str = "ES256", **changed: Any) -> str:
    now = int(stage.clock.now)
    claims = {"iss": "robot", "sub": "robot", "aud": ISSUER, "exp": now + 60, "iat": now, "jti": "1", **changed}
    return jwt.encode({"alg": alg}, {k: v for k, v in claims.items() if v is not None}, key, algorithms=[alg])


async def by_assertion(stage: Stage, assertion: str, kind: str = ASSERTION) -> Any:
    form = {"grant_type": "client_credentials", "client_assertion_type": kind, "client_assertion": assertion}
    return await stage.token(**form)


async def test_client_credentials_by_signature_and_each_once() -> None:
    stage = Stage(clients=[ROBOT])
    assertion = signed(stage)
    reply = await by_assertion(stage, assertion)
    principal = await stage.server.verify(reply.json["access_token"])
    assert principal is not None
    assert (principal.subject, principal.client, principal.scopes) == (None, "robot", {"notes:read"})
    assert (await by_assertion(stage, assertion)).json["error"] == "invalid_client"
    assert (await by_assertion(stage, signed(stage, jti="2", aud=[ISSUER + "/token"]))).status == 200


@pytest.mark.parametrize(
    "changed",
    [
        {"aud": []}, {"aud": [[ISSUER]]}, {"aud": ["https://evil.example", ISSUER]}, {"iss": "app"}, {"sub": "app"},
        {"sub": None}, {"aud": RESOURCE}, {"aud": None}, {"aud": 3}, {"exp": 1}, {"exp": None}, {"exp": "soon"},
        {"exp": 4_000_000_000}, {"jti": None}, {"jti": ""}, {"jti": "x" * 300}, {"nbf": 3_000_000_000},
    ],
)  # fmt: skip
async def test_an_assertion_says_all_that_it_must(changed: dict[str, Any]) -> None:
    stage = Stage(clients=[ROBOT])
    reply = await by_assertion(stage, signed(stage, **changed))
    assert (reply.status, reply.json["error"]) == (401, "invalid_client")


async def test_an_assertion_is_signed_by_the_right_key() -> None:
    stage = Stage(clients=[ROBOT])
    stranger = ECKey.generate_key("P-256", private=True)
    public = json.dumps(KEY.as_dict(private=False)).encode()
    parts = signed(stage).split(".")
    for assertion in (
        signed(stage, stranger),
        signed(stage, OctKey.import_key(public + b"x" * 20), "HS256"),
        "eyJhbGciOiJub25lIn0." + parts[1] + ".",
        ".".join([*parts[:2], "AAAA"]),
        "nonsense",
        "é.é.é",
        "a." + "b" * 17_000 + ".c",
    ):
        assert (await by_assertion(stage, assertion)).json["error"] == "invalid_client"
    assert (await by_assertion(stage, signed(stage), "other")).json["error"] == "invalid_client"
    assert (await stage.token(grant_type="client_credentials", client_id="robot")).json["error"] == "invalid_client"


@pytest.mark.parametrize(
    "jwks",
    [
        None, {}, {"keys": []}, {"keys": [1]}, {"keys": [{"kty": "oct", "k": "AAAA"}]}, {"keys": [{"kty": "EC"}]},
        {"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}, {"keys": [KEY.as_dict(private=True)]},
        {"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]},
        {"keys": [{"kty": "RSA", "n": "B" * 342, "e": "B" * 342}]}, {"keys": [KEY.as_dict(private=False)] * 11},
    ],
)  # fmt: skip
def test_keys_that_are_none(jwks: Any) -> None:
    assert check_public_keys(jwks) is not None


@pytest.mark.parametrize(
    ("bits", "exponent", "good"),
    [(2047, 65537, False), (2048, 65537, True), (8192, 65537, True), (8193, 65537, False), (2048, 2**65 + 1, False)],
)
def test_an_rsa_key_is_neither_weak_nor_slow(bits: int, exponent: int, good: bool) -> None:
    numbers = {"n": 2**bits - 1, "e": exponent}
    texts = {name: encode_base64url(each.to_bytes((each.bit_length() + 7) // 8)) for name, each in numbers.items()}
    why = check_public_keys({"keys": [{"kty": "RSA", **texts}]})
    assert (why is None) is good


def test_what_a_key_has_signed_is_read_by_its_type_only() -> None:
    key, other = SigningKey.new(), SigningKey.new()
    token = key.sign({"sub": "ann"}, "at+jwt")
    assert key.read(token, "at+jwt") == {"sub": "ann"}
    assert SigningKey(key.jwk).read(token, "at+jwt") == {"sub": "ann"}
    assert key.read(token, "JWT") is None
    assert other.read(token, "at+jwt") is None
    assert unverified_subject(token) == "ann"
    assert read_assertion(token, {"keys": [other.public]}) is None
    assert read_assertion(token, {"keys": [other.public, key.public]}) == {"sub": "ann"}
    assert "d" not in key.public


async def test_clients_do_not_learn_which_names_there_are_inside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def getaddrinfo(host: str, port: int, **_: Any) -> Any:
        if host == "builds.corp.internal":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.1.2.3", port))]
        raise socket.gaierror(-2, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    caplog.set_level(logging.INFO, "dovetail.authserver")
    stage, said = Stage(), set()
    for host in ("builds.corp.internal", "nothing.corp.internal"):
        reply = await Browser(stage).open(Program(stage, f"https://{host}/client").url())
        said |= set(re.findall("<p>(.*?)</p>", reply.text))
        assert host in caplog.text
    assert said == {"client_id: no JSON document could be fetched from this URL"}
