"""OAuth client credentials: a program that acts for itself has a client and no subject, and nobody to ask."""

import time
from typing import Any

import pytest
from joserfc import jwk, jwt

from dovetail import Context, Server
from dovetail.auth import Auth, Jwt, Principal
from http_stage import HANDSHAKE, MODERN, open_wire, text_of
from http_wire import HttpWire

ISSUER = "https://login.example.com"
AUDIENCE = "http://localhost:8000/mcp"
KEY = jwk.ECKey.generate_key("P-256", {"kid": "one"})
NEEDS_ELICITATION = "This needs a client that declares: elicitation.form"
MISSING_CAPABILITY = -32021
MACHINE = {"client_id": "nightly"}  # what the token of a machine says, beside the usual


def verifier() -> Jwt:
    return Jwt(ISSUER, audience=AUDIENCE, jwks={"keys": [KEY.as_dict(private=False)]})


def token(**claims: Any) -> str:
    """A good one of RFC 9068, but for the claims; None leaves one out."""
    now = int(time.time())
    usual = {"iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 600, "jti": "1", "scope": "notes:read"}
    said = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    return jwt.encode({"alg": "ES256", "typ": "at+jwt", "kid": "one"}, said, KEY)


async def principal_of(**claims: Any) -> Principal:
    found = await verifier().verify(token(**claims))
    assert found is not None
    return found


def as_bearer(text: str) -> dict[str, str | None]:
    return {"authorization": f"Bearer {text}"}


# --- who it is


@pytest.mark.parametrize(
    "claims",
    [
        {"client_id": "nightly"},
        {"client_id": "nightly", "sub": "nightly"},  # as RFC 9068 2.2 has it: the subject is the program itself
        {"azp": "nightly"},
        {"azp": "nightly", "sub": "nightly"},
    ],
)
async def test_the_token_of_a_machine_has_a_client_and_no_subject(claims: dict[str, str]) -> None:
    principal = await principal_of(**claims)
    assert (principal.client, principal.subject, principal.issuer) == ("nightly", None, ISSUER)
    assert principal.name == "nightly"
    assert principal.may("notes:read")
    assert principal.claims["jti"] == "1"


async def test_a_program_that_acts_for_a_user_has_both() -> None:
    principal = await principal_of(client_id="nightly", sub="ada")
    assert (principal.client, principal.subject, principal.name) == ("nightly", "ada", "ada")


async def test_every_token_of_a_machine_has_one_key_and_nobody_else_has_it() -> None:
    """What belongs to it is found again with the next token; a user of the same name finds nothing."""
    machine = await principal_of(**MACHINE)
    same = [{"jti": "2"}, {"scope": "notes:write"}, {"sub": "nightly"}]
    assert {(await principal_of(**MACHINE, **claims)).key for claims in same} == {machine.key}
    others = [
        {"sub": "nightly"},
        {"sub": "ada", "client_id": "nightly"},
        {"client_id": "other"},
        {"client_id": "Nightly"},
        {"sub": "nightly", "client_id": "other"},
    ]
    keys = [(await principal_of(**claims)).key for claims in others]
    assert len({machine.key, *keys}) == len(others) + 1
    assert Principal(client="nightly", issuer="https://other.example.com").key != machine.key


@pytest.mark.parametrize(
    "claims",
    [{"client_id": None}, {"client_id": ""}, {"client_id": 5}, {"client_id": ["nightly"]}, {"client_id": "n" * 5000}],
)
async def test_a_token_of_nobody_is_not_good(claims: dict[str, Any]) -> None:
    assert await verifier().verify(token(**claims)) is None


@pytest.mark.rule("AUTH-3", "AUTH-7", "AUTH-8")
@pytest.mark.parametrize(
    "wrong",
    [
        {"iss": "https://evil.example.com"},
        {"aud": "https://other.example.com/mcp"},
        {"aud": None},
        {"exp": 1},
        {"exp": None},
        {"nbf": 2**40},
    ],
)
async def test_the_token_of_a_machine_is_checked_as_any_other(wrong: dict[str, Any]) -> None:
    assert await verifier().verify(token(**{**MACHINE, **wrong})) is None


# --- what it can do


def notes_server(**options: Any) -> Server:
    server = Server("notes", version="1.0.0", auth=Auth(verifier(), **options))

    @server.tool
    async def who(ctx: Context) -> str:
        principal = ctx.principal
        assert principal is not None
        return f"{principal.subject} {principal.client} {sorted(principal.scopes)}"

    @server.tool(scopes=["notes:write"])
    async def write() -> str:
        return "written"

    @server.tool
    async def rename(ctx: Context) -> str:
        answer: Any = await ctx.elicit("Which name?", str)
        return f"renamed to {answer}"

    return server


@pytest.mark.parametrize("version", [HANDSHAKE[-1], MODERN])
async def test_a_machine_calls_tools(version: str) -> None:
    wire = await open_wire(notes_server().asgi(), version, headers=as_bearer(token(**MACHINE)))
    assert text_of((await wire.call("who")).answer) == "None nightly ['notes:read']"


@pytest.mark.rule("AUTH-11")
@pytest.mark.parametrize("version", [HANDSHAKE[-1], MODERN])
async def test_the_scopes_of_a_machine_count(version: str) -> None:
    app = notes_server(hierarchy={"notes:all": ["notes:write"]}).asgi()
    wire = await open_wire(app, version, headers=as_bearer(token(**MACHINE)))
    answer = await wire.call("write")
    assert answer.status == 403
    assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]
    able = await open_wire(app, version, headers=as_bearer(token(**MACHINE, scope="notes:all")))
    assert text_of((await able.call("write")).answer) == "written"


async def test_to_ask_where_nobody_can_answer_is_a_clear_error() -> None:
    wire = HttpWire(notes_server().asgi(), headers=as_bearer(token(**MACHINE)))
    error = (await wire.call("rename")).answer["error"]
    assert (error["code"], error["message"]) == (MISSING_CAPABILITY, NEEDS_ELICITATION)
    assert error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


async def test_to_ask_in_a_session_of_a_machine_tells_the_model() -> None:
    """Older clients do not know the code: it is the result of the call that says it, without delay."""
    wire = await HttpWire.session(notes_server().asgi(), headers=as_bearer(token(**MACHINE)))
    answer = (await wire.call("rename")).answer
    assert answer["result"]["isError"] is True
    assert text_of(answer) == NEEDS_ELICITATION


@pytest.mark.rule("SEC-7", "AUTH-15")
async def test_the_session_of_a_machine_is_its_own() -> None:
    """Bound by key: a newer token of the same machine goes on with it, and nobody else gets in."""
    app = notes_server().asgi()
    wire = await HttpWire.session(app, headers=as_bearer(token(**MACHINE)))
    wire.headers = as_bearer(token(**MACHINE, jti="2"))
    assert (await wire.call("who")).status == 200
    for other in ({"client_id": "other"}, {"sub": "nightly"}, {"sub": "ada", "client_id": "nightly"}):
        wire.headers = as_bearer(token(**other))
        assert (await wire.call("who")).status == 404
    wire.headers = {}
    assert (await wire.call("who")).status == 401
