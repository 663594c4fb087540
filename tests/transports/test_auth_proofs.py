"""Tokens that are bound to a key, over HTTP: each request comes with a proof of it."""

import base64
import hashlib
import json
import secrets
import time

from door_stage import bearer, notes
from joserfc import jwk, jws

from dovetail.auth import Principal
from http_serving import serving
from http_stage import text_of
from http_wire import HttpWire

KEY = jwk.ECKey.generate_key("P-256")
BOUND = Principal(subject="ann", scopes=frozenset({"notes:read"}), claims={"cnf": {"jkt": KEY.thumbprint()}})
FREE = Principal(subject="bob", scopes=frozenset({"notes:read"}))


async def verify_bound(token: str) -> Principal | None:
    return {"bound": BOUND, "free": FREE}.get(token)


def proof(method: str = "POST", url: str = "http://localhost:8000/mcp", token: str = "bound") -> str:
    header = {"typ": "dpop+jwt", "alg": "ES256", "jwk": KEY.as_dict(private=False)}
    digest = base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=").decode()
    said = {"jti": secrets.token_hex(), "htm": method, "htu": url, "iat": int(time.time()), "ath": digest}
    return jws.serialize_compact(header, json.dumps(said).encode(), KEY)


def dpop(text: str | None = None, token: str = "bound") -> dict[str, str | None]:
    return {"authorization": f"DPoP {token}", "dpop": proof(token=token) if text is None else text}


async def test_a_bound_token_comes_with_a_proof_for_each_request() -> None:
    async with serving(notes(verify_bound, dpop="optional")) as app:
        used = dpop()
        assert text_of((await HttpWire(app, headers=used).call("whoami")).answer) == "ann"
        assert text_of((await HttpWire(app, headers=dpop()).call("whoami")).answer) == "ann"
        for headers, error in (
            (used, "invalid_dpop_proof"),
            (dpop(proof("GET")), "invalid_dpop_proof"),
            (dpop(proof(url="http://localhost:8000/other")), "invalid_dpop_proof"),
            ({"authorization": "DPoP bound"}, "invalid_dpop_proof"),
            (dpop("nonsense"), "invalid_dpop_proof"),
            (dpop(token="free"), "invalid_token"),
            (bearer("bound"), "invalid_token"),
        ):
            refused = await HttpWire(app, headers=headers).post("tools/list")
            assert refused.status == 401
            told = [value.decode() for name, value in refused.sent[0]["headers"] if name == b"www-authenticate"]
            assert [each.partition(" ")[0] for each in told] == ["Bearer", "DPoP"]
            assert f'error="{error}"' in told[1]
            assert 'algs="ES256' in told[1]
            assert (f'error="{error}"' in told[0]) == (error == "invalid_token")
        assert text_of((await HttpWire(app, headers=bearer("free")).call("whoami")).answer) == "bob"


async def test_proofs_can_be_required() -> None:
    async with serving(notes(verify_bound, dpop="required"), public_url="https://notes.example.com/mcp") as app:
        for _ in range(2):
            refused = await HttpWire(app, headers=bearer("free")).post("tools/list")
            assert refused.status == 401
            assert refused.headers["www-authenticate"].startswith("DPoP ")
        outside = proof(url="https://notes.example.com/mcp")  # as the client sees it
        assert (await HttpWire(app, headers=dpop(outside)).post("tools/list")).status == 200
        assert (await HttpWire(app, headers=dpop()).post("tools/list")).status == 401
