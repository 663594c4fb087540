"""DPoP in a real fleet: a proof that one worker has seen is known to all, and so is a nonce that one has given."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from fleet_client import Reply, post
from fleet_processes import Fleet, fleet
from fleet_server import TOKEN, URL

from issuer_stage import Prover

pytestmark = pytest.mark.slow
OWNER = Prover()


@pytest.fixture(scope="module", params=["redis", pytest.param("sqlite", marks=pytest.mark.soak)])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder, claims = tmp_path_factory.mktemp(request.param), json.dumps(OWNER.bound)
    with fleet(folder, workers=2, store=request.param, DPOP_CLAIMS=claims) as pair:
        yield pair
        pair.assert_clean()


def proved(**words: Any) -> dict[str, str]:
    return OWNER.headers("POST", URL, TOKEN, **words)


async def call(http: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> Reply:
    return await post(http, url, "echo", {"nonce": "gold"}, headers)


async def nonce_of(http: aiohttp.ClientSession, url: str) -> str:
    first = await call(http, url, proved())
    assert (first.status, 'error="use_dpop_nonce"' in first.headers["WWW-Authenticate"]) == (401, True)
    return str(first.headers["DPoP-Nonce"])


def is_refused_as_used(reply: Reply) -> bool:
    challenge = reply.headers.get("WWW-Authenticate", "")
    return reply.status == 401 and 'error="invalid_dpop_proof"' in challenge and "was used before" in reply.text


async def test_a_proof_is_good_once_at_all_workers(pair: Fleet, http: aiohttp.ClientSession) -> None:
    """Also if that worker has died: what it has seen is not its own, and the nonce that it gave is still good."""
    nonce = await nonce_of(http, pair.urls[0])
    proofs = [proved(nonce=nonce) for _ in pair.urls]
    for first, headers in zip(pair.urls, proofs, strict=True):
        assert (await call(http, first, headers)).json["result"]["content"][0]["text"] == "gold"
        again = [await call(http, url, headers) for url in (*pair.urls, pair.url)]
        assert all(map(is_refused_as_used, again)), again
    await asyncio.to_thread(pair.workers[0].kill)
    assert is_refused_as_used(await call(http, pair.urls[1], proofs[0]))
    await asyncio.to_thread(pair.workers[0].start)
    assert is_refused_as_used(await call(http, pair.urls[0], proofs[0]))
    for url in (*pair.urls, pair.url):
        assert (await call(http, url, proved(nonce=nonce))).status == 200
        for guess in ("", "guess", nonce[:-1], f"{nonce}x"):
            assert (await call(http, url, proved(nonce=guess))).status == 401


async def test_of_many_at_once_one_gets_in(pair: Fleet, http: aiohttp.ClientSession) -> None:
    nonce = await nonce_of(http, pair.url)
    for _ in range(10):
        headers = proved(nonce=nonce)
        replies = await asyncio.gather(*(call(http, url, headers) for url in pair.urls * 4))
        assert sorted(reply.status for reply in replies) == [200] + [401] * (len(replies) - 1)
        assert sum(map(is_refused_as_used, replies)) == len(replies) - 1
