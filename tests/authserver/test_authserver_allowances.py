"""What strangers may write into the store: so much from one network, from one customer, and from everybody."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from authserver_stage import CALLBACK, ISSUER, Program, Stage
from dovetail.auth.fetch import Fetched, FetchRequest
from dovetail.authserver import client_proofs, clients, registration
from dovetail.authserver.allowances import Allowance
from dovetail.authserver.networks import customer_of
from dovetail.authserver.refusals import OAuthRefusal
from dovetail.engine.networks import network_of

FEW = Allowance("things", "things", 60.0, per_network=3, per_customer=5, for_all=9)
DOCUMENT = "https://good.example.com/client.json"
ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
KEY = ECKey.generate_key("P-256", private=True)
SIGNING = {
    "redirect_uris": [CALLBACK],
    "token_endpoint_auth_method": "private_key_jwt",
    "jwks": {"keys": [KEY.as_dict(private=False)]},
    "grant_types": ["authorization_code", "refresh_token"],
}


def held(stage: Stage) -> int:
    """How many keys the store has."""
    return len(stage.state._entries.things)


@pytest.mark.parametrize(
    ("address", "customer"),
    [
        ("203.0.113.7", None),
        (None, None),
        ("nonsense", None),
        ("::ffff:203.0.113.7", None),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("2001:db8:1:ffff::3", "2001:db8:1::/48"),
        ("2001:db8:2::3", "2001:db8:2::/48"),
    ],
)
def test_the_networks_of_one_customer(address: str | None, customer: str | None) -> None:
    assert customer_of(network_of(address or "") or "unknown") == customer


async def taken(stage: Stage, addresses: Sequence[str]) -> int:
    """How many of them were allowed."""
    refusals: list[OAuthRefusal] = []
    for address in addresses:
        try:
            await FEW.take(stage.server._marks, network_of(address))
        except OAuthRefusal as refusal:
            refusals.append(refusal)
    assert {each.status for each in refusals} <= {429}
    assert all(0 < int(each.headers["retry-after"]) <= 60 for each in refusals)
    return len(addresses) - len(refusals)


@pytest.mark.parametrize(
    ("addresses", "allowed"),
    [
        (["203.0.113.7"] * 20, 3),
        ([f"2001:db8:1:2::{number:x}" for number in range(20)], 3),
        ([f"2001:db8:1:{number:x}::1" for number in range(200)], 5),
        ([f"203.0.113.{number}" for number in range(200)], 9),
        ([f"2001:db8:{number:x}::1" for number in range(200)], 9),
    ],
    ids=["an address", "a network", "a customer", "many addresses", "many customers"],
)
async def test_it_is_bounded_and_refusals_leave_nothing_behind(addresses: list[str], allowed: int) -> None:
    stage = Stage()
    assert await taken(stage, addresses) == allowed
    assert held(stage) <= 2 * allowed + 1
    before = held(stage)
    await taken(stage, addresses)
    assert held(stage) == before
    stage.clock.now += 61
    assert await taken(stage, addresses[:1]) == 1


async def test_one_network_or_customer_leaves_something_for_others() -> None:
    stage = Stage()
    await taken(stage, ["203.0.113.7"] * 100)
    await taken(stage, [f"2001:db8:1:{number:x}::1" for number in range(100)])
    assert await taken(stage, ["198.51.100.1"]) == 1


async def test_registrations_by_strangers_are_bounded_and_go_after_a_day() -> None:
    stage = Stage()
    statuses = []
    for number in range(300):
        stage.address = f"2001:db8:{number % 10:x}:{number:x}::1"
        statuses.append((await stage.register(redirect_uris=[CALLBACK])).status)
    assert statuses.count(201) == 200
    assert statuses[200:] == [429] * 100
    assert held(stage) <= 200 + 200 + 10 + 1
    stage.clock.now += 86_401
    stage.state._entries.sweep(stage.clock.now, 10_000)
    assert held(stage) == 0


async def test_a_days_registrations_fit_into_half_of_a_memory() -> None:
    stage = Stage()
    long = [f"https://app.example.com/{number}/{'x' * 900}" for number in range(5)]
    refused = await stage.register(redirect_uris=long)
    assert (refused.status, refused.json["error"]) == (400, "invalid_client_metadata")
    assert (await stage.register(redirect_uris=long[:4])).status == 201
    a_day = 24 * registration.REGISTRATIONS.for_all
    assert a_day * (clients.MAX_RECORD + 200) < stage.state._max_entry_bytes // 2


async def test_one_customer_cannot_keep_others_from_registering() -> None:
    stage = Stage()
    for number in range(100):
        stage.address = f"2001:db8:1:{number:x}::1"
        expected = 201 if number < 60 else 429
        assert (await stage.register(redirect_uris=[CALLBACK])).status == expected
    stage.address = "198.51.100.1"
    assert (await stage.register(redirect_uris=[CALLBACK])).status == 201


# ── assertions, each of which is remembered ──


def signed(stage: Stage, id: str, number: int) -> dict[str, str]:
    now = int(stage.clock.now)
    claims = {"iss": id, "sub": id, "aud": ISSUER, "exp": now + 60, "iat": now, "jti": str(number)}
    text = jwt.encode({"alg": "ES256"}, claims, KEY, algorithms=["ES256"])
    return {"client_assertion_type": ASSERTION, "client_assertion": text}


async def publish(stage: Stage) -> str:
    async def fetch(_: FetchRequest) -> Fetched:
        body = json.dumps({**SIGNING, "client_id": DOCUMENT}).encode()
        return Fetched(status=200, headers={"content-type": "application/json"}, body=body)

    stage.server._authorization.clients._published._fetch = fetch  # type: ignore[union-attr]
    return DOCUMENT


async def register(stage: Stage) -> str:
    return str((await stage.register(**SIGNING)).json["client_id"])


@pytest.mark.parametrize("introduce", [register, publish])
async def test_a_program_that_no_user_knows_signs_little(introduce: Any) -> None:
    stage = Stage()
    id = await introduce(stage)
    most = client_proofs.OF_NEW_CLIENTS.per_network
    errors = []
    for number in range(most + 5):
        reply = await stage.token(grant_type="refresh_token", refresh_token="x", **signed(stage, id, number))
        errors.append((reply.status, reply.json["error"]))
    assert errors == [(400, "invalid_grant")] * most + [(429, "temporarily_unavailable")] * 5
    assert held(stage) <= most + 10


@pytest.mark.parametrize("introduce", [register, publish])
async def test_a_program_that_users_know_signs_as_often_as_it_likes(introduce: Any) -> None:
    stage = Stage()
    id = await introduce(stage)
    program = Program(stage, id)
    tokens = (await program.redeem(await program.code(), client_id=None, **signed(stage, id, 0))).json
    for number in range(1, client_proofs.OF_NEW_CLIENTS.per_network + 5):
        reply = await stage.token(
            grant_type="refresh_token", refresh_token=tokens["refresh_token"], **signed(stage, id, number)
        )
        assert reply.status == 200, reply.text
        tokens = reply.json
