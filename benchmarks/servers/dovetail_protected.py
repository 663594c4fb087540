"""Dovetail over HTTP for callers with a key or a token; for every caller, where BENCH_AUTH says neither."""

import json
import os
import sys
from typing import Any

from benchmarks.servers import offered

from dovetail import Server
from dovetail.auth import ApiKeys, Jwt


def _verifier() -> Any:
    kind = os.environ.get("BENCH_AUTH")
    if kind == "api key":
        return ApiKeys({"bench": os.environ["BENCH_KEY"]}, scopes=["add"])
    if kind == "jwt":
        issuer, audience = os.environ["BENCH_ISSUER"], os.environ["BENCH_AUDIENCE"]
        return Jwt(issuer, audience=audience, jwks=json.loads(os.environ["BENCH_JWKS"]))
    return None


server = Server("bench", version="1.0.0", auth=_verifier())
server.add_tool(offered.called())

if __name__ == "__main__":
    server.run("http", port=int(sys.argv[1]))
